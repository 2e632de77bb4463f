"""Deliberate bugs of the product. The simulation is worth as much as those that it finds.

Each one replaces a few lines of the product in this process. What they break is said in one
sentence, because a bug that nobody can name proves nothing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from comity.approvals.model import ApprovalAnswer, ApprovalRequest, ApprovalState
from comity.approvals.pending_calls import ApprovedCall
from comity.approvals.store import SqlAsks
from comity.audit.chain import AuditRecord, ChainHead
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.cluster.in_process import LeaseBook
from comity.cluster.leases import ServerLocation, ServerPlacement
from comity.gateway.call_audit import CallAudit
from comity.identity.authentication import Authenticator
from comity.mcp.actors import Actor
from comity.policy.snapshot import PolicySnapshot
from comity.sessions.calls import Call
from tests.simulation.replacing import replace_member
from tests.simulation.store import SimulatedChain


def apply(name: str) -> None:
    """Break the product in this process."""
    MUTANTS[name]()


def _approval_used_twice() -> None:
    """The update that consumes an approval does not look whether it was consumed."""
    consume = SqlAsks.consume

    async def consume_again(
        self: SqlAsks, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        used = await consume(self, id, call, at, with_notice=with_notice)
        return used if used is not None else await self.get(id)

    replace_member(SqlAsks, "consume", consume_again)


def _approval_read_then_used() -> None:
    """The approval is read, and used a moment later without a condition."""
    consume = SqlAsks.consume

    async def read_then_use(
        self: SqlAsks, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        request = await self.get(id)
        if request is None or request.state is not ApprovalState.APPROVED:
            return None
        await consume(self, id, call, at, with_notice=with_notice)
        return replace(request, state=ApprovalState.CONSUMED, call=call)

    replace_member(SqlAsks, "consume", read_then_use)


def _audit_told_before_durable() -> None:
    """An entry counts as durable as soon as it is queued."""

    def tell_at_once(self: AuditLog, event: AuditEvent) -> "asyncio.Future[None]":
        self.enqueue(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    replace_member(AuditLog, "insist", tell_at_once)
    replace_member(AuditLog, "write", tell_at_once)


def _outcome_told_before_durable() -> None:
    """The answer of a call goes out before its outcome is durable."""

    def tell_at_once(self: AuditLog, event: AuditEvent) -> "asyncio.Future[None]":
        self.enqueue(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    replace_member(AuditLog, "write", tell_at_once)


def _audit_written_in_background() -> None:
    """The store confirms entries that it has not written."""
    append = SimulatedChain.append

    async def append_later(self: SimulatedChain, records: Sequence[AuditRecord]) -> None:
        asyncio.ensure_future(append(self, records)).add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )

    replace_member(SimulatedChain, "append", append_later)


def _intent_after_sending() -> None:
    """The intent is written when the call is on its way."""
    waiting: set[asyncio.Future[Any]] = set()

    def write_later(self: CallAudit, call: Call, record: Any) -> Any:
        async def send_first() -> None:
            record.was_sent = True
            audit: Any = self
            kind = AuditType.CALL_INTENDED, AuditResult.PENDING
            intent = audit._make_event(call, record, kind, record.details)
            waiting.add(audit._audit_log.insist(intent))

        return send_first()

    replace_member(CallAudit, "_await_durable", write_later)


def _lease_not_renewed() -> None:
    """A renewal is taken for granted and never reaches the lease store."""

    def renew(self: LeaseBook, lease: Any) -> bool:
        del self, lease
        return True

    replace_member(LeaseBook, "renew", renew)


def _lease_kept_in_doubt() -> None:
    """A node relies on its lease however long no renewal succeeded."""
    replace_member(ServerLocation, "is_here", property(lambda self: self.lease is not None))

    def seconds_left(self: ServerLocation, part: float) -> float:
        del self, part
        return 1.0

    replace_member(ServerLocation, "seconds_left", seconds_left)


def _lease_never_taken_over() -> None:
    """No node bids for the server of a node that died."""
    take = ServerPlacement.look
    seen: set[str] = set()

    async def look_once(self: ServerPlacement, location: ServerLocation) -> None:
        if location.lease is None and location.server in seen:
            return
        seen.add(location.server)
        await take(self, location)

    replace_member(ServerPlacement, "look", look_once)


def _revocation_cached() -> None:
    """Whoever was identified once stays identified."""
    identify, known = Authenticator.identify, dict[bytes, Actor]()

    async def identify_from_cache(self: Authenticator, arrival: Any) -> Actor:
        key = arrival.headers.get(b"authorization", b"")
        if key not in known:
            known[key] = await identify(self, arrival)
        return known[key]

    replace_member(Authenticator, "identify", identify_from_cache)


def _changes_not_followed() -> None:
    """A node confirms that its records are fresh without reading the changes."""

    async def reread_nothing(self: PolicySnapshot[Any], changes: object) -> None:
        del self, changes

    replace_member(PolicySnapshot, "_reread_changed", reread_nothing)


def _answer_kept_in_memory() -> None:
    """A person is told that the answer is kept, but another answer may have come first."""
    answer = SqlAsks.answer

    async def always_accepted(
        self: SqlAsks, id: str, given: ApprovalAnswer, until: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        kept = await answer(self, id, given, until, with_notice=with_notice)
        request = kept if kept is not None else await self.get(id)
        if kept is not None or request is None:
            return request
        return replace(request, answers=(*request.answers, given))

    replace_member(SqlAsks, "answer", always_accepted)


def _restart_forgets_doubt() -> None:
    """A node that starts again does not look for intents without an outcome."""

    def forget(self: AuditLog, head: object, batch: object) -> None:
        del self, head, batch

    replace_member(AuditLog, "_doubt", forget)


def _unclear_commit_repeated() -> None:
    """After an error of a commit, its entries are written again without a look."""

    async def never_there(self: AuditLog, head: ChainHead, record: AuditRecord) -> bool:
        del self, head, record
        return False

    replace_member(AuditLog, "_has", never_there)


def _approval_given_back_after_sending() -> None:
    """An approval is valid again when its call has failed, though the call has left."""
    run = ApprovedCall.run

    async def run_and_give_back(self: ApprovedCall, request: ApprovalRequest, go_on: Any) -> None:
        await run(self, request, go_on)
        await self.pending_calls.approvals.release(request, request.call)

    replace_member(ApprovedCall, "run", run_and_give_back)


MUTANTS: Final[Mapping[str, Callable[[], None]]] = {
    "approval used twice": _approval_used_twice,
    "approval read, then used": _approval_read_then_used,
    "approval given back after sending": _approval_given_back_after_sending,
    "answer of a person not kept": _answer_kept_in_memory,
    "audit entry told before it is durable": _audit_told_before_durable,
    "outcome told before it is durable": _outcome_told_before_durable,
    "audit entry written in the background": _audit_written_in_background,
    "intent written after sending": _intent_after_sending,
    "restart forgets doubt": _restart_forgets_doubt,
    "unclear commit repeated": _unclear_commit_repeated,
    "lease not renewed": _lease_not_renewed,
    "lease kept in doubt": _lease_kept_in_doubt,
    "lease never taken over": _lease_never_taken_over,
    "revocation cached": _revocation_cached,
    "changes not followed": _changes_not_followed,
}
