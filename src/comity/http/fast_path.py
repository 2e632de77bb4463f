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


class RequestHead:
    """The head of a request, without its length. Requests with equal heads may share it."""

    __slots__ = ("facts", "headers", "keep_alive", "length_at", "listed", "path", "sender")

    def __init__(
        self,
        path: bytes,
        headers: dict[bytes, bytes],
        listed: list[tuple[bytes, bytes]],
        keep_alive: bool,
        length_at: int = 0,
    ) -> None:
        self.path = path
        self.headers = headers
        self.listed = listed
        self.keep_alive = keep_alive
        # The place of `content-length` among the headers. Its value is the length of the body.
        self.length_at = length_at
        # What the application and its endpoint found out from this head. Only they read it.
        self.sender: object | None = None
        self.facts: object | None = None


class FastPathRequest:
    """One complete request, until it is answered or continues as ASGI."""

    __slots__ = ("_lane", "address", "body", "head", "is_over", "keep_alive", "on_lost")

    def __init__(self, fast_path: FastPathConnection, head: RequestHead, body: bytes) -> None:
        self._lane = fast_path
        self.address = fast_path.address
        self.head = head
        self.body = body
        self.keep_alive = head.keep_alive
        # Whether the request was answered, continues as ASGI, or lost its client.
        self.is_over = False
        self.on_lost: Callable[[], None] | None = None

    def header_list(self) -> list[tuple[bytes, bytes]]:
        """Return the headers in their order, with the length of the body."""
        listed, at = self.head.listed, self.head.length_at
        return [*listed[:at], (b"content-length", b"%d" % len(self.body)), *listed[at:]]

    def answer(self, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the only answer, as JSON, in one piece. Do nothing if the client has gone."""
        # The callback holds this request. This breaks the cycle without the garbage collector.
        self.on_lost = None
        if self.is_over:
            return
        self.is_over = True
        more = b"".join(b"%b: %b\r\n" % header for header in extra) if extra else b""
        if not self.keep_alive:
            more += b"connection: close\r\n"
        self._lane.written(self, b"%b%d\r\n%b\r\n%b" % (_HEADS[status], len(body), more, body))

    def hand_over(self, continuation: Continuation) -> None:
        """Continue the request as ASGI. Its body was already read."""
        if not self.is_over:
            self.is_over = True
            self._lane.continued(self, continuation)

    def lose(self) -> None:
        """Note that the client has gone, and call `on_lost`."""
        self.is_over = True
        if self.on_lost is not None:
            self.on_lost()


type Serve = Callable[[FastPathRequest], bool]
"""Takes a request and returns true, or leaves it untouched for ASGI."""
