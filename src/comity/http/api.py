"""The operator API: routes, their permissions, and the router that serves them.

Each domain lists its routes in `api.py`, and the composition root gives them to one `ApiRouter`.
A route names its permission and the type of its input. The router asks for the permission and
decodes the input before it calls the handler.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, cast
from urllib.parse import parse_qs

from comity.errors import (
    INVALID_PARAMS,
    NOTHING_HERE,
    ORIGIN_REFUSED,
    UNAUTHENTICATED,
    WRONG_CONTENT_TYPE,
    MalformedMessage,
    Misconfigured,
)
from comity.http import asgi
from comity.http.api_input import RequestBody, RequestQuery, decode_body, decode_query
from comity.http.asgi import ACTOR, PARTICIPANTS, HttpEndpoint, Receive, Scope, Send
from comity.mcp import actors, jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor

MAX_QUERY_FIELDS: Final = 16
MAX_BODY_BYTES: Final = 256 * 1024

_METHOD_CHECKED: Final = ("/api/status", "/api/servers", PARTICIPANTS)
"""Addresses that answer 405 to a method without a route. All others answer 404."""

_NO_STORE: Final = ((b"cache-control", b"no-store"),)
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_READ_METHODS: Final = ("GET", "HEAD")

type View = Mapping[str, object]
type Authorize = Callable[[Actor, str, str], None]
"""Takes an actor, a verb and a target. Raises MalformedMessage unless the actor has that grant."""


class Permission(Enum):
    """The permission that a principal needs before the router calls the handler of a route."""

    ADMIN_READ = (actors.ADMIN_READ, "*")
    ADMIN_WRITE = (actors.ADMIN_WRITE, "*")
    # For the server that the path names.
    SERVER_READ = (actors.ADMIN_READ, "{server}/*")
    SERVER_WRITE = (actors.ADMIN_WRITE, "{server}/*")
    # For every authenticated principal: the answer holds only what it may use.
    ANY_PRINCIPAL = ("", "any principal")
    # For every authenticated principal: the handler decides for each record.
    OWN_RECORDS = ("", "own records")

    @property
    def verb(self) -> str:
        """The verb that must be granted. Empty if no grant is needed."""
        return self.value[0]

    def target_in(self, path: Mapping[str, str]) -> str:
        """Return the target of the grant, for a request with these path parameters."""
        return self.value[1].format_map(path)


@dataclass(frozen=True, slots=True)
class ApiRequest[Input: RequestBody | RequestQuery]:
    """An authorized request. `input` is the decoded body or query string."""

    actor: Actor
    path: Mapping[str, str]
    input: Input


type ApiHandler[Input: RequestBody | RequestQuery] = Callable[[ApiRequest[Input]], Awaitable[View]]


@dataclass(frozen=True, slots=True)
class ApiRoute[Input: RequestBody | RequestQuery]:
    """One method at one address.

    `path` may hold parameters: `{id}` is one segment, `{party:path}` one or more.
    """

    method: Literal["GET", "POST"]
    path: str
    permission: Permission
    handler: ApiHandler[Input]
    input: type[Input]
    pattern: re.Pattern[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        expected = RequestQuery if self.method == "GET" else RequestBody
        if not isinstance(cast("object", self.permission), Permission):
            raise TypeError(f"{self.method} {self.path} names no permission")
        if expected not in self.input.__mro__:
            raise TypeError(f"{self.method} {self.path} needs a {expected.__name__}")
        object.__setattr__(self, "pattern", _compile(self.path))

    @property
    def address(self) -> tuple[str, str]:
        return self.method, self.path


type ApiRoutes = tuple[ApiRoute[Any], ...]


@dataclass(frozen=True, slots=True)
class StreamRoute:
    """A GET that answers with an event stream. `event` is the type of its messages."""

    path: str
    permission: Permission
    serve: HttpEndpoint
    event: type


def _compile(path: str) -> re.Pattern[str]:
    pattern = re.sub(r"\\\{(\w+):path\\\}", r"(?P<\1>.+)", re.escape(path))
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", pattern), re.DOTALL)


class ApiRouter:
    """The HTTP endpoint of all routes: /api/, and the MCPx routes below /admin/participants/."""

    def __init__(self, authorize: Authorize, routes: Iterable[ApiRoute[Any]] = ()) -> None:
        self._authorize = authorize
        self._routes: dict[tuple[str, str], ApiRoute[Any]] = {}
        self._streams: dict[str, StreamRoute] = {}
        self.add(routes)

    @property
    def routes(self) -> ApiRoutes:
        return tuple(self._routes.values())

    @property
    def streams(self) -> tuple[StreamRoute, ...]:
        return tuple(self._streams.values())

    def add_stream(self, route: StreamRoute) -> None:
        """Serve this event stream from now on."""
        self._streams[route.path] = route

    def add(self, routes: Iterable[ApiRoute[Any]]) -> None:
        """Serve these routes from now on."""
        for route in routes:
            if route.address in self._routes:
                raise ValueError(f"two routes serve {route.method} {route.path}")
            self._routes[route.address] = route

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        method, path, actor = scope["method"], scope["path"], scope.get(ACTOR, ANONYMOUS)
        stream = self._streams.get(path) if method == "GET" else None
        if stream is not None:
            self._demand(stream.permission, {}, actor)
            await stream.serve(scope, headers, receive, send)
            return
        found = self._find(method, path)
        if found is None:
            await self._refuse(method, path, actor, send)
            return
        route, parameters = found
        self._demand(route.permission, parameters, actor)
        given: Mapping[str, object] = {}
        if method == "GET":
            given = query_of(scope.get("query_string", b""))
        else:
            refuse_other_sites(headers)
            given = await read_json(headers, receive)
        view = await _answer(route, parameters, given, actor)
        # The answer is soon out of date, and is meant for this principal only.
        await asgi.send_json(send, 200, bytes(jsonrpc.to_raw(view)), _NO_STORE)

    async def answer(
        self, method: str, path: str, given: Mapping[str, object], actor: Actor
    ) -> View:
        """Answer a request that did not arrive over HTTP. `given` is its query or its body."""
        found = self._find(method, path)
        if found is None:
            raise _no_such_address()
        self._demand(found[0].permission, found[1], actor)
        return await _answer(*found, given, actor)

    def _find(self, method: str, path: str) -> tuple[ApiRoute[Any], Mapping[str, str]] | None:
        exact = self._routes.get((method, path))
        if exact is not None and not exact.pattern.groups:
            return exact, {}
        for route in self._routes.values():
            if route.method == method and (matched := route.pattern.fullmatch(path)):
                return route, matched.groupdict()
        return None

    def _demand(self, permission: Permission, path: Mapping[str, str], actor: Actor) -> None:
        if not actor.party:
            raise MalformedMessage("this is for authenticated principals", UNAUTHENTICATED)
        if permission.verb:
            self._authorize(actor, permission.verb, permission.target_in(path))

    async def _refuse(self, method: str, path: str, actor: Actor, send: Send) -> None:
        """Refuse an address without a route. Only operators learn which addresses have a route."""
        verb = actors.ADMIN_READ if method in _READ_METHODS else actors.ADMIN_WRITE
        self._authorize(actor, verb, "*")
        known = [route.method for route in self.routes if route.pattern.fullmatch(path)]
        if method in _METHODS and not (known and path.startswith(_METHOD_CHECKED)):
            raise _no_such_address()
        allowed = ", ".join(sorted(set(known)) or _METHODS)
        await asgi.send_empty(send, 405, ((b"allow", allowed.encode()),))


async def _answer(
    route: ApiRoute[Any], path: Mapping[str, str], given: Mapping[str, object], actor: Actor
) -> View:
    if route.method == "GET":
        decoded = decode_query(route.input, given)
    else:
        decoded = decode_body(route.input, given, actor.party)
    try:
        return await route.handler(ApiRequest(actor, path, decoded))
    except Misconfigured as error:
        raise MalformedMessage(str(error), INVALID_PARAMS) from None


def _no_such_address() -> MalformedMessage:
    return MalformedMessage("there is no such path under /api", NOTHING_HERE)


def refuse_other_sites(headers: Mapping[bytes, bytes]) -> None:
    """Raise MalformedMessage if a page of another site sent this request."""
    origin = headers.get(b"origin")
    own = (b"http://" + headers[b"host"], b"https://" + headers[b"host"])
    site = headers.get(b"sec-fetch-site", b"none")
    if (origin is not None and origin not in own) or site not in (b"none", b"same-origin"):
        raise MalformedMessage("pages of other sites may change nothing here", ORIGIN_REFUSED)


async def read_json(headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, object]:
    """Return the object in a JSON body, which is empty for an empty body.

    A page of another site cannot send this type without a preflight request, which is refused.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise MalformedMessage("send application/json, if only {}", WRONG_CONTENT_TYPE)
    body = await asgi.read_body(receive, headers, MAX_BODY_BYTES)
    if not body.strip():
        return {}
    if reason := jsonrpc.excess_reason(body, jsonrpc.LIMITS.depth):
        raise MalformedMessage(reason, INVALID_PARAMS)
    jsonrpc.decode_members(body)
    return cast("dict[str, object]", jsonrpc.decode_value(body))


def query_of(written: bytes) -> dict[str, str]:
    """Return the fields of a query string. Of a repeated field, the last value counts."""
    try:
        fields = parse_qs(written.decode("ascii"), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise MalformedMessage("a query that cannot be read", INVALID_PARAMS) from None
    return {name: values[-1] for name, values in fields.items()}
