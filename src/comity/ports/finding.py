"""What searching for tools needs of the world: vectors of what they mean, and counts of tokens.

Rule 1: a tool has a slot, a small number that is used again after it was dropped.
Rule 2: `seen` has a byte for each slot, 1 where the one who asks may see its tool; None sees all.
Rule 3: vectors may come later than their tools: what has none yet is found by its words alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Searchable:
    """What is known of one tool, as far as it is searched."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    # Of each parameter its name and what is said of it.
    parameters: tuple[tuple[str, str], ...] = ()
    server_title: str = ""
    server_description: str = ""
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near tools are to a query, by the cosine of their vectors."""

    # The nearest that are seen, the nearest first: slot and cosine.
    best: Sequence[tuple[int, float]]
    # Of the slots that were asked after by number, in their order; None where there is no vector.
    also: Sequence[float | None]
    # The least cosine among all that is seen: what is as far away as can be.
    least: float = 0.0
    # How near servers are by what they say of themselves.
    servers: Mapping[str, float] = field(default_factory=dict[str, float])


class Similarity(Protocol):
    """Vectors of what tools mean, and which of them are near to a query."""

    @property
    def name(self) -> str:
        """By which model, for those who compare."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether each tool that was put has its vector by now."""
        ...

    def put(self, slot: int, tool: Searchable) -> None:
        """Have this tool at that slot; its vector is made in the background."""
        ...

    def drop(self, slot: int) -> None: ...

    async def near(
        self, query: str, seen: bytes | None, most: int, also: Sequence[int] = ()
    ) -> Nearness:
        """Unavailable where the model cannot be used."""
        ...

    async def close(self) -> None: ...


class Embedder(Protocol):
    """A model that makes a vector of a text."""

    @property
    def name(self) -> str:
        """The model and its version: vectors of another name are not comparable."""
        ...

    @property
    def size(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector of length one for each text. Unavailable where it cannot."""
        ...

    async def close(self) -> None: ...


class Tokens(Protocol):
    """How many tokens a text costs in a model's context."""

    @property
    def method(self) -> str:
        """How it is counted, as `o200k` or `bytes/4.3`."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether that is what the tokenizer says, and no estimate."""
        ...

    def count(self, text: bytes) -> int: ...
