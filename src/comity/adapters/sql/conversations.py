"""Conversations in tables: each step is one short transaction, and none waits for the records'.

Whoever begins a turn locks its conversation, so that turns are numbered in the order in which they
are begun. Whoever claims takes only rows that nobody else has locked.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Select, Update, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.adapters.kept_turns import checked
from comity.adapters.sql.database import Database, Product, Row
from comity.adapters.sql.tables_conversations import CONVERSATIONS, TURNS
from comity.ports.conversations import OPEN, PAGE, Facts, KeptTurn, State
from comity.ports.models import Step
from comity.rules import keeping
from comity.wire.contents import Block

_KEPT: Final = [
    *(TURNS.c.number, TURNS.c.id, TURNS.c.cause, TURNS.c.conversation, TURNS.c.place),
    *(TURNS.c.errand, TURNS.c.content, TURNS.c.at, TURNS.c.state, TURNS.c.attempts),
    *(TURNS.c.steps, TURNS.c.said, TURNS.c.thinking, TURNS.c.facts, TURNS.c.ended_at),
]
_REMEMBERED: Final = (State.DONE, State.WITHHELD)
_NOTHING: Final = "[]"
_blocks: Final = msgspec.json.Decoder(tuple[Block, ...])
_steps: Final = msgspec.json.Decoder(tuple[Step, ...])
_facts: Final = msgspec.json.Decoder(Facts)


class SqlConversations:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def begin(self, turn: KeptTurn) -> KeptTurn:
        turn = checked(turn)
        begun = await self._known(turn) or await self._begin(turn)
        # Somebody else began it meanwhile, in another conversation, and so was not waited for.
        found = begun or await self._known(turn)
        assert found is not None
        return found

    async def _known(self, turn: KeptTurn) -> KeptTurn | None:
        wanted = select(*_KEPT).where(TURNS.c.cause_id == _digest(turn.cause))
        return next(iter(await self._several(wanted)), None)

    async def _begin(self, turn: KeptTurn) -> KeptTurn | None:
        first = self._product.insert(CONVERSATIONS).values(id=turn.conversation, turns=0)
        of_it = CONVERSATIONS.c.id == turn.conversation
        async with self._database.beside() as connection:
            await connection.execute(first.on_conflict_do_nothing())
            locked = select(CONVERSATIONS.c.turns).where(of_it).with_for_update()
            place: int = (await connection.execute(locked)).scalar_one()
            new = self._product.insert(TURNS).values(_row(turn, place))
            added = new.on_conflict_do_nothing(index_elements=["cause_id"]).returning(*_KEPT)
            row = (await connection.execute(added)).first()
            if row is not None:
                moved = update(CONVERSATIONS).where(of_it).values(turns=place + 1)
                await connection.execute(moved)
        return None if row is None else _turn(row)

    async def get(self, id: str) -> KeptTurn | None:
        if not keeping.is_name(id):
            return None
        return next(iter(await self._several(select(*_KEPT).where(TURNS.c.id == id))), None)

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[KeptTurn]:
        now, until = keeping.certain(now), keeping.certain(until)
        earlier = TURNS.alias("earlier")
        is_behind = exists().where(
            earlier.c.conversation == TURNS.c.conversation,
            earlier.c.place < TURNS.c.place,
            earlier.c.due_at.is_not(None),
        )
        is_free = or_(TURNS.c.claimed_until.is_(None), TURNS.c.claimed_until <= now)
        first = select(TURNS.c.id).where(TURNS.c.due_at <= now, is_free, ~is_behind)
        first = first.order_by(TURNS.c.number).limit(limit)
        async with self._database.reading() as connection:
            # This is asked all the time: no writer is kept waiting where nothing is due.
            if (await connection.execute(first.limit(1))).first() is None:
                return []
        async with self._database.beside() as connection:
            ids = (await connection.execute(first.with_for_update(skip_locked=True))).scalars()
            claimed: Row = {"claimed_by": holder, "claimed_until": until}
            taken = (
                update(TURNS)
                .where(TURNS.c.id.in_(ids.all()))
                .values({**claimed, "attempts": TURNS.c.attempts + 1})
                .returning(*_KEPT)
            )
            found = [_turn(row) for row in await connection.execute(taken)]
        return sorted(found, key=lambda turn: turn.number)

    async def renew(self, holder: str, id: str, until: datetime) -> bool:
        held = update(TURNS).where(TURNS.c.id == id, TURNS.c.claimed_by == holder)
        return await self._changed(held.values(claimed_until=keeping.certain(until)))

    async def write(self, holder: str, turn: KeptTurn, again_at: datetime | None = None) -> bool:
        turn = checked(turn)
        changed: Row = {
            "state": turn.state,
            "steps": _written(turn.steps),
            "said": _written(turn.said),
            "thinking": turn.thinking,
            "facts": _written(turn.facts),
            "ended_at": turn.ended_at,
        }
        if again_at is not None or turn.state not in OPEN:
            due = keeping.moment(again_at) if turn.state in OPEN else None
            changed |= {"due_at": due, "claimed_by": "", "claimed_until": None}
        held = update(TURNS).where(TURNS.c.id == turn.id, TURNS.c.claimed_by == holder)
        return await self._changed(held.values(changed))

    async def abandon(self, holders: str) -> None:
        theirs = TURNS.c.claimed_by.startswith(holders, autoescape=True)
        await self._changed(update(TURNS).where(theirs).values(claimed_by="", claimed_until=None))

    async def history(self, conversation: str, before: int, limit: int) -> Sequence[KeptTurn]:
        if not keeping.is_name(conversation):
            return []
        of_it = (TURNS.c.conversation == conversation, TURNS.c.place < before)
        said = (TURNS.c.state.in_(_REMEMBERED), TURNS.c.steps != _NOTHING)
        wanted = select(*_KEPT).where(*of_it, *said).order_by(TURNS.c.place.desc())
        return await self._several(wanted.limit(limit))

    async def page(
        self, before: int = 0, limit: int = PAGE, conversation: str = ""
    ) -> Sequence[KeptTurn]:
        wanted = select(*_KEPT).order_by(TURNS.c.number.desc()).limit(limit)
        if before:
            wanted = wanted.where(TURNS.c.number < before)
        if conversation:
            if not keeping.is_name(conversation):
                return []
            wanted = wanted.where(TURNS.c.conversation == conversation)
        return await self._several(wanted)

    async def prune(self, ended_before: datetime) -> int:
        is_full = or_(*(TURNS.c[name] != _NOTHING for name in ("content", "steps", "said")))
        old = (TURNS.c.ended_at < keeping.certain(ended_before), is_full)
        async with self._database.reading() as connection:
            if (await connection.execute(select(TURNS.c.id).where(*old).limit(1))).first() is None:
                return 0
        emptied = {"content": _NOTHING, "steps": _NOTHING, "said": _NOTHING, "thinking": ""}
        async with self._database.beside() as connection:
            done = await connection.execute(update(TURNS).where(*old).values(emptied))
        return done.rowcount

    async def _changed(self, statement: Update) -> bool:
        async with self._database.beside() as connection:
            return await _count(connection, statement) > 0

    async def _several(self, wanted: Select[Any]) -> list[KeptTurn]:
        async with self._database.reading() as connection:
            return [_turn(row) for row in await connection.execute(wanted)]


async def _count(connection: AsyncConnection, statement: Update) -> int:
    return (await connection.execute(statement)).rowcount


def _digest(cause: str) -> str:
    return hashlib.sha256(cause.encode(errors="surrogatepass")).hexdigest()


def _written(anything: object) -> str:
    return msgspec.json.encode(anything).decode()


def _row(turn: KeptTurn, place: int) -> Row:
    return {
        "id": turn.id,
        "cause_id": _digest(turn.cause),
        "cause": keeping.words(turn.cause),
        "conversation": turn.conversation,
        "place": place,
        "errand": _written(turn.errand),
        "content": _written(turn.content),
        "at": turn.at,
        "state": turn.state,
        "attempts": 0,
        "steps": _written(turn.steps),
        "said": _written(turn.said),
        "thinking": "",
        "facts": _written(turn.facts),
        "due_at": turn.at,
        "claimed_by": "",
    }


def _turn(row: Sequence[Any]) -> KeptTurn:
    number, id, cause, conversation, place, errand, content, at, state, attempts, *rest = row
    steps, said, thinking, facts, ended_at = rest
    return KeptTurn(
        *(id, cause, conversation, msgspec.json.decode(errand), _blocks.decode(content), at),
        *(place, State(state), attempts, _steps.decode(steps), _blocks.decode(said), thinking),
        *(_facts.decode(facts), ended_at, number),
    )
