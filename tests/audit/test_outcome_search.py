"""The search by outcome: what it finds, and how many entries a page of it reads."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from comity.app.records import RecordStores
from comity.audit import outcome_search
from comity.audit.chain import AuditFilter, AuditRecord
from comity.audit.events import AuditEvent, AuditResult, AuditType, body_of
from comity.audit.outcome_search import find_outcome
from comity.telemetry.outcomes import OutcomeClass
from tests.support.inline_store import inline_records
from tests.support.journals_rules import chained

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
DENIED = {"outcome": "access_denied"}
WAITING = {"outcome": "pending_approval"}


def refused(seq: int, details: Mapping[str, object]) -> AuditEvent:
    return AuditEvent(
        AuditType.TOOL_BLOCKED,
        "agent:ci",
        NOW + timedelta(seconds=seq),
        server="files",
        tool="read",
        result=AuditResult.BLOCKED,
        details=details,
    )


def done(seq: int) -> AuditEvent:
    ended = {"type": AuditType.TOOL_EXECUTED, "result": AuditResult.SUCCESS}
    return replace(refused(seq, {"outcome": "ok"}), **ended)


async def filled(events: Sequence[AuditEvent], *unreadable: int) -> RecordStores:
    """A store with these entries. The bodies of some cannot be read."""
    records = inline_records()
    await records.open()
    bodies = [
        (each, b"{}" if seq in unreadable else body_of(each)) for seq, each in enumerate(events, 1)
    ]
    await records.audit_log.open("one")
    await records.audit_log.append(chained(bodies, "one", bytes(32), 1))
    return records


def numbers(entries: Sequence[AuditRecord]) -> list[int]:
    return [each.seq for each in entries]


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_search, "COMPARED_AT_ONCE", 4)
    monkeypatch.setattr(outcome_search, "MAX_COMPARED", 8)


@pytest.mark.usefixtures("short_pages")
async def test_a_page_compares_a_limited_number_of_entries_and_says_where_it_stopped() -> None:
    details = [WAITING, *[DENIED] * 20, WAITING]
    # An entry that cannot be read has no outcome.
    records = await filled([refused(seq, each) for seq, each in enumerate(details, 1)], 10)
    criteria, pages = AuditFilter(newest_first=True), list[tuple[list[int], int | None]]()
    while True:
        page = await find_outcome(records.audit_log, criteria, OutcomeClass.WAITING, 5)
        pages.append((numbers(page.entries), None if page.last is None else page.last[2]))
        if page.last is None:
            break
        criteria = dataclasses.replace(criteria, after=page.last)
    assert pages == [([22], 15), ([], 7), ([1], None)]


@pytest.mark.usefixtures("short_pages")
async def test_a_full_page_ends_at_its_last_match() -> None:
    records = await filled([refused(seq, DENIED) for seq in range(1, 8)])
    page = await find_outcome(records.audit_log, AuditFilter(), OutcomeClass.DENIED, 3)
    assert (numbers(page.entries), page.last) == ([1, 2, 3], (NOW + timedelta(seconds=3), "one", 3))


@pytest.mark.parametrize("name", ["actor", "server", "tool"])
@pytest.mark.parametrize("outcome", [OutcomeClass.DONE, OutcomeClass.DENIED])
@pytest.mark.usefixtures("short_pages")
async def test_a_rare_combination_does_not_read_the_whole_log_for_one_page(
    name: str, outcome: OutcomeClass
) -> None:
    def entry(seq: int) -> AuditEvent:
        event = done(seq) if outcome is OutcomeClass.DONE else refused(seq, DENIED)
        return replace(event, **{name: "another"}) if seq == 1 else event

    records = await filled([entry(seq) for seq in range(1, 31)])
    criteria = dataclasses.replace(AuditFilter(newest_first=True), **{name: "another"})
    found, pages = list[int](), 0
    while True:
        page = await find_outcome(records.audit_log, criteria, outcome, 5)
        found, pages = found + numbers(page.entries), pages + 1
        if page.last is None:
            break
        criteria = dataclasses.replace(criteria, after=page.last)
    assert found == [1]
    # An index leads straight to the calls of an actor or a server that succeeded.
    has_index = outcome is OutcomeClass.DONE and name != "tool"
    assert pages == (1 if has_index else 4)


async def test_a_result_or_type_that_the_outcome_cannot_have_finds_nothing() -> None:
    records = await filled([done(1), refused(2, DENIED)])
    for criteria in (AuditFilter(results=("SUCCESS",)), AuditFilter(types=("TOOL_EXECUTED",))):
        page = await find_outcome(records.audit_log, criteria, OutcomeClass.DENIED, 5)
        assert page == ([], None)
        page = await find_outcome(records.audit_log, criteria, OutcomeClass.DONE, 5)
        assert (numbers(page.entries), page.last) == ([1], None)
