"""All servers behind one door: lists are merged, names are told apart, calls find their server.

What concerns the gateway itself is answered here (the handshake, lists, ping, log levels); what
concerns one offer goes to the server that offers it, under the name that server knows it by.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.call import Call, Underway
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.forwarding import follow
from comity.kernel.links import Link
from comity.kernel.listing import METHODS
from comity.kernel.outbox import Outbox
from comity.kernel.servers import Server, Servers
from comity.kernel.sessions import Session
from comity.kernel.subscribing import Subscriptions
from comity.ports import Headers
from comity.rules import tasks
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.headers import wrap
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era

KIND_OF_LIST: Final = {method: kind for kind, method in METHODS.items()}
NAMED: Final = {mcp.CALL_TOOL: Kind.TOOL, mcp.GET_PROMPT: Kind.PROMPT}
BY_URI: Final = frozenset({mcp.READ_RESOURCE, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE})
CAPABILITIES: Final = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
TASKS: Final[dict[str, object]] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
LIST_TTL_MS: Final = 5000

type Route = tuple[Offer, Frame]


class AllServers:
    """The desk of `/mcp`."""

    def __init__(
        self, servers: Servers, catalog: Catalog, underway: Underway, about: dict[str, str]
    ) -> None:
        self._servers = servers
        self._catalog = catalog
        self._underway = underway
        self._about = about
        self.subscriptions = Subscriptions(servers, catalog)
        self._own: dict[str, Callable[[Session, Call, Frame], Awaitable[None]]] = {
            mcp.INITIALIZE: self._initialize,
            mcp.PING: self._ping,
            mcp.SET_LEVEL: self._set_level,
        }

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        call = self._underway.begin(frame, outbox, session)
        try:
            own = self._own.get(call.method)
            if own is not None:
                await own(session, call, frame)
            elif call.method in KIND_OF_LIST:
                call.answered(jsonrpc.result(call.asker_id, self._list(call, frame, Era.HANDSHAKE)))
            elif call.method in tasks.METHODS:
                await self._route_task(call, frame, lambda server: self._link(session, server))
            else:
                await self._route_in_session(session, call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    def hear(self, session: Session, frame: Frame) -> None:
        notice = session.hear(frame)
        if notice is not None and notice.method == mcp.ROOTS_CHANGED:
            for link in (*session.links.values(), *session.shared.values()):
                link.tell(notice)

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        call = self._underway.begin(frame, outbox, None)
        try:
            if call.method == mcp.DISCOVER:
                await self._probe()
                call.answered(jsonrpc.result(call.asker_id, self._discovered()))
            elif call.method in KIND_OF_LIST:
                await self._probe()
                listed = self._list(call, frame, Era.MODERN)
                call.answered(jsonrpc.result(call.asker_id, self._stamped(listed)))
            elif call.method == mcp.LISTEN:
                await self.subscriptions.listen(call, frame)
            elif call.method in tasks.METHODS:
                await self._route_task(call, frame, _modern_link, headers)
            else:
                await self._route_modern(call, frame, headers)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    async def _initialize(self, session: Session, call: Call, frame: Frame) -> None:
        params = jsonrpc.params_of(frame)
        session.introduce(params)
        session.sees_all_servers = True
        wanted = jsonrpc.text(params.get("protocolVersion"))
        session.version = wanted if wanted in mcp.HANDSHAKE_VERSIONS else mcp.LATEST_HANDSHAKE
        session.greeted = True
        self.subscriptions.attach(session)
        answer = {
            "protocolVersion": session.version,
            "capabilities": self._capabilities(),
            "serverInfo": self._about,
        }
        call.answered(jsonrpc.result(call.asker_id, answer))

    def _capabilities(self) -> dict[str, object]:
        """What the gateway can do for a handshake client; tasks only if a server knows them."""
        known = any(b'"tasks"' in bytes(s.hello.get("capabilities", Raw())) for s in self._servers)
        return {**CAPABILITIES, "tasks": TASKS} if known else {**CAPABILITIES}

    async def _ping(self, session: Session, call: Call, frame: Frame) -> None:
        call.answered(jsonrpc.result(call.asker_id, {}))

    async def _set_level(self, session: Session, call: Call, frame: Frame) -> None:
        level = jsonrpc.text(jsonrpc.params_of(frame).get("level"))
        if level not in mcp.LOG_LEVELS:
            raise MalformedMessage("no such log level", INVALID_PARAMS)
        session.level = level
        used = {self._servers.get(name) for name in (*session.links, *session.shared)}
        await asyncio.gather(*(_share_level(session, server) for server in used if server))
        call.answered(jsonrpc.result(call.asker_id, {}))

    def _list(self, call: Call, frame: Frame, era: Era) -> dict[str, object]:
        kind = KIND_OF_LIST[call.method]
        cursor_member = jsonrpc.params_of(frame).get("cursor")
        cursor = jsonrpc.text(cursor_member)
        if cursor_member is not None and cursor is None:
            raise MalformedMessage("a cursor is a string", INVALID_PARAMS)
        definitions, following = self._catalog.page(kind, self._speaks(era), cursor)
        listed: dict[str, object] = {kind: [Raw(definition) for definition in definitions]}
        if following is not None:
            listed["nextCursor"] = following
        return listed

    def _speaks(self, era: Era) -> Callable[[str], bool]:
        def shown(name: str) -> bool:
            server = self._servers.get(name)
            return server is not None and era in server.eras

        return shown

    async def _route_in_session(self, session: Session, call: Call, frame: Frame) -> None:
        offer, renamed = self._find(call, frame)
        server = self._server_of(offer)
        link = session.links.get(server.name) or session.shared.get(server.name)
        if link is not None and link.is_open and call.method in NAMED:
            link.ask(call, renamed)
            return
        link, sharers = await server.link_for(session, greeted=True)
        if sharers is not None and call.method in (mcp.SUBSCRIBE, mcp.UNSUBSCRIBE):
            follow(session, call, renamed, link, sharers)
        else:
            link.ask(call, renamed)

    async def _link(self, session: Session, server: Server) -> Link:
        return (await server.link_for(session, greeted=True))[0]

    async def _route_task(
        self,
        call: Call,
        frame: Frame,
        link_to: Callable[[Server], Awaitable[Link]],
        headers: Headers = (),
    ) -> None:
        """A task is asked after at the server that began it."""
        params = jsonrpc.params_of(frame)
        name, task = tasks.own_task(jsonrpc.text(params.get("taskId")))
        server = self._servers.get(name)
        if server is None:
            raise MalformedMessage("no such task", INVALID_PARAMS)
        _publish_tasks(call, name)
        link = await link_to(server)
        renamed = jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "taskId": task}))
        link.ask(call, renamed, _renamed(headers, task))

    async def _route_modern(self, call: Call, frame: Frame, headers: Headers) -> None:
        offer, renamed = self._find(call, frame)
        link = await self._server_of(offer).modern_link()
        if frame.params is not UNSET and tasks.EXTENSION in bytes(frame.params):
            _publish_tasks(call, offer.server)
        link.ask(call, renamed, _renamed(headers, _name(renamed, call.method)))

    def _find(self, call: Call, frame: Frame) -> Route:
        """The offer a request is about, and the request as its server knows it."""
        params = jsonrpc.params_of(frame)
        kind = NAMED.get(call.method)
        if kind is not None:
            offer = self._named(kind, jsonrpc.text(params.get("name")))
            renamed = jsonrpc.to_raw({**params, "name": offer.name})
            if "task" in params:
                _publish_tasks(call, offer.server)
            return offer, jsonrpc.with_params(frame, renamed)
        if call.method in BY_URI:
            return self._at(jsonrpc.text(params.get("uri"))), frame
        if call.method == mcp.COMPLETE:
            return self._referred(frame, params)
        raise MalformedMessage(
            f"{call.method} is not routed here; use the server's own endpoint", METHOD_NOT_FOUND
        )

    def _named(self, kind: Kind, name: str | None) -> Offer:
        offer = self._catalog.find(kind, name) if name is not None else None
        if offer is None:
            raise MalformedMessage(f"no such name in {kind}: {name!r:.200}", INVALID_PARAMS)
        return offer

    def _at(self, uri: str | None) -> Offer:
        offer = self._catalog.find_resource(uri) if uri is not None else None
        if offer is None:
            raise MalformedMessage(f"no such resource: {uri!r:.200}", RESOURCE_NOT_FOUND)
        return offer

    def _referred(self, frame: Frame, params: dict[str, Raw]) -> Route:
        """The prompt or resource whose argument is to be completed."""
        reference = jsonrpc.members(params.get("ref", Raw(b"{}")))
        if jsonrpc.text(reference.get("type")) == "ref/prompt":
            offer = self._named(Kind.PROMPT, jsonrpc.text(reference.get("name")))
            renamed = {**params, "ref": {**reference, "name": offer.name}}
            return offer, jsonrpc.with_params(frame, jsonrpc.to_raw(renamed))
        uri = jsonrpc.text(reference.get("uri"))
        offer = self._catalog.find(Kind.TEMPLATE, uri) if uri is not None else None
        return offer or self._at(uri), frame

    def _server_of(self, offer: Offer) -> Server:
        server = self._servers.get(offer.server)
        if server is None:
            raise MalformedMessage(f"no such name: {offer.key!r:.200}", INVALID_PARAMS)
        return server

    async def _probe(self) -> None:
        """Find out which stdio servers speak the modern era, the first time somebody asks."""
        await asyncio.gather(*(server.probe_modern() for server in self._servers))

    def _discovered(self) -> dict[str, object]:
        offered = {name: terms for name, terms in CAPABILITIES.items() if name != "logging"}
        return self._stamped(
            {"supportedVersions": list(mcp.MODERN_VERSIONS), "capabilities": offered}
        )

    def _stamped(self, result: dict[str, object]) -> dict[str, object]:
        # What is listed may come to depend on who asks, so nobody else may keep it.
        return {
            "resultType": "complete",
            "ttlMs": LIST_TTL_MS,
            "cacheScope": "private",
            **result,
            "_meta": {mcp.SERVER_INFO: self._about},
        }


async def _share_level(session: Session, server: Server) -> None:
    """A server that several sessions share logs for the most curious of them."""
    with contextlib.suppress(Unavailable):
        link, sharers = await server.link_for(session, greeted=True)
        await link.set_level(session.level if sharers is None else sharers.lowest_level())


def _name(frame: Frame, method: str) -> str | None:
    """What the name header repeats of this request: a tool, a prompt, the URI of a resource."""
    member = mcp.NAMED_BY.get(method)
    return None if member is None else jsonrpc.text(jsonrpc.params_of(frame).get(member))


def _renamed(headers: Headers, name: str | None) -> Headers:
    """The headers of a modern request with the name its server knows."""
    kept = tuple(pair for pair in headers if pair[0] != mcp.NAME_HEADER)
    return kept if name is None else (*kept, (mcp.NAME_HEADER, wrap(name)))


def _publish_tasks(call: Call, server: str) -> None:
    """Name a task to the client in public form, in the answer and in all that is said before it."""

    def public(task: str) -> str:
        return tasks.public_task(server, task)

    def publish(frame: Frame) -> Frame:
        if frame.result is UNSET:
            return frame
        return msgspec.structs.replace(frame, result=tasks.rename(frame.result, public))

    def retell(frame: Frame) -> Frame:
        if frame.params is UNSET or bytes(memoryview(frame.params)[:1]) != b"{":
            return frame
        return jsonrpc.with_params(frame, tasks.rename(frame.params, public))

    call.adapt, call.retell = publish, retell


async def _modern_link(server: Server) -> Link:
    return await server.modern_link()
