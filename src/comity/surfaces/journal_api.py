"""The journal at /api/journal: found, told as a story, and exported, for those who may read all.

What stands in it passed redaction before it was written, so nothing is hidden here again.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from comity.kernel.history import History, Part, Place
from comity.ports.journaling import Sought
from comity.rules.stories import Story, Told, tell
from comity.surfaces.asked import Asked, Room, View
from comity.wire.audit import OURS, Event, Type, event_of
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.journal import Line

PAGE: Final = 100
MOST: Final = 1_000
_WORDS: Final = ("trace", "call", "actor", "server", "tool", "result")
_KNOWN: Final = frozenset({*_WORDS, "type", "since", "until", "order", "limit", "cursor"})

type About = Callable[[], Mapping[str, object]]


class JournalApi:
    """What operators read of what happened. Nothing of it can be changed."""

    def __init__(self, history: History, about: About = dict) -> None:
        self._history = history
        self._about = about

    @property
    def rooms(self) -> dict[str, Room]:
        return {"journal": self.journal}

    async def journal(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return await self._found(asked.query)
            case "GET", ("key",):
                return self._about()
            case "GET", ("story", name):
                return await self._story(name)
            case "GET", ("export",):
                return _part_view(await self._history.part(_place(asked.query)))
            case _:
                raise MalformedMessage("there is no such address under /api/journal", NOTHING_HERE)

    async def _found(self, query: Mapping[str, str]) -> View:
        sought, limit = _sought(query), _limit(query)
        lines = await self._history.find(sought, limit)
        page: dict[str, object] = {"entries": [entry_view(line) for line in lines]}
        if len(lines) >= limit:
            last = lines[-1]
            page["next"] = f"{last.at.isoformat()} {last.seq} {last.node}"
        return page

    async def _story(self, name: str) -> View:
        lines = await self._history.about(name)
        events = [event for line in lines if (event := _readable(line)) is not None]
        return {**story_view(tell(events)), "entries": [entry_view(line) for line in lines]}


def entry_view(line: Line) -> View:
    """An entry: what it is found by, and all that its body says."""
    event = _readable(line)
    return {
        "node": line.node,
        "seq": line.seq,
        "at": line.at,
        "type": line.type,
        "actor": line.actor,
        "server": line.server,
        "tool": line.tool,
        "result": line.result,
        "trace": line.trace,
        "call": line.call,
        "details": None if event is None else event.details,
        "hash": line.hash.hex(),
    }


def story_view(story: Story) -> View:
    return {
        "headline": story.headline,
        "happened": [_told_view(told) for told in story.happened],
        "unknown": story.unknown,
    }


def _told_view(told: Told) -> View:
    return {
        "at": told.at,
        "after_ms": round(told.after.total_seconds() * 1000, 3),
        "type": told.type,
        "words": told.words,
        "more": told.more,
        "is_bad": told.is_bad,
    }


def _part_view(part: Part) -> View:
    view: dict[str, Any] = {"lines": [line.decode() for line in part.lines]}
    if part.next is not None:
        view["next"] = f"{part.next.entries} {part.next.after} {part.next.node}"
    return view


def _readable(line: Line) -> Event | None:
    try:
        return event_of(line.body)
    except (MalformedMessage, msgspec.DecodeError):
        return None


def _sought(query: Mapping[str, str]) -> Sought:
    strange = sorted(query.keys() - _KNOWN)
    if strange:
        raise _refused(f"{strange[0]!r:.80} is not one of: {', '.join(sorted(_KNOWN))}")
    order = query.get("order", "newest")
    if order not in ("newest", "oldest"):
        raise _refused("order must be newest or oldest")
    words = {name: query[name] for name in _WORDS if name in query}
    words["result"] = words.get("result", "").upper()
    words["trace"] = words.get("trace", "").replace("-", "").lower()
    return Sought(
        **words,
        types=tuple(
            _type(each.strip()) for each in query.get("type", "").split(",") if each.strip()
        ),
        since=_moment(query, "since"),
        until=_moment(query, "until"),
        newest_first=order == "newest",
        after=_after(query.get("cursor")),
    )


def _type(said: str) -> str:
    """A type as it is written, or as people write it: `tool_executed`, `ask_opened`."""
    known = {each.removeprefix(OURS).lower(): each for each in map(str, Type)}
    return known.get(said.lower().replace("-", "_"), said)


def _moment(query: Mapping[str, str], name: str) -> datetime | None:
    if not query.get(name):
        return None
    try:
        at = datetime.fromisoformat(query[name])
    except ValueError:
        raise _refused(f"{name} must be a time, as 2026-11-15T08:30:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _after(cursor: str | None) -> tuple[datetime, str, int] | None:
    if cursor is None:
        return None
    said, seq, node = _parts(cursor)
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        raise _refused(_NO_CURSOR) from None
    if at.tzinfo is None or not seq.isdecimal() or len(seq) > 18:
        raise _refused(_NO_CURSOR)
    return at, node, int(seq)


def _place(query: Mapping[str, str]) -> Place | None:
    if "cursor" not in query:
        return None
    entries, after, node = _parts(query["cursor"])
    if not (entries.isdecimal() and after.isdecimal()) or max(len(entries), len(after)) > 18:
        raise _refused(_NO_CURSOR)
    return Place(node, int(after), int(entries))


def _parts(cursor: str) -> tuple[str, str, str]:
    """A node's name may hold anything, and so stands last."""
    first, _, rest = cursor.partition(" ")
    second, _, node = rest.partition(" ")
    if not node:
        raise _refused(_NO_CURSOR)
    return first, second, node


def _limit(query: Mapping[str, str]) -> int:
    said = query.get("limit", str(PAGE))
    if not said.isdecimal() or len(said) > 6 or not 1 <= int(said) <= MOST:
        raise _refused(f"limit must be 1 to {MOST}")
    return int(said)


_NO_CURSOR: Final = "a cursor that was not given out here"


def _refused(words: str) -> MalformedMessage:
    return MalformedMessage(words, INVALID_PARAMS)
