"""What is written down of calls: that they are about to leave, and how they ended. (design §3)

Rule 1: of a call of risk moderate or above the intent is kept before it leaves, and the outcome
        before its answer goes to the client. A safe call waits for neither.
        Where somebody elsewhere was promised to hear of it, its answer waits a while for that.
Rule 2: every call of a tool is in the journal, also one that was refused before anybody looked at
        it; so are reads of resources and prompts. What only lists or listens is not.
Rule 3: arguments are a digest and, where the policy says so, a copy without secrets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.catalog_access import Standing
from comity.kernel.journal import RETRY_AFTER, Journal
from comity.kernel.tallies import CANCELLED, OK, name_in
from comity.rules.asks import arguments_digest
from comity.rules.refusals import Refusal
from comity.rules.secret_forms import without_secrets
from comity.rules.validators import CODE_SAFETY
from comity.wire import mcp
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import (
    CODE_UNSAFE,
    CUT_OFF,
    INTERRUPTED,
    INVALID_TOOL_ARGS,
    JOURNAL_AWAY,
    TIMEOUT,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    VALIDATION_BLOCKED,
    Fault,
    Unavailable,
)
from comity.wire.security import Risk

MOST_REMEMBERED: Final = 10_000
RECORDED: Final = frozenset({mcp.CALL_TOOL, mcp.READ_RESOURCE, mcp.GET_PROMPT})
_OF_FAULT: Final[Mapping[Fault, Type]] = {
    VALIDATION_BLOCKED: Type.VALIDATION_FAILED,
    INVALID_TOOL_ARGS: Type.VALIDATION_FAILED,
    CODE_UNSAFE: Type.CODE_REJECTED,
}
_MAY_HAVE_RUN: Final = frozenset(
    {INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, UPSTREAM_DOWN, CUT_OFF}
)
_FULL: Final = Refusal(
    JOURNAL_AWAY, "too much waits to be written down already; nothing was done", RETRY_AFTER
)

_LEFT: Final = (Type.CALL_INTENDED, Result.PENDING)
_WITHDRAWN: Final = Refusal(TIMEOUT, "the client withdrew its call before it left")

type Redact = Callable[[object], object]
type Known = Callable[[str, str], tuple[Risk, Sequence[str]] | None]


def _unknown(server: str, tool: str) -> None:
    """Nobody has looked at tools."""


class Arguments(StrEnum):
    """Of which calls the arguments are kept, without their secrets; a digest is kept of all."""

    NONE = "none"
    RISKY = "risky"
    ALL = "all"


@dataclass(slots=True)
class CallRecord:
    """What is known of a call that the gate has let through."""

    id: str
    server: str
    tool: str
    risk: Risk
    details: dict[str, object] = field(default_factory=dict[str, object])
    has_left: bool = False
    must_be_kept: bool = True


class Recorder:
    """Writes into the journal what calls do; the journal keeps it."""

    def __init__(
        self, journal: Journal, redact: Redact, arguments: Arguments, key: bytes = b""
    ) -> None:
        self._journal = journal
        self._redact = redact
        self._arguments = arguments
        # Digests are keyed: without it nobody can guess an argument by its digest.
        self._key = key
        # How risky a tool is, and which validators look at its arguments, where that is known.
        self.known: Known = _unknown
        # Told of each call that leaves, while anybody wants to know.
        self.left: Callable[[Event], None] | None = None
        # Whether somebody was promised to hear of it: then it is kept before the answer goes.
        self.is_awaited: Callable[[Event], bool] = lambda _: False
        self._said: dict[tuple[str, str], tuple[Standing, Mapping[str, object]]] = {}
        self._run = ""
        self._calls = 0

    def begin_run(self, name: str) -> None:
        """Take a name that no other run has: calls are named after it."""
        self._run = name

    def intend(
        self, call: Call, offer: Offer, standing: Standing, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        if not self._journal.has_room:
            return _FULL
        record = self._record_of(call, offer, standing, arguments)
        if not self._waits(record):
            record.has_left = True
            if record.must_be_kept:
                self._journal.note(self._event(call, record, _LEFT, record.details))
            if self.left is not None:
                self.left(self._event(call, record, _LEFT, {}))
            return None
        return self._kept(call, record)

    def missed(self, call: Call) -> None:
        """It has not left after all: what was intended is off, and it begins anew."""
        record, call.record = call.record, None
        if isinstance(record, CallRecord) and record.must_be_kept:
            said = {"outcome": "not_run", "reason": "another call used the approval"}
            self._journal.note(self._event(call, record, (Type.TOOL_BLOCKED, Result.BLOCKED), said))

    def _record_of(
        self, call: Call, offer: Offer, standing: Standing, arguments: object
    ) -> CallRecord:
        """What is known of a call, by a name of its own."""
        self._calls += 1
        name, risk = f"{self._run}-{self._calls:x}", standing.risk
        record = CallRecord(name, offer.server, offer.name, risk)
        # What somebody said yes to is done at most once, however harmless it is.
        record.must_be_kept = risk is not Risk.SAFE or bool(call.answered_by)
        record.details |= self._said_of(offer, standing)
        record.details["arguments_digest"] = arguments_digest(arguments, self._key)
        if self._arguments is Arguments.ALL or (
            record.must_be_kept and self._arguments is Arguments.RISKY
        ):
            record.details["arguments"] = self._redact(arguments)
        if record.must_be_kept and call.judged is not None and call.judged.grant is not None:
            # By which grant it may: whoever reads the story of a call wants to know.
            grant = call.judged.grant
            said = (grant.effect, grant.subject, grant.verb, grant.target)
            record.details["grant"] = " ".join(said)
        call.record = record
        return record

    def _waits(self, record: CallRecord) -> bool:
        """Whether nothing is done, and nobody answered, before it is written down."""
        return record.must_be_kept and self._journal.is_lasting

    def _said_of(self, offer: Offer, standing: Standing) -> Mapping[str, object]:
        """What is said of every call of a tool; the same while it stands as it does."""
        place = (offer.server, offer.name)
        held = self._said.get(place)
        if held is not None and held[0] is standing:
            return held[1]
        said = {**_said_of(self.known(*place)), "risk_level": standing.risk}
        if len(self._said) >= MOST_REMEMBERED:
            self._said.clear()
        self._said[place] = (standing, said)
        return said

    async def _kept(self, call: Call, record: CallRecord) -> Refusal | None:
        event = self._event(call, record, _LEFT, record.details)
        try:
            await self._journal.insist(event)
        except Unavailable as error:
            return Refusal(error.fault, str(error), error.retry_after)
        if call.is_concluded:
            # Withdrawn meanwhile: its intent must not be taken for a call that may have run.
            ended = {"outcome": CANCELLED}
            self._journal.note(
                self._event(call, record, (Type.TOOL_BLOCKED, Result.BLOCKED), ended)
            )
            return _WITHDRAWN
        record.has_left = True
        if self.left is not None:
            self.left(self._event(call, record, _LEFT, {}))
        return None

    def conclude(
        self, call: Call, outcome: str, refusal: Refusal | None, reply: Callable[[], None]
    ) -> None:
        """Write down how a call ended; its answer goes when that is kept, where it must be."""
        if call.method not in RECORDED or call.is_concluded:
            reply()
            return
        call.is_concluded = True
        record = call.record if isinstance(call.record, CallRecord) else None
        event = self._ending(call, record, outcome, refusal)
        if record is None or not (self._waits(record) and record.has_left):
            if self.is_awaited(event):
                self._journal.insist(event).add_done_callback(lambda kept: _reply(kept, reply))
                return
            self._journal.note(event)
            reply()
            return
        self._journal.write(event).add_done_callback(lambda _: reply())

    def _ending(
        self, call: Call, record: CallRecord | None, outcome: str, refusal: Refusal | None
    ) -> Event:
        has_left = record is not None and record.has_left
        kind = _kind_of(call, outcome, refusal, has_left=has_left)
        details: dict[str, object] = {"outcome": outcome}
        if record is not None:
            details |= record.details
        elif call.target is not None:
            details |= _said_of(self.known(*call.target))
        if refusal is not None:
            details |= _decided_by(refusal) | {"reason": self._redact(refusal.because)}
        if call.stream is not None:
            details |= call.stream.summary()
        if call.underway is not None:
            details["duration_ms"] = round((call.underway.now() - call.began) * 1000, 3)
        if has_left and (outcome == CANCELLED or _is_in_doubt(refusal)):
            details["outcome_known"] = False
        return self._event(call, record, kind, details)

    def retried(self, call: Call, attempt: int, why: str) -> None:
        """A call is made again. (kernel.retrying)"""
        record = call.record if isinstance(call.record, CallRecord) else None
        said = {"attempt": attempt, "reason": why}
        self._journal.note(self._event(call, record, (Type.CALL_RETRIED, Result.PENDING), said))

    def _event(
        self,
        call: Call,
        record: CallRecord | None,
        kind: tuple[Type, Result],
        details: Mapping[str, object],
    ) -> Event:
        actor, (server, tool) = call.outbox.actor, _target(call, record)
        if call.answered_by:
            # By whose word it went: the ask that it used, or the standing answer.
            details = {**details, "answered_by": call.answered_by}
        return Event(
            *(kind[0], actor.party, self._journal.clock(), actor.kind, server, tool, kind[1]),
            *(call.traced(), "" if record is None else record.id, details),
        )


def _reply(kept: asyncio.Future[None], reply: Callable[[], None]) -> None:
    """Where it cannot be kept just now the call was made all the same, and is answered."""
    kept.exception()
    reply()


def _kind_of(
    call: Call, outcome: str, refusal: Refusal | None, *, has_left: bool
) -> tuple[Type, Result]:
    if call.method != mcp.CALL_TOOL:
        failed = Result.BLOCKED if refusal is not None and call.link is None else Result.FAILURE
        return Type.OFFER_USED, Result.SUCCESS if outcome == OK else failed
    if refusal is not None and not (has_left and refusal.fault in _MAY_HAVE_RUN):
        return _OF_FAULT.get(refusal.fault, Type.TOOL_BLOCKED), Result.BLOCKED
    if outcome == CANCELLED and not has_left:
        return Type.TOOL_BLOCKED, Result.BLOCKED
    return Type.TOOL_EXECUTED, Result.SUCCESS if outcome == OK else Result.FAILURE


def _is_in_doubt(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.fault in _MAY_HAVE_RUN


def _said_of(known: tuple[Risk, Sequence[str]] | None) -> dict[str, object]:
    """What MGP §6.3 has among the details of a call."""
    if known is None:
        return {}
    risk, validators = known
    applied = {"validator_applied": ", ".join(validators)} if validators else {}
    return {"risk_level": risk, **applied}


def _decided_by(refusal: Refusal) -> dict[str, object]:
    """Of several validators the one that refused."""
    named = CODE_SAFETY if refusal.fault is CODE_UNSAFE else refusal.details.get("validator")
    return {} if named is None else {"validator_applied": named}


def _target(call: Call, record: CallRecord | None) -> tuple[str, str]:
    if record is not None:
        return record.server, record.tool
    if call.target is not None:
        return call.target
    server = "" if call.counted is None else call.counted.server
    # A name that nobody here gave, as a URI is one, may hold a secret.
    return server, without_secrets((call.tool or name_in(call.params))[:1000])[:200]
