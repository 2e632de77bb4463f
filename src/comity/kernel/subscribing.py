"""Who is told when the merged catalog changes: sessions, and `subscriptions/listen` streams."""

import asyncio
from collections.abc import Coroutine
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.listing import envelope
from comity.kernel.outbox import Outbox
from comity.kernel.servers import Servers
from comity.kernel.sessions import Session
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame, Id

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


class Subscriptions:
    """Every listener of `/mcp`, of both eras."""

    def __init__(self, servers: Servers, catalog: Catalog) -> None:
        self._servers = servers
        self._catalog = catalog
        self._sessions: set[Session] = set()
        self._listeners: dict[Call, frozenset[str]] = {}
        self._changed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        catalog.watch(self._on_change)

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
        if uris:
            honoured["resourceSubscriptions"] = uris
        call.outbox.stream()
        call.told(_stamped(mcp.ACKNOWLEDGED, call.asker_id, {"notifications": honoured}))
        if call.underway is not None:
            # A listener waits for ever; no deadline is counted against it.
            call.underway.remove(call)
        self._listeners[call] = frozenset(FILTERS[name] for name in honoured if name in FILTERS)
        for server, named in self._by_server(uris).items():
            self._spawn(self._follow(call, server, named))

    def _on_change(self, server: str, kind: Kind) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)
        self._changed.add(NOTICES[kind])

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        for method in sorted(changed):
            for session in self._sessions:
                session.tell(jsonrpc.notification(method))
        for call, methods in list(self._listeners.items()):
            if call.outbox.final:
                del self._listeners[call]
                continue
            for method in sorted(methods & changed):
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
        server = self._servers.get(name)
        if server is None:
            return
        try:
            link = await server.modern_link()
            params = {"_meta": envelope(), "notifications": {"resourceSubscriptions": uris}}
            frame = jsonrpc.request(call.asker_id, mcp.LISTEN, params)
            outbox = Outbox()
            upstream = Call(frame, outbox, None, 0)
            link.ask(upstream, frame, ((mcp.METHOD_HEADER, mcp.LISTEN.encode()),))
        except Unavailable:
            return
        try:
            while not outbox.final and not call.outbox.final:
                await outbox.wait()
                for data in outbox.take():
                    heard = jsonrpc.decode(data)
                    if heard.method == mcp.RESOURCE_UPDATED:
                        call.told(heard)
        finally:
            upstream.withdraw(None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, call: Call) -> None:
        """The client closed its stream."""
        self._listeners.pop(call, None)


def _wanted(frame: Frame) -> dict[str, Raw]:
    params = {} if frame.params is UNSET else jsonrpc.members(frame.params)
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


def _stamped(method: str, listener: Id, params: dict[str, object]) -> Frame:
    meta = {"_meta": {mcp.SUBSCRIPTION_ID: listener}}
    return jsonrpc.notification(method, {**params, **meta})
