"""Who comes in at an HTTP door, what it is told that may not, and where it can get a token.

Every request is asked anew; only what tells nothing of anybody is open to all: whether the process
lives, and where tokens are issued. (RFC 6750, RFC 9728, MCP authorization)
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final, Protocol
from urllib.parse import parse_qs

from comity.kernel.grants import Judge
from comity.kernel.identity import Arrival, Identity
from comity.rules.ask_links import PATH as ASK_PAGES
from comity.rules.resources import WELL_KNOWN
from comity.surfaces import doorway
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.express import Express
from comity.wire import jsonrpc
from comity.wire.errors import (
    CREDENTIAL_EXPIRED,
    NOTHING_HERE,
    OPERATORS_ONLY,
    SCOPE_MISSING,
    UNAUTHENTICATED,
    Fault,
    MalformedMessage,
)
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, Effect
from comity.wire.parties import Actor, PartyKind

OPERATORS: Final = "/api/"
TOOLS: Final = "/api/tools"
SEARCH: Final = "/api/search"
ASKS: Final = "/api/asks"
TURNS: Final = "/api/turns"
STATE: Final = "/api/state"
SERVERS: Final = "/servers/"
FIGURES: Final = "/metrics"
REMEMBERED_SECONDS: Final = 1.0
MOST_REMEMBERED: Final = 10_000
SOCKETS: Final = "/ws"
PARTICIPANTS: Final = "/admin/participants/"
HOOKS: Final = "/hooks/"
"""Where webhooks of others come in; who sends one is known by its signature."""

HEALTH: Final = "/health"
READY: Final = "/ready"
CHALLENGED: Final = frozenset({UNAUTHENTICATED, CREDENTIAL_EXPIRED, SCOPE_MISSING})
UNSHOWN: Final = Actor("", PartyKind.SYSTEM, "unshown")
"""Who has shown nothing yet, and may still do so in its message."""

FOR_OPERATORS: Final = (
    "this is for operators: send `Authorization: Bearer TOKEN` with the operator token of this "
    "gateway; `comity serve` prints the path of the file that holds it, and `comity` commands read "
    "it from there"
)
"""What a process on the machine of a gateway in local mode is told that shows no token."""

_READING: Final = frozenset({"GET", "HEAD"})
_MESSAGES: Final = ("/mcp", "/messages")
_REGISTRY: Final = "/tools"
_SHOWN_AS: Final = b"bearer."
_RESOURCES: Final = re.compile(r"(/servers/[A-Za-z0-9][A-Za-z0-9_.-]{0,63})?/(mcp|sse)")


class Known(Protocol):
    """What callers are judged by, which may have to be asked for again first."""

    @property
    def holds(self) -> bool: ...
    async def settle(self) -> None: ...


class Reception:
    """Asks who comes; what an operator may do is judged by the grants like anything else."""

    def __init__(
        self,
        identity: Identity,
        judge: Judge,
        *,
        accepts_auth_member: bool = False,
        issuers: Iterable[str] = (),
        scopes: Iterable[str] = (),
        public_url: str = "",
    ) -> None:
        self.identity = identity
        self._judge = judge
        self._accepts_auth_member = accepts_auth_member
        self._issuers = tuple(issuers)
        self._scopes = tuple(dict.fromkeys(scopes))
        self._public_url = public_url
        self.known: Known | None = None
        self._opened: dict[tuple[str, str, str], float] = {}

    async def settle(self) -> None:
        """Before anybody is judged: what it is judged by may have to be asked for again."""
        if self.known is not None and not self.known.holds:
            await self.known.settle()

    async def admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Actor:
        """Who sent this request; raises MalformedMessage where it may not come in here."""
        path: str = scope["path"]
        await self.settle()
        client = scope.get("client")
        arrival = Arrival(
            _with_token(headers) if path == SOCKETS else headers,
            client[0] if client else "",
            path,
            doorway.is_loopback_name(headers.get(b"host", b"")),
        )
        try:
            actor = await self.identity.identify(arrival)
        except MalformedMessage:
            if not self._may_show_later(scope, headers):
                raise
            return UNSHOWN
        if actor.lacks_token:
            if path.startswith((OPERATORS, PARTICIPANTS)):
                raise MalformedMessage(FOR_OPERATORS, UNAUTHENTICATED)
        elif path == FIGURES or path.startswith((OPERATORS, PARTICIPANTS)):
            reads = scope["method"] in _READING
            # Everybody may look at the tools there; it is shown no others than its own. So it is
            # with asks, which whoever was granted that may answer, operator or not; with state,
            # which is for whoever administers its server; and with turns.
            is_for_all = reads and path.startswith((TOOLS, SEARCH))
            if not is_for_all and not f"{path}/".startswith((f"{ASKS}/", f"{STATE}/", f"{TURNS}/")):
                self.demand(actor, ADMIN_READ if reads else ADMIN_WRITE)
        return actor

    def readmit(self, proved: Actor) -> Actor:
        """Whom another node has admitted; raises MalformedMessage where it may not come in here."""
        actor = self.identity.renewed(proved)
        if actor is None:
            raise MalformedMessage(
                "the credentials of this request were revoked, or have expired", UNAUTHENTICATED
            )
        return actor

    def recognise(self, request: Express, path: str) -> Actor | None:
        """Who makes a call, where nothing has to be waited for to know it. Raises as above."""
        if self.known is not None and not self.known.holds:
            return None
        headers = request.headers
        shown = headers.get(b"authorization")
        is_local = doorway.is_loopback_name(headers.get(b"host", b""))
        arrival = Arrival(headers, request.address, path, is_local)
        if shown is not None:
            return self.identity.recognise(shown, arrival)
        return self.identity.local(arrival)

    def opens(self, path: str, actor: Actor) -> bool:
        """Whether there is a door at this path for this actor: to a server that it may know."""
        if not path.startswith(SERVERS) or actor is UNSHOWN:
            return True
        asked, now = (actor.party, actor.credential, path), time.monotonic()
        if self._opened.get(asked, 0.0) > now:
            return True
        if not self._judge.knows(actor, path.split("/", 3)[2]):
            return False
        if len(self._opened) >= MOST_REMEMBERED:
            self._opened.clear()
        self._opened[asked] = now + REMEMBERED_SECONDS
        return True

    def demand(self, actor: Actor, verb: str) -> None:
        """Raise unless this actor may do what only operators do."""
        if self._judge.judge(actor, verb, "", "").effect is not Effect.ALLOW:
            raise MalformedMessage(
                f"this is for operators: {actor.party or 'nobody'} has no grant of {verb} on *",
                OPERATORS_ONLY,
            )

    def _may_show_later(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        return (
            self._accepts_auth_member
            and scope["method"] == "POST"
            and (scope["path"].endswith(_MESSAGES) or scope["path"] == _REGISTRY)
            and b"authorization" not in headers
        )

    def challenge(
        self, scope: Scope, headers: Mapping[bytes, bytes], fault: Fault
    ) -> tuple[tuple[bytes, bytes], ...]:
        """What a client needs to know to come back with better credentials."""
        said = ['Bearer realm="comity"']
        if fault is SCOPE_MISSING:
            said.append('error="insufficient_scope"')
        elif b"authorization" in headers:
            said.append('error="invalid_token"')
        if self._issuers:
            place = scope["path"] if _RESOURCES.fullmatch(scope["path"]) else ""
            where = f"{self._origin(scope, headers)}{WELL_KNOWN}{place}"
            said.append(f'resource_metadata="{where}"')
        if self._scopes:
            said.append(f'scope="{" ".join(self._scopes)}"')
        return ((b"www-authenticate", ", ".join(said).encode("latin-1", "replace")),)

    def is_open(self, scope: Scope) -> bool:
        """Whether nobody is asked who it is there."""
        path: str = scope["path"]
        if path == READY:
            # Which servers there are is for those to know who may use them.
            return not names_a_server(scope.get("query_string", b""))
        # A page where a person answers an ask finds out itself who that is, and so do webhooks.
        return path == HEALTH or path.startswith((WELL_KNOWN, ASK_PAGES, HOOKS))

    async def metadata(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Where tokens for the gateway, or one address of it, are issued. (RFC 9728)

        It is the same for servers that are there and for those that are not.
        """
        place = scope["path"].removeprefix(WELL_KNOWN)
        if not self._issuers or (place and not _RESOURCES.fullmatch(place)):
            raise MalformedMessage("no authorization server is configured here", NOTHING_HERE)
        if scope["method"] not in _READING:
            await doorway.empty(send, 405, ((b"allow", b"GET, HEAD"),))
            return
        body: dict[str, object] = {
            "resource": f"{self._origin(scope, headers)}{place}",
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
        await doorway.answer(send, 200, jsonrpc.to_json(body), readable)

    def _origin(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """What the client calls this gateway; the doorway has found its Host to be one of ours."""
        if self._public_url:
            return self._public_url
        return f"{scope.get('scheme', 'http')}://{headers[b'host'].decode('latin-1').strip()}"


def names_a_server(query: bytes) -> bool:
    """Whether a question after readiness is about some servers alone."""
    return "server" in parse_qs(query.decode("latin-1"), keep_blank_values=True)


def _with_token(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """A browser can send no header with a WebSocket: it may offer its token as a subprotocol."""
    if b"authorization" in headers:
        return headers
    offered = (each.strip() for each in headers.get(b"sec-websocket-protocol", b"").split(b","))
    shown = next((each for each in offered if each.startswith(_SHOWN_AS)), None)
    if shown is None:
        return headers
    return {**headers, b"authorization": b"Bearer " + shown.removeprefix(_SHOWN_AS)}
