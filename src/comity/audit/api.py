"""Operator API for the audit log: search, the timeline of a call, export.

Every entry passed redaction before it was written, so nothing is hidden here again.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NotRequired, TypedDict

import msgspec

from comity.audit.chain import AuditFilter, AuditPlace, AuditRecord
from comity.audit.deciders import DeciderView, decider_of, outcome_of_event
from comity.audit.events import OURS, AuditEvent, AuditType, event_of
from comity.audit.export import AuditReader, ExportChunk, ExportCursor
from comity.audit.spans import SpanKind, TraceSpan, build_spans
from comity.audit.timeline import CallTimeline, TimelineEntry, build_timeline
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import CursorQuery, EmptyQuery, RequestQuery
from comity.telemetry.outcomes import OutcomeClass

DEFAULT_ENTRIES: Final = 100
MAX_ENTRIES: Final = 1_000


class AuditKeyView(TypedDict):
    """The node whose entries this gateway writes, and the key that signs them."""

    node: str
    key: str | None
    signed_to: int | None
    waiting: int


class AuditEntryView(TypedDict):
    """An entry: the fields by which it is found, and what its body says."""

    node: str
    seq: int
    at: datetime
    type: str
    actor: str
    server: str
    tool: str
    result: str
    trace: str
    call: str
    details: Mapping[str, object] | None
    hash: str
    # The class of the outcome, if the entry is the end of a call, and what denied or withheld it.
    outcome: OutcomeClass | None
    decided_by: DeciderView | None


class AuditPage(TypedDict):
    """One page of entries.

    A search by outcome compares a limited number of entries for one page. If that ends the page,
    `searched_to` is the time of the last one. Such a page has fewer entries than `limit`, or none.
    """

    entries: list[AuditEntryView]
    next: NotRequired[str]
    searched_to: NotRequired[datetime]


class TimelineEventView(TypedDict):
    """One event of a call in words."""

    at: datetime
    after_ms: float
    type: str
    text: str
    more: Sequence[str]
    is_bad: bool


class StoryView(TypedDict):
    """A call in words."""

    headline: str
    events: list[TimelineEventView]
    unknown: Sequence[str]


class TimelineView(StoryView):
    """A call in words, and its entries."""

    entries: list[AuditEntryView]


class SpanView(TypedDict):
    """A part of a trace. `parent` is the id of the span that contains it."""

    id: str
    parent: str | None
    kind: SpanKind
    name: str
    start: datetime
    duration_ms: float
    server: str
    tool: str
    actor: str
    result: str
    # The class of the outcome, if the span is a call that has ended.
    outcome: OutcomeClass | None
    types: list[str]


class TraceView(TypedDict):
    """A trace as spans. The first one covers all others."""

    trace: str
    spans: list[SpanView]
    entries: list[AuditEntryView]


class ExportChunkView(TypedDict):
    """A part of the audit log, as the lines of the export format."""

    lines: list[str]
    next: NotRequired[str]


type About = Callable[[], AuditKeyView]


class AuditSearchQuery(RequestQuery, frozen=True, forbid_unknown_fields=True):
    """Which entries to find. A misspelt filter would find too many, so it is refused."""

    trace: str = ""
    call: str = ""
    actor: str = ""
    server: str = ""
    tool: str = ""
    result: str = ""
    outcome: OutcomeClass | None = None
    type: str = ""
    since: str = ""
    until: str = ""
    order: Literal["newest", "oldest"] = "newest"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ENTRIES)] = DEFAULT_ENTRIES
    cursor: str = ""

    def to_filter(self) -> AuditFilter:
        return AuditFilter(
            trace=self.trace.replace("-", "").lower(),
            call=self.call,
            actor=self.actor,
            server=self.server,
            tool=self.tool,
            results=(self.result.upper(),) if self.result else (),
            types=tuple(_type(each.strip()) for each in self.type.split(",") if each.strip()),
            since=_parse_timestamp(self.since, "since"),
            until=_parse_timestamp(self.until, "until"),
            newest_first=self.order == "newest",
            after=_after(self.cursor),
        )


class AuditApi:
    """The operator API of the audit log, which is read-only."""

    def __init__(self, reader: AuditReader, about: About) -> None:
        self._reader = reader
        self._about = about

    @property
    def routes(self) -> ApiRoutes:
        read = Permission.ADMIN_READ
        return (
            ApiRoute("GET", "/api/audit", read, self._find_entries, AuditSearchQuery),
            ApiRoute("GET", "/api/audit/key", read, self._show_key, EmptyQuery),
            ApiRoute("GET", "/api/audit/timeline/{name}", read, self._show_timeline, EmptyQuery),
            ApiRoute("GET", "/api/audit/traces/{trace}", read, self._show_trace, EmptyQuery),
            ApiRoute("GET", "/api/audit/export", read, self._export, CursorQuery),
        )

    async def _find_entries(self, request: ApiRequest[AuditSearchQuery]) -> AuditPage:
        query, limit = request.input, request.input.limit
        if query.outcome is not None:
            found = await self._reader.find_outcome(query.to_filter(), query.outcome, limit)
            page = _page_view(found.entries, found.last)
            if found.last is not None and len(found.entries) < limit:
                page["searched_to"] = found.last[0]
            return page
        lines = await self._reader.find(query.to_filter(), limit)
        last = lines[-1] if len(lines) >= limit else None
        return _page_view(lines, None if last is None else (last.at, last.node, last.seq))

    async def _show_key(self, _: ApiRequest[EmptyQuery]) -> AuditKeyView:
        return self._about()

    async def _show_timeline(self, request: ApiRequest[EmptyQuery]) -> TimelineView:
        lines = await self._reader.about(request.path["name"])
        events = [event for line in lines if (event := _readable(line)) is not None]
        return {
            **story_view(build_timeline(events)),
            "entries": [entry_view(line) for line in lines],
        }

    async def _show_trace(self, request: ApiRequest[EmptyQuery]) -> TraceView:
        """Return a trace, a call or an approval request as spans, for a waterfall."""
        lines = await self._reader.about(request.path["trace"])
        events = [event for line in lines if (event := _readable(line)) is not None]
        return {
            "trace": lines[0].trace,
            "spans": [_span_view(each) for each in build_spans(events)],
            "entries": [entry_view(line) for line in lines],
        }

    async def _export(self, request: ApiRequest[CursorQuery]) -> ExportChunkView:
        return _part_view(await self._reader.part(_place(request.input.cursor)))


def _page_view(entries: Sequence[AuditRecord], last: AuditPlace | None) -> AuditPage:
    """Make a page. The next one begins after the `last` entry, if there is one."""
    page: AuditPage = {"entries": [entry_view(each) for each in entries]}
    if last is not None:
        at, node, seq = last
        page["next"] = f"{at.isoformat()} {seq} {node}"
    return page


def entry_view(record: AuditRecord) -> AuditEntryView:
    """An entry: what it is found by, and all that its body says."""
    event = _readable(record)
    return {
        "node": record.node,
        "seq": record.seq,
        "at": record.at,
        "type": record.type,
        "actor": record.actor,
        "server": record.server,
        "tool": record.tool,
        "result": record.result,
        "trace": record.trace,
        "call": record.call,
        "details": None if event is None else event.details,
        "hash": record.hash.hex(),
        "outcome": None if event is None else outcome_of_event(event),
        "decided_by": None if event is None else decider_of(event),
    }


def story_view(timeline: CallTimeline) -> StoryView:
    return {
        "headline": timeline.headline,
        "events": [_told_view(told) for told in timeline.happened],
        "unknown": timeline.unknown,
    }


def _told_view(entry: TimelineEntry) -> TimelineEventView:
    return {
        "at": entry.at,
        "after_ms": round(entry.after.total_seconds() * 1000, 3),
        "type": entry.type,
        "text": entry.words,
        "more": entry.more,
        "is_bad": entry.is_bad,
    }


def _span_view(span: TraceSpan) -> SpanView:
    return {
        "id": span.id,
        "parent": span.parent,
        "kind": span.kind,
        "name": span.name,
        "start": span.start,
        "duration_ms": span.duration_ms,
        "server": span.server,
        "tool": span.tool,
        "actor": span.actor,
        "result": span.result,
        "outcome": span.outcome,
        "types": span.types,
    }


def _part_view(chunk: ExportChunk) -> ExportChunkView:
    view: ExportChunkView = {"lines": [line.decode() for line in chunk.lines]}
    if chunk.next is not None:
        view["next"] = f"{chunk.next.entries} {chunk.next.after} {chunk.next.node}"
    return view


def _readable(record: AuditRecord) -> AuditEvent | None:
    try:
        return event_of(record.body)
    except (MalformedMessage, msgspec.DecodeError):
        return None


def _type(text: str) -> str:
    """A type as it is written, or as people write it: `tool_executed`, `approval_requested`."""
    known = {each.removeprefix(OURS).lower(): each for each in map(str, AuditType)}
    return known.get(text.lower().replace("-", "_"), text)


def _parse_timestamp(text: str, name: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid_params(f"{name} must be a time, as 2026-11-15T08:30:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _after(cursor: str) -> AuditPlace | None:
    if not cursor:
        return None
    said, seq, node = _parts(cursor)
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        raise _invalid_params(_INVALID_CURSOR) from None
    if at.tzinfo is None or not seq.isdecimal() or len(seq) > 18:
        raise _invalid_params(_INVALID_CURSOR)
    return at, node, int(seq)


def _place(cursor: str) -> ExportCursor | None:
    if not cursor:
        return None
    entries, after, node = _parts(cursor)
    if not (entries.isdecimal() and after.isdecimal()) or max(len(entries), len(after)) > 18:
        raise _invalid_params(_INVALID_CURSOR)
    return ExportCursor(node, int(after), int(entries))


def _parts(cursor: str) -> tuple[str, str, str]:
    """Split a cursor. The node is last, because its name may hold spaces."""
    first, _, rest = cursor.partition(" ")
    second, _, node = rest.partition(" ")
    if not node:
        raise _invalid_params(_INVALID_CURSOR)
    return first, second, node


_INVALID_CURSOR: Final = "a cursor that was not given out here"


def _invalid_params(words: str) -> MalformedMessage:
    return MalformedMessage(words, INVALID_PARAMS)
