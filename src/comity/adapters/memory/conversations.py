"""Conversations in memory: for tests, and for one node that keeps nothing beyond its end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from comity.adapters.kept_turns import checked
from comity.ports.conversations import PAGE, KeptTurn, State


@dataclass(slots=True)
class _Slot:
    """One turn, when it is due, and who has it."""

    turn: KeptTurn
    due_at: datetime
    holder: str = ""
    held_until: datetime | None = None

    def is_free(self, now: datetime) -> bool:
        return self.due_at <= now and (self.held_until is None or self.held_until <= now)


class MemoryConversations:
    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}
        self._of_causes: dict[str, str] = {}
        self._conversations: dict[str, list[str]] = {}
        self._number = 0
        # In the order in which they began; only these are looked through for what is due.
        self._open: dict[str, None] = {}

    async def begin(self, turn: KeptTurn) -> KeptTurn:
        turn = checked(turn)
        known = self._of_causes.get(turn.cause)
        if known is not None:
            return self._slots[known].turn
        own = self._conversations.setdefault(turn.conversation, [])
        self._number += 1
        turn = replace(turn, index=len(own), number=self._number)
        own.append(turn.id)
        self._of_causes[turn.cause] = turn.id
        self._slots[turn.id] = _Slot(turn, turn.at)
        self._open[turn.id] = None
        return turn

    async def get(self, id: str) -> KeptTurn | None:
        found = self._slots.get(id)
        return None if found is None else found.turn

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[KeptTurn]:
        claimed: list[KeptTurn] = []
        busy: set[str] = set()
        for id in list(self._open):
            if len(claimed) == limit:
                break
            slot = self._slots[id]
            is_first = slot.turn.conversation not in busy
            busy.add(slot.turn.conversation)
            if is_first and slot.is_free(now):
                slot.holder, slot.held_until = holder, until
                slot.turn = replace(slot.turn, attempts=slot.turn.attempts + 1)
                claimed.append(slot.turn)
        return claimed

    async def renew(self, holder: str, id: str, until: datetime) -> bool:
        slot = self._slots.get(id)
        if slot is None or slot.holder != holder:
            return False
        slot.held_until = until
        return True

    async def write(self, holder: str, turn: KeptTurn, again_at: datetime | None = None) -> bool:
        slot = self._slots.get(turn.id)
        if slot is None or slot.holder != holder:
            return False
        turn = checked(turn)
        slot.turn = replace(
            slot.turn,
            state=turn.state,
            steps=turn.steps,
            said=turn.said,
            thinking=turn.thinking,
            facts=turn.facts,
            ended_at=turn.ended_at,
        )
        if not turn.state.is_open:
            self._open.pop(turn.id, None)
        if again_at is not None or not turn.state.is_open:
            slot.holder, slot.held_until = "", None
        slot.due_at = slot.due_at if again_at is None else again_at
        return True

    async def abandon(self, holders: str) -> None:
        for id in self._open:
            slot = self._slots[id]
            if slot.holder.startswith(holders):
                slot.holder, slot.held_until = "", None

    async def history(self, conversation: str, before: int, limit: int) -> Sequence[KeptTurn]:
        turns = [self._slots[id].turn for id in self._conversations.get(conversation, [])]
        said = [each for each in turns if each.index < before and _is_remembered(each)]
        return said[::-1][:limit]

    async def page(
        self, before: int = 0, limit: int = PAGE, conversation: str = ""
    ) -> Sequence[KeptTurn]:
        turns = [each.turn for each in reversed(self._slots.values())]
        wanted = [
            each
            for each in turns
            if (not before or each.number < before) and conversation in ("", each.conversation)
        ]
        return wanted[:limit]

    async def prune(self, ended_before: datetime) -> int:
        old = [
            slot
            for slot in self._slots.values()
            if slot.turn.ended_at is not None
            and slot.turn.ended_at < ended_before
            and (slot.turn.content or slot.turn.steps or slot.turn.said)
        ]
        for slot in old:
            slot.turn = replace(slot.turn, content=(), steps=(), said=(), thinking="")
        return len(old)


def _is_remembered(turn: KeptTurn) -> bool:
    return turn.state in (State.DONE, State.WITHHELD) and bool(turn.steps)
