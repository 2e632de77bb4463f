"""The fast path: answers a complete small request without an ASGI cycle.

An ASGI server creates a task, an event and a dictionary for every request and writes its answer in
two parts. That is more than half of the cost of a relayed call. A complete request with a single
answer needs none of it. Other requests continue as ASGI.
"""

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final, Protocol

from comity.http.asgi import Receive, Send

BODY_BYTES: Final = 64 * 1024
"""The longest body that the fast path waits for."""

_HEADS: Final = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status.value, status.phrase.encode())
    for status in HTTPStatus
}

type Continuation = Callable[[Receive, Send], Awaitable[None]]


class FastPathConnection(Protocol):
    """The connection of a request on the fast path."""

    @property
    def address(self) -> str: ...
    def written(self, request: "FastPathRequest", data: bytes) -> None: ...
    def continued(self, request: "FastPathRequest", continuation: Continuation) -> None: ...


class FastPathRequest:
    """One complete request, until it is answered or continues as ASGI."""

    __slots__ = ("_lane", "body", "headers", "keep_alive", "listed", "on_lost", "path")

    def __init__(
        self,
        fast_path: FastPathConnection,
        path: bytes,
        headers: dict[bytes, bytes],
        listed: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._lane: FastPathConnection | None = fast_path
        self.path = path
        self.headers = headers
        self.listed = listed
        self.body = body
        self.keep_alive = keep_alive
        self.on_lost: Callable[[], None] | None = None

    @property
    def address(self) -> str:
        """The address of the client, or empty if it is no longer known."""
        return "" if self._lane is None else self._lane.address

    @property
    def is_over(self) -> bool:
        """Whether the request was answered, continues as ASGI, or lost its client."""
        return self._lane is None

    def answer(self, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the only answer, as JSON, in one piece. Do nothing if the client has gone."""
        lane, self._lane = self._lane, None
        # The callback holds this request. This breaks the cycle without the garbage collector.
        self.on_lost = None
        if lane is None:
            return
        more = b"".join(b"%b: %b\r\n" % header for header in extra) if extra else b""
        if not self.keep_alive:
            more += b"connection: close\r\n"
        lane.written(self, b"%b%d\r\n%b\r\n%b" % (_HEADS[status], len(body), more, body))

    def hand_over(self, continuation: Continuation) -> None:
        """Continue the request as ASGI. Its body was already read."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.continued(self, continuation)

    def lose(self) -> None:
        """Note that the client has gone, and call `on_lost`."""
        self._lane = None
        if self.on_lost is not None:
            self.on_lost()


type Serve = Callable[[FastPathRequest], bool]
"""Takes a request and returns true, or leaves it untouched for ASGI."""
