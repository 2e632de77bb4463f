"""What servers say before a model answers, and after it has. (MCPL §10)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.inference import ModelInfo, Usage

BEFORE: Final = "context/beforeInference"
AFTER: Final = "context/afterInference"
MOST_INJECTIONS: Final = 64
LONGEST_NAMESPACE: Final = 128


class Position(StrEnum):
    """Where something is put. `system` needs a grant of its own. (D-61)"""

    SYSTEM = "system"
    BEFORE_USER = "beforeUser"
    AFTER_USER = "afterUser"


@dataclass(frozen=True, slots=True)
class Injection:
    """What a server would have the model read."""

    namespace: str
    position: Position
    content: Content
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Injected:
    """The answer of one server; the feature set is its own claim."""

    feature: str
    injections: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a server would have said instead; None where it lets it stand."""

    feature: str
    response: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Moment:
    """The turn that servers are asked about: what all of them are told of it. (§10.1, §14.4)

    `user` is None where a model only goes on.
    """

    inference: str
    conversation: str
    index: int
    user: str | None
    model: ModelInfo
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def before(self) -> dict[str, object]:
        told = self._told()
        return {**told, "channels": dict(self.channels)} if self.channels else told

    def after(self, text: str, usage: Usage) -> dict[str, object]:
        return {**self._told(), "assistantMessage": text, "usage": usage.on_wire()}

    def _told(self) -> dict[str, object]:
        return {
            "inferenceId": self.inference,
            "conversationId": self.conversation,
            "turnIndex": self.index,
            "userMessage": self.user,
            "model": self.model.on_wire(),
        }


class _Injection(Struct):
    namespace: str
    position: Position
    content: Raw
    metadata: dict[str, Any] | None = None


class _Injected(Struct):
    set: str = msgspec.field(name="featureSet")
    injections: list[_Injection] = msgspec.field(
        default_factory=list[_Injection], name="contextInjections"
    )


class _Rewritten(Struct):
    set: str = msgspec.field(name="featureSet")
    response: str | None = msgspec.field(default=None, name="modifiedResponse")
    metadata: dict[str, Any] | None = None


def injected_in(result: Raw) -> Injected:
    """What a server answers before. Raises MalformedMessage."""
    jsonrpc.value(result)
    try:
        found = jsonrpc.shaped(result, _Injected)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{BEFORE}: {problem}", INVALID_PARAMS) from None
    if len(found.injections) > MOST_INJECTIONS:
        raise MalformedMessage(f"more than {MOST_INJECTIONS} injections", INVALID_PARAMS)
    return Injected(found.set, tuple(_injection(each) for each in found.injections))


def rewritten_in(result: Raw) -> Rewritten:
    """What a server answers afterwards. Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.value(result), _Rewritten)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{AFTER}: {problem}", INVALID_PARAMS) from None
    return Rewritten(found.set, found.response, found.metadata or {})


def _injection(found: _Injection) -> Injection:
    if not 0 < len(found.namespace) <= LONGEST_NAMESPACE:
        raise MalformedMessage("the namespace of an injection is no name", INVALID_PARAMS)
    content = content_in(found.content, "the content of an injection")
    return Injection(found.namespace, found.position, content, found.metadata or {})
