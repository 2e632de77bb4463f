"""The HTTP application: which door a path leads to, and what is said at a closed one."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol, runtime_checkable

from comity.kernel.tracing import named_in
from comity.rules.ask_links import PATH as ASK_PAGES
from comity.rules.resources import WELL_KNOWN
from comity.surfaces import doorway, registry_words
from comity.surfaces.doorway import Doorway, Receive, Scope, Send
from comity.surfaces.express import Express
from comity.surfaces.reception import (
    CHALLENGED,
    HOOKS,
    OPERATORS,
    PARTICIPANTS,
    SOCKETS,
    Reception,
)
from comity.surfaces.turns import Turns
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.parties import NOBODY, Actor

__all__ = ["ACTOR", "OPERATORS", "PARTICIPANTS", "Door", "Gateway"]

log = logging.getLogger(__name__)

FAMILIES: Final = (registry_words.BENEATH, ASK_PAGES, PARTICIPANTS, HOOKS)
"""Paths of which one door has all that begin so."""

ACTOR: Final = "actor"
"""Where a request's scope holds who sent it."""

PROVED: Final = "comity.proved"
"""Where that of a request from another node holds who sent it, as that node has found out."""


class Door(Protocol):
    """Something at a path."""

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None: ...


@runtime_checkable
class CallDoor(Protocol):
    """A door where calls are taken that have come as a whole."""

    def serve(self, request: Express, actor: Actor) -> bool: ...


class Elsewhere(Protocol):
    """Who knows the other nodes."""

    async def take(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> bool:
        """Whether a request is for another node, and was answered there."""
        ...


class Gateway:
    """The ASGI application: raw, because every call passes here."""

    def __init__(
        self,
        way: Doorway,
        doors: Mapping[str, Door],
        operators: Door | None = None,
        reception: Reception | None = None,
    ) -> None:
        self._way = way
        self._doors: dict[str, Door] = {}
        self._calls: dict[bytes, CallDoor] = {}
        self.open(doors)
        self._operators = operators
        self._reception = reception
        self.elsewhere: Elsewhere | None = None
        self._turns = Turns()

    def open(self, doors: Mapping[str, Door]) -> None:
        """Let people in at these paths from now on."""
        self._doors.update(doors)
        for path, door in doors.items():
            if isinstance(door, CallDoor):
                self._calls[path.encode()] = door

    def close(self, paths: Iterable[str]) -> None:
        """Have nothing at these paths any more; whoever went in already is not disturbed."""
        for path in paths:
            self._doors.pop(path, None)
            self._calls.pop(path.encode(), None)

    def serve(self, request: Express) -> bool:
        """Take a call at the door it is for, or leave the request to be served as any other."""
        door, headers = self._calls.get(request.path), request.headers
        if door is None or b"origin" in headers or len(headers) != len(request.listed):
            return False
        path = request.path.decode("latin-1")
        try:
            self._way.check(headers)
            actor = NOBODY if self._reception is None else self._reception.recognise(request, path)
            if actor is None or not self._opens(path, actor):
                return False
            if actor.is_local or actor is NOBODY or self._turns.begins(actor.party):
                return door.serve(request, actor)
            self._turns.queue(actor.party, partial(self._serve_later, request, door, actor))
            return True
        except (MalformedMessage, Unavailable):
            return False
        except Exception:
            # The call may have begun, so nobody else may begin it again.
            log.exception("a request ended in a bug of ours")
            request.answer(500, doorway.oops())
            return True

    def _serve_later(self, request: Express, door: CallDoor, actor: Actor) -> None:
        """The same, in a later round: now nobody else has the request."""
        if request.is_over:
            return
        try:
            if door.serve(request, actor):
                return
        except (MalformedMessage, Unavailable):
            log.debug("a request that waited for its turn is refused as any other")
        except Exception:
            log.exception("a request ended in a bug of ours")
            request.answer(500, doorway.oops())
            return
        scope = doorway.scope_of(request.path, request.listed, request.address)
        request.hand_over(partial(self._serve_whole, scope, request.body))

    async def _serve_whole(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        await self(scope, doorway.with_body(body, receive), send)

    def _door_at(self, path: str, actor: Actor) -> Door:
        door = self._doors.get(path)
        return self._elsewhere if door is None or not self._opens(path, actor) else door

    def _opens(self, path: str, actor: Actor) -> bool:
        return self._reception is None or self._reception.opens(path, actor)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._way.find_sender(scope)
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if len(headers) != len(scope["headers"]):
                doorway.refuse_repeated(scope["headers"])
            self._check(scope["path"], headers)
            origin = headers.get(b"origin")
            if origin is not None and self._lets_read(scope["path"], origin):
                send = doorway.shared_with(send, origin)
                if b"access-control-request-method" in headers:
                    await doorway.permit(send, headers)
                    return
            await self._enter(scope, headers, receive, send)
        except (MalformedMessage, Unavailable) as error:
            await self._refuse(scope, send, error)
        except Exception:
            trace = named_in(dict(scope["headers"]))
            told = None if trace is None else {"trace_id": trace.context.trace_id}
            log.exception("a request ended in a bug of ours", extra=told)
            with contextlib.suppress(RuntimeError):
                # The response had begun; there is no second one.
                await doorway.answer(send, 500, doorway.oops())

    def _check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless Host and Origin are such as may come to this path."""
        if path.startswith(ASK_PAGES):
            self._way.check_page(headers)
        elif path == SOCKETS:
            self._way.check_socket(headers)
        else:
            self._way.check(headers)

    async def _enter(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        scope[ACTOR] = NOBODY
        if self._reception is not None and not self._reception.is_open(scope):
            scope[ACTOR] = await self._admitted(self._reception, scope, headers)
        elsewhere = self.elsewhere
        if elsewhere is None or not await elsewhere.take(scope, headers, receive, send):
            await self._door_at(scope["path"], scope[ACTOR])(scope, headers, receive, send)

    async def _admitted(
        self, reception: Reception, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> Actor:
        """Who sent a request, once it is its turn; whoever is not known has its address's."""
        address = f"from {(scope.get('client') or ('',))[0]}"
        try:
            proved = scope.get(PROVED)
            if proved is None:
                actor = await reception.admit(scope, headers)
            else:
                await reception.settle()
                actor = reception.readmit(proved)
        except (MalformedMessage, Unavailable):
            await self._turns.turn(address)
            raise
        if not actor.is_local:
            await self._turns.turn(actor.party or address)
        return actor

    async def _refuse(
        self, scope: Scope, send: Send, error: MalformedMessage | Unavailable
    ) -> None:
        if error.fault in CHALLENGED and self._reception is not None:
            said = self._reception.challenge(scope, dict(scope["headers"]), error.fault)
            send = doorway.with_headers(send, said)
        if registry_words.is_at_registry(scope["path"]):
            await registry_words.refuse(send, error)
        else:
            await doorway.refuse(send, error)

    def _lets_read(self, path: str, origin: bytes) -> bool:
        """A page that may call tools may not therefore stop servers."""
        return self._way.lets_read(origin) and not path.startswith((OPERATORS, PARTICIPANTS))

    async def _elsewhere(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        family = next((each for each in FAMILIES if path.startswith(each)), "")
        if path.startswith(OPERATORS) and self._operators is not None:
            await self._operators(scope, headers, receive, send)
        elif path.startswith(WELL_KNOWN) and self._reception is not None:
            await self._reception.metadata(scope, headers, receive, send)
        elif family in self._doors:
            await self._doors[family](scope, headers, receive, send)
        else:
            # Which servers there are is for those to know who may use them.
            raise doorway.nothing_here()
