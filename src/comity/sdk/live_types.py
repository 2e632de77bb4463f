"""The types that authors of live servers use: content, injections, turns, replies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic import BaseModel

from comity.errors import MalformedMessage, Misconfigured
from comity.inference import messages
from comity.inference.messages import Content, ContentBlock, ModelInfo, TokenUsage
from comity.live.hooks.model import MAX_NAMESPACE_LENGTH, InjectionPosition
from comity.mcp import jsonrpc

type Said = str | ContentBlock | Mapping[str, Any] | BaseModel
type Saying = Said | Sequence[Said]
"""Content: a text, a block of any type, or several of them."""

_OTHERS: Final = ("<|im_start|>", "<|system|>", "<<SYS>>", "[INST]", "\n\nHuman:", "\n\nAssistant:")
"""Marks that a model may read as the turn of another speaker."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Text for the model. A host allows the position `system` only with a grant."""

    content: Saying
    position: InjectionPosition | str = InjectionPosition.BEFORE_USER
    namespace: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A reply that replaces the reply of the model."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, before or after the model answers; `answer` is its reply."""

    inference: str
    conversation: str
    index: int = 0
    user: str | None = None
    model: ModelInfo | None = None
    answer: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    # Where it came from and where an answer may go. (§14.4)
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_requested(self) -> bool:
        """Whether a server requested this inference. Comity names it `server:ID/NAME`."""
        return self.conversation.startswith("server:")


@dataclass(frozen=True, slots=True)
class HostPushResult:
    """The outcome of a push; `reason` says why the host did not accept it."""

    accepted: bool
    inference: str = ""
    reason: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether the host has the event, from this push or an earlier one."""
        return self.accepted or self.reason.startswith("duplicate")


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model."""

    text: str
    model: str = ""
    finish: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True)
class HostElevationResult:
    """Whether a scope was approved; `payload` comes from the host, which may add to it."""

    approved: bool
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reason: str = ""

    def __bool__(self) -> bool:
        return self.approved


def content_of(saying: Saying) -> Content:
    """Return content as blocks. Raises Misconfigured for invalid content. (B.1)"""
    try:
        return messages.content_in(jsonrpc.to_raw(_plain(saying)))
    except MalformedMessage as problem:
        raise Misconfigured(f"this is no content: {problem}") from None


def blocks_of(saying: Saying) -> list[dict[str, Any]]:
    return messages.to_wire(content_of(saying))


def encode_injections(said: object, namespace: str) -> list[dict[str, Any]]:
    """Return the wire form of the injections of a hook. Raises Misconfigured."""
    if said is None:
        return []
    if isinstance(said, Injection):
        return [_injection(said, namespace)]
    if isinstance(said, list | tuple):
        every = cast("Iterable[object]", said)
        if all(isinstance(each, Injection) for each in every):
            return [_injection(each, namespace) for each in cast("Iterable[Injection]", every)]
    return [_injection(Injection(cast("Saying", said)), namespace)]


def turn_in(params: Mapping[str, Any]) -> Turn:
    """Read a turn. A missing member, or one of a wrong type, stays empty."""
    usage = _table(params.get("usage"))
    user, answer = params.get("userMessage"), params.get("assistantMessage")
    return Turn(
        _text(params.get("inferenceId")),
        _text(params.get("conversationId")),
        _number(params.get("turnIndex")),
        user if isinstance(user, str) else None,
        model_in(_table(params.get("model"))),
        answer if isinstance(answer, str) else None,
        usage_in(usage),
        _table(params.get("channels")),
    )


def model_in(said: Mapping[str, Any]) -> ModelInfo | None:
    if not isinstance(said.get("id"), str):
        return None
    able = said.get("capabilities")
    names = cast("list[object]", able) if isinstance(able, list) else []
    window = _number(said.get("contextWindow"))
    return ModelInfo(said["id"], _text(said.get("vendor")), window, tuple(map(str, names)))


def usage_in(said: Mapping[str, Any]) -> TokenUsage:
    return TokenUsage(_number(said.get("inputTokens")), _number(said.get("outputTokens")))


def reply_in(said: Mapping[str, Any]) -> Reply:
    usage = usage_in(_table(said.get("usage")))
    model, finish = _text(said.get("model")), _text(said.get("finishReason"))
    return Reply(_text(said.get("content")), model, finish, usage)


def pushed_in(said: Mapping[str, Any]) -> HostPushResult:
    inference, reason = _text(said.get("inferenceId")), _text(said.get("reason"))
    return HostPushResult(said.get("accepted") is True, inference, reason)


def elevated_in(said: Mapping[str, Any]) -> HostElevationResult:
    payload, reason = _table(said.get("payload")), _text(said.get("reason"))
    return HostElevationResult(said.get("approved") is True, payload, reason)


def _injection(made: Injection, namespace: str) -> dict[str, Any]:
    named = made.namespace or namespace
    if not 0 < len(named) <= MAX_NAMESPACE_LENGTH:
        raise Misconfigured(f"a namespace has 1 to {MAX_NAMESPACE_LENGTH} characters")
    if made.position not in InjectionPosition:
        raise Misconfigured(f"a position is one of {', '.join(InjectionPosition)}")
    content = content_of(made.content)
    for block in content:
        if mark := next((each for each in _OTHERS if each in block.text), None):
            raise Misconfigured(f"an injection must not imitate another speaker: {mark!r}")
    told: dict[str, Any] = {"namespace": named, "position": str(made.position)}
    told["content"] = messages.to_wire(content)
    return {**told, "metadata": dict(made.metadata)} if made.metadata else told


def _plain(saying: object) -> object:
    if isinstance(saying, ContentBlock):
        return messages.to_wire((saying,))
    if isinstance(saying, BaseModel):
        return [saying.model_dump(by_alias=True, mode="json", exclude_none=True)]
    if isinstance(saying, list | tuple):
        return [_one(each) for each in cast("Iterable[object]", saying)]
    return saying


def _one(each: object) -> object:
    if isinstance(each, str):
        return {"type": "text", "text": each}
    if isinstance(each, ContentBlock | BaseModel):
        return cast("list[object]", _plain(each))[0]
    return each


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
