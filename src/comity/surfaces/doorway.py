"""Who is at the HTTP door: whether it may be spoken to at all, and how a refusal is worded.

A web page in a browser can reach loopback by DNS rebinding, so the Host must be one of ours and an
Origin, where there is one, must be too. (MCP §3.2, attack 8)
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, Final

from comity.wire import jsonrpc
from comity.wire.errors import (
    BODY_TOO_LARGE,
    BODY_TOO_SLOW,
    EXHAUSTED,
    HOST_REFUSED,
    INVALID_REQUEST,
    ORIGIN_REFUSED,
    MalformedMessage,
    Unavailable,
)

type Scope = dict[str, Any]
type Message = dict[str, Any]
type Receive = Callable[[], Coroutine[Any, Any, Message]]
type Send = Callable[[Message], Awaitable[None]]
type HeaderList = list[tuple[bytes, bytes]]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
BODY_SECONDS: Final = 30.0
JSON_TYPE: Final = (b"content-type", b"application/json")
STREAM_HEADERS: Final[HeaderList] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Doorway:
    """The names this gateway goes by; anything else is a page that was lured here."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._seen: set[tuple[bytes | None, bytes | None]] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless Host and Origin are ours; what was once found good is remembered."""
        said = (headers.get(b"host"), headers.get(b"origin"))
        if said in self._seen:
            return
        host, origin = said
        if host is None or _name(host) not in self._hosts:
            raise MalformedMessage(
                "this Host is not served here; add it to allowed_hosts", HOST_REFUSED
            )
        if origin is not None and not self._is_ours(origin):
            raise MalformedMessage(
                "this Origin is not allowed; add it to allowed_origins", ORIGIN_REFUSED
            )
        if len(self._seen) < 256:
            self._seen.add(said)

    def lets_read(self, origin: bytes) -> bool:
        """Whether pages of this origin may read what is answered: only those the operator named.

        A page that another program serves on this machine may call no more than its browser lets
        it without asking, which is nothing of MCP.
        """
        return _origin(origin) in self._origins

    def _is_ours(self, origin: bytes) -> bool:
        text = _origin(origin)
        if text in self._origins:
            return True
        scheme, separator, host = text.partition("://")
        return bool(separator) and scheme in ("http", "https") and _name(host.encode()) in LOOPBACK


def refuse_repeated(headers: HeaderList) -> None:
    """Two Hosts, or two Origins, are what two readers of one request would each choose from."""
    names = [name for name, _ in headers]
    if names.count(b"host") > 1 or names.count(b"origin") > 1:
        raise MalformedMessage("Host and Origin may appear only once", INVALID_REQUEST)


def _origin(header: bytes) -> str:
    return header.decode("latin-1").strip().lower().rstrip("/")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The request's body, within the limit and in bounded time."""
    stated = headers.get(b"content-length", b"0")
    if len(stated) > 12 or not stated.isdigit() or int(stated) > limit:
        raise MalformedMessage(f"a message may have at most {limit} bytes", BODY_TOO_LARGE)
    first = _Begun(receive())
    message = first.step()
    if message is not None and not message.get("more_body"):
        return _piece(message)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _gather(message or await first, receive, limit)
    except TimeoutError:
        raise MalformedMessage("the body did not arrive in time", BODY_TOO_SLOW) from None


class _Begun:
    """A wait that is begun by hand: most bodies came with their head, and then no timer is set.

    A timer, or a task, would cost each call more than its JSON does.
    """

    __slots__ = ("_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, Message]) -> None:
        self._coroutine = coroutine
        self._waiting: object = None

    def step(self) -> Message | None:
        """The message if it is here already; otherwise await the rest."""
        try:
            self._waiting = self._coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        return None

    def __await__(self) -> Generator[Any, Any, Message]:
        try:
            yield self._waiting
        except BaseException as error:
            self._coroutine.throw(error)
            raise
        return (yield from self._coroutine.__await__())


async def _gather(message: Message, receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        pieces.append(_piece(message))
        size += len(pieces[-1])
        if size > limit:
            raise MalformedMessage(f"a message may have at most {limit} bytes", BODY_TOO_LARGE)
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


def _piece(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise MalformedMessage("the client went away", INVALID_REQUEST)
    return message.get("body", b"")


def _name(host: bytes) -> str:
    """The host without its port, exactly; nothing is guessed from a prefix."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, bracket, port = text.partition("]")
        valid = bracket and (not port or (port[0] == ":" and port[1:].isdigit()))
        return name + "]" if valid else ""
    name, colon, port = text.partition(":")
    return name if not colon or port.isdigit() else ""


async def answer(
    send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """One whole JSON response."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def empty(send: Send, status: int, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    headers = [(b"content-length", b"0"), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def with_headers(send: Send, extra: Iterable[tuple[bytes, bytes]]) -> Send:
    """The same way out, with more said at the head of the response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_headers


def shared_with(send: Send, origin: bytes) -> Send:
    """The same way out, readable by pages of this origin."""
    readable = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id"),
        (b"vary", b"origin"),
    )
    return with_headers(send, readable)


async def permit(send: Send, headers: Mapping[bytes, bytes]) -> None:
    """Answer what a browser asks before a page may call: these methods, the headers it named."""
    wanted = headers.get(b"access-control-request-headers", b"")
    permitted = (
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", wanted),
        (b"access-control-max-age", b"600"),
    )
    await empty(send, 204, permitted)


async def refuse(send: Send, error: MalformedMessage | Unavailable) -> None:
    """Word a refusal as JSON-RPC without an id, under its HTTP status."""
    otherwise = 503 if isinstance(error, Unavailable) or error.fault is EXHAUSTED else 400
    status = error.fault.http_status if error.fault.http_status != 200 else otherwise
    await answer(send, status, jsonrpc.encode(jsonrpc.failure(None, error.fault, str(error))))
