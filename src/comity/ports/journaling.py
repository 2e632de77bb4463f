"""Where what happened is kept: only ever added to, in the order of each node's chain.

Rule 1: what `append` has returned for is durable; it is all there, or nothing of it is.
Rule 2: one process at a time adds to a chain. Whoever opens a node that another holds gets a chain
        of its own beside it (`node~2`), so that no entry is ever refused for that.
Rule 3: a store that does not answer raises Unavailable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from comity.wire.journal import Checkpoint, Line, Segment

PAGE: Final = 500


class Head(NamedTuple):
    """How far a chain has come; `doubtful` are bodies of intents of which no outcome is known."""

    node: str
    seq: int
    hash: bytes
    doubtful: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Sought:
    """What of a journal somebody wants to see; what is empty is no bound."""

    trace: str = ""
    call: str = ""
    actor: str = ""
    server: str = ""
    tool: str = ""
    types: tuple[str, ...] = ()
    result: str = ""
    since: datetime | None = None
    until: datetime | None = None
    newest_first: bool = False
    after: tuple[datetime, str, int] | None = None
    """The `at`, `node` and `seq` of the last one that was seen."""


class JournalStore(Protocol):
    """The chains of all nodes, in one store."""

    async def open(self, node: str) -> Head:
        """Take up a node's chain, or one beside it; what is doubtful of it is told once."""
        ...

    async def append(self, lines: Sequence[Line]) -> None:
        """Add these to the chain that was opened. Misconfigured where another added to it."""
        ...

    async def keep(self, checkpoint: Checkpoint) -> None: ...

    async def page(self, node: str, after: int = 0, limit: int = PAGE) -> Sequence[Line]:
        """One chain in its order, from the entry after that number on."""
        ...

    async def find(self, sought: Sought, limit: int = PAGE) -> Sequence[Line]:
        """Of all chains by time, oldest first unless it says otherwise."""
        ...

    async def nodes(self) -> Sequence[str]: ...
    async def checkpoints(self, node: str, after: int = 0) -> Sequence[Checkpoint]: ...
    async def segments(self, node: str) -> Sequence[Segment]: ...

    async def drop(self, segment: Segment) -> None:
        """Remove the entries of a sealed segment; that it was there stays on record."""
        ...

    async def close(self) -> None: ...


class Signer(Protocol):
    """Who signs for a node. `key` is the public key, as hexadecimal digits."""

    @property
    def key(self) -> str: ...
    def sign(self, data: bytes) -> bytes: ...


class Witness(Protocol):
    """Somewhere outside where checkpoints are copied to; raises OSError or Unavailable."""

    async def tell(self, checkpoint: Checkpoint) -> None: ...
    async def close(self) -> None: ...


class LastSigned(Witness, Protocol):
    """Where the last checkpoint of each chain is kept, out of reach of who writes to the store."""

    def read(self, node: str) -> Checkpoint | None:
        """The last one of this chain that was told; None where there is none to read."""
        ...

    def set_aside(self, node: str) -> str:
        """Keep that one for good, because the chain contradicts it; where it is then."""
        ...
