"""The ASGI application of the gateway: it routes paths to endpoints and refuses bad requests."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, runtime_checkable

from comity.accounts.pages import ACCOUNTS_PATH
from comity.app.authentication import CHALLENGED_FAULTS, HttpAuthenticator, is_browser
from comity.app.browser_pages import send_refusal_page
from comity.approvals.presentation import PAGE_PATH as ASK_PAGES
from comity.console.endpoint import CONSOLE_PATH
from comity.errors import MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import (
    ACTOR,
    HOOKS,
    NOTIFIERS,
    OPERATORS,
    PARTICIPANTS,
    PROVED,
    SOCKETS,
    HostOriginCheck,
    HttpEndpoint,
    Receive,
    Scope,
    Send,
)
from comity.http.fast_path import FastPathRequest
from comity.http.request_turns import FairRequestQueue
from comity.identity.authentication import WELL_KNOWN
from comity.identity.login.rules import LOGIN_PATHS
from comity.identity.scim import api as scim_api
from comity.identity.scim.messages import SCIM_PATH
from comity.mcp.actors import ANONYMOUS, Actor
from comity.policy.generation import PolicyGeneration
from comity.policy.snapshot import sleepless_clock
from comity.registry import api
from comity.registry.server_list import BENEATH_LIST
from comity.telemetry.tracing import trace_context_in

__all__ = ["ACTOR", "OPERATORS", "PARTICIPANTS", "HttpApp", "HttpEndpoint"]

log = logging.getLogger(__name__)

PATH_PREFIXES: Final = (
    *(api.BENEATH, BENEATH_LIST, ASK_PAGES, ACCOUNTS_PATH),
    *(HOOKS, NOTIFIERS, CONSOLE_PATH, SCIM_PATH),
)
"""Path prefixes that belong to one endpoint each."""


@runtime_checkable
class CallDoor(Protocol):
    """An endpoint that takes calls whose body has arrived completely."""

    def serve(self, request: FastPathRequest, actor: Actor) -> bool: ...


class HttpNodeForwarder(Protocol):
    """Forwards requests to other nodes of the cluster."""

    async def forward(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> bool:
        """Return whether the request belongs to another node and was answered there."""
        ...


KNOWN_SECONDS: Final = 0.25
"""How long a head needs no second look, if nothing changes.

It is shorter than the pause after which a process counts as suspended, and its policy as unknown.
"""


@dataclass(frozen=True, slots=True)
class KnownSender:
    """The actor and the endpoint of requests with the same head, until a policy change."""

    generation: int
    until: float
    door: CallDoor
    actor: Actor
    takes_turns: bool


class HttpApp:
    """The ASGI application. It uses no framework, because every call passes through it."""

    def __init__(
        self,
        origin_check: HostOriginCheck,
        endpoints: Mapping[str, HttpEndpoint],
        operators: HttpEndpoint | None = None,
        http_authenticator: HttpAuthenticator | None = None,
        *,
        node_forwarder: HttpNodeForwarder | None = None,
        generation: PolicyGeneration | None = None,
    ) -> None:
        self._generation = generation or PolicyGeneration()
        self._clock = sleepless_clock()
        self._origin_check = origin_check
        self._endpoint_by_path: dict[str, HttpEndpoint] = {}
        self._call_endpoint_by_path: dict[bytes, CallDoor] = {}
        self.add_endpoints(endpoints if operators is None else {**endpoints, OPERATORS: operators})
        self._http_authenticator = http_authenticator
        # Forwards a request to the node that holds its session, in a cluster.
        self._node_forwarder = node_forwarder
        self._request_queue = FairRequestQueue()

    def add_endpoints(self, endpoints: Mapping[str, HttpEndpoint]) -> None:
        """Add endpoints at these paths."""
        self._generation.advance()
        self._endpoint_by_path.update(endpoints)
        for path, door in endpoints.items():
            if isinstance(door, CallDoor):
                self._call_endpoint_by_path[path.encode()] = door

    def remove_endpoints(self, paths: Iterable[str]) -> None:
        """Remove the endpoints at these paths. Requests that already run continue."""
        self._generation.advance()
        for path in paths:
            self._endpoint_by_path.pop(path, None)
            self._call_endpoint_by_path.pop(path.encode(), None)

    def serve(self, request: FastPathRequest) -> bool:
        """Serve a call on the fast path, and return whether it was taken.

        If the method returns False, the caller serves the request as an ordinary ASGI request.
        """
        sender = request.head.sender
        try:
            if (
                type(sender) is not KnownSender
                or sender.generation != self._generation.number
                or self._clock() > sender.until
            ):
                sender = self._find_sender(request)
                if sender is None:
                    return False
            actor = sender.actor
            if not sender.takes_turns or self._request_queue.begins(actor.party):
                return sender.door.serve(request, actor)
            self._request_queue.queue(
                actor.party, partial(self._serve_later, request, sender.door, actor)
            )
            return True
        except (MalformedMessage, Unavailable):
            return False
        except Exception:
            # The call may have begun, so the ordinary path must not repeat it.
            log.exception("A request failed because of an internal error")
            request.answer(500, asgi.encode_internal_error())
            return True

    def _find_sender(self, request: FastPathRequest) -> KnownSender | None:
        """Return who sent a request and where it goes, and remember it with the head.

        Returns None if the request needs the checks of the ordinary path. Raises MalformedMessage
        or Unavailable for a request that is refused.
        """
        head, number = request.head, self._generation.number
        door, headers = self._call_endpoint_by_path.get(head.path), head.headers
        # An Origin or a repeated header needs the checks of the ordinary path.
        if door is None or b"origin" in headers or len(headers) != len(head.listed):
            return None
        path, authenticator = head.path.decode("latin-1"), self._http_authenticator
        self._origin_check.check(headers)
        actor = (
            ANONYMOUS
            if authenticator is None
            else authenticator.authenticate_at_once(request, path)
        )
        if actor is None or not self._is_path_visible(path, actor):
            return None
        takes_turns = not actor.is_local and actor is not ANONYMOUS
        found = KnownSender(number, self._clock() + KNOWN_SECONDS, door, actor, takes_turns)
        is_lasting = authenticator is None or authenticator.is_lasting(actor)
        head.sender = found if is_lasting else None
        return found

    def _serve_later(self, request: FastPathRequest, endpoint: CallDoor, actor: Actor) -> None:
        """Serve a call that waited in the fairness queue. This method now owns the request."""
        if request.is_over:
            return
        try:
            if endpoint.serve(request, actor):
                return
        except (MalformedMessage, Unavailable):
            log.debug("a request that waited for its turn is refused as any other")
        except Exception:
            log.exception("A request failed because of an internal error")
            request.answer(500, asgi.encode_internal_error())
            return
        scope = asgi.scope_of(request.head.path, request.header_list(), request.address)
        request.hand_over(partial(self._serve_whole, scope, request.body))

    async def _serve_whole(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        await self(scope, asgi.with_body(body, receive), send)

    def _endpoint_at(self, path: str, actor: Actor) -> HttpEndpoint:
        door = self._endpoint_by_path.get(path)
        return (
            self._forward_to_node
            if door is None or not self._is_path_visible(path, actor)
            else door
        )

    def _is_path_visible(self, path: str, actor: Actor) -> bool:
        return self._http_authenticator is None or self._http_authenticator.is_path_visible(
            path, actor
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._origin_check.find_sender(scope)
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if len(headers) != len(scope["headers"]):
                asgi.refuse_repeated(scope["headers"])
            if asgi.API_KEY_HEADER in headers:
                scope["headers"] = asgi.with_bearer(headers)
                headers = dict(scope["headers"])
            self._check_host_and_origin(scope["path"], headers)
            origin = headers.get(b"origin")
            if origin is not None and self._may_read_response(scope["path"], origin):
                send = asgi.send_with_cors(send, origin)
                if b"access-control-request-method" in headers:
                    await asgi.answer_preflight(send, headers)
                    return
            await self._handle(scope, headers, receive, send)
        except (MalformedMessage, Unavailable) as error:
            await self._refuse(scope, send, error)
        except Exception:
            trace = trace_context_in(dict(scope["headers"]))
            told = None if trace is None else {"trace_id": trace.context.trace_id}
            log.exception("A request failed because of an internal error", extra=told)
            with contextlib.suppress(RuntimeError):
                # A response that has begun cannot be replaced; `send` then raises RuntimeError.
                await asgi.send_json(send, 500, asgi.encode_internal_error())

    def _check_host_and_origin(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise MalformedMessage unless Host and Origin are allowed for this path."""
        if path.startswith((ASK_PAGES, ACCOUNTS_PATH)) or path in LOGIN_PATHS:
            self._origin_check.check_page(headers)
        elif path == SOCKETS:
            self._origin_check.check_socket(headers)
        else:
            self._origin_check.check(headers)

    async def _handle(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        scope[ACTOR] = ANONYMOUS
        if self._http_authenticator is not None and not self._http_authenticator.is_public_path(
            scope
        ):
            scope[ACTOR] = await self._authenticate(self._http_authenticator, scope, headers)
            if is_browser(scope[ACTOR]) and PROVED not in scope:
                send = await self._http_authenticator.with_renewed_session(
                    scope[ACTOR], headers, send
                )
        elsewhere = self._node_forwarder
        if elsewhere is None or not await elsewhere.forward(scope, headers, receive, send):
            await self._endpoint_at(scope["path"], scope[ACTOR])(scope, headers, receive, send)

    async def _authenticate(
        self, http_authenticator: HttpAuthenticator, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> Actor:
        """Return the actor of a request once it is its turn in the fairness queue.

        A request without a known principal waits in the queue of its address.
        """
        address = f"from {(scope.get('client') or ('',))[0]}"
        try:
            proved = scope.get(PROVED)
            if proved is None:
                actor = await http_authenticator.authenticate(scope, headers)
            else:
                await http_authenticator.refresh_if_stale()
                actor = http_authenticator.authenticate_forwarded(proved)
        except (MalformedMessage, Unavailable):
            await self._request_queue.turn(address)
            raise
        if not actor.is_local:
            await self._request_queue.turn(actor.party or address)
        return actor

    async def _refuse(
        self, scope: Scope, send: Send, error: MalformedMessage | Unavailable
    ) -> None:
        if error.fault in CHALLENGED_FAULTS and self._http_authenticator is not None:
            said = self._http_authenticator.challenge_headers(
                scope, dict(scope["headers"]), error.fault
            )
            send = asgi.with_headers(send, said)
        if asgi.wants_page(scope):
            await send_refusal_page(send, error)
        elif api.is_at_registry(scope["path"]):
            await api.send_refusal(send, error)
        elif scope["path"].startswith(SCIM_PATH):
            await scim_api.send_refusal(send, error)
        else:
            await asgi.send_refusal(send, error)

    def _may_read_response(self, path: str, origin: bytes) -> bool:
        """Return whether a page of this origin may read the answer. A page that may call tools may
        not

        use the operator API.
        """
        return self._origin_check.lets_read(origin) and not path.startswith(
            (OPERATORS, PARTICIPANTS, SCIM_PATH)
        )

    async def _forward_to_node(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        family = next((each for each in PATH_PREFIXES if path.startswith(each)), "")
        if path.startswith((OPERATORS, PARTICIPANTS)) and OPERATORS in self._endpoint_by_path:
            await self._endpoint_by_path[OPERATORS](scope, headers, receive, send)
        elif path.startswith(WELL_KNOWN) and self._http_authenticator is not None:
            await self._http_authenticator.serve_metadata(scope, headers, receive, send)
        elif family in self._endpoint_by_path:
            await self._endpoint_by_path[family](scope, headers, receive, send)
        else:
            # The answer must not reveal which servers exist to actors that may not use them.
            raise asgi.not_found_error()
