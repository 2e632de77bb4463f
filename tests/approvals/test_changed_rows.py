"""Approval requests whose rows somebody with access to the database changes.

Whoever can change the store is the operator: grants are rows too. An approval is still bound to one
call, and the audit log, which is signed, shows that nobody gave a forged one.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from comity.approvals.model import ApprovalDecision, ApprovalState
from comity.approvals.service import ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.audit.events import AuditType
from comity.mcp.actors import Actor
from comity.sessions.sessions import Session
from tests.support.asking import AGENT, ANA, ARGUMENTS, BEA, DONE, OTHER, Bed, Time, asking
from tests.support.opened_stores import Store
from tests.support.refused import kind_of

pytestmark = pytest.mark.integration

AT_ONCE: Final = ApprovalSettings(client_wait=timedelta(milliseconds=1))
APPROVE: Final = "UPDATE comity_approvals SET state = 'approved', ended_at = NULL, call = ''"
HARMLESS: Final = {"path": "/tmp/harmless"}


@asynccontextmanager
async def asking_in(store: Store) -> AsyncGenerator[tuple[Bed, Session]]:
    """A gateway whose approval requests are in this store, and a client of it."""
    records = await store.open()
    async with asking(options=AT_ONCE) as bed:
        bed.asks = bed.approvals.store = records.approval_requests
        yield bed, await bed.front.client()


async def refusal_of(bed: Bed, session: Session, actor: Actor = AGENT, **members: Any) -> str:
    return kind_of(await bed.call(session, actor, **members).error())


CHANGES: Final[dict[str, object]] = {
    "asker": OTHER.party,
    "tool": "list",
    "server": "other",
    "about": '{"arguments": {"path": "/"}}',
    "message": "May it read /tmp/harmless?",
    "quorum": 1,
}


async def test_an_approval_runs_the_call_of_its_digest_whatever_its_row_says(store: Store) -> None:
    others = ((AGENT, ARGUMENTS), (OTHER, HARMLESS), (OTHER, ARGUMENTS))
    async with asking_in(store) as (bed, session):
        for column, value in CHANGES.items():
            bed.tools.version = "first"
            assert await refusal_of(bed, session, arguments=HARMLESS) == "pending_approval"
            changed = f"UPDATE comity_approvals SET {column} = :value"  # noqa: S608  # our own column
            await store.run(changed, value=value)
            await store.run(APPROVE)
            for actor, arguments in others:
                found = await refusal_of(bed, session, actor, arguments=arguments)
                assert found == "pending_approval"
            bed.tools.version = "second"
            assert await refusal_of(bed, session, arguments=HARMLESS) == "pending_approval"
            assert bed.runs == 0
            await store.run("DELETE FROM comity_approvals")


async def test_an_answer_that_counts_for_the_asker_itself_is_refused_by_the_database(
    store: Store,
) -> None:
    async with asking_in(store) as (bed, session):
        await refusal_of(bed, session)
        ask = await bed.answer(ApprovalDecision.DEFER)
        with pytest.raises(Exception, match=r"(?i)constraint"):
            await store.run("UPDATE comity_approvals SET asker = :by", by=ANA.party)
        with pytest.raises(Exception, match=r"(?i)constraint"):
            await store.run("UPDATE comity_approval_answers SET said_by = :by", by=AGENT.party)
        assert await bed.asks.get(ask.id) == ask


async def _told_of(bed: Bed, ask: str) -> list[str]:
    """What the audit log says of an approval request and of the call that used it."""
    await bed.journal.flush()
    return [
        AuditType(event.type).name
        for event in bed.events
        if ask in (event.details.get("approval"), event.details.get("answered_by"))
    ]


async def _end(bed: Bed, session: Session, state: str) -> None:
    """Bring the open request into another state, as people and time do."""
    ask = await bed.open_ask()
    if state == "declined":
        await bed.answer_to(ask, ApprovalDecision.DECLINE)
    elif state == "expired":
        bed.time.passes(bed.options.request_ttl)
        await bed.approvals.expire_overdue()
    elif state == "used":
        await bed.answer_to(ask)
        assert await bed.call(session, arguments={"path": state}).result() == DONE


async def test_the_audit_log_shows_that_nobody_gave_a_forged_approval(store: Store) -> None:
    """An owner of the database can let a call run. The signed log has no answer for that use."""
    async with asking_in(store) as (bed, session):
        for state in ("pending", "declined", "expired", "used"):
            await refusal_of(bed, session, arguments={"path": state})
            ask = await bed.open_ask()
            before = bed.runs
            await _end(bed, session, state)
            given = bed.runs - before
            later = _time_of(store, bed.time.now + timedelta(days=1))
            await store.run(f"{APPROVE}, expires_at = {later} WHERE id = :id", id=ask.id)
            assert await bed.call(session, arguments={"path": state}).result() == DONE
            assert bed.runs == before + given + 1
            told = await _told_of(bed, ask.id)
            assert told.count("APPROVAL_CONSUMED") == given + 1
            assert told.count("APPROVAL_ANSWERED") == given + (state == "declined")


def _time_of(store: Store, at: Any) -> str:
    text = at.strftime("%Y-%m-%d %H:%M:%S.000000")
    return f"'{text}'" if store.is_file else f"'{text}+00'"


async def _node_at(store: Store, bed: Bed, ahead: timedelta) -> ApprovalService:
    """Another node with the same store, whose clock differs."""
    clock = Time()
    clock.now = bed.time.now + ahead
    records = await store.open()
    return ApprovalService(records.approval_requests, bed.grants, bed.journal, AT_ONCE, clock)


async def test_a_node_whose_clock_is_behind_brings_no_ended_request_back(store: Store) -> None:
    async with asking_in(store) as (bed, session):
        for is_approved in (False, True):
            await refusal_of(bed, session)
            ask = await bed.open_ask()
            if is_approved:
                await bed.answer_to(ask)
            late = await _node_at(store, bed, -timedelta(days=1))
            seen = await late.store.get(ask.id)
            assert seen is not None
            bed.time.passes(max(AT_ONCE.request_ttl, AT_ONCE.approval_ttl))
            await bed.approvals.expire_overdue()
            with pytest.raises(Exception, match="expired"):
                await late.answer(BEA, ask.id, ApprovalDecision.ACCEPT)
            assert await late.consume(seen, "call") is None
            assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.EXPIRED
            late.stop()
        assert await refusal_of(bed, session) == "pending_approval"
        assert bed.runs == 0


async def test_a_node_whose_clock_is_ahead_only_ends_requests_early(store: Store) -> None:
    async with asking_in(store) as (bed, session):
        await refusal_of(bed, session)
        ask = await bed.answer()
        early = await _node_at(store, bed, timedelta(days=1))
        assert await early.consume(ask, "call") is None
        await early.expire_overdue()
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.EXPIRED
        assert await refusal_of(bed, session) == "pending_approval"
        assert bed.runs == 0
        early.stop()
