"""Who is told when the catalog changes: sessions, and `subscriptions/listen` streams.

Some are told of every server, under the merged names; some of the one behind whose door they stand.
Nobody hears of a server that is not for it to know, nor of a resource that it may not read. Whoever
is granted more, or less, is told that its lists are other ones.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from comity.kernel.audit import Notices
from comity.kernel.call import Call
from comity.kernel.catalog import Kind
from comity.kernel.catalog_access import CatalogAccess
from comity.kernel.event_methods import EventMethods
from comity.kernel.following import MOST_FOLLOWED, follow
from comity.kernel.question import Errand
from comity.kernel.reached import Reached
from comity.kernel.servers import Servers
from comity.kernel.sessions import Session
from comity.rules.conversation import Conversation
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.wire.events import LISTENED
from comity.wire.grants import EVERYBODY
from comity.wire.jsonrpc import UNSET, Frame, Id
from comity.wire.parties import Actor

GATHER_SECONDS: Final = 0.05
"""Changes of several servers within this time are told as one."""

NOTICES: Final = {
    Kind.TOOL: mcp.TOOLS_CHANGED,
    Kind.PROMPT: mcp.PROMPTS_CHANGED,
    Kind.RESOURCE: mcp.RESOURCES_CHANGED,
    Kind.TEMPLATE: mcp.RESOURCES_CHANGED,
}
FILTERS: Final = {
    "toolsListChanged": mcp.TOOLS_CHANGED,
    "promptsListChanged": mcp.PROMPTS_CHANGED,
    "resourcesListChanged": mcp.RESOURCES_CHANGED,
}


class Place(NamedTuple):
    """Where somebody listens: as whom, and at the door of one server or of all."""

    actor: Actor
    server: str | None = None


_strings = msgspec.json.Decoder(list[str])


class Listener:
    """One client's open ear, in the place of its call's link: what it is told, what it follows."""

    def __init__(self, methods: frozenset[str], forget: Callable[[], object], place: Place) -> None:
        self.conversation: Conversation[Errand] = Conversation()
        self.mgp: Terms | None = None
        self.methods = methods
        self.place = place
        self.following: set[asyncio.Task[None]] = set()
        self._forget = forget

    def tell(self, frame: Frame) -> None:
        """A listener only listens."""

    def throttle(self, minted: int, paused: bool) -> None:
        """What is told here is short, and bounded by the outbox."""

    def forsake(self, minted: int, reason: Raw | None) -> None:
        """The client closed its stream: nothing is followed for it any more."""
        self._forget()
        for task in self.following:
            task.cancel()

    def follow(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.following.add(task)
        task.add_done_callback(self.following.discard)


class Subscriptions:
    """Every listener of the gateway's own, of both eras."""

    def __init__(self, servers: Servers, gate: CatalogAccess) -> None:
        self._servers = servers
        self._gate = gate
        self._sessions: dict[Session, Place] = {}
        self._listeners: dict[Call, Listener] = {}
        self._of_party: dict[str, dict[Session | Call, None]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._regranted: set[str] = set()
        # Where clients list a few tools only: whether those are others than it has listed.
        self.lists_others: Callable[[Actor, Session | None], bool] | None = None
        self.audit: Notices | None = None
        self.events: EventMethods | None = None
        gate.catalog.watch(self._on_change)

    def __len__(self) -> int:
        return len(self._listeners)

    def attach(self, session: Session, actor: Actor, server: str | None = None) -> None:
        """Tell a session of the changes of one server, or of all."""
        self._sessions[session] = Place(actor, server)
        self._of_party.setdefault(actor.party, {})[session] = None
        session.farewells[self] = lambda: self._detach(session)

    def _detach(self, session: Session) -> None:
        place = self._sessions.pop(session, None)
        if place is not None:
            self._leave(place.actor.party, session)

    def _leave(self, party: str, who: Session | Call) -> None:
        present = self._of_party.get(party, {})
        present.pop(who, None)
        if not present:
            self._of_party.pop(party, None)

    async def listen(self, call: Call, frame: Frame, server: str | None = None) -> None:
        """Acknowledge what will be told, then tell it until the client closes the stream."""
        wanted = _wanted(frame)
        honoured: dict[str, object] = {
            name: True
            for name in FILTERS
            if wanted.get(name) is not None and _is_true(wanted[name])
        }
        uris = _uris(wanted)
        methods = frozenset(FILTERS[name] for name in honoured)
        if uris:
            honoured["resourceSubscriptions"] = uris
        if self.events is not None and server is None:
            honoured |= await self.events.listen(call, frame, wanted.get(LISTENED))
            if call.outbox.final:
                # Its client went away meanwhile.
                self.events.forget(call)
                return
        if self.audit is not None and server is None:
            honoured |= self.audit.listen(call, frame)
        actor = call.outbox.actor
        listener = Listener(methods, lambda: self._forget(call), Place(actor, server))
        call.link = self._listeners[call] = listener
        self._of_party.setdefault(actor.party, {})[call] = None
        call.outbox.stream()
        call.told(_stamped(mcp.ACKNOWLEDGED, call.asker_id, {"notifications": honoured}))
        reads = self._gate.reader_of(actor, server)
        readable = [uri for uri in uris if reads(uri)]
        by_server = self._by_server(actor, readable) if server is None else {server: readable}
        for name, named in by_server.items():
            if named:
                listener.follow(follow(partial(self._reached, name), named, _Reader(call, reads)))

    def _forget(self, call: Call) -> None:
        self._listeners.pop(call, None)
        if self.audit is not None:
            self.audit.forget(call)
        if self.events is not None:
            self.events.forget(call)
        self._leave(call.outbox.actor.party, call)

    def dismiss(self, server: str) -> None:
        """A server is gone for good: end the streams of those who listened at its door."""
        for call, listener in list(self._listeners.items()):
            if listener.place.server == server:
                call.withdraw(None)

    def _reached(self, name: str) -> Reached | None:
        server = self._servers.get(name)
        return None if server is None else server.reached

    def regranted(self, subject: str) -> None:
        """Somebody was granted more, or less; an empty name is everybody."""
        self._gather()
        self._regranted.add(subject or EVERYBODY)

    def _on_change(self, server: str, kind: Kind) -> None:
        self._gather()
        self._changed.add((server, NOTICES[kind]))

    def _gather(self) -> None:
        if not self._changed and not self._regranted:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        regranted, self._regranted = self._regranted, set()
        for who in self._concerned(bool(changed), regranted):
            listener = self._listeners.get(who) if isinstance(who, Call) else None
            place = self._sessions.get(who) if isinstance(who, Session) else None
            place = listener.place if listener is not None else place
            if place is None:
                continue
            is_regranted = not regranted.isdisjoint((place.actor.party, EVERYBODY))
            for method in mcp.LIST_CHANGES if is_regranted else self._told_of(place, changed):
                if method != mcp.TOOLS_CHANGED or self._lists_others(who, place):
                    _notify(who, listener, method)

    def _lists_others(self, who: Session | Call, place: Place) -> bool:
        if self.lists_others is None or place.server is not None:
            return True
        return self.lists_others(place.actor, who if isinstance(who, Session) else None)

    def relisted(self, actor: Actor, session: Session | None) -> None:
        """The tools that one session lists are others now; or all of a party's that has none."""
        if session is not None:
            _notify(session, None, mcp.TOOLS_CHANGED)
            return
        for who in list(self._of_party.get(actor.party, ())):
            listener = self._listeners.get(who) if isinstance(who, Call) else None
            if listener is not None and listener.place.server is None:
                _notify(who, listener, mcp.TOOLS_CHANGED)

    def _concerned(self, is_changed: bool, regranted: set[str]) -> Iterable[Session | Call]:
        if is_changed or EVERYBODY in regranted:
            return [*self._sessions, *self._listeners]
        return [who for party in regranted for who in self._of_party.get(party, ())]

    def _told_of(self, place: Place, changed: set[tuple[str, str]]) -> list[str]:
        told: set[str] = set()
        for server, method in changed:
            if method not in told and place.server in (None, server):
                told |= {method} if self._gate.tells(place.actor, server) else set()
        return sorted(told)

    def _by_server(self, actor: Actor, uris: list[str]) -> dict[str, list[str]]:
        """Where each resource is followed: at the first server at which it may be read."""
        found: dict[str, list[str]] = {}
        for uri in uris:
            for offer in self._gate.catalog.resources_at(uri):
                if self._gate.reader_of(actor, offer.server)(uri):
                    found.setdefault(offer.server, []).append(uri)
                    break
        return found


def _notify(who: Session | Call, listener: Listener | None, method: str) -> None:
    if isinstance(who, Session):
        who.tell(jsonrpc.notification(method))
    elif listener is not None and method in listener.methods:
        who.told(_stamped(method, who.asker_id, {}))


class _Reader:
    """A listener as one who reads: each notice is stamped with its subscription."""

    def __init__(self, call: Call, reads: Callable[[str], bool]) -> None:
        self._call = call
        self._reads = reads

    def tell(self, frame: Frame) -> None:
        if frame.method == mcp.RESOURCE_UPDATED and frame.params is not UNSET:
            params = jsonrpc.members(frame.params)
            if not self._reads(jsonrpc.text(params.get("uri")) or ""):
                return
            self._call.told(_stamped(mcp.RESOURCE_UPDATED, self._call.asker_id, params))


def narrowed(call: Call, frame: Frame, reads: Callable[[str], bool]) -> Frame:
    """What is listened for at a server of this era: nothing that may not be read, now or later."""

    def retell(told: Frame) -> Frame | None:
        if told.method != mcp.RESOURCE_UPDATED:
            return told
        uri = jsonrpc.text(jsonrpc.params_of(told).get("uri"))
        return told if reads(uri or "") else None

    call.retell = retell
    params = jsonrpc.params_of(frame)
    wanted = jsonrpc.members(params["notifications"]) if "notifications" in params else {}
    uris = _uris(wanted)
    readable = [uri for uri in uris if reads(uri)]
    if len(readable) == len(uris):
        return frame
    left = {**wanted, "resourceSubscriptions": readable}
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "notifications": left}))


def _wanted(frame: Frame) -> dict[str, Raw]:
    params = jsonrpc.params_of(frame)
    if "notifications" not in params:
        raise MalformedMessage("params.notifications is missing", INVALID_PARAMS)
    return jsonrpc.members(params["notifications"])


def _uris(wanted: dict[str, Raw]) -> list[str]:
    try:
        uris = _strings.decode(wanted.get("resourceSubscriptions", b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("resourceSubscriptions is a list of URIs", INVALID_PARAMS) from None
    if len(uris) > MOST_FOLLOWED:
        raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
    return list(dict.fromkeys(uris))


def _is_true(raw: Raw) -> bool:
    return bytes(raw) == b"true"


def _stamped(method: str, listener: Id, params: Mapping[str, object]) -> Frame:
    """A notice that names the subscription it belongs to, as its client knows it."""
    said = params.get("_meta")
    meta = jsonrpc.members(said) if isinstance(said, Raw) and bytes(said)[:1] == b"{" else {}
    named = {**meta, mcp.SUBSCRIPTION_ID: listener}
    return jsonrpc.notification(method, {**params, "_meta": named})
