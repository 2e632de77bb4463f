"""What the parts of the live plane know of each other: causes, turns, models, words out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from comity.ports.models import OnPiece, Prompt, Reply
from comity.wire.contents import Content
from comity.wire.inference import ModelInfo


class Origin(StrEnum):
    """What brings about a turn."""

    PUSH = "push"
    CHANNEL = "channel"
    TOPIC = "topic"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a turn is taken. `key` names it for good: no cause has two turns.

    `server` is whose words brought it about; its hooks are skipped in that turn, and `depth` is how
    many turns brought it about one after the other. (D-69) `party` is in whose name tools are
    called and who pays.
    """

    origin: Origin
    key: str
    party: str
    server: str = ""
    feature: str = ""
    depth: int = 0
    # What servers may know of where it came from, and where an answer would go. (§14.4)
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Errand:
    """What a turn is to do: answer this, in that conversation, and say it there.

    `say_in` names places: `topic:NAME`, or `channel:SERVER/ID`.
    """

    cause: Cause
    conversation: str
    content: Content
    author: str = ""
    say_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that was taken, or is under way. `is_new` is false where its cause had one before."""

    inference: str
    conversation: str
    is_new: bool = True


class Turns(Protocol):
    """Who takes turns."""

    async def begin(self, errand: Errand) -> Taken:
        """Have a turn taken; returns once it is certain that it will be. Raises Unavailable."""
        ...

    async def finished(self, inference: str) -> str:
        """What was said in the end, once it was. Raises Unavailable where it failed."""
        ...


@dataclass(frozen=True, slots=True)
class Inferring:
    """One question to a model: for whom, by what feature set, within which conversation."""

    prompt: Prompt
    party: str
    inference: str
    server: str = ""
    feature: str = ""
    conversation: str = ""
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Engine(Protocol):
    """Who chooses a model, pays it, and asks another where it fails."""

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        """The model that would answer. Raises Unavailable where there is none."""
        ...

    async def infer(self, asked: Inferring, on_piece: OnPiece | None = None) -> Reply:
        """Raises Unavailable, also where a budget is used up."""
        ...


@dataclass(frozen=True, slots=True)
class Saying:
    """Words on their way out, and of which turn they are."""

    inference: str
    conversation: str
    place: str


class Places(Protocol):
    """Where words go to: topics, and channels of servers."""

    def candidates(self) -> Sequence[str]:
        """All the places that there are, as servers may know them."""
        ...

    def piece(self, saying: Saying, index: int, delta: str) -> None:
        """Let observers see moderated words while they come."""
        ...

    async def say(self, saying: Saying, content: Content) -> None:
        """Say it there, once for each turn and place. Raises Unavailable, MalformedMessage."""
        ...

    async def think(self, saying: Saying, text: str) -> None:
        """Let those who may see what the model thought. (D-73)"""
        ...
