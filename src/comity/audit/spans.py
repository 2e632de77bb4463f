"""One trace of the audit log as spans, for a waterfall."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from comity.audit.deciders import outcome_of_event
from comity.audit.events import AuditEvent, AuditType
from comity.telemetry.outcomes import OutcomeClass

ROOT: Final = "trace"
_APPROVAL_STEPS: Final = frozenset(
    {
        AuditType.APPROVAL_REQUESTED,
        AuditType.APPROVAL_ANSWERED,
        AuditType.APPROVAL_CONSUMED,
        AuditType.APPROVAL_RELEASED,
        AuditType.APPROVAL_ENDED,
    }
)
type SpanKind = Literal["trace", "call", "approval", "event"]


@dataclass(slots=True)
class TraceSpan:
    """A part of a trace: an attempt to call a tool, an approval request, or a single event."""

    id: str
    parent: str | None
    kind: SpanKind
    name: str
    start: datetime
    end: datetime
    server: str = ""
    tool: str = ""
    actor: str = ""
    result: str = ""
    outcome: OutcomeClass | None = None
    types: list[str] = field(default_factory=list[str])

    @property
    def duration_ms(self) -> float:
        return round((self.end - self.start).total_seconds() * 1000, 3)

    def add(self, event: AuditEvent, start: datetime) -> None:
        self.start, self.end = min(self.start, start), max(self.end, event.at)
        self.server, self.tool = event.server or self.server, event.tool or self.tool
        self.actor = self.actor or event.actor
        self.result = event.result
        self.outcome = outcome_of_event(event) or self.outcome
        self.types.append(event.type)


def build_spans(events: Iterable[AuditEvent]) -> list[TraceSpan]:
    """Return the spans of events in order of time. The first span covers all others."""
    spans: dict[str, TraceSpan] = {}
    for place, event in enumerate(events):
        id, kind, name = _span_of(event, place)
        start = event.at - _duration_in(event.details)
        span = spans.get(id)
        if span is None:
            span = spans[id] = TraceSpan(id, ROOT, kind, name, start, event.at)
        span.add(event, start)
    if not spans:
        return []
    listed = sorted(spans.values(), key=lambda span: (span.start, span.id))
    end = max(span.end for span in listed)
    root = TraceSpan(ROOT, None, "trace", "trace", listed[0].start, end, actor=listed[0].actor)
    return [root, *listed]


def _span_of(event: AuditEvent, place: int) -> tuple[str, SpanKind, str]:
    """Return the id, the kind and the name of the span that an event belongs to."""
    approval = event.details.get("approval")
    if event.type in _APPROVAL_STEPS and isinstance(approval, str):
        return f"approval {approval}", "approval", f"approval {approval}"
    named = f"{event.server}/{event.tool}" if event.server else event.tool or event.type
    if event.call:
        return f"call {event.call}", "call", named
    kind: SpanKind = "call" if event.type == AuditType.TOOL_EXECUTED else "event"
    return f"event {place}", kind, named if kind == "call" else event.type


def _duration_in(details: Mapping[str, object]) -> timedelta:
    said = details.get("duration_ms")
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < 10**12:
        return timedelta(0)
    return timedelta(milliseconds=said)
