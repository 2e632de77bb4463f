"""What servers ask of a model through their host, and what the host says of its model. (MCPL §11)

MCP's own `sampling/createMessage` is read into the same request: one engine answers both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import Id
from comity.wire.mcp import SAMPLE

REQUEST: Final = "inference/request"
CHUNK: Final = "inference/chunk"
MODEL: Final = "model/info"
MOST_MESSAGES: Final = 1_000
MOST_TOKENS: Final = 1_000_000
USUAL_TOKENS: Final = 4_096
"""How much a model may say where nobody said how much."""

MOST_STOPS: Final = 16

type Role = Literal["user", "assistant"]


class Finish(StrEnum):
    """Why a model stopped. (§11.3)"""

    END = "end_turn"
    TOO_LONG = "max_tokens"
    STOPPED = "stop_sequence"


@dataclass(frozen=True, slots=True)
class Message:
    """One thing said in a conversation."""

    role: Role
    content: Content


@dataclass(frozen=True, slots=True)
class Usage:
    """What it cost, in tokens."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.output + other.output)

    def on_wire(self) -> dict[str, object]:
        return {"inputTokens": self.input, "outputTokens": self.output}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is said of a model. (§12.2)"""

    id: str
    vendor: str
    context_window: int
    capabilities: tuple[str, ...] = ()

    def on_wire(self) -> dict[str, object]:
        return {
            "id": self.id,
            "vendor": self.vendor,
            "contextWindow": self.context_window,
            "capabilities": list(self.capabilities),
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server wants of a model. `hints` bind nobody. (§11.2)"""

    feature: str
    messages: tuple[Message, ...]
    conversation: str = ""
    stream: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a server wants of its client's model. (MCP sampling)"""

    messages: tuple[Message, ...]
    max_tokens: int
    system: str = ""
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    hint: str = ""


class _Message(Struct):
    role: Role
    content: Raw


class _Preferences(Struct):
    max_tokens: int | None = msgspec.field(default=None, name="maxTokens")
    temperature: float | None = None
    model: Any = None
    tier: Any = msgspec.field(default=None, name="modelTier")
    cost: Any = msgspec.field(default=None, name="costTier")


class _Wanted(Struct):
    set: str = msgspec.field(name="featureSet")
    messages: list[_Message]
    conversation: str | None = msgspec.field(default=None, name="conversationId")
    stream: bool = False
    preferences: _Preferences | None = None


def wanted_in(params: Raw) -> Wanted:
    """A request as a server wrote it. Raises MalformedMessage."""
    jsonrpc.value(params)
    try:
        found = jsonrpc.shaped(params, _Wanted)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{REQUEST}: {problem}", INVALID_PARAMS) from None
    if not 0 < len(found.messages) <= MOST_MESSAGES:
        raise MalformedMessage(f"{REQUEST} has 1 to {MOST_MESSAGES} messages", INVALID_PARAMS)
    liked = found.preferences or _Preferences()
    _check_preferences(liked)
    hints = {"model": liked.model, "modelTier": liked.tier, "costTier": liked.cost}
    return Wanted(
        found.set,
        tuple(Message(each.role, content_in(each.content)) for each in found.messages),
        found.conversation or "",
        found.stream,
        liked.max_tokens,
        liked.temperature,
        {name: hint for name, hint in hints.items() if hint is not None},
    )


def _check_preferences(liked: _Preferences) -> None:
    if liked.max_tokens is not None and not 0 < liked.max_tokens <= MOST_TOKENS:
        raise MalformedMessage("maxTokens is out of bounds", INVALID_PARAMS)
    if liked.temperature is not None and not 0 <= liked.temperature <= 2:
        raise MalformedMessage("temperature is from 0 to 2", INVALID_PARAMS)


def chunk(request: Id, index: int, delta: str) -> dict[str, object]:
    """A piece, told before the whole. (§11.4)"""
    return {"requestId": request, "index": index, "delta": delta}


def answered(text: str, model: str, finish: Finish, usage: Usage) -> dict[str, object]:
    return {
        "content": text,
        "model": model,
        "finishReason": finish,
        "usage": usage.on_wire(),
    }


class _Hint(Struct):
    name: str = ""


class _Liked(Struct):
    hints: list[_Hint] = msgspec.field(default_factory=list[_Hint])


class _Sampled(Struct):
    messages: list[_Message]
    max_tokens: int = msgspec.field(name="maxTokens")
    system: str = msgspec.field(default="", name="systemPrompt")
    temperature: float | None = None
    stop: list[str] = msgspec.field(default_factory=list[str], name="stopSequences")
    liked: _Liked | None = msgspec.field(default=None, name="modelPreferences")
    tools: Any = None


def sampled_in(params: Raw) -> Sampled:
    """MCP's `sampling/createMessage` as a server wrote it. Raises MalformedMessage."""
    jsonrpc.value(params)
    try:
        found = jsonrpc.shaped(params, _Sampled)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{SAMPLE}: {problem}", INVALID_PARAMS) from None
    if found.tools:
        raise MalformedMessage("tools cannot be used in sampling here", INVALID_PARAMS)
    if not 0 < len(found.messages) <= MOST_MESSAGES or len(found.stop) > MOST_STOPS:
        raise MalformedMessage(f"{SAMPLE} has 1 to {MOST_MESSAGES} messages", INVALID_PARAMS)
    _check_preferences(_Preferences(found.max_tokens, found.temperature))
    hints = found.liked.hints if found.liked is not None else []
    return Sampled(
        tuple(Message(each.role, content_in(each.content)) for each in found.messages),
        found.max_tokens,
        found.system,
        found.temperature,
        tuple(found.stop),
        hints[0].name if hints else "",
    )


_STOP_REASONS: Final = {
    Finish.END: "endTurn",
    Finish.TOO_LONG: "maxTokens",
    Finish.STOPPED: "stopSequence",
}


def sampling_answered(text: str, model: str, finish: Finish) -> dict[str, object]:
    """An answer as MCP writes it."""
    return {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": model,
        "stopReason": _STOP_REASONS[finish],
    }
