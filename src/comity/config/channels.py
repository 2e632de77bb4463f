"""The rows of `[[channels]]`: what comes from outside goes where, and whether topics are answered.

A row is about channels of a server (`server`, and `channel` as a pattern), or about a `topic`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from comity.config.kinds import TRUTH, Kind, number, one_of, table_of
from comity.config.members import all_of, members_of, shaped
from comity.config.setting import Setting
from comity.rules.channels import Goal, Grouping, Route, Talk, place_in
from comity.rules.documents import Written
from comity.wire.errors import MalformedMessage

MOST_ROWS: Final = 1_000
_OUTSIDE: Final = ("channel", "mirror", "per_minute", "repeats", "acknowledges")
_INSIDE: Final = ("hears",)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """All rows, by what they are about."""

    routes: tuple[Route, ...] = ()
    talks: tuple[Talk, ...] = ()


def _place(written: Written) -> str:
    try:
        return str(place_in(written.text()))
    except MalformedMessage as wrong:
        raise written.wrong(str(wrong)) from None


def _places(written: Written) -> tuple[str, ...]:
    return tuple(_place(each) for each in written.items())


def _goal(written: Written) -> str:
    return written.text() if written.text() in list(Goal) else _topic_place(written)


def _topic_place(written: Written) -> str:
    if not place_in_topic(written):
        raise written.wrong("must be nothing, turn or topic:NAME")
    return written.text()


def _mirror(written: Written) -> str:
    if not place_in_topic(written):
        raise written.wrong("must be written as topic:NAME")
    return written.text().partition(":")[2]


def place_in_topic(written: Written) -> bool:
    try:
        return place_in(written.text()).is_topic
    except MalformedMessage:
        return False


_TEXT: Final = {"type": "string"}
_MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "server": (shaped(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a server's id"), "whose channels"),
    "channel": (shaped(r"[^\x00-\x1f]{1,256}", "a pattern, as mail:**"), "which of them"),
    "topic": (shaped(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a topic's name"), "or in which topic"),
    "to": (Kind(_goal, _TEXT), "what comes of a message: nothing, turn or topic:NAME"),
    "conversation": (one_of(*Grouping), "what is one conversation"),
    "say_in": (
        Kind(_places, {"type": "array", "items": _TEXT}),
        "where a model answers, if not where it was asked: topic:NAME, channel:SERVER/ID",
    ),
    "mirror": (Kind(_mirror, _TEXT), "topic:NAME, where the same is said as in the channel"),
    "hears": (one_of("addressed", "all"), "whether a topic's every chat is answered"),
    "party": (shaped(r"(agent|system):[!-~]{1,120}", "agent:host"), "in whose name it is answered"),
    "per_minute": (number(1, 100_000), "how many messages of one channel are taken in a minute"),
    "repeats": (TRUTH, "whether the connector knows a publication by its publishId"),
    "acknowledges": (TRUTH, "whether the connector says what it has delivered"),
}


def _row(entry: Written) -> Route | Talk:
    said = members_of(entry, _MEMBERS)
    if ("server" in said) == ("topic" in said):
        raise entry.wrong("is about a server's channels or a topic: name one of them")
    foreign = [name for name in (_OUTSIDE if "topic" in said else _INSIDE) if name in said]
    if foreign:
        about = "topics" if "topic" in said else "channels of servers"
        raise entry.wrong(f"has {foreign[0]}, which {about} have not")
    if "conversation" in said:
        said["conversation"] = Grouping(said["conversation"])
    return _talk(said, entry) if "topic" in said else Route(**said)


def _talk(said: dict[str, Any], entry: Written) -> Talk:
    if said.pop("to", Goal.TURN) != Goal.TURN:
        raise entry.wrong("is about a topic, where what is said starts a turn or there is no row")
    return Talk(hears_all=said.pop("hears", "") == "all", **said)


def _rows(written: Written) -> Any:
    rows = all_of(_row, MOST_ROWS)(written)
    talks = tuple(each for each in rows if isinstance(each, Talk))
    if len({each.topic for each in talks}) < len(talks):
        raise written.wrong("names one topic twice; keep one")
    return tuple(rows)


CHANNELS: Final = (
    Setting(
        "channels",
        "",
        Kind(_rows, {"type": "array", "items": table_of(_MEMBERS)}),
        "where words from outside go, and where models answer",
        "channel_rows",
    ),
)


def channels_of(rows: tuple[Route | Talk, ...]) -> ChannelSettings:
    return ChannelSettings(
        tuple(each for each in rows if isinstance(each, Route)),
        tuple(each for each in rows if isinstance(each, Talk)),
    )
