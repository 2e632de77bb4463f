"""The timeline of one call, made from its audit events."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec

from comity.audit.deciders import DECIDED_BY, decider_of, decider_text, outcome_of_event
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.telemetry.outcomes import OutcomeClass, class_of
from comity.toolkit.text import count_noun

MAX_LENGTH: Final = 600

type Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event in words, and how long after the first it happened."""

    at: datetime
    after: timedelta
    type: str
    words: str
    more: tuple[str, ...] = ()
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class CallTimeline:
    """A call in one sentence and step by step, and what its events leave open."""

    headline: str
    happened: tuple[TimelineEntry, ...]
    unknown: tuple[str, ...]


def asks_in(bodies: Iterable[bytes]) -> list[str]:
    """The approval requests that entries name, each once."""
    found: dict[str, None] = {}
    for body in bodies:
        try:
            details = msgspec.json.decode(body, type=dict[str, Any]).get("details")
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(details, dict):
            said = cast("dict[str, object]", details)
            for name in ("approval", "answered_by"):
                each = said.get(name)
                if isinstance(each, str) and each:
                    found[each] = None
    return list(found)


def build_timeline(events: Sequence[AuditEvent]) -> CallTimeline:
    """The timeline of events that are in order of time."""
    began = events[0].at if events else None
    intended = {event.call for event in events if event.type == AuditType.CALL_INTENDED}
    happened = tuple(
        _timeline_entry(event, _visible_details(event, intended), event.at - (began or event.at))
        for event in events
    )
    return CallTimeline(_headline(events), happened, tuple(_unknown(events)))


def _visible_details(event: AuditEvent, intended: AbstractSet[str]) -> Details:
    """The details to show: the outcome does not repeat the arguments of the intent."""
    if event.type == AuditType.CALL_INTENDED or event.call not in intended:
        return event.details
    return {
        name: value for name, value in event.details.items() if name not in _INTENT_ONLY_DETAILS
    }


_INTENT_ONLY_DETAILS: Final = frozenset({"arguments", "arguments_digest", "grant", "answered_by"})


def _timeline_entry(event: AuditEvent, details: Details, after: timedelta) -> TimelineEntry:
    words, *more = _WORDS.get(event.type, _other)(event, details)
    is_bad = event.result in (AuditResult.FAILURE, AuditResult.BLOCKED, AuditResult.UNKNOWN)
    is_bad = is_bad and not is_waiting(event.type, event.details)
    return TimelineEntry(event.at, after, event.type, words, tuple(more), is_bad)


def _target(event: AuditEvent) -> str:
    return "/".join(each for each in (event.server, event.tool) if each) or "the gateway"


def _intended(event: AuditEvent, details: Details) -> list[str]:
    risk = f" ({details['risk_level']})" if details.get("risk_level") else ""
    return [
        f"{event.actor} calls {_target(event)}{risk}; recorded before it is sent",
        *_arguments(details),
        *_leave(details),
    ]


def _arguments(details: Details) -> list[str]:
    if details.get("arguments") is not None:
        return [f"with {_written(details['arguments'])}"]
    if details.get("arguments_digest"):
        return [f"with arguments that were not stored, digest {details['arguments_digest']}"]
    return []


def _leave(details: Details) -> list[str]:
    told = [f"allowed by the grant {details['grant']}"] if details.get("grant") else []
    if details.get("answered_by"):
        told.append(f"with approval {details['answered_by']}")
    return told


def _ended(event: AuditEvent, details: Details) -> list[str]:
    took = _length(details.get("duration_ms"))
    if details.get("outcome_known") is False:
        words = f"no answer{took}: it is unknown whether the tool ran"
    elif event.result == AuditResult.SUCCESS:
        words = f"{event.actor} has the result of {_target(event)}{took}"
    else:
        words = f"{_target(event)} ended in an error{took}"
    # A deferred call has only an outcome, so that event tells everything.
    return [words, *_because(details), *_arguments(details), *_leave(details)]


def _blocked(event: AuditEvent, details: Details) -> list[str]:
    if is_waiting(event.type, details):
        return [f"{event.actor} calls {_target(event)}: it waits for approval", *_because(details)]
    what = {
        AuditType.VALIDATION_FAILED: "its arguments were refused",
        AuditType.CODE_REJECTED: "the code in it was refused",
    }.get(AuditType(event.type), "refused")
    told = f"{event.actor} calls {_target(event)}: {what}; it was not sent"
    decider = decider_of(event)
    decided = [] if decider is None else [_cut(decider_text(decider))]
    return [told, *decided, *_because(details), *_arguments(details)]


def is_waiting(type: str, details: Details) -> bool:
    """Whether a call did not run because it waits for a person."""
    outcome = class_of(str(details.get("outcome", "")))
    return type == AuditType.TOOL_BLOCKED and outcome is OutcomeClass.WAITING


def _unknown_outcome(event: AuditEvent, details: Details) -> list[str]:
    since = f", which was to leave at {details['intended_at']}" if "intended_at" in details else ""
    return [
        f"the gateway stopped before {_target(event)} answered{since}; the outcome is unknown",
        "it is not tried again",
    ]


def _retried(event: AuditEvent, details: Details) -> list[str]:
    return [f"tried again, the {details.get('attempt', 'next')}. time", *_because(details)]


def _asked(event: AuditEvent, details: Details) -> list[str]:
    until = f", until {details['expires_at']}" if details.get("expires_at") else ""
    quorum = details.get("quorum", 1)
    who = "a person" if quorum == 1 else f"{quorum} people"
    about = details.get("about")
    return [
        f"{who} must approve; request {details.get('approval', '?')}{until}",
        *([str(details["message"])] if details.get("message") else []),
        *([f"about {_written(about)}"] if about else []),
    ]


def _answered(event: AuditEvent, details: Details) -> list[str]:
    if event.result == AuditResult.BLOCKED:
        return [f"{event.actor} tried to answer without permission", *_because(details)]
    said = _VERDICTS.get(str(details.get("verdict", "")), "answered")
    return [f"{event.actor} {said}", *_because(details)]


_VERDICTS: Final = {
    "accept": "approved",
    "decline": "denied",
    "cancel": "cancelled",
    "defer": "deferred",
}


def _used(event: AuditEvent, details: Details) -> list[str]:
    return [f"the approval {details.get('approval', '?')} is used for this call"]


def _ask_ended(event: AuditEvent, details: Details) -> list[str]:
    state = details.get("state", "over")
    told = {"expired": "it was not answered in time"}.get(str(state), f"it is {state}")
    return [f"{details.get('approval', 'the approval request')}: {told}", *_because(details)]


def _offer(event: AuditEvent, details: Details) -> list[str]:
    took = _length(details.get("duration_ms"))
    went = "and has it" if event.result == AuditResult.SUCCESS else "in vain"
    return [f"{event.actor} reads {_target(event)} {went}{took}", *_because(details)]


def _testimony(event: AuditEvent, details: Details) -> list[str]:
    return [f"{event.actor} reports: {_written(details)}"]


def _other(event: AuditEvent, details: Details) -> list[str]:
    what = event.type.rpartition(".")[2].replace("_", " ").lower()
    told = f"{what}, by {event.actor}" + (f": {_target(event)}" if event.server else "")
    return [told, *([_written(details)] if details else [])]


_WORDS: Final[Mapping[str, Callable[[AuditEvent, Details], list[str]]]] = {
    AuditType.CALL_INTENDED: _intended,
    AuditType.TOOL_EXECUTED: _ended,
    AuditType.TOOL_BLOCKED: _blocked,
    AuditType.VALIDATION_FAILED: _blocked,
    AuditType.CODE_REJECTED: _blocked,
    AuditType.OUTCOME_UNKNOWN: _unknown_outcome,
    AuditType.CALL_RETRIED: _retried,
    AuditType.APPROVAL_REQUESTED: _asked,
    AuditType.APPROVAL_ANSWERED: _answered,
    AuditType.APPROVAL_CONSUMED: _used,
    AuditType.APPROVAL_ENDED: _ask_ended,
    AuditType.CATALOG_ENTRY_USED: _offer,
    AuditType.SERVER_REPORT: _testimony,
}
_ENDS: Final = (
    AuditType.TOOL_EXECUTED,
    AuditType.TOOL_BLOCKED,
    AuditType.VALIDATION_FAILED,
    AuditType.CODE_REJECTED,
    AuditType.OUTCOME_UNKNOWN,
    AuditType.CATALOG_ENTRY_USED,
)


def _headline(events: Sequence[AuditEvent]) -> str:
    calls = [each for each in events if each.type in _ENDS]
    if calls:
        last = calls[-1]
        return f"{last.actor} called {_target(last)}: {_how(last)}{_after_whom(events)}"
    began = [
        each
        for each in events
        if each.type in (AuditType.CALL_INTENDED, AuditType.APPROVAL_REQUESTED)
    ]
    if not began:
        return count_noun(len(events), "entry", "entries")
    first = began[0]
    waits = (
        "waits for an answer"
        if first.type == AuditType.APPROVAL_REQUESTED
        else "the result is not recorded"
    )
    return f"{first.actor} called {_target(first)}: {waits}"


_HOW_BY_OUTCOME: Final[Mapping[OutcomeClass, str]] = {
    OutcomeClass.DENIED: "denied",
    OutcomeClass.WITHHELD: "withheld, because no caller can use this tool now",
    OutcomeClass.UNKNOWN: "nothing has this name",
}


def _how(end: AuditEvent) -> str:
    if end.type == AuditType.OUTCOME_UNKNOWN or end.details.get("outcome_known") is False:
        return "it is unknown whether the tool ran"
    if is_waiting(end.type, end.details):
        return "it waits for approval"
    if end.result == AuditResult.BLOCKED:
        outcome = outcome_of_event(end)
        return _HOW_BY_OUTCOME.get(outcome, "refused") if outcome else "refused"
    took = _length(end.details.get("duration_ms"))
    return ("it succeeded" if end.result == AuditResult.SUCCESS else "it failed") + took


def _after_whom(events: Sequence[AuditEvent]) -> str:
    for asked in events:
        for answer in events:
            is_yes = (
                answer.type == AuditType.APPROVAL_ANSWERED
                and answer.details.get("verdict") == "accept"
            )
            is_of_it = answer.details.get("approval") == asked.details.get("approval")
            if asked.type == AuditType.APPROVAL_REQUESTED and is_yes and is_of_it:
                return f", after {answer.actor} approved it ({format_span(answer.at - asked.at)})"
    return ""


def _unknown(events: Sequence[AuditEvent]) -> Iterable[str]:
    ended = {each.call for each in events if each.type in _ENDS}
    for event in events:
        if event.type == AuditType.CALL_INTENDED and event.call not in ended:
            yield f"how the call {event.call} of {_target(event)} ended"
        if event.type == AuditType.OUTCOME_UNKNOWN or event.details.get("outcome_known") is False:
            yield f"whether {_target(event)} ran in the call {event.call}"


def _because(details: Details) -> list[str]:
    # After a decision of the rules, the reason is a text for the caller, and names no rule.
    name = "the caller read" if DECIDED_BY in details else "reason"
    return [f"{name}: {_cut(str(details['reason']))}"] if details.get("reason") else []


def _length(milliseconds: object) -> str:
    if not isinstance(milliseconds, int | float):
        return ""
    return f" after {format_span(timedelta(milliseconds=max(0.0, min(float(milliseconds), 1e13))))}"


def format_span(time: timedelta) -> str:
    """A duration in words."""
    seconds = time.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _written(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "…"
