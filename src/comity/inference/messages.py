"""Content blocks, and the messages of inference and sampling."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Raw, Struct

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import Id
from comity.mcp.protocol import SAMPLE

MAX_BLOCKS: Final = 256
MEDIA: Final = frozenset({"image", "audio"})


class ContentBlock(Struct, frozen=True, omit_defaults=True):
    """A block of content. Its type determines which fields are set."""

    type: str
    text: str = ""
    data: str = ""
    mime: str = msgspec.field(default="", name="mimeType")
    uri: str = ""

    @property
    def size(self) -> int:
        """The number of characters in the block."""
        return len(self.text) + len(self.data) + len(self.uri)


type Content = tuple[ContentBlock, ...]


def to_text_content(text: str) -> Content:
    return (ContentBlock("text", text),) if text else ()


def text_of(content: Iterable[ContentBlock]) -> str:
    """Return the text of the content. Other blocks are named, so that the reader sees them."""
    parts = (
        block.text if block.type == "text" else f"[{block.type}: {block.uri or block.mime}]"
        for block in content
    )
    return "\n".join(parts)


def content_in(raw: Raw | None, what: str = "content") -> Content:
    """Decode untrusted content. Raises MalformedMessage."""
    found = None if raw is None else jsonrpc.decode_value(raw)
    if isinstance(found, str):
        return (ContentBlock("text", found),)
    if isinstance(found, dict):
        # MCP's sampling has a single block in place of a list.
        found = [cast("object", found)]
    if not isinstance(found, list):
        raise MalformedMessage(f"{what} is neither a text nor a list of blocks", INVALID_PARAMS)
    blocks = cast("Sequence[object]", found)
    if len(blocks) > MAX_BLOCKS:
        raise MalformedMessage(f"{what} has more than {MAX_BLOCKS} blocks", INVALID_PARAMS)
    return tuple(_block(each, what) for each in blocks)


def to_wire(content: Iterable[ContentBlock]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(block) for block in content]


def _block(value: object, what: str) -> ContentBlock:
    try:
        block = msgspec.convert(value, ContentBlock)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{what} is no content: {problem}", INVALID_PARAMS) from None
    missing = _missing_member(block, cast("dict[str, object]", value))
    if missing:
        raise MalformedMessage(f"{what}: {missing}", INVALID_PARAMS)
    return block


def _missing_member(block: ContentBlock, members: dict[str, object]) -> str:
    """Return what a block of its type lacks. Empty if it is complete. (B.1)"""
    if block.type == "text":
        return "" if "text" in members else "a text block has no text"
    if block.type == "resource":
        return "" if block.uri else "a resource block has no uri"
    if block.type not in MEDIA:
        return f"there are no blocks of type {block.type!r:.40}"
    if bool(block.uri) == bool(block.data and block.mime):
        return f"an {block.type} block has data and mimeType, or a uri"
    return ""


REQUEST: Final = "inference/request"
CHUNK: Final = "inference/chunk"
MODEL: Final = "model/info"
MAX_MESSAGES: Final = 1_000
MAX_TOKENS: Final = 1_000_000
DEFAULT_MAX_TOKENS: Final = 4_096
"""The limit of a reply for requests that set none."""

MAX_STOPS: Final = 16

type Role = Literal["user", "assistant"]


class FinishReason(StrEnum):
    """Why a model stopped. (§11.3)"""

    END = "end_turn"
    TOO_LONG = "max_tokens"
    STOPPED = "stop_sequence"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation."""

    role: Role
    content: Content


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens that a request consumed."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.input + other.input, self.output + other.output)

    def on_wire(self) -> dict[str, object]:
        return {"inputTokens": self.input, "outputTokens": self.output}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The description of a model for servers. (§12.2)"""

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
class InferenceParams:
    """The parameters of `inference/request`. `hints` are not binding. (§11.2)"""

    feature: str
    messages: tuple[ChatMessage, ...]
    conversation: str = ""
    stream: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters of `sampling/createMessage`. (MCP sampling)"""

    messages: tuple[ChatMessage, ...]
    max_tokens: int
    system: str = ""
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    hint: str = ""


class _InferenceMessage(Struct):
    role: Role
    content: Raw


class _InferencePreferences(Struct):
    max_tokens: int | None = msgspec.field(default=None, name="maxTokens")
    temperature: float | None = None
    model: Any = None
    tier: Any = msgspec.field(default=None, name="modelTier")
    cost: Any = msgspec.field(default=None, name="costTier")


class _InferenceRequestParams(Struct):
    set: str = msgspec.field(name="featureSet")
    messages: list[_InferenceMessage]
    conversation: str | None = msgspec.field(default=None, name="conversationId")
    stream: bool = False
    preferences: _InferencePreferences | None = None


def inference_params_in(params: Raw) -> InferenceParams:
    """Decode `inference/request`. Raises MalformedMessage."""
    jsonrpc.decode_value(params)
    try:
        found = jsonrpc.decode_shape(params, _InferenceRequestParams)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{REQUEST}: {problem}", INVALID_PARAMS) from None
    if not 0 < len(found.messages) <= MAX_MESSAGES:
        raise MalformedMessage(f"{REQUEST} has 1 to {MAX_MESSAGES} messages", INVALID_PARAMS)
    liked = found.preferences or _InferencePreferences()
    _check_preferences(liked)
    hints = {"model": liked.model, "modelTier": liked.tier, "costTier": liked.cost}
    return InferenceParams(
        found.set,
        tuple(ChatMessage(each.role, content_in(each.content)) for each in found.messages),
        found.conversation or "",
        found.stream,
        liked.max_tokens,
        liked.temperature,
        {name: hint for name, hint in hints.items() if hint is not None},
    )


def _check_preferences(preferences: _InferencePreferences) -> None:
    if preferences.max_tokens is not None and not 0 < preferences.max_tokens <= MAX_TOKENS:
        raise MalformedMessage("maxTokens is out of bounds", INVALID_PARAMS)
    if preferences.temperature is not None and not 0 <= preferences.temperature <= 2:
        raise MalformedMessage("temperature is from 0 to 2", INVALID_PARAMS)


def build_chunk(request: Id, index: int, delta: str) -> dict[str, object]:
    """Return the parameters of a chunk, which precedes the result. (§11.4)"""
    return {"requestId": request, "index": index, "delta": delta}


def build_inference_result(
    text: str, model: str, finish: FinishReason, usage: TokenUsage
) -> dict[str, object]:
    return {
        "content": text,
        "model": model,
        "finishReason": finish,
        "usage": usage.on_wire(),
    }


class _ModelHint(Struct):
    name: str = ""


class _ModelPreferences(Struct):
    hints: list[_ModelHint] = msgspec.field(default_factory=list[_ModelHint])


class _SamplingRequestParams(Struct):
    messages: list[_InferenceMessage]
    max_tokens: int = msgspec.field(name="maxTokens")
    system: str = msgspec.field(default="", name="systemPrompt")
    temperature: float | None = None
    stop: list[str] = msgspec.field(default_factory=list[str], name="stopSequences")
    liked: _ModelPreferences | None = msgspec.field(default=None, name="modelPreferences")
    tools: Any = None


def sampling_params_in(params: Raw) -> SamplingParams:
    """Decode MCP's `sampling/createMessage`. Raises MalformedMessage."""
    jsonrpc.decode_value(params)
    try:
        found = jsonrpc.decode_shape(params, _SamplingRequestParams)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{SAMPLE}: {problem}", INVALID_PARAMS) from None
    if found.tools:
        raise MalformedMessage("tools cannot be used in sampling here", INVALID_PARAMS)
    if not 0 < len(found.messages) <= MAX_MESSAGES or len(found.stop) > MAX_STOPS:
        raise MalformedMessage(f"{SAMPLE} has 1 to {MAX_MESSAGES} messages", INVALID_PARAMS)
    _check_preferences(_InferencePreferences(found.max_tokens, found.temperature))
    hints = found.liked.hints if found.liked is not None else []
    return SamplingParams(
        tuple(ChatMessage(each.role, content_in(each.content)) for each in found.messages),
        found.max_tokens,
        found.system,
        found.temperature,
        tuple(found.stop),
        hints[0].name if hints else "",
    )


_STOP_REASONS: Final = {
    FinishReason.END: "endTurn",
    FinishReason.TOO_LONG: "maxTokens",
    FinishReason.STOPPED: "stopSequence",
}


def build_sampling_result(text: str, model: str, finish: FinishReason) -> dict[str, object]:
    """Return the result of `sampling/createMessage`."""
    return {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": model,
        "stopReason": _STOP_REASONS[finish],
    }
