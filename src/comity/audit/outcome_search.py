"""Search of the audit log by the outcome of a call, which no index has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from comity.audit.chain import AuditFilter, AuditPlace, AuditRecord, AuditStore, index_value
from comity.audit.deciders import outcome_of_event, results_of_outcome
from comity.audit.events import AuditResult, event_of
from comity.errors import MalformedMessage
from comity.telemetry.outcomes import OutcomeClass

COMPARED_AT_ONCE: Final = 100
MAX_COMPARED: Final = 1_000
"""How many entries one page of a search compares."""


class OutcomePage(NamedTuple):
    """Entries with an outcome, and the last one that was compared.

    `last` is None if no entry is left to compare. Otherwise more of them may match, even if this
    page has none.
    """

    entries: Sequence[AuditRecord]
    last: AuditPlace | None


async def find_outcome(
    store: AuditStore, criteria: AuditFilter, outcome: OutcomeClass, limit: int
) -> OutcomePage:
    """Find the ends of calls with an outcome.

    The store reads along one index and compares nothing. The other conditions are compared here, so
    that a rare combination of them does not walk through the whole log for one page.
    """
    results = results_of_outcome(outcome)
    if criteria.results:
        results = tuple(each for each in results if each in criteria.results)
    if not results:
        return OutcomePage([], None)
    wanted = replace(criteria, results=results)
    matching: list[AuditRecord] = []
    compared, last = 0, criteria.after
    while compared < MAX_COMPARED:
        batch = await store.find(replace(_of_one_index(wanted), after=last), COMPARED_AT_ONCE)
        for record in batch:
            last = (record.at, record.node, record.seq)
            if _has_columns(record, wanted) and _outcome_of(record) is outcome:
                matching.append(record)
                if len(matching) == limit:
                    return OutcomePage(matching, last)
        if len(batch) < COMPARED_AT_ONCE:
            return OutcomePage(matching, None)
        compared += len(batch)
    return OutcomePage(matching, last)


def _of_one_index(criteria: AuditFilter) -> AuditFilter:
    """The part of a filter that one index has in order of time.

    Few calls do not succeed, so their index comes before those of actors and servers.
    """
    bare = replace(criteria, actor="", server="", tool="", types=(), results=())
    if criteria.trace or criteria.call:
        return bare
    if AuditResult.SUCCESS not in criteria.results:
        return replace(bare, results=criteria.results)
    if criteria.actor:
        return replace(bare, actor=criteria.actor)
    return replace(bare, server=criteria.server)


def _has_columns(record: AuditRecord, criteria: AuditFilter) -> bool:
    pairs = (
        (criteria.actor, record.actor),
        (criteria.server, record.server),
        (criteria.tool, record.tool),
    )
    if any(wanted and index_value(wanted) != value for wanted, value in pairs):
        return False
    if criteria.types and record.type not in map(index_value, criteria.types):
        return False
    return record.result in criteria.results


def _outcome_of(record: AuditRecord) -> OutcomeClass | None:
    try:
        return outcome_of_event(event_of(record.body))
    except MalformedMessage:
        return None
