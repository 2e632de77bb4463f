"""The settings `[topics]`, and `[[topics.rooms]]` for single topics."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from comity.config.document import ConfigValue
from comity.config.fields import (
    COUNT,
    REQUIRED,
    FieldType,
    members_in,
    number_type,
    read_table,
    setting,
    table_of,
    text_list_type,
)
from comity.topics.rules import PROPOSE, is_capability, is_topic

type TopicAccessChoice = Literal["public", "restricted", "private"]
type TopicJournal = Literal["none", "mcp", "all"]

_SHAPE: Final = "[!-~]{1,256}"
_PER_MINUTE: Final = number_type(0, 10_000_000)


def _name(value: ConfigValue) -> str:
    if not is_topic(value.text()):
        raise value.wrong("must be 1 to 64 of A-Z a-z 0-9 _ . -")
    return value.text()


def _capabilities(value: ConfigValue) -> tuple[str, ...]:
    for item in value.items():
        if not is_capability(item.text()):
            raise item.wrong("must be a capability, as mcp/proposal:* or chat")
    return tuple(item.text() for item in value.items())


CAPABILITIES: Final = FieldType(
    _capabilities, {"type": "array", "items": {"type": "string", "pattern": f"^{_SHAPE}$"}}
)
_SERVERS: Final = text_list_type(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a server's id")


@dataclass(frozen=True, slots=True)
class RoomSettings:
    """The settings of one topic. None stands for the value of `[topics]`."""

    name: str = setting(REQUIRED, "the topic", FieldType(_name, {"type": "string"}))
    access: TopicAccessChoice | None = setting(
        None, "who may join: everybody known, or who was granted something in it"
    )
    capabilities: tuple[str, ...] | None = setting(
        None, "what somebody may send who was granted nothing", CAPABILITIES
    )
    members: int | None = setting(
        None, "how many members it has at most", number_type(1, 1_000_000)
    )
    history: int | None = setting(
        None, "how many envelopes whoever joins is given first", number_type(0, 10_000)
    )
    kinds: Literal["strict", "later"] | None = setting(
        None, "`later`: with mcp/reject and mcp/withdraw of later versions"
    )
    mounts: tuple[str, ...] = setting((), "servers in it", _SERVERS)
    asks: bool = setting(False, "whether asks of the gateway are put here")


def _room(entry: ConfigValue) -> RoomSettings:
    if "name" not in entry.table():
        raise entry.wrong("has no name; give it the topic's")
    return read_table(entry, RoomSettings)


def _rooms(value: ConfigValue) -> tuple[RoomSettings, ...]:
    found = tuple(_room(entry) for entry in value.items())
    if len({topic.name for topic in found}) < len(found):
        raise value.wrong("names one topic twice; keep one")
    return found


ROOMS: Final = FieldType(
    _rooms, {"type": "array", "items": table_of(members_in(RoomSettings), required=["name"])}
)


@dataclass(frozen=True, slots=True)
class TopicServiceSettings:
    access: TopicAccessChoice = setting("restricted", "Who may join a topic.")
    capabilities: tuple[str, ...] = setting(
        PROPOSE, "What a member may send that was granted nothing in the topic.", CAPABILITIES
    )
    members: int = setting(50, "The members of one topic.", COUNT)
    most: int = setting(10_000, "The topics at once.", COUNT)
    messages: int = setting(
        60, "The envelopes of one member in a minute; 0: any number.", _PER_MINUTE
    )
    chats: int = setting(10, "The number of them that are chat; 0: any number.", _PER_MINUTE)
    envelope_bytes: int = setting(1024 * 1024, "The longest envelope.", number_type(1024, 2**24))
    queue_bytes: int = setting(
        1024 * 1024, "How much may wait for a slow member.", number_type(16_384, 2**27)
    )
    grace: timedelta = setting(
        timedelta(seconds=5), "How long Comity waits for a member whose connection broke."
    )
    journal: TopicJournal = setting(
        "mcp", "The envelopes whose heading the audit log records; `mcp`: all but chat."
    )
    rooms: tuple[RoomSettings, ...] = setting((), "Topics with settings of their own.", ROOMS)
