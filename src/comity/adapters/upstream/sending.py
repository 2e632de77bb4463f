"""One HTTP request under way, seen by the one who sent it and the one who reads its response."""

import asyncio
import logging
from typing import Protocol

from comity.rules.allowance import Allowance
from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)


class ResponseReader(Protocol):
    """Who reads one response. Called from the event loop; must not raise.

    Exactly one of `ended` and `failed` is called, once, unless the request was aborted first.
    """

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head has arrived: names in lower case, values without surrounding blanks."""
        ...

    def data(self, chunk: bytes) -> None: ...

    def ended(self) -> None:
        """The whole body has arrived."""
        ...

    def failed(self, error: Unavailable) -> None: ...


class Carrier(Protocol):
    """What a request is on: at first the queue for connections, then one of them."""

    def apply_pause(self, sending: "Sending") -> None: ...
    def drop(self, sending: "Sending") -> None: ...


class _Silence:
    """The reader of a request that has been settled: nobody."""

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def data(self, chunk: bytes) -> None: ...
    def ended(self) -> None: ...
    def failed(self, error: Unavailable) -> None: ...


SILENCE = _Silence()


class Sending:
    """One request under way, from the moment it is handed over until its response has ended."""

    __slots__ = ("carrier", "may_repeat", "paused", "payload", "reader")

    is_head = False

    def __init__(
        self, carrier: Carrier, payload: bytes, reader: ResponseReader, may_repeat: bool
    ) -> None:
        self.carrier = carrier
        self.payload = payload
        self.reader = reader
        self.may_repeat = may_repeat
        self.paused = False

    def pause(self) -> None:
        """Stop reading. What has been read already may still arrive, and may be the end."""
        if not self.paused:
            self.paused = True
            self.carrier.apply_pause(self)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.carrier.apply_pause(self)

    def rest_if_spent(self, allowance: Allowance) -> None:
        """Read no more for a while from a server that says much that nobody asked for."""
        if allowance.is_spent and not self.paused:
            loop = asyncio.get_running_loop()
            seconds = allowance.rest(loop.time())
            if seconds:
                self.pause()
                loop.call_later(seconds, self.resume)

    def abort(self) -> None:
        """Give up: the connection is dropped and the reader hears nothing more."""
        self.reader = SILENCE
        self.carrier.drop(self)

    @property
    def is_settled(self) -> bool:
        return self.reader is SILENCE

    def end(self) -> None:
        # The reader is taken out first, so that it is told only once and not kept alive from here.
        reader, self.reader = self.reader, SILENCE
        try:
            reader.ended()
        except Exception:
            log.exception("the reader of a response raised at its end")

    def fail(self, because: Unavailable) -> None:
        reader, self.reader = self.reader, SILENCE
        try:
            reader.failed(because)
        except Exception:
            log.exception("the reader of a response raised when told of a failure")


class HeadSending(Sending):
    """A HEAD request, whose response has a length and no body."""

    __slots__ = ()

    is_head = True
