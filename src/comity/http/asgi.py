"""ASGI helpers of the HTTP endpoints: checks of Host and Origin, bodies and refusals.

A web page in a browser can reach loopback by DNS rebinding. The Host must therefore be a name of
this gateway, and so must the Origin, if there is one. (MCP §3.2, attack 8)
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Protocol

from comity.errors import (
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
from comity.http.trusted_proxies import TrustedProxies
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.jsonrpc import Id

log = logging.getLogger(__name__)

type Scope = dict[str, Any]
type Message = dict[str, Any]
type Receive = Callable[[], Coroutine[Any, Any, Message]]
type Send = Callable[[Message], Awaitable[None]]
type HeaderList = list[tuple[bytes, bytes]]

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
BODY_SECONDS: Final = 30.0
MAX_INLINE_BODY_BYTES: Final = 256 * 1024
"""A longer body takes milliseconds each time that it is processed."""

TOO_MANY: Final = 429
SECOND: Final = timedelta(seconds=1)
MILLISECOND: Final = timedelta(milliseconds=1)
JSON_TYPE: Final = (b"content-type", b"application/json")
STREAM_HEADERS: Final[HeaderList] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class HostOriginCheck:
    """Checks Host and Origin against the names of this gateway, which blocks DNS rebinding."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        proxies: TrustedProxies = TrustedProxies(),  # noqa: B008  # it never changes
    ) -> None:
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._proxies = proxies
        self._accepted_pairs: set[tuple[bytes | None, bytes | None]] = set()

    def find_sender(self, scope: Scope) -> None:
        """Set the client address of a request to the one that a trusted proxy passed on."""
        client = scope.get("client")
        if client and self._proxies.are_named:
            scope["client"] = (self._proxies.sender(client[0], scope["headers"]), client[1])

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise MalformedMessage unless Host and Origin are allowed. Good pairs are cached."""
        said = (headers.get(b"host"), headers.get(b"origin"))
        if said in self._accepted_pairs:
            return
        host, origin = said
        self._check_host(host)
        if origin is not None and not self._is_ours(origin):
            raise MalformedMessage(
                "this Origin is not allowed; add it to allowed_origins", ORIGIN_REFUSED
            )
        if len(self._accepted_pairs) < 256:
            self._accepted_pairs.add(said)

    def check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise MalformedMessage unless Host is allowed and Origin, if sent, is the same host.

        This protects the gateway's own pages against posts from other sites and other ports.
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
        """Raise MalformedMessage unless Host is allowed and Origin is the same host or configured.

        A browser lets every page open a WebSocket without a preflight request. A page of another
        program on this machine therefore needs an entry in `allowed_origins`.
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
        """Whether pages of this origin may read responses. Only configured origins may.

        A page of another program on this machine can send only requests without a preflight, and
        MCP accepts none of those.
        """
        return _origin(origin) in self._origins

    def _is_ours(self, origin: bytes) -> bool:
        text = _origin(origin)
        if text in self._origins:
            return True
        scheme, separator, host = text.partition("://")
        return bool(separator) and scheme in ("http", "https") and _name(host.encode()) in LOOPBACK


def refuse_repeated(headers: HeaderList) -> None:
    """Refuse repeated headers of authentication: two readers could each choose another one."""
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in _SINGLE_HEADERS):
        raise MalformedMessage(
            "Host, Origin, Authorization, X-API-Key and Cookie may appear only once",
            INVALID_REQUEST,
        )


API_KEY_HEADER: Final = b"x-api-key"
_SINGLE_HEADERS: Final = (b"host", b"origin", b"authorization", API_KEY_HEADER, b"cookie")


def bearer_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the value of Authorization, or the same for the key in X-API-Key.

    Raises MalformedMessage if both headers are there and differ.
    """
    shown, key = headers.get(b"authorization"), headers.get(API_KEY_HEADER)
    if key is None:
        return shown
    bearer = b"Bearer " + key.strip(b" ")
    if shown is not None and (
        shown[:7].lower() != b"bearer " or shown[7:].strip(b" ") != bearer[7:]
    ):
        raise MalformedMessage(
            "Authorization and X-API-Key differ; send only one of them", INVALID_REQUEST
        )
    return bearer


def with_bearer(headers: Mapping[bytes, bytes]) -> HeaderList:
    """Return the headers with Authorization instead of X-API-Key, so that only one is read."""
    rest = [(name, value) for name, value in headers.items() if name not in _CREDENTIALS]
    bearer = bearer_of(headers)
    return rest if bearer is None else [*rest, (b"authorization", bearer)]


_CREDENTIALS: Final = (b"authorization", API_KEY_HEADER)


@lru_cache(256)
def is_loopback_name(host: bytes) -> bool:
    """Whether a Host is a loopback name, which never names another machine."""
    return _name(host) in LOOPBACK


def _origin(header: bytes) -> str:
    return header.decode("latin-1").strip().lower().rstrip("/")


def wants_page(scope: Scope) -> bool:
    """Return whether a browser navigates to this address."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def not_found_error() -> MalformedMessage:
    """Return the error for a path without an endpoint, or whose endpoint the caller may not see."""
    return MalformedMessage(
        "not found; MCP endpoint: /mcp (all servers) or /servers/{id}/mcp", NOTHING_HERE
    )


def scope_of(path: bytes, headers: HeaderList, address: str) -> Scope:
    """Return the scope of a complete POST to a path without a query."""
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
    """Return a `receive` that delivers a body that was already read."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_with_body() -> Message:
        return whole.pop() if whole else await receive()

    return receive_with_body


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """Return the request's body. Raise MalformedMessage if it is too long or too slow."""
    stated = headers.get(b"content-length", b"0")
    if len(stated) > 12 or not stated.isdigit() or int(stated) > limit:
        raise MalformedMessage(f"a message may have at most {limit} bytes", BODY_TOO_LARGE)
    first = _EagerAwaitable(receive())
    message = first.step()
    if message is not None and not message.get("more_body"):
        return _piece(message)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _gather(message or await first, receive, limit)
    except TimeoutError:
        raise MalformedMessage("the body did not arrive in time", BODY_TOO_SLOW) from None


async def wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def demand_json(content_type: bytes) -> None:
    """Raise MalformedMessage unless the type is JSON, for which a browser sends a preflight."""
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise MalformedMessage("send application/json", WRONG_CONTENT_TYPE)


async def yield_if_long(body: bytes) -> None:
    """Let other tasks run between two passes over a long body."""
    if len(body) > MAX_INLINE_BODY_BYTES:
        await asyncio.sleep(0)


class _EagerAwaitable:
    """An awaitable whose first step runs by hand, without a timer or a task.

    Most bodies arrive with their head. A timer or a task would cost each call more than its JSON.
    """

    __slots__ = ("_coroutine", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, Message]) -> None:
        self._coroutine = coroutine
        self._waiting: object = None

    def step(self) -> Message | None:
        """Return the message if it has already arrived. If not, the caller awaits this object."""
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
    """Return the host without its port. The name is compared exactly, never by a prefix."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, bracket, port = text.partition("]")
        valid = bracket and (not port or (port[0] == ":" and port[1:].isdigit()))
        return name + "]" if valid else ""
    name, colon, port = text.partition(":")
    return name if not colon or port.isdigit() else ""


async def send_json(
    send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send one complete JSON response."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send, status: int, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    headers = [(b"content-length", b"0"), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def with_headers(send: Send, extra: Iterable[tuple[bytes, bytes]]) -> Send:
    """Return a `send` that adds headers to the response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_headers


def send_with_cors(send: Send, origin: bytes) -> Send:
    """Return a `send` whose response pages of this origin may read."""
    readable = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )
    return with_headers(send, readable)


async def answer_preflight(send: Send, headers: Mapping[bytes, bytes]) -> None:
    """Answer a preflight request with the allowed methods and the headers that it named."""
    wanted = headers.get(b"access-control-request-headers", b"")
    permitted = (
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", wanted),
        (b"access-control-max-age", b"600"),
    )
    await send_empty(send, 204, permitted)


async def send_refusal(send: Send, error: MalformedMessage | Unavailable) -> None:
    """Send a refusal as a JSON-RPC error without an id, with its HTTP status."""
    after = error.retry_after if isinstance(error, Unavailable) else None
    later = () if after is None else ((b"retry-after", b"%d" % -(-after // SECOND)),)
    await send_json(send, *encode_refusal(error), later)


def encode_refusal(error: MalformedMessage | Unavailable) -> tuple[int, bytes]:
    """Return the status and the body of a refusal."""
    fault = error.fault
    otherwise = 503 if isinstance(error, Unavailable) or fault is EXHAUSTED else 400
    if fault.reg_status == TOO_MANY:
        otherwise = TOO_MANY
    status = fault.http_status if fault.http_status != 200 else otherwise
    told: dict[str, object] = _in_mgp(fault) or {}
    if isinstance(error, Unavailable) and error.retry_after is not None and fault.retryable:
        told |= {"retryable": True, "retry_after_ms": error.retry_after // MILLISECOND}
    return status, encode_fault(None, fault, str(error), told)


def _in_mgp(fault: Fault) -> dict[str, object] | None:
    """Return the MGP form of a security error. An unknown caller has not negotiated MGP yet."""
    if fault.category != "security" or fault.mgp is None:
        return None
    return {"_mgp": {"code": fault.mgp, "category": fault.category, "retryable": fault.retryable}}


def encode_internal_error() -> bytes:
    """Return the body for an internal error. It contains no details of the bug."""
    return encode_fault(None, INTERNAL_ERROR, "the gateway failed; see its log")


def encode_fault(
    request_id: Id | None, fault: Fault, reason: str, data: Mapping[str, object] | None = None
) -> bytes:
    """Return the body of a refusal before a call exists. It has a trace id of its own."""
    trace = {"trace_id": secrets.token_hex(16)}
    log.debug("Request refused: %s", reason, extra=trace)
    return jsonrpc.encode_frame(
        jsonrpc.make_error(request_id, fault, reason, {**(data or {}), **trace})
    )


OPERATORS: Final = "/api/"


ASKS: Final = "/api/approvals"


SOCKETS: Final = "/ws"


PARTICIPANTS: Final = "/admin/participants/"


HOOKS: Final = "/hooks/"


"""The path for incoming webhooks. The signature authenticates their sender."""


NOTIFIERS: Final = "/notifiers/"


"""The path for buttons of messages, such as those of Slack. The signature authenticates them."""


UNSHOWN: Final = Actor("", PrincipalKind.SYSTEM, "unshown")


"""The actor of a request without credentials. Its message may still carry some."""


ACTOR: Final = "actor"


"""The key of the actor in the scope of a request."""


PROVED: Final = "comity.proved"


"""The key of the actor that another node authenticated, in the scope of a forwarded request."""


class HttpEndpoint(Protocol):
    """Handles the requests of one path."""

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None: ...
