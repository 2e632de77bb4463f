"""The express lane: a whole small request, answered without an ASGI cycle of its own.

An ASGI server makes a task, an event and a dictionary for every request and writes its answer in
two parts; that is more than half of what a relayed call costs. A request that is here as a whole,
and whose answer is one piece, needs none of it. What turns out to be more goes on as ASGI does.
"""

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final, Protocol

from comity.surfaces.doorway import Receive, Send

BODY_BYTES: Final = 64 * 1024
"""What is longer is not waited for here."""

_HEADS: Final = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status.value, status.phrase.encode())
    for status in HTTPStatus
}

type Continuation = Callable[[Receive, Send], Awaitable[None]]


class Lane(Protocol):
    """The connection under a request."""

    @property
    def address(self) -> str: ...
    def written(self, request: "Express", data: bytes) -> None: ...
    def continued(self, request: "Express", continuation: Continuation) -> None: ...


class Express:
    """One request that is here as a whole, until it is answered or goes on as ASGI does."""

    __slots__ = ("_lane", "body", "headers", "keep_alive", "listed", "on_lost", "path")

    def __init__(
        self,
        lane: Lane,
        path: bytes,
        headers: dict[bytes, bytes],
        listed: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._lane: Lane | None = lane
        self.path = path
        self.headers = headers
        self.listed = listed
        self.body = body
        self.keep_alive = keep_alive
        self.on_lost: Callable[[], None] | None = None

    @property
    def address(self) -> str:
        """Where the request comes from, or nothing where that is not known any more."""
        return "" if self._lane is None else self._lane.address

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or went on elsewhere, or its client has gone."""
        return self._lane is None

    def answer(self, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The one answer, as JSON, in one piece; nothing where nobody is there any more."""
        lane, self._lane = self._lane, None
        # Whoever was to hear of a loss holds this request: what holds itself waits for a sweep.
        self.on_lost = None
        if lane is None:
            return
        more = b"".join(b"%b: %b\r\n" % header for header in extra)
        if not self.keep_alive:
            more += b"connection: close\r\n"
        lane.written(self, b"%b%d\r\n%b\r\n%b" % (_HEADS[status], len(body), more, body))

    def hand_over(self, continuation: Continuation) -> None:
        """Go on as ASGI does; the request's body has been read already."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.continued(self, continuation)

    def lose(self) -> None:
        """The client has gone."""
        self._lane = None
        if self.on_lost is not None:
            self.on_lost()


type Serve = Callable[[Express], bool]
"""Takes a request, or leaves it, untouched, to ASGI."""
