"""The interfaces of the message bus and the leases, and the syntax of subjects."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, Protocol


class BusMessage(NamedTuple):
    """One message of the bus. `reply` is the subject for an answer, if one is wanted."""

    subject: str
    data: bytes
    reply: str = ""


type MessageHandler = Callable[[BusMessage], None]
"""Called on the event loop, in order. It must not block or raise."""


class BusSubscription(Protocol):
    """A subscription, in force until it is closed."""

    async def close(self) -> None: ...


class Bus(Protocol):
    """The message bus between nodes. A subject is parts of `[A-Za-z0-9_-]` joined by dots."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def refused_counts(self) -> Mapping[str, int]:
        """How many messages were dropped because no other node sent them, by reason."""
        ...

    async def open(self) -> None:
        """Connect and stay connected. If the bus cannot be reached yet, retry in the background."""
        ...

    async def close(self) -> None: ...

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send without confirmation. Raise Unavailable if not connected or if the queue is full."""
        ...

    async def wait_until_drained(self) -> None:
        """Wait until little data is queued. Raise Unavailable if the bus is away."""
        ...

    async def subscribe(self, subject: str, handler: MessageHandler) -> BusSubscription:
        """Receive what other nodes publish on a subject, but not what this node publishes.

        On return, the subscription is in force for answers to what this node publishes next, and
        shortly after for other messages. Without a connection, it is in force when `watch` reports
        one. `*` matches one part, and a last `>` all that follow.
        """
        ...

    def inbox(self) -> str:
        """Return a new subject that no other subscriber uses."""
        ...

    def watch(self, on_change: Callable[[bool], None]) -> None:
        """Call `on_change` whenever the connection is lost or restored."""
        ...


class Lease(NamedTuple):
    """The right to do something that only one node may do. `token` is its fencing token."""

    name: str
    holder: str
    token: int


class LeaseStore(Protocol):
    """Leases, which at most one node holds at a time."""

    @property
    def lifetime(self) -> timedelta:
        """How long a lease lasts without a renewal."""
        ...

    async def take(self, name: str, holder: str) -> Lease | None:
        """Take a lease, or return None if another node holds it. Raises Unavailable if unknown."""
        ...

    async def renew(self, lease: Lease) -> bool:
        """Renew a lease. Return whether it is still held. Raises Unavailable if that is unknown."""
        ...

    async def release(self, lease: Lease) -> None: ...

    async def holder(self, name: str) -> Lease | None: ...


MAX_LENGTH: Final = 512

_PART: Final = r"[A-Za-z0-9_-]+"
_SUBJECT: Final = re.compile(rf"{_PART}(?:\.{_PART})*")
_PATTERN: Final = re.compile(rf"(?:{_PART}|\*)(?:\.(?:{_PART}|\*))*(?:\.>)?|>")
_WILD: Final = {"*": r"[^.]+", ">": r".+"}


def is_subject(text: str) -> bool:
    """Whether the text is a subject to publish on."""
    return len(text) <= MAX_LENGTH and _SUBJECT.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether the text is a pattern to subscribe to: a part may be `*`, and the last one `>`."""
    return len(text) <= MAX_LENGTH and _PATTERN.fullmatch(text) is not None


def is_plain(pattern: str) -> bool:
    """Whether the pattern matches exactly one subject."""
    return "*" not in pattern and ">" not in pattern


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. `*` matches one part, and `>` matches one or more parts at the end."""
    assert is_pattern(pattern)
    return re.compile(r"\.".join(_WILD.get(part, part) for part in pattern.split(".")))


class FirstSeenStore(Protocol):
    """Knows for all nodes whether a key was seen lately. (JetStream)"""

    async def is_first(self, key: str) -> bool:
        """Whether no node has asked for this key before. Raises Unavailable."""
        ...
