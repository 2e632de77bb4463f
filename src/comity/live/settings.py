"""Settings of live servers, with the table `live` of a server.

The tables are `[state]`, `[turns]`, `[[channels]]`, `[[pushes]]` and `[[inbound_webhooks]]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from comity.config.document import ConfigValue
from comity.config.fields import (
    DURATION_OR_NEVER,
    TEXT,
    TRUTH,
    FieldType,
    Members,
    all_of,
    members_of,
    number_type,
    one_of,
    pattern_type,
    setting,
    table_of,
    text_list_type,
)
from comity.errors import MalformedMessage
from comity.live.channels.model import (
    ChannelRoute,
    ConversationScope,
    IncomingAction,
    TopicChatConfig,
    parse_target,
)
from comity.live.features import USER_POSITIONS, LivePolicy
from comity.live.hooks.model import InjectionPosition
from comity.live.pushes.model import (
    ALGORITHMS,
    InboundWebhookConfig,
    PushRoute,
    PushRouteRule,
    PushTarget,
    WebhookKind,
    template_problem,
)
from comity.live.state.model import StateRetention
from comity.mcp.mcpl import ScopeBounds
from comity.topics.rules import is_topic

MAX_ENTRIES: Final = 1_000
_CHANNEL_ONLY_FIELDS: Final = (
    "channel",
    "mirror",
    "max_per_minute",
    "deduplicates",
    "acknowledges",
)
_TOPIC_ONLY_FIELDS: Final = ("respond_to",)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """The entries of `[[channels]]`, separated into routes of channels and chats of topics."""

    routes: tuple[ChannelRoute, ...] = ()
    chats: tuple[TopicChatConfig, ...] = ()


def _place(value: ConfigValue) -> str:
    try:
        return str(parse_target(value.text()))
    except MalformedMessage as wrong:
        raise value.wrong(str(wrong)) from None


def _places(value: ConfigValue) -> tuple[str, ...]:
    return tuple(_place(each) for each in value.items())


def _goal(value: ConfigValue) -> str:
    return value.text() if value.text() in list(IncomingAction) else _topic_place(value)


def _topic_place(value: ConfigValue) -> str:
    if not place_in_topic(value):
        raise value.wrong("must be nothing, turn or topic:NAME")
    return value.text()


def _mirror(value: ConfigValue) -> str:
    if not place_in_topic(value):
        raise value.wrong("must be written as topic:NAME")
    return value.text().partition(":")[2]


def place_in_topic(value: ConfigValue) -> bool:
    try:
        return parse_target(value.text()).is_topic
    except MalformedMessage:
        return False


_TEXT: Final = {"type": "string"}
_MEMBERS: Final[Members] = {
    "server": (
        pattern_type(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a server's id"),
        "the server of the channels",
    ),
    "channel": (
        pattern_type(r"[^\x00-\x1f]{1,256}", "a pattern, as mail:**"),
        "the channel, or a pattern",
    ),
    "topic": (
        pattern_type(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a topic's name"),
        "the topic, instead of a server",
    ),
    "to": (FieldType(_goal, _TEXT), "the action for a message: nothing, turn or topic:NAME"),
    "conversation": (one_of(*ConversationScope), "the messages that form one conversation"),
    "reply_to": (
        FieldType(_places, {"type": "array", "items": _TEXT}),
        "the targets of the reply, if not the source: topic:NAME, channel:SERVER/ID",
    ),
    "mirror": (FieldType(_mirror, _TEXT), "a topic that mirrors the channel: topic:NAME"),
    "respond_to": (one_of("addressed", "all"), "the chat messages of a topic that a model answers"),
    "principal": (
        pattern_type(r"(agent|system):[!-~]{1,120}", "agent:host"),
        "the principal of the turn",
    ),
    "max_per_minute": (
        number_type(1, 100_000),
        "maximum messages of one channel per minute",
    ),
    "deduplicates": (TRUTH, "whether the connector recognises a publication by its publishId"),
    "acknowledges": (TRUTH, "whether the connector confirms deliveries"),
}


def _row(entry: ConfigValue) -> ChannelRoute | TopicChatConfig:
    said = members_of(entry, _MEMBERS)
    if ("server" in said) == ("topic" in said):
        raise entry.wrong("needs either server or topic")
    foreign = [
        name
        for name in (_CHANNEL_ONLY_FIELDS if "topic" in said else _TOPIC_ONLY_FIELDS)
        if name in said
    ]
    if foreign:
        about = "topics" if "topic" in said else "channels of servers"
        raise entry.wrong(f"has {foreign[0]}, which is not a setting of {about}")
    if "conversation" in said:
        said["conversation"] = ConversationScope(said["conversation"])
    return _talk(said, entry) if "topic" in said else ChannelRoute(**said)


def _talk(fields: dict[str, Any], entry: ConfigValue) -> TopicChatConfig:
    if fields.pop("to", IncomingAction.TURN) != IncomingAction.TURN:
        raise entry.wrong("is about a topic: leave out to, or set it to turn")
    return TopicChatConfig(hears_all=fields.pop("respond_to", "") == "all", **fields)


def _rows(value: ConfigValue) -> tuple[ChannelRoute | TopicChatConfig, ...]:
    rows = all_of(_row, MAX_ENTRIES)(value)
    talks = tuple(each for each in rows if isinstance(each, TopicChatConfig))
    if len({each.topic for each in talks}) < len(talks):
        raise value.wrong("names one topic twice; keep one")
    return rows


CHANNELS: Final = FieldType(_rows, {"type": "array", "items": table_of(_MEMBERS)})


def channels_of(rows: tuple[ChannelRoute | TopicChatConfig, ...]) -> ChannelSettings:
    return ChannelSettings(
        tuple(each for each in rows if isinstance(each, ChannelRoute)),
        tuple(each for each in rows if isinstance(each, TopicChatConfig)),
    )


_SETS: Final = text_list_type(
    r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?",
    "a feature set, as memory.retrieval, or memory.*",
)
_PATTERNS: Final = text_list_type(r"[^\x00-\x1f]{1,500}", "a pattern, as /project/**")
_BOUNDS: Final[Members] = {
    "whitelist": (_PATTERNS, "the allowed targets: * within a folder, ** across folders"),
    "blacklist": (_PATTERNS, "the denied targets; they override the whitelist"),
}


def _positions(value: ConfigValue) -> tuple[object, ...]:
    return tuple(InjectionPosition(each.one_of(list(InjectionPosition))) for each in value.items())


def _scopes(value: ConfigValue) -> Mapping[str, ScopeBounds]:
    return {name: ScopeBounds(**members_of(each, _BOUNDS)) for name, each in value.table().items()}


def _pointers(value: ConfigValue) -> Mapping[str, str]:
    found = {name: each.text() for name, each in value.table().items()}
    for name, each in value.table().items():
        if not found[name].startswith("/"):
            raise each.wrong("must be a JSON pointer into the arguments, such as /path")
    return found


_LIVE_SERVERS_MEMBERS: Final[Members] = {
    "enabled": (_SETS, "the feature sets that it may use; default: none"),
    "disabled": (_SETS, "feature sets that it may not use, even if a wildcard allows them"),
    "positions": (
        FieldType(_positions, {"type": "array", "items": {"enum": list(InjectionPosition)}}),
        "where it may inject text into a prompt; `system` only if listed",
    ),
    "rewrites": (TRUTH, "whether it may rewrite replies of models"),
    "on_failure": (
        one_of("open", "closed"),
        "whether a reply is sent (`open`) or dropped (`closed`) if its hook fails",
    ),
    "scopes": (
        FieldType(_scopes, {"type": "object", "additionalProperties": table_of(_BOUNDS)}),
        "the scopes of its feature sets",
    ),
    "scope_of": (
        FieldType(_pointers, {"type": "object", "additionalProperties": {"type": "string"}}),
        "the JSON pointer to the scope in the arguments of a tool, such as /path",
    ),
    "order": (number_type(0, 10_000), "its position among other servers; the lowest comes first"),
}


LIVE: Final = FieldType(
    lambda written: members_of(written, _LIVE_SERVERS_MEMBERS), table_of(_LIVE_SERVERS_MEMBERS)
)


def live_policy_of(written: Mapping[str, Any]) -> LivePolicy:
    """Return the policy that the table `live` of a server describes."""
    said = dict(written)
    closed = said.pop("on_failure", "open") == "closed"
    positions = frozenset(said.pop("positions", USER_POSITIONS))
    return LivePolicy(**said, positions=positions, fails_closed=closed)


_SERVER: Final = r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_SET: Final = r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?"
_TURN_FIELDS: Final = ("conversation", "principal", "reply_to")


def _to(value: ConfigValue) -> str:
    goal, _, topic = value.text().partition(":")
    is_fine = (
        is_topic(topic) if goal == PushTarget.TOPIC else goal in list(PushTarget) and not topic
    )
    if not is_fine or value.text().endswith(":"):
        raise value.wrong("must be one of: nothing, events, webhooks, turn, topic:NAME")
    return value.text()


def _template(value: ConfigValue) -> str:
    if problem := template_problem(value.text()) or _too_long(value.text()):
        raise value.wrong(problem)
    return value.text()


def _too_long(text: str) -> str:
    return "" if len(text) <= 4_000 else "has more than 4000 characters"


def _pushes_places(value: ConfigValue) -> tuple[str, ...]:
    for each in value.items():
        try:
            parse_target(each.text())
        except MalformedMessage as wrong:
            raise each.wrong(str(wrong)) from None
    return tuple(each.text() for each in value.items())


_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_GOAL: Final[Members] = {
    "to": (
        FieldType(_to, {"type": "string"}),
        "the target: nothing, events, webhooks, turn or topic:NAME",
    ),
    "conversation": (
        FieldType(_template, {"type": "string"}),
        "the conversation of the turn: a name, {event} for one per event, or {/field}",
    ),
    "principal": (
        pattern_type(r"(agent|system):[!-~]{1,120}", "agent:host"),
        "the principal of the turn",
    ),
    "reply_to": (
        FieldType(_pushes_places, _TEXTS),
        "the targets of the reply: topic:NAME, channel:SERVER/ID",
    ),
}
_PUSHES: Final[Members] = {
    "from": (
        pattern_type(f"({_SERVER})(/({_SET}))?", "SERVER/FEATURE_SET, as ci/builds.* or */*"),
        "the server, and the feature set",
    ),
    **_GOAL,
}
_HOOKS: Final[Members] = {
    "name": (
        pattern_type(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name, as github"),
        "its address is /hooks/NAME",
    ),
    "kind": (one_of(*WebhookKind), "how it is signed"),
    "secret_file": (TEXT, "the file of the secret, or of several, each in a line"),
    "header": (
        pattern_type(r"[A-Za-z0-9-]{1,100}", "a header, as X-Signature"),
        "for kind plain: the header with the HMAC of the body",
    ),
    "algorithm": (one_of(*ALGORITHMS), "for kind plain: the hash algorithm"),
    "id": (
        pattern_type(
            r"body|header:[A-Za-z0-9-]{1,100}|/[^\x00-\x1f]{1,200}", "header:X-Id, /id or body"
        ),
        "the location of the event ID; default: that of the kind",
    ),
    "content": (
        FieldType(_template, {"type": "string"}),
        "a template for the text, with {/fields} of the body; default: the body",
    ),
    **_GOAL,
}


def _route(fields: dict[str, Any], entry: ConfigValue) -> PushRoute:
    goal, _, topic = str(fields.pop("to")).partition(":")
    for_turns = {name: fields.pop(name) for name in _TURN_FIELDS if name in fields}
    if for_turns and goal != PushTarget.TURN:
        raise entry.wrong(f'has {next(iter(for_turns))}, which is for to = "turn"')
    if goal == PushTarget.TURN:
        for_turns.setdefault("conversation", "{event}")
    return PushRoute(PushTarget(goal), topic, **for_turns)


def _push_row(entry: ConfigValue) -> PushRouteRule:
    said = members_of(entry, _PUSHES, ("from", "to"))
    server, _, feature = str(said["from"]).partition("/")
    return PushRouteRule(server, feature or "*", _route(said, entry))


def _hook_row(entry: ConfigValue) -> InboundWebhookConfig:
    said = members_of(entry, _HOOKS, ("name", "kind", "secret_file", "to"))
    route, kind = _route(said, entry), WebhookKind(said.pop("kind"))
    if kind is WebhookKind.PLAIN and "header" not in said:
        raise entry.wrong("needs its header, which holds the HMAC of the body")
    if kind is not WebhookKind.PLAIN and not {"header", "algorithm"}.isdisjoint(said):
        raise entry.wrong(f"has header or algorithm, which kind {kind} does not allow")
    return InboundWebhookConfig(**said, kind=kind, route=route)


def _hooks(value: ConfigValue) -> tuple[InboundWebhookConfig, ...]:
    found = all_of(_hook_row, MAX_ENTRIES)(value)
    if len({each.name for each in found}) < len(found):
        raise value.wrong("names one webhook twice; rename one")
    return found


PUSHES: Final = FieldType(
    all_of(_push_row, MAX_ENTRIES),
    {"type": "array", "items": table_of(_PUSHES, required=["from", "to"])},
)
HOOKS: Final = FieldType(
    _hooks,
    {
        "type": "array",
        "items": table_of(_HOOKS, required=["name", "kind", "secret_file", "to"]),
    },
)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The settings of server state."""

    max_bytes: int = setting(
        1024 * 1024,
        "The longest state of a feature set; of a longer one Comity keeps only the name.",
        number_type(1_024, 16 * 1024 * 1024),
    )
    max_checkpoints: int = setting(
        100,
        "The number of checkpoints kept of a feature set; the current one is always kept.",
        number_type(1, 100_000),
    )
    retention: timedelta = setting(
        timedelta(days=90),
        "How long checkpoints are kept; 0 keeps them for good.",
        DURATION_OR_NEVER,
    )
    rollback_timeout: timedelta = setting(
        timedelta(seconds=30), "How long a server may take to roll back."
    )

    @property
    def retention_policy(self) -> StateRetention:
        return StateRetention(self.max_checkpoints, self.retention or None)


_COUNT: Final = number_type(1, 1_000)
_TOKENS: Final = number_type(1, 10_000_000)
_SIZE: Final = number_type(1_024, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The limits of turns. Sizes are in characters, or in bytes of the encoded answer."""

    principal: str = setting("agent:host", "The principal in whose name a model uses tools.")
    system: str = setting("", "The text that every model reads first.")
    before_hook_timeout: timedelta = setting(
        timedelta(seconds=5), "How long a server may take for its hook before a model is asked."
    )
    after_hook_timeout: timedelta = setting(
        timedelta(seconds=10), "How long a server may take to rewrite the reply of a model."
    )
    timeout: timedelta = setting(timedelta(minutes=5), "How long a whole turn may take.")
    max_model_calls: int = setting(16, "How often Comity asks a model in one turn.", _COUNT)
    max_parallel_tools: int = setting(
        16, "The number of tools that a model may use at once.", _COUNT
    )
    max_chain: int = setting(3, "The number of turns that may start each other in a chain.", _COUNT)
    max_attempts: int = setting(3, "How often Comity tries a turn.", _COUNT)
    max_concurrent: int = setting(16, "The number of turns that this node takes at once.", _COUNT)
    max_hook_bytes: int = setting(256 * 1024, "The longest answer of a server to a hook.", _SIZE)
    max_injected_tokens: int = setting(
        8_000, "About how many tokens all servers together may add for a model.", _TOKENS
    )
    max_result_chars: int = setting(64 * 1024, "How much of a tool's result a model reads.", _SIZE)
    max_message_chars: int = setting(
        256 * 1024, "How much of the message that it answers a model reads.", _SIZE
    )
    max_reply_tokens: int = setting(4_096, "The longest reply of a model.", _TOKENS)
    max_tool_tokens: int = setting(
        8_000, "About how many tokens the tools in a model's list may take.", _TOKENS
    )
    history_turns: int = setting(50, "The number of earlier turns that a model reads.", _COUNT)
    retention: timedelta = setting(
        timedelta(days=90),
        "How long a conversation is kept; 0 keeps it for good.",
        DURATION_OR_NEVER,
    )
