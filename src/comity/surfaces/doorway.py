"""Who is at the HTTP door: whether it may be spoken to at all, and how a refusal is worded.

A web page in a browser can reach loopback by DNS rebinding, so the Host must be one of ours and an
Origin, where there is one, must be too. (MCP §3.2, attack 8)
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from comity.rules.forwarded import TrustedProxies
from comity.wire import jsonrpc
from comity.wire.errors import (
    BODY_TOO_LARGE,
    BODY_TOO_SLOW,
    EXHAUSTED,
    HOST_REFUSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOTHING_HERE,
    ORIGIN_REFUSED,
    WRONG_CONTENT_TYPE,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Id

log = logging.getLogger(__name__)

type Scope = dict[str, Any]
type Message = dict[str, Any]
type Receive = Callable[[], Coroutine[Any, Any, Message]]
type Send = Callable[[Message], Awaitable[None]]
type HeaderList = list[tuple[bytes, bytes]]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
BODY_SECONDS: Final = 30.0
LONG_BODY: Final = 256 * 1024
"""What is longer takes milliseconds each time that it is looked at."""

TOO_MANY: Final = 429
SECOND: Final = timedelta(seconds=1)
MILLISECOND: Final = timedelta(milliseconds=1)
JSON_TYPE: Final = (b"content-type", b"application/json")
STREAM_HEADERS: Final[HeaderList] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Doorway:
    """The names this gateway goes by; anything else is a page that was lured here."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        proxies: TrustedProxies = TrustedProxies(),  # noqa: B008  # it never changes
    ) -> None:
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._proxies = proxies
        self._seen: set[tuple[bytes | None, bytes | None]] = set()

    def find_sender(self, scope: Scope) -> None:
        """Note the address that a request came from, where a trusted proxy passed it on."""
        client = scope.get("client")
        if client and self._proxies.are_named:
            scope["client"] = (self._proxies.sender(client[0], scope["headers"]), client[1])

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless Host and Origin are ours; what was once found good is remembered."""
        said = (headers.get(b"host"), headers.get(b"origin"))
        if said in self._seen:
            return
        host, origin = said
        self._check_host(host)
        if origin is not None and not self._is_ours(origin):
            raise MalformedMessage(
                "this Origin is not allowed; add it to allowed_origins", ORIGIN_REFUSED
            )
        if len(self._seen) < 256:
            self._seen.add(said)

    def check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless Host is ours and Origin, where there is one, is the very same place.

        For pages of our own, which no page of another site, or another port, may post to.
        """
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        self._check_host(host)
        scheme, _, named = ("", "", "") if origin is None else _origin(origin).partition("://")
        is_own = scheme in ("http", "https") and named == _origin(host)
        if origin is not None and not is_own:
            raise MalformedMessage(
                "pages of other sites may do nothing here; where this one should be able to join "
                "topics, add its origin to allowed_origins",
                ORIGIN_REFUSED,
            )

    def check_socket(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless Host is ours and Origin, where there is one, is that very place or named.

        A browser lets every page open a WebSocket without asking: so one that another program
        serves on this machine may not, unless an operator has said so.
        """
        if self.lets_read(headers.get(b"origin", b"")):
            self._check_host(headers.get(b"host"))
        else:
            self.check_page(headers)

    def _check_host(self, host: bytes | None) -> None:
        if host is None or _name(host) not in self._hosts:
            raise MalformedMessage(
                "this Host is not served here; add it to allowed_hosts", HOST_REFUSED
            )

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
    """Of two Hosts, Origins or credentials, two readers of one request would each choose one."""
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in _ONCE):
        raise MalformedMessage(
            "Host, Origin and Authorization may appear only once", INVALID_REQUEST
        )


_ONCE: Final = (b"host", b"origin", b"authorization")


@lru_cache(256)
def is_loopback_name(host: bytes) -> bool:
    """Whether a Host is what a machine calls itself, which no other machine is called."""
    return _name(host) in LOOPBACK


def _origin(header: bytes) -> str:
    return header.decode("latin-1").strip().lower().rstrip("/")


def nothing_here() -> MalformedMessage:
    """Said at a path without a door, and at a door that is not for whoever asks."""
    return MalformedMessage(
        "nothing is here; all servers are at /mcp, one of them at /servers/{id}/mcp", NOTHING_HERE
    )


def scope_of(path: bytes, headers: HeaderList, address: str) -> Scope:
    """The scope of a POST that has come as a whole, at a path without a query."""
    return {
        "type": "http",
        "method": "POST",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": b"",
        "scheme": "http",
        "headers": headers,
        "client": (address, 0),
    }


def with_body(body: bytes, receive: Receive) -> Receive:
    """The same way in, for a body that has been read already."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_with_body() -> Message:
        return whole.pop() if whole else await receive()

    return receive_with_body


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


def demand_json(content_type: bytes) -> None:
    """Raise unless the body is said to be JSON: no page of elsewhere can say so unasked."""
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise MalformedMessage("send application/json", WRONG_CONTENT_TYPE)


async def breathe(body: bytes) -> None:
    """Between two looks at a long body others have their turn."""
    if len(body) > LONG_BODY:
        await asyncio.sleep(0)


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
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
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
    after = error.retry_after if isinstance(error, Unavailable) else None
    later = () if after is None else ((b"retry-after", b"%d" % -(-after // SECOND)),)
    await answer(send, *refusal(error), later)


def refusal(error: MalformedMessage | Unavailable) -> tuple[int, bytes]:
    """The status and the words of a refusal."""
    fault = error.fault
    otherwise = 503 if isinstance(error, Unavailable) or fault is EXHAUSTED else 400
    if fault.reg_status == TOO_MANY:
        otherwise = TOO_MANY
    status = fault.http_status if fault.http_status != 200 else otherwise
    told: dict[str, object] = _in_mgp(fault) or {}
    if isinstance(error, Unavailable) and error.retry_after is not None and fault.retryable:
        told |= {"retryable": True, "retry_after_ms": error.retry_after // MILLISECOND}
    return status, worded(None, fault, str(error), told)


def _in_mgp(fault: Fault) -> dict[str, object] | None:
    """Who is not known yet has negotiated nothing; so it is told in MGP's words as well."""
    if fault.category != "security" or fault.mgp is None:
        return None
    return {"_mgp": {"code": fault.mgp, "category": fault.category, "retryable": fault.retryable}}


def oops() -> bytes:
    """What is told of a bug of ours: that there was one, and nothing of it."""
    return worded(None, INTERNAL_ERROR, "the gateway failed; see its log")


def worded(
    request_id: Id | None, fault: Fault, because: str, data: Mapping[str, object] | None = None
) -> bytes:
    """A refusal of the door's own, before anybody knows of a call; it has a trace all the same."""
    trace = {"trace_id": secrets.token_hex(16)}
    log.debug("the door refuses: %s", because, extra=trace)
    return jsonrpc.encode(jsonrpc.failure(request_id, fault, because, {**(data or {}), **trace}))
