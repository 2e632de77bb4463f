"""The state that servers leave with the gateway, kept for good. (MCPL §8)

Rule 1: each step is made whole or not at all, and is there for every node once it returns.
Rule 2: what is written rests on what was read before: where that is no more, nothing is written,
        and whoever wanted it reads again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from comity.wire.state_trees import Form, Node, Tree


class Place(NamedTuple):
    """Whose state: a feature set of a server, or the server as a whole where that is empty."""

    server: str
    feature: str


@dataclass(frozen=True, slots=True)
class Current:
    """The checkpoint that counts now, and its state where that is known here."""

    number: int
    name: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class New:
    """A checkpoint on its way into the tree, which it becomes the head of.

    `state` is the whole of it, None where only its server has it; `patch` is what led there from
    `base`, for which it may be kept in the place of the whole, as `form` says.
    """

    name: str
    at: datetime
    parent: str | None = None
    base: int | None = None
    form: Form = Form.OPAQUE
    line: int = 0
    state: bytes | None = None
    patch: bytes | None = None
    why: str = ""

    @property
    def content(self) -> bytes | None:
        return self.patch if self.form is Form.PATCH else self.state


@dataclass(frozen=True, slots=True)
class Dropped:
    """What goes from a tree of that revision, and what becomes whole for it."""

    revision: int
    numbers: Collection[int]
    whole: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Summary:
    """One feature set with state."""

    place: Place
    head: str | None
    is_opaque: bool
    checkpoints: int
    size: int
    moved_at: datetime


class StateRecords(Protocol):
    """Trees of checkpoints, each with its head."""

    async def current(self, place: Place) -> Current | None: ...

    async def find(self, place: Place, name: str) -> Node | None: ...

    async def tree(self, place: Place) -> Tree:
        """All of it without the states; an empty one where there is none."""
        ...

    async def line(self, place: Place, number: int) -> Sequence[bytes]:
        """Data, and the patches that lead from it to this checkpoint; nothing for an opaque one."""
        ...

    async def add(self, place: Place, new: New, instead: Dropped | None = None) -> Node | None:
        """Write a checkpoint, and make it the head; None where its base, or its name, is not free.

        `instead` are those that go in the same step: one of the same name.
        """
        ...

    async def move(self, place: Place, number: int, state: bytes | None, at: datetime) -> bool:
        """Make a checkpoint the head, whose state this is; whether it is still there."""
        ...

    async def drop(self, place: Place, dropped: Dropped) -> bool:
        """Whether the tree was still the one that was looked at."""
        ...

    async def lose(self, place: Place, number: int) -> None:
        """Its server no longer knows this one."""
        ...

    async def forget(self, place: Place) -> int:
        """How many checkpoints are gone: all of them. No number is given twice for all that."""
        ...

    async def summaries(self) -> Sequence[Summary]:
        """Every feature set that has a checkpoint, by server and name."""
        ...


class Patcher(Protocol):
    """Applies JSON patches, which are a stranger's, within bounds. (RFC 6902)"""

    def apply(self, data: bytes, patches: Sequence[bytes], most: int) -> bytes:
        """What they make of it, all or nothing; no longer than `most`. Raises MalformedMessage."""
        ...
