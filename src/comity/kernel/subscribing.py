"""Who is told when the merged catalog changes: sessions, and `subscriptions/listen` streams."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.call import Call, Errand
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.listing import envelope
from comity.kernel.servers import Servers
from comity.kernel.sessions import Session
from comity.rules.conversation import Conversation
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame, Id

log = logging.getLogger(__name__)

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


_strings = msgspec.json.Decoder(list[str])


class Listener:
    """One client's open ear, in the place of its call's link: what it is told, what it follows."""

    def __init__(self, methods: frozenset[str], forget: Callable[[], object]) -> None:
        self.conversation: Conversation[Errand] = Conversation()
        self.methods = methods
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
    """Every listener of `/mcp`, of both eras."""

    def __init__(self, servers: Servers, catalog: Catalog) -> None:
        self._servers = servers
        self._catalog = catalog
        self._sessions: set[Session] = set()
        self._listeners: dict[Call, Listener] = {}
        self._changed: set[str] = set()
        catalog.watch(self._on_change)

    def __len__(self) -> int:
        return len(self._listeners)

    def attach(self, session: Session) -> None:
        self._sessions.add(session)
        session.farewells[self] = lambda: self._sessions.discard(session)

    async def listen(self, call: Call, frame: Frame) -> None:
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
        listener = Listener(methods, lambda: self._listeners.pop(call, None))
        call.link = self._listeners[call] = listener
        call.outbox.stream()
        call.told(_stamped(mcp.ACKNOWLEDGED, call.asker_id, {"notifications": honoured}))
        for server, named in self._by_server(uris).items():
            listener.follow(self._follow(call, server, named))

    def _on_change(self, server: str, kind: Kind) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        self._changed.add(NOTICES[kind])

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        for method in sorted(changed):
            for session in self._sessions:
                session.tell(jsonrpc.notification(method))
        for call, listener in list(self._listeners.items()):
            for method in sorted(listener.methods & changed):
                call.told(_stamped(method, call.asker_id, {}))

    def _by_server(self, uris: list[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for uri in uris:
            offer = self._catalog.find_resource(uri)
            if offer is not None:
                found.setdefault(offer.server, []).append(uri)
        return found

    async def _follow(self, call: Call, name: str, uris: list[str]) -> None:
        """Listen to one server for the resources of one listener, as long as that one listens."""

        def hear(frame: Frame) -> None:
            if frame.method == mcp.RESOURCE_UPDATED and frame.params is not UNSET:
                params = jsonrpc.members(frame.params)
                call.told(_stamped(mcp.RESOURCE_UPDATED, call.asker_id, params))

        server = self._servers.get(name)
        if server is None:
            return
        params = {"_meta": envelope(), "notifications": {"resourceSubscriptions": uris}}
        headers = ((mcp.METHOD_HEADER, mcp.LISTEN.encode()),)
        try:
            link = await server.modern_link()
            await link.request(mcp.LISTEN, params, headers, hear)
        except Unavailable as error:
            log.info("server %r: its resources are not followed: %s", name, error)


def _wanted(frame: Frame) -> dict[str, Raw]:
    params = jsonrpc.params_of(frame)
    if "notifications" not in params:
        raise MalformedMessage("params.notifications is missing", INVALID_PARAMS)
    return jsonrpc.members(params["notifications"])


def _uris(wanted: dict[str, Raw]) -> list[str]:
    try:
        return _strings.decode(wanted.get("resourceSubscriptions", b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("resourceSubscriptions is a list of URIs", INVALID_PARAMS) from None


def _is_true(raw: Raw) -> bool:
    return bytes(raw) == b"true"


def _stamped(method: str, listener: Id, params: Mapping[str, object]) -> Frame:
    """A notice that names the subscription it belongs to, as its client knows it."""
    said = params.get("_meta")
    meta = jsonrpc.members(said) if isinstance(said, Raw) else {}
    named = {**meta, mcp.SUBSCRIPTION_ID: listener}
    return jsonrpc.notification(method, {**params, "_meta": named})
