"""Authentication of HTTP requests, the challenges for refused ones, and token metadata.

The authenticator checks every request anew. Only endpoints that reveal nothing about a principal
are open to all: liveness, and where tokens are issued. (RFC 6750, RFC 9728, MCP authorization)
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol
from urllib.parse import parse_qs

from comity.accounts.pages import ACCOUNTS_PATH
from comity.app.browser_pages import LANDING_PATH
from comity.approvals.presentation import PAGE_PATH as ASK_PAGES
from comity.console.endpoint import CONSOLE_PATH
from comity.errors import (
    ACCESS_DENIED,
    CREDENTIAL_EXPIRED,
    NOTHING_HERE,
    OPERATORS_ONLY,
    ORIGIN_REFUSED,
    SCOPE_MISSING,
    UNAUTHENTICATED,
    Fault,
    MalformedMessage,
)
from comity.http import asgi
from comity.http.asgi import (
    ACTOR,
    HOOKS,
    NOTIFIERS,
    OPERATORS,
    PARTICIPANTS,
    SOCKETS,
    UNSHOWN,
    Receive,
    Scope,
    Send,
)
from comity.http.fast_path import FastPathRequest
from comity.identity.authentication import WELL_KNOWN, Authenticator, RequestCredentials
from comity.identity.login.rules import CREDENTIAL_PREFIX, LOGIN_PATHS, is_own_origin
from comity.identity.scim.messages import SCIM_PATH
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor, PrincipalKind
from comity.policy.grants import Effect, split_target
from comity.policy.snapshot import PolicyEngine

SERVERS_PATH: Final = "/servers/"
VIEWS_PATH: Final = "/views/"
METRICS_PATH: Final = "/metrics"
VISIBILITY_CACHE_SECONDS: Final = 1.0
MAX_CACHED_PATHS: Final = 10_000

HEALTH_PATHS: Final = ("/health", "/healthz", "/livez")
READY_PATHS: Final = ("/ready", "/readyz")
CHALLENGED_FAULTS: Final = frozenset({UNAUTHENTICATED, CREDENTIAL_EXPIRED, SCOPE_MISSING})

OPERATORS_ONLY_TEXT: Final = (
    "operator access required: send `Authorization: Bearer TOKEN` with the operator token of this "
    "gateway. `comity serve` prints the path of its file, and `comity` commands read that file"
)
"""Refusal for a local process that calls the operator API in local mode without a token."""

_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_MESSAGE_PATHS: Final = ("/mcp", "/messages")
_TOOLS_PATH: Final = "/tools"
_TOKEN_SUBPROTOCOL: Final = b"bearer."
_RESOURCE_PATH_PATTERN: Final = re.compile(
    r"(/(servers|views)/[A-Za-z0-9][A-Za-z0-9_.-]{0,63})?/(mcp|sse)"
)


class RefreshablePolicy(Protocol):
    """The records behind access decisions, which the authenticator may have to refresh first."""

    @property
    def is_fresh(self) -> bool: ...
    async def refresh_if_stale(self) -> None: ...


class HttpAuthenticator:
    """Identifies the actor of each HTTP request. Grants decide what an operator may do."""

    def __init__(
        self,
        authenticator: Authenticator,
        policy_engine: PolicyEngine,
        *,
        accepts_auth_member: bool = False,
        issuers: Iterable[str] = (),
        scopes: Iterable[str] = (),
        public_url: str = "",
        policy: RefreshablePolicy | None = None,
        may_know_view: Callable[[Actor, str], bool] = lambda _, __: False,
    ) -> None:
        self.authenticator = authenticator
        self._policy_engine = policy_engine
        self._accepts_auth_member = accepts_auth_member
        self._issuers = tuple(issuers)
        self._scopes = tuple(dict.fromkeys(scopes))
        self._public_url = public_url
        self._policy = policy
        self._may_know_view = may_know_view
        self._visible_until: dict[tuple[str, tuple[str, ...], str, str], float] = {}

    async def refresh_if_stale(self) -> None:
        """Refresh the records behind access decisions if they no longer hold."""
        if self._policy is not None and not self._policy.is_fresh:
            await self._policy.refresh_if_stale()

    async def authenticate(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Actor:
        """Return the actor of this request. Raises MalformedMessage if it has no access."""
        path: str = scope["path"]
        await self.refresh_if_stale()
        earlier = scope.get(ACTOR, UNSHOWN)
        if is_browser(earlier):
            # An open stream asks again. The secret of its cookie may have been rotated since.
            return self.authenticate_forwarded(earlier)
        client = scope.get("client")
        arrival = RequestCredentials(
            _with_subprotocol_token(headers) if path == SOCKETS else headers,
            client[0] if client else "",
            path,
            asgi.is_loopback_name(headers.get(b"host", b"")),
        )
        try:
            actor = await self.authenticator.identify(arrival)
        except MalformedMessage:
            if not self._may_authenticate_later(scope, headers):
                raise
            return UNSHOWN
        if is_browser(actor):
            refuse_forged_request(scope["method"], headers)
        if actor.lacks_token:
            if path.startswith((OPERATORS, PARTICIPANTS, SCIM_PATH)):
                raise MalformedMessage(OPERATORS_ONLY_TEXT, UNAUTHENTICATED)
        elif path == METRICS_PATH:
            self.require_grant(
                actor, ADMIN_READ if scope["method"] in _READ_METHODS else ADMIN_WRITE
            )
        return actor

    async def with_renewed_session(
        self, actor: Actor, headers: Mapping[bytes, bytes], send: Send
    ) -> Send:
        """Return a `send` that gives the browser another secret, if its session is due for one."""
        cookie = await self.authenticator.renew_session(actor, headers)
        return send if cookie is None else asgi.with_headers(send, ((b"set-cookie", cookie),))

    def authenticate_forwarded(self, forwarded_actor: Actor) -> Actor:
        """Return an actor that another node authenticated.

        Raises MalformedMessage if its credentials were revoked or have expired.
        """
        actor = self.authenticator.refresh_actor(forwarded_actor)
        if actor is None:
            raise MalformedMessage(
                "the credentials of this request were revoked, or have expired", UNAUTHENTICATED
            )
        return actor

    def authenticate_at_once(self, request: FastPathRequest, path: str) -> Actor | None:
        """Return the actor of a call, or None if that needs waiting. Raises like `authenticate`."""
        if self._policy is not None and not self._policy.is_fresh:
            return None
        headers = request.head.headers
        shown = asgi.bearer_of(headers)
        is_local = asgi.is_loopback_name(headers.get(b"host", b""))
        arrival = RequestCredentials(headers, request.address, path, is_local)
        if shown is not None:
            return self.authenticator.recognise(shown, arrival)
        return self.authenticator.local(arrival)

    def is_lasting(self, actor: Actor) -> bool:
        """Return whether only a change can end the credentials of an actor."""
        return self.authenticator.is_lasting(actor)

    def is_path_visible(self, path: str, actor: Actor) -> bool:
        """Return whether this path exists for the actor.

        The path of a server or a view exists only for actors that may know it.
        """
        if not path.startswith((SERVERS_PATH, VIEWS_PATH)) or actor is UNSHOWN:
            return True
        asked, now = (actor.party, actor.groups, actor.credential, path), time.monotonic()
        if self._visible_until.get(asked, 0.0) > now:
            return True
        is_view, name = path.startswith(VIEWS_PATH), path.split("/", 3)[2]
        may_know = self._may_know_view if is_view else self._policy_engine.may_know_server
        if not may_know(actor, name):
            return False
        if len(self._visible_until) >= MAX_CACHED_PATHS:
            self._visible_until.clear()
        self._visible_until[asked] = now + VISIBILITY_CACHE_SECONDS
        return True

    def require_grant(self, actor: Actor, verb: str, target: str = "*") -> None:
        """Raise MalformedMessage unless the actor has a grant of this verb on this target."""
        server, name = ("", "") if target == "*" else split_target(target)
        is_allowed = self._policy_engine.authorize(actor, verb, server, name).effect is Effect.ALLOW
        # A server may never administer another server, whatever its grants say.
        if not is_allowed or (server and actor.kind is PrincipalKind.SERVER):
            raise MalformedMessage(
                f"{actor.party or 'an unauthenticated client'} needs the grant {verb} on "
                f"{target:.200}",
                ACCESS_DENIED if server else OPERATORS_ONLY,
            )

    def _may_authenticate_later(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        return (
            self._accepts_auth_member
            and scope["method"] == "POST"
            and (scope["path"].endswith(_MESSAGE_PATHS) or scope["path"] == _TOOLS_PATH)
            and b"authorization" not in headers
        )

    def challenge_headers(
        self, scope: Scope, headers: Mapping[bytes, bytes], fault: Fault
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers that tell a client how to authenticate. (RFC 6750, RFC 9728)"""
        said = ['Bearer realm="comity"']
        if fault is SCOPE_MISSING:
            said.append('error="insufficient_scope"')
        elif b"authorization" in headers:
            said.append('error="invalid_token"')
        if self._issuers:
            place = scope["path"] if _RESOURCE_PATH_PATTERN.fullmatch(scope["path"]) else ""
            where = f"{self._request_origin(scope, headers)}{WELL_KNOWN}{place}"
            said.append(f'resource_metadata="{where}"')
        if self._scopes:
            said.append(f'scope="{" ".join(self._scopes)}"')
        return ((b"www-authenticate", ", ".join(said).encode("latin-1", "replace")),)

    def is_public_path(self, scope: Scope) -> bool:
        """Return whether this path needs no authentication."""
        path: str = scope["path"]
        if path in READY_PATHS:
            # Only principals that may use a server may learn that it exists.
            return not names_a_server(scope.get("query_string", b""))
        # The pages, the webhooks and the buttons of messages authenticate their callers themselves.
        # The files of the console hold no data.
        return (
            path in HEALTH_PATHS
            or path in LOGIN_PATHS
            or path.startswith(
                (WELL_KNOWN, ASK_PAGES, ACCOUNTS_PATH, HOOKS, NOTIFIERS, CONSOLE_PATH)
            )
            or (path == LANDING_PATH and asgi.wants_page(scope))
        )

    async def serve_metadata(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Answer with the protected resource metadata of the gateway or of one path. (RFC 9728)

        The answer is the same for existing and missing servers, so that it reveals no server.
        """
        place = scope["path"].removeprefix(WELL_KNOWN)
        if not self._issuers or (place and not _RESOURCE_PATH_PATTERN.fullmatch(place)):
            raise MalformedMessage("no authorization server is configured here", NOTHING_HERE)
        if scope["method"] not in _READ_METHODS:
            await asgi.send_empty(send, 405, ((b"allow", b"GET, HEAD"),))
            return
        body: dict[str, object] = {
            "resource": f"{self._request_origin(scope, headers)}{place}",
            "authorization_servers": self._issuers,
            "bearer_methods_supported": ["header"],
            "resource_name": "Comity",
        }
        if self._scopes:
            body["scopes_supported"] = self._scopes
        readable = (
            (b"access-control-allow-origin", b"*"),
            (b"cache-control", b"max-age=300"),
        )
        await asgi.send_json(send, 200, jsonrpc.to_json(body), readable)

    def _request_origin(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """Return the origin under which the client reached this gateway. The HTTP app checked the
        Host

        header before.
        """
        if self._public_url:
            return self._public_url
        return f"{scope.get('scheme', 'http')}://{headers[b'host'].decode('latin-1').strip()}"


def is_browser(actor: Actor) -> bool:
    """Return whether a session cookie identified this actor."""
    return actor.credential.startswith(CREDENTIAL_PREFIX)


def refuse_forged_request(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise MalformedMessage unless one of our own pages sent a request with a session cookie.

    A browser adds the cookie by itself, also to requests of other programs on the same host. A
    write must therefore say its origin. A read may leave it out, as browsers do at home.
    """
    is_foreign = b"origin" in headers or headers.get(b"sec-fetch-site", b"none") not in (
        b"none",
        b"same-origin",
    )
    if (method not in _READ_METHODS or is_foreign) and not is_own_origin(headers):
        raise MalformedMessage(
            "a request with a session cookie must come from a page of this gateway", ORIGIN_REFUSED
        )


def names_a_server(query: bytes) -> bool:
    """Return whether a readiness query asks about particular servers."""
    return "server" in parse_qs(query.decode("latin-1"), keep_blank_values=True)


def _with_subprotocol_token(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return the headers with the token that a WebSocket client sends as a subprotocol.

    A browser cannot set the Authorization header of a WebSocket.
    """
    if b"authorization" in headers:
        return headers
    offered = (each.strip() for each in headers.get(b"sec-websocket-protocol", b"").split(b","))
    shown = next((each for each in offered if each.startswith(_TOKEN_SUBPROTOCOL)), None)
    if shown is None:
        return headers
    return {**headers, b"authorization": b"Bearer " + shown.removeprefix(_TOKEN_SUBPROTOCOL)}
