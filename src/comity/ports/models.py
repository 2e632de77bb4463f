"""A language model, whoever makes it: what it is asked, and what it says.

Rule 1: what a model says is a stranger's word: names and arguments of tools are judged at the gate.
Rule 2: a model that does not answer raises Unavailable; `retry_after` where it said when to come
        again. A key, or the text of a prompt, is in no error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from comity.wire.contents import Content
from comity.wire.inference import Finish, ModelInfo, Role, Usage


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that the model may use."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that the model wants to be used. Arguments that are no object are under `broken`."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    broken: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    id: str
    content: Content
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a conversation; a model's may use tools, a user's may bring their results."""

    role: Role
    content: Content = ()
    uses: tuple[ToolUse, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """All that a model is given."""

    steps: tuple[Step, ...]
    system: Content = ()
    tools: tuple[ToolOffer, ...] = ()
    max_tokens: int = 4096
    temperature: float | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. It has not finished where it wants tools to be used."""

    content: Content
    finish: Finish
    usage: Usage
    model: str
    uses: tuple[ToolUse, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A few words, as they come."""

    text: str
    is_thinking: bool = False


type OnPiece = Callable[[Piece], None]


class Model(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    async def complete(self, prompt: Prompt, on_piece: OnPiece | None = None) -> Reply:
        """The whole reply; with `on_piece` its words are told while they come."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model is made from: where it is, what it is called there, and what is known of it."""

    id: str
    api: str
    model: str
    url: str = ""
    key: str = field(default="", repr=False)
    context_window: int = 128_000
    max_output: int = 4_096
    capabilities: tuple[str, ...] = ()
    vendor: str = ""
    deadline: timedelta = timedelta(minutes=5)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    proxy: str = field(default="", repr=False)
    """The URL of the proxy that it is reached through, if any."""

    @property
    def info(self) -> ModelInfo:
        vendor = self.vendor or self.api
        return ModelInfo(self.model, vendor, self.context_window, self.capabilities)


class ModelMaker(Protocol):
    """What a plugin of the group `comity.models` is: it makes models of its `api`."""

    def __call__(self, spec: ModelSpec) -> Model: ...
