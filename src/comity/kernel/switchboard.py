"""All servers behind one door: lists are merged, names are told apart, calls find their server.

What concerns the gateway itself is answered here (the handshake, lists, ping, log levels); what
concerns one offer goes to the server that offers it, under the name that server knows it by.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Raw

from comity.kernel.admission import enforce
from comity.kernel.bridge import Bridge
from comity.kernel.call import Call
from comity.kernel.catalog import NOT_OURS, Kind, Offer
from comity.kernel.forwarding import BY_URI, follow, with_name
from comity.kernel.gate import Gate
from comity.kernel.introduction import Introduction
from comity.kernel.links import Link
from comity.kernel.listing import KIND_OF_LIST
from comity.kernel.outbox import Outbox
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.own_tools import OwnTools
from comity.kernel.presence import Presence, with_mgp
from comity.kernel.reached import Reached
from comity.kernel.retrying import Means
from comity.kernel.servers import Server, Servers
from comity.kernel.sessions import Session
from comity.kernel.subscribing import Subscriptions
from comity.kernel.task_routes import modern_link, publish
from comity.kernel.underway import Underway
from comity.ports import Headers
from comity.rules import eras, tasks
from comity.rules.negotiation import of_request, unsaid
from comity.rules.own_tasks import apart
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era
from comity.wire.parties import Actor

NAMED: Final = {mcp.CALL_TOOL: Kind.TOOL, mcp.GET_PROMPT: Kind.PROMPT}
type Route = tuple[Offer, Frame]


class AllServers:
    """The desk of `/mcp`."""

    def __init__(
        self,
        servers: Servers,
        gate: Gate,
        underway: Underway,
        bridge: Bridge,
        subscriptions: Subscriptions,
        about: dict[str, str],
    ) -> None:
        self.servers = servers
        self.gate = gate
        self._underway = underway
        self._bridge = bridge
        self.introduction = Introduction(servers, about)
        self.subscriptions = subscriptions
        self.tasks = tasks.PLAIN_NAMES
        self.presence = Presence(servers, gate, underway)
        self.methods = OwnMethods()
        self.presence.join(self.methods)
        # What is offered in the place of all tools, where that is wanted.
        self.own_tools: OwnTools | None = None
        self._own: dict[str, Callable[[Session, Call, Frame], Awaitable[None]]] = {
            mcp.INITIALIZE: self._initialize,
            mcp.PING: self._ping,
            mcp.SET_LEVEL: self._set_level,
        }

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        call = self._underway.begin(frame, outbox, session)
        call.is_for_all_servers = True
        if self.gate.turns_away(call):
            return call
        try:
            own = self._own.get(call.method)
            if own is not None:
                await own(session, call, frame)
            elif call.method in KIND_OF_LIST:
                call.answered(jsonrpc.result(call.asker_id, self._list(call, frame)))
            elif call.method in tasks.METHODS:
                await self._route_task(call, frame, lambda server: self._link(session, server))
            elif self.methods.takes(call.method):
                await self._answer(Asked(call, session, session.mgp, frame))
            else:
                await self._route_in_session(session, call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    def opens_to(self, actor: Actor) -> bool:
        """Whether there is a door here at all for this actor; this one is there for everybody."""
        return True

    def hear(self, session: Session, frame: Frame) -> None:
        notice = session.hear(frame)
        if notice is not None and notice.method == mcp.ROOTS_CHANGED:
            for link in (*session.links.values(), *session.shared.values()):
                link.tell(notice)

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        call = self._underway.begin(frame, outbox, None)
        call.is_for_all_servers = True
        if self.gate.turns_away(call):
            return call
        try:
            frame = self.gate.admission.heard(call, frame)
            if call.method == mcp.DISCOVER:
                call.answered(jsonrpc.result(call.asker_id, self._discovered(frame)))
            elif call.method in KIND_OF_LIST:
                listed = self._list(call, frame)
                call.answered(jsonrpc.result(call.asker_id, self.introduction.stamped(listed)))
            elif call.method == mcp.LISTEN:
                await self.subscriptions.listen(call, frame)
            elif call.method in tasks.METHODS:
                await self._route_task(call, frame, modern_link, headers)
            elif self.methods.takes(call.method):
                await self._answer(Asked(call, None, of_request(frame.params), frame))
            else:
                await self._route_modern(call, frame, headers)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    async def _answer(self, asked: Asked) -> None:
        """Answer for the gateway itself, in the words of the client's era."""
        answer = await self.methods.answer(asked)
        if answer is not None:
            told = answer if asked.session is not None else self.introduction.stamped(answer)
            asked.call.answered(jsonrpc.result(asked.call.asker_id, told))

    def _is_own(self, call: Call, params: dict[str, Raw]) -> bool:
        own = self.own_tools
        if own is None or call.method != mcp.CALL_TOOL:
            return False
        return own.takes(jsonrpc.text(params.get("name")))

    async def _aimed(self, call: Call, session: Session | None, frame: Frame) -> Frame | None:
        """What a call of a tool of our own stands for; None once it is answered here."""
        assert self.own_tools is not None
        terms = of_request(frame.params) if session is None else session.mgp
        return await self.own_tools.called(Asked(call, session, terms, frame))

    async def _initialize(self, session: Session, call: Call, frame: Frame) -> None:
        params = jsonrpc.params_of(frame)
        session.introduce(params)
        asked = self.presence.agree(session)
        session.sees_all_servers = True
        wanted = jsonrpc.text(params.get("protocolVersion"))
        session.version = wanted if wanted in mcp.HANDSHAKE_VERSIONS else mcp.LATEST_HANDSHAKE
        session.greeted = True
        actor = call.outbox.actor
        session.reads = self.gate.reader_of(actor)
        self.subscriptions.attach(session, actor)
        self.presence.attach(session, actor)
        answer = {
            "protocolVersion": session.version,
            "capabilities": with_mgp(self.introduction.capabilities(), session.mgp, asked),
            "serverInfo": self.introduction.about,
        }
        call.answered(jsonrpc.result(call.asker_id, answer))

    async def _ping(self, session: Session, call: Call, frame: Frame) -> None:
        call.answered(jsonrpc.result(call.asker_id, {}))

    async def _set_level(self, session: Session, call: Call, frame: Frame) -> None:
        level = jsonrpc.text(jsonrpc.params_of(frame).get("level"))
        if level not in mcp.LOG_LEVELS:
            raise MalformedMessage("no such log level", INVALID_PARAMS)
        session.level = level
        used = {self.servers.get(name) for name in (*session.links, *session.shared)}
        await asyncio.gather(*(_share_level(session, server) for server in used if server))
        call.answered(jsonrpc.result(call.asker_id, {}))

    def _discovered(self, frame: Frame) -> dict[str, object]:
        has_tasks = self.gate.admission.own_tasks is not None
        return self.introduction.discovered(frame, has_tasks=has_tasks)

    def _list(self, call: Call, frame: Frame) -> dict[str, object]:
        kind = KIND_OF_LIST[call.method]
        cursor_member = jsonrpc.params_of(frame).get("cursor")
        cursor = jsonrpc.text(cursor_member)
        if cursor_member is not None and cursor is None:
            raise MalformedMessage("a cursor is a string", INVALID_PARAMS)
        own = self.own_tools if kind is Kind.TOOL else None
        instead = None if own is None else own.listed(call)
        if instead is not None:
            if cursor is not None:
                # All of it is on one page, so nobody was given any.
                raise MalformedMessage(NOT_OURS, INVALID_PARAMS)
            # The next call may make it another list: no client may keep it for a while.
            stamps = {"ttlMs": 0} if call.client is None else {}
            return {kind: [Raw(definition) for definition in instead], **stamps}
        definitions, following = self.gate.page(call.outbox.actor, kind, self._is_known, cursor)
        if kind is Kind.TOOL and call.client is not None:
            definitions = [eras.handshake_tool(definition) for definition in definitions]
        listed: dict[str, object] = {kind: [Raw(definition) for definition in definitions]}
        if following is not None:
            listed["nextCursor"] = following
        return listed

    def _is_known(self, server: str) -> bool:
        return self.servers.get(server) is not None

    async def _route_in_session(self, session: Session, call: Call, frame: Frame) -> None:
        params = jsonrpc.params_of(frame)
        if self._is_own(call, params):
            aimed = await self._aimed(call, session, frame)
            if aimed is None:
                return
            frame, params = aimed, jsonrpc.params_of(aimed)
        offer, renamed = self._find(call, frame, params)
        server = self.server_of(call, offer)
        if call.method != mcp.CALL_TOOL:
            await self._go_on(session, call, server, renamed)
            return

        async def go_on() -> None:
            if self.gate.retries is not None and self.gate.retries.plan_of(offer):
                means = Means(
                    lambda: self._go_on(session, call, server, renamed),
                    lambda other, made: self._route_in_session(session, other, made),
                    is_for_all_servers=True,
                )
                self.gate.retries.attend(call, offer, frame, means)
            await self._go_on(session, call, server, renamed)

        if self.own_tools is not None:
            self.own_tools.used(call, offer)
        outcome = self.gate.examine(call, offer, frame)
        if outcome is None or await enforce(call, outcome, go_on):
            await go_on()

    async def _go_on(self, session: Session, call: Call, server: Server, renamed: Frame) -> None:
        """Send a request that the gate has let through, in whatever era its server is."""
        renamed = apart(renamed) if call.is_detached else renamed
        if Era.HANDSHAKE not in server.reached.eras:
            await self._bridge.ask_modern(server.reached, session, call, renamed)
            return
        link = session.links.get(server.name) or session.shared.get(server.name)
        if link is not None and link.is_open and call.method in NAMED:
            link.ask(call, renamed)
            return
        link, sharers = await server.reached.link_for(session, greeted=True)
        if sharers is not None and call.method in (mcp.SUBSCRIBE, mcp.UNSUBSCRIBE):
            follow(session, call, renamed, link, sharers)
        else:
            link.ask(call, renamed)

    async def _link(self, session: Session, server: Server) -> Link:
        if Era.HANDSHAKE not in server.reached.eras:
            raise MalformedMessage("this server has no tasks of this era", METHOD_NOT_FOUND)
        return (await server.reached.link_for(session, greeted=True))[0]

    async def _route_task(
        self,
        call: Call,
        frame: Frame,
        link_to: Callable[[Server], Awaitable[Link]],
        headers: Headers = (),
    ) -> None:
        """A task is asked after at the server that began it, or here."""
        if self.gate.admission.answers_task(call, frame):
            return
        params = jsonrpc.params_of(frame)
        party = call.outbox.actor.party
        name, task = self.tasks.own(party, jsonrpc.text(params.get("taskId")))
        server = self.servers.get(name)
        if server is None:
            raise MalformedMessage("no such task", INVALID_PARAMS)
        call.counted = self._underway.tallies.at(name)
        publish(call, name, self.tasks)
        link = await link_to(server)
        renamed = jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "taskId": task}))
        link.ask(call, renamed, with_name(headers, task))

    async def _route_modern(self, call: Call, frame: Frame, headers: Headers) -> None:
        params = jsonrpc.params_of(frame)
        if self._is_own(call, params):
            aimed = await self._aimed(call, None, frame)
            if aimed is None:
                return
            # Its headers told of our own tool; the server is told of its own.
            frame, params, headers = aimed, jsonrpc.params_of(aimed), ()
        offer, renamed = self._find(call, frame, params)
        reached = self.server_of(call, offer).reached
        if call.method != mcp.CALL_TOOL:
            await self.pass_on(call, reached, renamed, headers)
            return

        async def go_on() -> None:
            self.attend(call, offer, renamed, headers)
            await self.pass_on(call, reached, renamed, headers)

        if self.own_tools is not None:
            self.own_tools.used(call, offer)
        outcome = self.gate.examine(call, offer, frame)
        if outcome is None or await enforce(call, outcome, go_on):
            await go_on()

    def attend(self, call: Call, offer: Offer, renamed: Frame, headers: Headers) -> None:
        """Have a modern call of a tool made again if it fails, where its operator allows it."""
        if self.gate.retries is not None and self.gate.retries.plan_of(offer):
            reached = self.server_of(call, offer).reached
            means = Means(
                lambda: self.pass_on(call, reached, renamed, headers),
                lambda other, made: self._route_modern(other, made, headers),
                is_for_all_servers=True,
            )
            self.gate.retries.attend(call, offer, renamed, means)

    async def pass_on(self, call: Call, reached: Reached, renamed: Frame, headers: Headers) -> None:
        """Send a modern request that the gate has let through, in whatever era its server is."""
        renamed = apart(renamed) if call.is_detached else renamed
        if Era.MODERN not in reached.eras:
            await self._bridge.ask_handshake(reached, call, renamed, headers)
            return
        if any(name == mcp.NAME_HEADER for name, _ in headers):
            headers = with_name(headers, _name(renamed, call.method))
        else:
            # A client at stdio has no headers; the server's door may want them all the same.
            headers = self._bridge.headers_for(reached, renamed)
        link = reached.modern_link()
        if renamed.params is not UNSET and tasks.EXTENSION in bytes(renamed.params):
            publish(call, reached.name, self.tasks)
        link.ask(call, unsaid(renamed), headers)

    def _find(self, call: Call, frame: Frame, params: dict[str, Raw]) -> Route:
        """The offer a request is about, and the request as its server knows it."""
        kind = NAMED.get(call.method)
        if kind is not None:
            offer = self.gate.find(call, kind, jsonrpc.text(params.get("name")))
            renamed = jsonrpc.to_raw({**params, "name": offer.name})
            if "task" in params:
                publish(call, offer.server, self.tasks)
            return offer, jsonrpc.with_params(frame, renamed)
        if call.method in BY_URI:
            return self.gate.find_resource(call, jsonrpc.text(params.get("uri"))), frame
        if call.method == mcp.COMPLETE:
            return self._referred(call, frame, params)
        raise MalformedMessage(
            f"{call.method} is not routed here; use the server's own endpoint", METHOD_NOT_FOUND
        )

    def _referred(self, call: Call, frame: Frame, params: dict[str, Raw]) -> Route:
        """The prompt or resource whose argument is to be completed."""
        reference = jsonrpc.members(params.get("ref", Raw(b"{}")))
        if jsonrpc.text(reference.get("type")) == "ref/prompt":
            offer = self.gate.find(call, Kind.PROMPT, jsonrpc.text(reference.get("name")))
            renamed = {**params, "ref": {**reference, "name": offer.name}}
            return offer, jsonrpc.with_params(frame, jsonrpc.to_raw(renamed))
        uri = jsonrpc.text(reference.get("uri"))
        return self.gate.find_template(call, uri), frame

    def server_of(self, call: Call, offer: Offer) -> Server:
        """The server of an offer, at which the call is counted from now on."""
        call.counted, call.tool = self._underway.tallies.at(offer.server), offer.name
        server = self.servers.get(offer.server)
        if server is None:
            raise MalformedMessage(f"no such name: {offer.key!r:.200}", INVALID_PARAMS)
        return server


async def _share_level(session: Session, server: Server) -> None:
    """A server that several sessions share logs for the most curious of them."""
    with contextlib.suppress(Unavailable):
        link, sharers = await server.reached.link_for(session, greeted=True)
        await link.set_level(session.level if sharers is None else sharers.lowest_level())


def _name(frame: Frame, method: str) -> str | None:
    """What the name header repeats of this request: a tool, a prompt, the URI of a resource."""
    member = mcp.NAMED_BY.get(method)
    return None if member is None else jsonrpc.text(jsonrpc.params_of(frame).get(member))
