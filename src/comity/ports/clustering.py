"""What several nodes need of each other: a bus between them, and leases for what only one may do.

Rule 1: the bus gives what it gives at most once, and in order for one publisher and one subject.
Rule 2: a lease's token is greater than that of every lease of its name before: whoever is told a
        smaller one than it knows refuses. A holder that could not renew in time has lost it.
Rule 3: whoever cannot reach the others is told so by `Unavailable`, and by `watch` when it changes.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple, Protocol


class Heard(NamedTuple):
    """One message of the bus; `reply` is where an answer goes, if one is wanted."""

    subject: str
    data: bytes
    reply: str = ""


type Hear = Callable[[Heard], None]
"""Called on the event loop, in order; must not block, and raises nothing."""


class Interest(Protocol):
    """A subscription, for as long as somebody is interested."""

    async def close(self) -> None: ...


class Bus(Protocol):
    """Between nodes. A subject is parts of `[A-Za-z0-9_-]` joined by dots."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were dropped because no other node sent them, by the reason."""
        ...

    async def open(self) -> None:
        """Connect, and stay so; a bus that cannot be reached yet is tried on in the background."""
        ...

    async def close(self) -> None: ...

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send and forget. Unavailable while there is no connection, or too much waits to go."""
        ...

    async def drained(self) -> None:
        """Until what waits to go has become little; Unavailable where the bus is away."""
        ...

    async def subscribe(self, subject: str, hear: Hear) -> Interest:
        """Hear what others publish on a subject, never what this node did. On return it is in
        force for all that is said in answer to what this node says next; for others, a moment
        later. While there is no connection it is noted, and in force when `watch` tells of one.
        `*` stands for one part and a last `>` for all that follow."""
        ...

    def inbox(self) -> str:
        """A subject that nobody else has."""
        ...

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Have it told whenever the connection is lost or made again."""
        ...


class Lease(NamedTuple):
    """Who may do what only one may; `token` is its fence."""

    name: str
    holder: str
    token: int


class Leases(Protocol):
    @property
    def lifetime(self) -> timedelta:
        """How long a lease lasts that is not renewed."""
        ...

    async def take(self, name: str, holder: str) -> Lease | None:
        """None where another holds it; Unavailable where that cannot be known."""
        ...

    async def renew(self, lease: Lease) -> bool:
        """Whether it is still held; Unavailable where that cannot be known. The token stays."""
        ...

    async def give_up(self, lease: Lease) -> None: ...

    async def holder(self, name: str) -> Lease | None: ...
