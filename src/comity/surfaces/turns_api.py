"""Turns at /api/turns: say something to a model, follow what it answers, see the last turns.

Whoever may administer the gateway may see all of them. Whoever was granted `turn/take` may say
something in the conversations that the grant names, and see its own.
"""

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from comity.kernel.grants import Judge
from comity.kernel.live.parts import Cause, Errand, Origin
from comity.kernel.live.turns import TurnTaker
from comity.ports.conversations import PAGE, KeptTurn
from comity.surfaces.asked import Asked, Room, View
from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in, text_of
from comity.wire.errors import ACCESS_DENIED, INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, Effect
from comity.wire.parties import Actor

TAKE: Final = "turn/take"
PLACES: Final = "conversations"
MAIN: Final = "main"
LONGEST_WAIT: Final = timedelta(seconds=20)
_MOST_PLACES: Final = 16


class TurnsApi:
    def __init__(self, turns: TurnTaker, judge: Judge, party: str) -> None:
        self._turns = turns
        self._judge = judge
        self._party = party

    @property
    def rooms(self) -> dict[str, Room]:
        return {"turns": self.turns}

    async def turns(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return await self._list(asked)
            case "POST", ():
                return await self._begin(asked)
            case "GET", (id,):
                return await self._follow(asked, id)
            case _:
                raise MalformedMessage("there is no such address under /api/turns", NOTHING_HERE)

    async def _begin(self, asked: Asked) -> View:
        body, actor = asked.body, asked.actor
        conversation = _text(body, "conversation", MAIN)
        self._demand(actor, conversation)
        places = _places(body)
        if places and not self._may(actor, ADMIN_WRITE):
            raise MalformedMessage("where a model speaks is for operators to say", ACCESS_DENIED)
        key = _text(body, "key", secrets.token_hex(16))
        cause = Cause(Origin.REQUEST, f"request/{actor.party}/{key}", self._party)
        errand = Errand(cause, conversation, _content(body), actor.party, places)
        taken = await self._turns.begin(errand)
        return {
            "id": taken.inference,
            "conversation": taken.conversation,
            "is_new": taken.is_new,
        }

    async def _list(self, asked: Asked) -> View:
        before, conversation = _number(asked.query, "before"), asked.query.get("conversation", "")
        page = await self._turns.records.page(before, PAGE, conversation)
        shown = [_view(each) for each in page if self._sees(asked.actor, each)]
        listed: dict[str, object] = {"turns": shown}
        return listed if len(page) < PAGE else {**listed, "next": page[-1].number}

    async def _follow(self, asked: Asked, id: str) -> View:
        """One turn, with what it has said beyond what is known; waits for more, but not long."""
        turn = await self._turns.records.get(id)
        if turn is None or not self._sees(asked.actor, turn):
            raise MalformedMessage(f"there is no turn {id!r:.80}", NOTHING_HERE)
        known = _number(asked.query, "after")
        wait = timedelta(seconds=_number(asked.query, "wait"))
        turn, words = await self._turns.so_far(id, known, min(wait, LONGEST_WAIT))
        return {**_view(turn), "words": words, "is_over": not turn.state.is_open}

    def _sees(self, actor: Actor, turn: KeptTurn) -> bool:
        return turn.errand.get("author") == actor.party or self._may(actor, ADMIN_READ)

    def _may(self, actor: Actor, verb: str) -> bool:
        return self._judge.judge(actor, verb, "", "").effect is Effect.ALLOW

    def _demand(self, actor: Actor, conversation: str) -> None:
        judged = self._judge.judge(actor, TAKE, PLACES, conversation)
        if judged.effect is not Effect.ALLOW and not self._may(actor, ADMIN_WRITE):
            who = actor.party or "nobody"
            raise MalformedMessage(
                f"{who} has no grant of {TAKE} on {PLACES}/{conversation:.80}", ACCESS_DENIED
            )


def _view(turn: KeptTurn) -> dict[str, object]:
    errand, facts = turn.errand, turn.facts
    return {
        "id": turn.id,
        "conversation": turn.conversation,
        "turn": turn.index,
        "state": turn.state,
        "cause": {"origin": errand["origin"], "key": turn.cause, "server": errand["server"]},
        "author": errand["author"],
        "party": errand["party"],
        "said_in": errand["say_in"],
        "model": facts.model or None,
        "usage": facts.usage.on_wire(),
        "injected": list(facts.injected),
        "rewrote": list(facts.rewrote),
        "tools_used": facts.tools,
        "attempts": turn.attempts,
        "error": facts.error or None,
        "asked": text_of(turn.content),
        "said": text_of(turn.said) or None,
        "at": turn.at,
        "ended_at": turn.ended_at,
    }


def _text(body: Mapping[str, object], name: str, otherwise: str) -> str:
    found = body.get(name, otherwise)
    if not isinstance(found, str) or not found:
        raise MalformedMessage(f"{name} is a text", INVALID_PARAMS)
    return found


def _content(body: Mapping[str, object]) -> Content:
    """What is said; nothing has the model go on."""
    found = body.get("content", body.get("text"))
    return () if found is None else content_in(jsonrpc.to_raw(found), "what is said")


def _places(body: Mapping[str, object]) -> tuple[str, ...]:
    found = body.get("say_in", [])
    if not isinstance(found, list):
        raise MalformedMessage("say_in is a list of places, as topic:NAME", INVALID_PARAMS)
    listed: list[object] = found  # pyright: ignore[reportUnknownVariableType]  # JSON: any values
    places = tuple(each for each in listed if isinstance(each, str))
    if len(places) != len(listed) or len(places) > _MOST_PLACES:
        raise MalformedMessage("say_in is a list of places, as topic:NAME", INVALID_PARAMS)
    return places


def _number(query: Mapping[str, str], name: str) -> int:
    written = query.get(name, "0")
    if not written.isdecimal() or len(written) > 15:
        raise MalformedMessage(f"{name} is a number", INVALID_PARAMS)
    return int(written)
