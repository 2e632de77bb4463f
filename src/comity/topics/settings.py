"""The settings `[topics]`, and `[[topics.overrides]]` for single topics."""

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
type TopicAudit = Literal["none", "mcp", "all"]

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
class TopicOverride:
    """The settings of one topic. None means the value of `[topics]`."""

    name: str = setting(REQUIRED, "the topic", FieldType(_name, {"type": "string"}))
    access: TopicAccessChoice | None = setting(
        None, "the principals that may join: all known ones, or those with a grant in it"
    )
    capabilities: tuple[str, ...] | None = setting(
        None, "the capabilities of a member without a grant", CAPABILITIES
    )
    max_members: int | None = setting(None, "maximum members", number_type(1, 1_000_000))
    history: int | None = setting(
        None, "how many past envelopes a new member receives", number_type(0, 10_000)
    )
    kinds: Literal["strict", "later"] | None = setting(
        None, "`later`: with mcp/reject and mcp/withdraw of later versions"
    )
    servers: tuple[str, ...] = setting((), "the servers that are members of it", _SERVERS)
    approvals: bool = setting(False, "whether approval requests are posted here")


def _override(entry: ConfigValue) -> TopicOverride:
    if "name" not in entry.table():
        raise entry.wrong("has no name; give it the topic's")
    return read_table(entry, TopicOverride)


def _overrides(value: ConfigValue) -> tuple[TopicOverride, ...]:
    found = tuple(_override(entry) for entry in value.items())
    if len({topic.name for topic in found}) < len(found):
        raise value.wrong("names one topic twice; keep one")
    return found


OVERRIDES: Final = FieldType(
    _overrides, {"type": "array", "items": table_of(members_in(TopicOverride), required=["name"])}
)


@dataclass(frozen=True, slots=True)
class TopicServiceSettings:
    access: TopicAccessChoice = setting(
        "restricted", "The principals that may join a topic: all known ones, or those with a grant."
    )
    capabilities: tuple[str, ...] = setting(
        PROPOSE, "The capabilities of a member without a grant in the topic.", CAPABILITIES
    )
    max_members: int = setting(50, "Maximum members of one topic.", COUNT)
    max_topics: int = setting(10_000, "Maximum topics.", COUNT)
    message_rate: int = setting(
        60, "The envelopes of one member per minute; 0: no limit.", _PER_MINUTE
    )
    chat_rate: int = setting(10, "The same limit for chat messages; 0: no limit.", _PER_MINUTE)
    max_envelope_bytes: int = setting(
        1024 * 1024, "The longest envelope.", number_type(1024, 2**24)
    )
    max_queue_bytes: int = setting(
        1024 * 1024, "Maximum bytes that wait for a slow member.", number_type(16_384, 2**27)
    )
    reconnect_grace: timedelta = setting(
        timedelta(seconds=5), "How long Comity waits for a member whose connection broke."
    )
    audit: TopicAudit = setting(
        "mcp", "The envelopes whose heading the audit log records; `mcp`: all but chat."
    )
    overrides: tuple[TopicOverride, ...] = setting(
        (), "Topics with settings of their own.", OVERRIDES
    )
