"""The SQL store of turns and conversations, and its tables."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    Select,
    Table,
    Text,
    UniqueConstraint,
    insert,
    or_,
    select,
    update,
)

from comity.inference.messages import ContentBlock
from comity.inference.model import ConversationStep
from comity.live.turns.model import (
    OPEN,
    TURN_PAGE,
    StoredTurn,
    TurnFacts,
    TurnHookTexts,
    TurnState,
)
from comity.storage import values
from comity.storage.database import METADATA, NUMBER, DatabaseBackend, Row, SqlDatabase, UtcDateTime
from comity.storage.work_queue import JOBS, SqlWorkQueue
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob

TURN_JOBS: Final = "turn"

CONVERSATIONS = Table(
    "comity_conversations",
    METADATA,
    Column("id", Text, primary_key=True),
    # The number of turns, which is also the index of the next one.
    Column("turns", Integer, nullable=False),
)

TURNS = Table(
    "comity_turns",
    METADATA,
    # The turn's job in the work queue holds its claim, its schedule and its attempts.
    Column(
        "number", NUMBER, ForeignKey("comity_jobs.number"), primary_key=True, autoincrement=False
    ),
    Column("id", Text, nullable=False, unique=True),
    Column("cause", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("errand", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("state", Text, nullable=False),
    Column("steps", Text, nullable=False),
    Column("said", Text, nullable=False),
    Column("thinking", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("hook_texts", Text, nullable=False),
    Column("ended_at", UtcDateTime),
    UniqueConstraint("conversation", "place", name="comity_turns_in_order"),
    Index("comity_turns_ended", "ended_at"),
)


_TURN_COLUMNS: Final = [
    *(TURNS.c.number, TURNS.c.id, TURNS.c.cause, TURNS.c.conversation, TURNS.c.place),
    *(TURNS.c.errand, TURNS.c.content, TURNS.c.at, TURNS.c.state, JOBS.c.attempts),
    *(TURNS.c.steps, TURNS.c.said, TURNS.c.thinking, TURNS.c.facts, TURNS.c.hook_texts),
    TURNS.c.ended_at,
]
_TURNS_WITH_JOBS: Final = TURNS.join(JOBS, JOBS.c.number == TURNS.c.number)
_HISTORY_STATES: Final = (TurnState.DONE, TurnState.WITHHELD)
_EMPTY_LIST: Final = "[]"
_NO_HOOK_TEXTS: Final = "{}"
_blocks: Final = msgspec.json.Decoder(tuple[ContentBlock, ...])
_steps: Final = msgspec.json.Decoder(tuple[ConversationStep, ...])
_facts: Final = msgspec.json.Decoder(TurnFacts)
_hook_texts: Final = msgspec.json.Decoder(TurnHookTexts)


class SqlConversations:
    """Stores turns. Each turn has one job, whose key is a digest of its cause."""

    def __init__(self, database: SqlDatabase, backend: DatabaseBackend, jobs: SqlWorkQueue) -> None:
        self.jobs = jobs
        self._database = database
        self._backend = backend

    async def begin(self, turn: StoredTurn) -> StoredTurn:
        turn = validate_turn(turn)
        begun = await self._find_by_cause(turn) or await self._begin(turn)
        # Another node queued it meanwhile in another conversation, whose lock is a different one.
        found = begun or await self._find_by_cause(turn)
        assert found is not None
        return found

    async def _find_by_cause(self, turn: StoredTurn) -> StoredTurn | None:
        wanted = _select_turns().where(JOBS.c.kind == TURN_JOBS, JOBS.c.key == _digest(turn.cause))
        return next(iter(await self._fetch(wanted)), None)

    async def _begin(self, turn: StoredTurn) -> StoredTurn | None:
        first = self._backend.insert(CONVERSATIONS).values(id=turn.conversation, turns=0)
        of_it = CONVERSATIONS.c.id == turn.conversation
        new = QueuedJob(_digest(turn.cause), turn.at, turn.at, turn.conversation)
        async with self._database.beside() as connection:
            await connection.execute(first.on_conflict_do_nothing())
            # The lock makes the turns of one conversation enter the queue in order.
            locked = select(CONVERSATIONS.c.turns).where(of_it).with_for_update()
            place: int = (await connection.execute(locked)).scalar_one()
            job = await self.jobs.add_in(connection, new)
            if job is None:
                return None
            await connection.execute(insert(TURNS).values(_row(turn, place, job.number)))
            await connection.execute(update(CONVERSATIONS).where(of_it).values(turns=place + 1))
        return replace(turn, index=place, number=job.number)

    async def get(self, id: str) -> StoredTurn | None:
        if not values.is_name(id):
            return None
        return next(iter(await self._fetch(_select_turns().where(TURNS.c.id == id))), None)

    async def read(self, job: QueuedJob) -> StoredTurn | None:
        found = await self._fetch(_select_turns().where(TURNS.c.number == job.number))
        return next(iter(found), None)

    async def write(self, job: QueuedJob, turn: StoredTurn) -> bool:
        if turn.state in OPEN:
            return await self._write(job, turn, None)
        state = JobState.FAILED if turn.state is TurnState.FAILED else JobState.DONE
        return await self._write(job, turn, JobOutcome(state, turn.ended_at or turn.at))

    async def retry(self, job: QueuedJob, turn: StoredTurn, due_at: datetime) -> bool:
        return await self._write(job, turn, JobOutcome(JobState.WAITING, due_at))

    async def _write(self, job: QueuedJob, turn: StoredTurn, outcome: JobOutcome | None) -> bool:
        turn = validate_turn(turn)
        changed: Row = {
            "state": turn.state,
            "steps": _encode(turn.steps),
            "said": _encode(turn.said),
            "thinking": turn.thinking,
            "facts": _encode(turn.facts),
            "hook_texts": _encode(turn.hook_texts),
            "ended_at": turn.ended_at,
        }
        async with self._database.beside() as connection:
            is_held = (
                await self.jobs.lock_in(connection, job)
                if outcome is None
                else await self.jobs.settle_in(connection, job, outcome)
            )
            if is_held:
                own = update(TURNS).where(TURNS.c.number == job.number)
                await connection.execute(own.values(changed))
        return is_held

    async def history(self, conversation: str, before: int, limit: int) -> Sequence[StoredTurn]:
        if not values.is_name(conversation):
            return []
        of_it = (TURNS.c.conversation == conversation, TURNS.c.place < before)
        said = (TURNS.c.state.in_(_HISTORY_STATES), TURNS.c.steps != _EMPTY_LIST)
        wanted = _select_turns().where(*of_it, *said).order_by(TURNS.c.place.desc())
        return await self._fetch(wanted.limit(limit))

    async def page(
        self, before: int = 0, limit: int = TURN_PAGE, conversation: str = ""
    ) -> Sequence[StoredTurn]:
        wanted = _select_turns().order_by(TURNS.c.number.desc()).limit(limit)
        if before:
            wanted = wanted.where(TURNS.c.number < before)
        if conversation:
            if not values.is_name(conversation):
                return []
            wanted = wanted.where(TURNS.c.conversation == conversation)
        return await self._fetch(wanted)

    async def prune(self, ended_before: datetime) -> int:
        is_full = or_(*(TURNS.c[name] != _EMPTY_LIST for name in ("content", "steps", "said")))
        old = (TURNS.c.ended_at < values.to_utc(ended_before), is_full)
        async with self._database.reading() as connection:
            if (await connection.execute(select(TURNS.c.id).where(*old).limit(1))).first() is None:
                return 0
        emptied = {
            "content": _EMPTY_LIST,
            "steps": _EMPTY_LIST,
            "said": _EMPTY_LIST,
            "thinking": "",
            "hook_texts": _NO_HOOK_TEXTS,
        }
        async with self._database.beside() as connection:
            done = await connection.execute(update(TURNS).where(*old).values(emptied))
        return done.rowcount

    async def _fetch(self, statement: Select[Any]) -> list[StoredTurn]:
        async with self._database.reading() as connection:
            return [_turn(row) for row in await connection.execute(statement)]


def _select_turns() -> Select[Any]:
    return select(*_TURN_COLUMNS).select_from(_TURNS_WITH_JOBS)


def _digest(cause: str) -> str:
    return hashlib.sha256(cause.encode(errors="surrogatepass")).hexdigest()


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _row(turn: StoredTurn, place: int, number: int) -> Row:
    return {
        "number": number,
        "id": turn.id,
        "cause": values.clean_words(turn.cause),
        "conversation": turn.conversation,
        "place": place,
        "errand": _encode(turn.request_fields),
        "content": _encode(turn.content),
        "at": turn.at,
        "state": turn.state,
        "steps": _encode(turn.steps),
        "said": _encode(turn.said),
        "thinking": "",
        "facts": _encode(turn.facts),
        "hook_texts": _NO_HOOK_TEXTS,
    }


def _turn(row: Sequence[Any]) -> StoredTurn:
    number, id, cause, conversation, place, errand, content, at, state, attempts, *rest = row
    steps, said, thinking, facts, hook_texts, ended_at = rest
    return StoredTurn(
        id,
        cause,
        conversation,
        msgspec.json.decode(errand),
        _blocks.decode(content),
        at,
        place,
        TurnState(state),
        attempts,
        _steps.decode(steps),
        _blocks.decode(said),
        thinking,
        _facts.decode(facts),
        _hook_texts.decode(hook_texts),
        ended_at,
        number,
    )


def validate_turn(turn: StoredTurn) -> StoredTurn:
    """Return a turn that can be stored. Raises MalformedMessage."""
    values.check_name(turn.id, "an inference's id")
    values.check_name(turn.conversation, "a conversation's name")
    values.check_name(turn.cause, "the cause of a turn")
    facts = replace(turn.facts, error=values.clean_words(turn.facts.error))
    ended_at = values.to_optional_utc(turn.ended_at)
    thinking = values.clean_words(turn.thinking)
    return replace(
        turn, at=values.to_utc(turn.at), facts=facts, ended_at=ended_at, thinking=thinking
    )
