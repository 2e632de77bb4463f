"""A stream of events to a handshake client that can be taken up again by its last event id."""

from collections import deque
from typing import Final

from comity.kernel.outbox import Outbox

KEPT_EVENTS: Final = 256
KEPT_BYTES: Final = 1024 * 1024


class Replay:
    """What was sent on one stream, as far back as is kept, and what is still to be sent.

    The newest reader has the stream: whoever read it before stops. Events are named
    `stream-number`, so an id tells which stream of its session it belongs to.
    """

    __slots__ = ("_kept", "_size", "_unsent", "number", "outbox", "reader", "sent")

    def __init__(self, number: int, outbox: Outbox) -> None:
        self.number = number
        self.outbox = outbox
        self.reader = 0
        self.sent = 0
        self._size = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        # What was taken from the outbox and is still to be sent, the next of it at the end.
        self._unsent: list[bytes] = []

    def attach(self) -> int:
        """Become the reader; an earlier one is woken and finds itself replaced."""
        if self.reader:
            self.outbox.nudge()
        self.reader += 1
        return self.reader

    def next(self) -> bytes | None:
        """What is to be sent next; what a reader that is stuck never sent is for the one after."""
        if not self._unsent and self.outbox.frames:
            self._unsent = self.outbox.take()
            self._unsent.reverse()
        return self._unsent.pop() if self._unsent else None

    def record(self, data: bytes) -> str:
        """Give the next event its id and keep it."""
        self.sent += 1
        self._kept.append((self.sent, data))
        self._size += len(data)
        while len(self._kept) > KEPT_EVENTS or self._size > KEPT_BYTES:
            self._size -= len(self._kept.popleft()[1])
        return f"{self.number}-{self.sent}"

    def after(self, number: int) -> list[tuple[str, bytes]]:
        """The events that followed the one of that number."""
        return [(f"{self.number}-{sent}", data) for sent, data in self._kept if sent > number]


def place_of(event_id: str) -> tuple[int, int] | None:
    """The stream and the number that an event id names; None if it was not given out here."""
    stream, dash, number = event_id.partition("-")
    if not dash or not (stream.isascii() and stream.isdigit() and len(stream) < 16):
        return None
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        return None
    return int(stream), int(number)
