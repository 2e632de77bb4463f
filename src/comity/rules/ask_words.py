"""How an ask reads to a person, the same at a terminal, on a page and in a message to elsewhere.

Rule 1: all that strangers wrote is shown as it stands, with what would hide or steer spelt out.
Rule 2: what is shown is what would run: nothing is left out without saying so.
Rule 3: the riskiest come first, and of equals the one that has waited longest.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

from comity.rules.looks import revealed
from comity.rules.phrases import count_noun
from comity.rules.safe_text import safe
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.security import Risk

LONGEST: Final = 16_000
SHORT_ID: Final = 8
USUAL_ORIGIN: Final = "http://127.0.0.1:2664"
"""Where commands look for a gateway unless they are told where it is."""

UNSHOWN: Final = "not kept to be shown; their digest is below"
_RISKS: Final = tuple(Risk)
_SAID: Final[Mapping[Verdict, str]] = {
    Verdict.ACCEPT: "approved it",
    Verdict.DECLINE: "declined it",
    Verdict.CANCEL: "called it off",
    Verdict.DEFER: "wants to decide later",
}
_ENDED: Final[Mapping[State, str]] = {
    State.PENDING: "It waits for an answer.",
    State.DEFERRED: "It waits for an answer that was put off.",
    State.ACCEPTED: "It is approved, and has not run yet.",
    State.USED: "It was approved, and has been used for its one call.",
    State.DECLINED: "It was declined.",
    State.CANCELLED: "It was called off.",
    State.EXPIRED: "It has expired; nobody answered in time, or nobody used the answer.",
    State.WITHDRAWN: "It was withdrawn: what was asked about is no longer to be had.",
}


class Row(NamedTuple):
    """One thing to know of an ask: its name, and what it is. `is_code` keeps its line breaks."""

    name: str
    text: str
    is_code: bool = False


def one_line(text: str) -> str:
    """Somebody's words, which end no line and hide nothing."""
    shown = safe(revealed(text))
    return shown.replace("\n", "\\n").replace("\t", "\\t")


def in_full(value: object) -> str:
    """A value as JSON of several lines; what is too long is cut, and it is said so."""
    text = safe(revealed(json.dumps(value, indent=2, ensure_ascii=False, default=str)))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… and {count_noun(len(text) - LONGEST, 'more character')} not shown"


def risk_of(ask: Ask) -> str:
    """As it was judged when the question was put; a question of another kind has none."""
    return one_line(str(ask.about.get("risk") or ""))


def urgency(ask: Ask) -> tuple[int, datetime]:
    """By what asks are put in order: the least comes first."""
    risk = risk_of(ask)
    place = _RISKS.index(Risk(risk)) if risk in _RISKS else -1
    return -place, ask.created_at


def ordered(asks: Iterable[Ask]) -> list[Ask]:
    return sorted(asks, key=urgency)


def what(ask: Ask) -> str:
    """What is asked, in one sentence without an end."""
    if ask.kind is Kind.CONFIRM and not ask.options:
        return f"{one_line(ask.asker)} wants to call {name_of(ask)}"
    return one_line(ask.message) or f"{one_line(ask.asker)} asks for {ask.kind}"


def command(id: str, origin: str) -> str:
    """The command that approves an ask at the gateway of this origin."""
    url = "" if origin == USUAL_ORIGIN else f" --url {origin}"
    return f"`comity approve {id}{url}`"


def name_of(ask: Ask) -> str:
    """The tool, as clients call it."""
    return one_line(str(ask.about.get("tool") or f"{ask.server}/{ask.tool}"))


def state_of(ask: Ask) -> str:
    """What became of it, and by whose word."""
    said = [
        f"{one_line(each.by)} {_SAID[each.verdict]}"
        + (f": {one_line(each.reason)}" if each.reason else "")
        for each in ask.answers
    ]
    return " ".join([_ENDED[ask.state], *(f"{each}." for each in said)])


def rows(ask: Ask, now: datetime, likeness: str = "") -> list[Row]:
    """All that somebody should have seen who answers it."""
    found = [
        Row("Asked by", one_line(ask.asker)),
        Row("Server", one_line(ask.server)),
        Row("Tool", one_line(ask.tool)),
        Row("Topic", one_line(str(ask.about.get("topic") or ""))),
        Row("Risk", risk_of(ask)),
        Row("Before", one_line(likeness)),
        _what_would_run(ask),
        Row("Needs", "" if ask.quorum == 1 else f"{ask.quorum} people who approve"),
        Row("Expires", until(ask, now)),
        Row("Asked", f"{ago(now - ask.created_at)} ago, at {moment(ask.created_at)}"),
        Row("State", "" if ask.state is State.PENDING and not ask.answers else state_of(ask)),
        Row("Definition", one_line(str(ask.about.get("definition") or ""))),
        Row("Digest", one_line(str(ask.about.get("arguments_digest") or ""))),
        Row("Trace", one_line(ask.trace)),
    ]
    return [row for row in found if row.text]


def _what_would_run(ask: Ask) -> Row:
    if "arguments_digest" not in ask.about:
        rest = {name: said for name, said in ask.about.items() if name not in ("tool", "risk")}
        return Row("About", in_full(rest) if rest else "", is_code=True)
    arguments = ask.about.get("arguments")
    if arguments is None:
        return Row("Arguments", UNSHOWN)
    return Row("Arguments", in_full(arguments), is_code=True)


def until(ask: Ask, now: datetime) -> str:
    """When nobody can answer any more, or use the answer."""
    if ask.state not in (State.PENDING, State.DEFERRED, State.ACCEPTED):
        return ""
    if ask.expires_at <= now:
        return f"at {moment(ask.expires_at)}, which is past"
    return f"in {ago(ask.expires_at - now)}, at {moment(ask.expires_at)}"


def moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ago(time: timedelta) -> str:
    """A length of time in the one unit that people would name."""
    seconds = max(0, round(time.total_seconds()))
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Each id by as much of it as tells it from the others; never less than a few letters."""
    found = sorted(set(ids))
    shown: dict[str, str] = {}
    for place, id in enumerate(found):
        near = [*found[max(place - 1, 0) : place], *found[place + 1 : place + 2]]
        alike = max((_alike(id, other) for other in near), default=0)
        shown[id] = id[: max(SHORT_ID, alike + 1)]
    return shown


def _alike(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), len(one))


def fields(ask: Ask) -> dict[str, object]:
    """The ask for programs."""
    return {
        "id": ask.id,
        "kind": ask.kind,
        "state": ask.state,
        "asker": ask.asker,
        "server": ask.server,
        "tool": ask.tool,
        "what": what(ask),
        "message": ask.message,
        "risk": risk_of(ask) or None,
        "about": dict(ask.about),
        "digest": ask.digest,
        "created_at": ask.created_at,
        "expires_at": ask.expires_at,
        "ended_at": ask.ended_at,
        "quorum": ask.quorum,
        "options": ask.options,
        "schema": ask.schema,
        "trace": ask.trace,
        "call": ask.call or None,
        "answers": [
            {"by": each.by, "verdict": each.verdict, "at": each.at, "reason": each.reason}
            for each in ask.answers
        ],
    }


# What is different from what was asked before: the same words again and again are not read.


@dataclass(slots=True)
class Alike:
    """What became of those that one party asked of one tool in a while."""

    approved: int = 0
    declined: int = 0
    digests: set[str] = field(default_factory=set[str])
    last: Mapping[str, object] | None = None
    """The arguments of the last one that was approved, where they are known."""


type Seen = Mapping[tuple[str, str, str], Alike]


def seen(asks: Sequence[Ask]) -> Seen:
    """From what was decided of late, oldest first."""
    found: dict[tuple[str, str, str], Alike] = {}
    for ask in asks:
        alike = found.setdefault((ask.asker, ask.server, ask.tool), Alike())
        if any(each.verdict is Verdict.DECLINE for each in ask.answers):
            alike.declined += 1
        elif ask.state in (State.ACCEPTED, State.USED):
            alike.approved += 1
            alike.digests.add(ask.digest)
            arguments = ask.about.get("arguments")
            is_object = isinstance(arguments, Mapping)
            alike.last = cast("Mapping[str, object]", arguments) if is_object else None
    return found


def likeness(ask: Ask, before: Seen) -> str:
    """What was said of others in the last day like it, and in what this one differs."""
    if ask.kind is not Kind.CONFIRM or ask.options:
        return ""
    alike = before.get((ask.asker, ask.server, ask.tool))
    if alike is None or not (alike.approved or alike.declined):
        return "nothing by this party on this tool was decided in the last day"
    counted = [
        f"{how} {count_noun(times, 'time')}"
        for how, times in (("approved", alike.approved), ("declined", alike.declined))
        if times
    ]
    told = f"same tool and party {' and '.join(counted)} in the last day"
    return f"{told}; {_difference(ask, alike)}" if alike.approved else told


def _difference(ask: Ask, alike: Alike) -> str:
    if ask.digest in alike.digests:
        return "these very arguments among them"
    arguments = ask.about.get("arguments")
    if alike.last is None or not isinstance(arguments, Mapping):
        return "never with these arguments"
    now = cast("Mapping[str, object]", arguments)
    names = sorted({*now, *alike.last})
    other = [name for name in names if now.get(name) != alike.last.get(name)]
    if not other:
        return "never with these arguments"
    named = ", ".join(one_line(name) for name in other[:5])
    return f"this one differs from the last approved one in {named}"
