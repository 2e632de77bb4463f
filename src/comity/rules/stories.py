"""What became of a call, in words and times: who, what, by whose leave, with what end.

Told from the entries of the journal alone. What they do not say is not guessed: that it is unknown
is part of the story.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec

from comity.rules.phrases import count_noun
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import PENDING_APPROVAL

LONGEST: Final = 600

type Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened, how long after the first, and in words."""

    at: datetime
    after: timedelta
    type: str
    words: str
    more: tuple[str, ...] = ()
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """All of it, in one sentence and step by step, and what nobody can know from it."""

    headline: str
    happened: tuple[Told, ...]
    unknown: tuple[str, ...]


def asks_in(bodies: Iterable[bytes]) -> list[str]:
    """The asks that entries name, each once."""
    found: dict[str, None] = {}
    for body in bodies:
        try:
            details = msgspec.json.decode(body, type=dict[str, Any]).get("details")
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(details, dict):
            said = cast("dict[str, object]", details)
            for name in ("ask", "answered_by"):
                each = said.get(name)
                if isinstance(each, str) and each:
                    found[each] = None
    return list(found)


def tell(events: Sequence[Event]) -> Story:
    """The story of these events, which are in order of time."""
    began = events[0].at if events else None
    intended = {event.call for event in events if event.type == Type.CALL_INTENDED}
    happened = tuple(
        _told(event, _told_here(event, intended), event.at - (began or event.at))
        for event in events
    )
    return Story(_headline(events), happened, tuple(_unknown(events)))


def _told_here(event: Event, intended: AbstractSet[str]) -> Details:
    """With what a call was made is told when it leaves, and then not again at its end."""
    if event.type == Type.CALL_INTENDED or event.call not in intended:
        return event.details
    return {name: value for name, value in event.details.items() if name not in _TOLD_ONCE}


_TOLD_ONCE: Final = frozenset({"arguments", "arguments_digest", "grant", "answered_by"})


def _told(event: Event, details: Details, after: timedelta) -> Told:
    words, *more = _WORDS.get(event.type, _other)(event, details)
    is_bad = event.result in (Result.FAILURE, Result.BLOCKED, Result.UNKNOWN)
    is_bad = is_bad and not is_waiting(event.type, event.details)
    return Told(event.at, after, event.type, words, tuple(more), is_bad)


def _target(event: Event) -> str:
    return "/".join(each for each in (event.server, event.tool) if each) or "the gateway"


def _intended(event: Event, details: Details) -> list[str]:
    risk = f" ({details['risk_level']})" if details.get("risk_level") else ""
    return [
        f"{event.actor} calls {_target(event)}{risk}; written down before it leaves",
        *_arguments(details),
        *_leave(details),
    ]


def _arguments(details: Details) -> list[str]:
    if details.get("arguments") is not None:
        return [f"with {_written(details['arguments'])}"]
    if details.get("arguments_digest"):
        return [f"with arguments of which no copy is kept, digest {details['arguments_digest']}"]
    return []


def _leave(details: Details) -> list[str]:
    told = [f"allowed by the grant {details['grant']}"] if details.get("grant") else []
    if details.get("answered_by"):
        told.append(f"by the answer {details['answered_by']}")
    return told


def _ended(event: Event, details: Details) -> list[str]:
    took = _length(details.get("duration_ms"))
    if details.get("outcome_known") is False:
        return [f"no answer came{took}: whether it ran is not known", *_because(details)]
    if event.result == Result.SUCCESS:
        words = f"{event.actor} has the result of {_target(event)}{took}"
    else:
        words = f"{_target(event)} ended in an error{took}"
    # Of what is safe only the end is written down, and that tells all of it.
    return [words, *_because(details), *_arguments(details), *_leave(details)]


def _blocked(event: Event, details: Details) -> list[str]:
    if is_waiting(event.type, details):
        return [f"{event.actor} calls {_target(event)}: it waits for approval", *_because(details)]
    what = {
        Type.VALIDATION_FAILED: "its arguments were refused",
        Type.CODE_REJECTED: "the code in it was refused",
    }.get(Type(event.type), "refused")
    told = f"{event.actor} calls {_target(event)}: {what}, and it never left"
    return [told, *_because(details), *_arguments(details)]


def is_waiting(type: str, details: Details) -> bool:
    """Whether a call did not run because it waits for approval, as nothing else is refused."""
    return type == Type.TOOL_BLOCKED and details.get("outcome") == PENDING_APPROVAL.error_type


def _unknown_outcome(event: Event, details: Details) -> list[str]:
    since = f", which was to leave at {details['intended_at']}" if "intended_at" in details else ""
    return [
        f"the gateway ended before {_target(event)} answered{since}: whether it ran is not known",
        "it is not tried again",
    ]


def _retried(event: Event, details: Details) -> list[str]:
    return [f"tried again, the {details.get('attempt', 'next')}. time", *_because(details)]


def _asked(event: Event, details: Details) -> list[str]:
    until = f", until {details['expires_at']}" if details.get("expires_at") else ""
    quorum = details.get("quorum", 1)
    who = "a person" if quorum == 1 else f"{quorum} people"
    about = details.get("about")
    return [
        f"{who} must say yes; asked as {details.get('ask', '?')}{until}",
        *([str(details["message"])] if details.get("message") else []),
        *([f"about {_written(about)}"] if about else []),
    ]


def _answered(event: Event, details: Details) -> list[str]:
    if event.result == Result.BLOCKED:
        return [f"{event.actor} wanted to answer, and may not", *_because(details)]
    said = _VERDICTS.get(str(details.get("verdict", "")), "answered")
    return [f"{event.actor} {said}", *_because(details)]


_VERDICTS: Final = {
    "accept": "said yes",
    "decline": "said no",
    "cancel": "called it off",
    "defer": "put it off",
}


def _used(event: Event, details: Details) -> list[str]:
    return [f"the answer to {details.get('ask', '?')} is used, for this one call"]


def _ask_ended(event: Event, details: Details) -> list[str]:
    state = details.get("state", "over")
    told = {"expired": "nobody answered in time"}.get(str(state), f"it is {state}")
    return [f"{details.get('ask', 'the ask')}: {told}", *_because(details)]


def _offer(event: Event, details: Details) -> list[str]:
    took = _length(details.get("duration_ms"))
    went = "and has it" if event.result == Result.SUCCESS else "in vain"
    return [f"{event.actor} reads {_target(event)} {went}{took}", *_because(details)]


def _testimony(event: Event, details: Details) -> list[str]:
    return [f"{event.actor} says of itself: {_written(details)}"]


def _other(event: Event, details: Details) -> list[str]:
    what = event.type.rpartition(".")[2].replace("_", " ").lower()
    told = f"{what}, by {event.actor}" + (f": {_target(event)}" if event.server else "")
    return [told, *([_written(details)] if details else [])]


_WORDS: Final[Mapping[str, Callable[[Event, Details], list[str]]]] = {
    Type.CALL_INTENDED: _intended,
    Type.TOOL_EXECUTED: _ended,
    Type.TOOL_BLOCKED: _blocked,
    Type.VALIDATION_FAILED: _blocked,
    Type.CODE_REJECTED: _blocked,
    Type.OUTCOME_UNKNOWN: _unknown_outcome,
    Type.CALL_RETRIED: _retried,
    Type.ASK_OPENED: _asked,
    Type.ASK_ANSWERED: _answered,
    Type.ASK_USED: _used,
    Type.ASK_ENDED: _ask_ended,
    Type.OFFER_USED: _offer,
    Type.TESTIMONY: _testimony,
}
_ENDS: Final = (
    Type.TOOL_EXECUTED,
    Type.TOOL_BLOCKED,
    Type.VALIDATION_FAILED,
    Type.CODE_REJECTED,
    Type.OUTCOME_UNKNOWN,
    Type.OFFER_USED,
)


def _headline(events: Sequence[Event]) -> str:
    calls = [each for each in events if each.type in _ENDS]
    if calls:
        last = calls[-1]
        return f"{last.actor} called {_target(last)}: {_how(last)}{_after_whom(events)}"
    began = [each for each in events if each.type in (Type.CALL_INTENDED, Type.ASK_OPENED)]
    if not began:
        return count_noun(len(events), "entry", "entries")
    first = began[0]
    waits = "waits for an answer" if first.type == Type.ASK_OPENED else "how it ended is not told"
    return f"{first.actor} called {_target(first)}: {waits}"


def _how(end: Event) -> str:
    if end.type == Type.OUTCOME_UNKNOWN or end.details.get("outcome_known") is False:
        return "whether it ran is not known"
    if is_waiting(end.type, end.details):
        return "it waits for approval"
    if end.result == Result.BLOCKED:
        return "refused"
    took = _length(end.details.get("duration_ms"))
    return ("it succeeded" if end.result == Result.SUCCESS else "it failed") + took


def _after_whom(events: Sequence[Event]) -> str:
    for asked in events:
        for answer in events:
            is_yes = answer.type == Type.ASK_ANSWERED and answer.details.get("verdict") == "accept"
            is_of_it = answer.details.get("ask") == asked.details.get("ask")
            if asked.type == Type.ASK_OPENED and is_yes and is_of_it:
                return f", after {answer.actor} said yes to it ({span(answer.at - asked.at)})"
    return ""


def _unknown(events: Sequence[Event]) -> Iterable[str]:
    ended = {each.call for each in events if each.type in _ENDS}
    for event in events:
        if event.type == Type.CALL_INTENDED and event.call not in ended:
            yield f"how the call {event.call} of {_target(event)} ended"
        if event.type == Type.OUTCOME_UNKNOWN or event.details.get("outcome_known") is False:
            yield f"whether {_target(event)} ran in the call {event.call}"


def _because(details: Details) -> list[str]:
    return [f"because: {_cut(str(details['reason']))}"] if details.get("reason") else []


def _length(milliseconds: object) -> str:
    if not isinstance(milliseconds, int | float):
        return ""
    return f" after {span(timedelta(milliseconds=max(0.0, min(float(milliseconds), 1e13))))}"


def span(time: timedelta) -> str:
    """A length of time as people say it."""
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
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
