"""One server behind its own door: everything crosses as it is, in both directions.

Where the session has a link of its own, each message simply goes on. Where it shares one, only what
would change the link for the others is handled here: the handshake, log levels, subscriptions.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from comity.kernel.admission import enforce
from comity.kernel.bridge import Bridge
from comity.kernel.call import Call
from comity.kernel.catalog import Kind
from comity.kernel.catalog_access import Sees
from comity.kernel.gate import Gate
from comity.kernel.links import Link
from comity.kernel.listing import KEYS, KIND_OF_LIST
from comity.kernel.outbox import Outbox
from comity.kernel.retrying import Means, Retries
from comity.kernel.servers import Server
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.kernel.subscribing import Subscriptions, narrowed
from comity.kernel.terms import speaks_live
from comity.kernel.underway import Underway
from comity.ports import Headers
from comity.rules import eras, rounds, tasks
from comity.rules.own_tasks import apart
from comity.rules.topic_requests import introduced
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.wire.headers import wrap
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era
from comity.wire.negotiation import Extension, silenced
from comity.wire.parties import Actor
from comity.wire.streaming import CANCEL

ABOUT_THE_LINK: Final = frozenset(
    {mcp.INITIALIZE, mcp.PING, mcp.SET_LEVEL, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE}
)
"""What would change a shared link for the others, and so cannot simply go on."""

BY_URI: Final = frozenset({mcp.READ_RESOURCE, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE})
FREE: Final = frozenset(
    {mcp.INITIALIZE, mcp.PING, mcp.SET_LEVEL, mcp.DISCOVER, mcp.LISTEN, *KIND_OF_LIST}
)
"""What is about the link, or is answered with no more than its reader may see."""

_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


class Desk(Protocol):
    """What a door needs of the kernel: take a client's messages, in either era."""

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call: ...
    def hear(self, session: Session, frame: Frame) -> None: ...
    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call: ...
    def opens_to(self, actor: Actor) -> bool: ...


class OneServer:
    """The desk of `/servers/{id}/mcp`."""

    def __init__(
        self,
        server: Server,
        gate: Gate,
        underway: Underway,
        bridge: Bridge,
        subscriptions: Subscriptions,
    ) -> None:
        self._server = server
        self._gate = gate
        self._underway = underway
        self._counted = underway.tallies.at(server.name)
        self._bridge = bridge
        self._subscriptions = subscriptions

    def turn_to(self, server: Server) -> None:
        """Serve the same clients before the server that has taken this one's place."""
        self._server = server

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        """Send a request on its way; its answer, or why there is none, comes into the outbox."""
        call = self._underway.begin(frame, outbox, session, self._counted)
        if self._gate.turns_away(call):
            return call
        try:
            if call.method in tasks.METHODS and self._gate.admission.answers_task(call, frame):
                return call
            if call.method not in FREE and not await self._passes(call, frame, session):
                return call
            if self._gate.retries is not None and call.method == mcp.CALL_TOOL:
                self._attend(self._gate.retries, call, frame, session)
            link = self._link_at_hand(session, call.method)
            if link is not None:
                self._prepare(call)
                link.ask(call, frame)
            else:
                await self._ask_first(session, call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    def hear(self, session: Session, frame: Frame) -> None:
        notice = session.hear(frame)
        if notice is None:
            return
        own = session.links.get(self._server.name)
        shared = session.shared.get(self._server.name)
        if own is not None:
            own.tell(notice)
            if notice.method == mcp.INITIALIZED:
                own.initialised()
        elif shared is not None and notice.method != mcp.INITIALIZED:
            # A shared link was initialised once, when it was opened.
            shared.tell(notice)

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        call = self._underway.begin(frame, outbox, None, self._counted)
        if self._gate.turns_away(call):
            return call
        try:
            frame = self._gate.admission.heard(call, frame)
            if call.method in tasks.METHODS and self._gate.admission.answers_task(call, frame):
                return call
            if call.method not in FREE and not await self._passes(call, frame, headers):
                return call
            if self._gate.retries is not None and call.method == mcp.CALL_TOOL:
                self._attend(self._gate.retries, call, frame, headers)
            if self._server.reached.modern is None:
                await self._ask_handshake(call, frame, headers)
            else:
                if call.method == mcp.LISTEN:
                    frame = narrowed(
                        call, frame, self._gate.reader_of(outbox.actor, self._server.name)
                    )
                self._prepare(call)
                self._server.reached.modern_link().ask(call, frame, headers)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    def _attend(self, retries: Retries, call: Call, frame: Frame, how: Session | Headers) -> None:
        """Have a call made again if it fails, where its operator allows it."""

        async def instead(other: Call, asked: Frame) -> None:
            if await self._passes(other, asked, how):
                await self._send(other, asked, how)

        named = jsonrpc.text(jsonrpc.params_of(frame).get("name"))
        offer = self._gate.find_tool(call, self._server.name, named)
        means = Means(lambda: self._send(call, frame, how), instead, is_for_all_servers=False)
        retries.attend(call, offer, frame, means)

    async def _send(self, call: Call, frame: Frame, how: Session | Headers) -> None:
        """Send a call that the gate has let through, once more or for the first time."""
        frame = apart(frame) if call.is_detached else frame
        if isinstance(how, Session):
            link = self._link_at_hand(how, call.method)
            if link is not None:
                link.ask(call, frame)
            else:
                await self._ask_first(how, call, frame)
            return
        # At stdio there are none; at HTTP they repeat the name of the tool.
        headers = with_name(how, jsonrpc.text(jsonrpc.params_of(frame).get("name"))) if how else how
        if self._server.reached.modern is None:
            await self._ask_handshake(call, frame, headers)
        else:
            self._server.reached.modern_link().ask(call, frame, headers)

    def opens_to(self, actor: Actor) -> bool:
        return self._gate.knows(actor, self._server.name)

    def headers_for(self, frame: Frame) -> Headers:
        """What a modern request repeats of its body, for who comes by no door that has headers."""
        return self._bridge.headers_for(self._server.reached, frame)

    def introduction(self, wanted: str | None) -> Mapping[str, object]:
        """What its server says of itself to somebody who has no link to it. Raises Unavailable."""
        self._server.require()
        reached = self._server.reached
        return introduced(reached.hello or reached.discovered, wanted)

    async def _passes(self, call: Call, frame: Frame, how: Session | Headers) -> bool:
        """Whether the gate lets a request pass; a call of a tool that it refuses is answered."""
        server = self._server.name
        if call.method == mcp.CALL_TOOL:
            named = jsonrpc.text(jsonrpc.params_of(frame).get("name"))
            outcome = self._gate.examine(call, self._gate.find_tool(call, server, named), frame)
            if outcome is None:
                return True
            return await enforce(call, outcome, lambda: self._send(call, frame, how))
        if call.method == mcp.GET_PROMPT:
            named = jsonrpc.text(jsonrpc.params_of(frame).get("name"))
            self._gate.demand(call, Kind.PROMPT, server, named)
        elif call.method in BY_URI:
            named = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
            self._gate.demand(call, Kind.RESOURCE, server, named)
        elif call.method == mcp.COMPLETE:
            kind, named = _reference(jsonrpc.params_of(frame))
            self._gate.demand(call, kind, server, named)
        elif call.method == CANCEL:
            self._cancel(call, frame)
            return False
        else:
            self._gate.require(call, server)
        return True

    def _cancel(self, call: Call, frame: Frame) -> None:
        """End a call of the client's own, whose ids its server never saw. (MGP §12.7)"""
        streaming, terms = self._server.reached.pulse.streaming, call.terms()
        if streaming is None or terms is None or Extension.STREAMING not in terms.extensions:
            raise MalformedMessage(f"there is no {call.method} here", METHOD_NOT_FOUND)
        answer = streaming.cancel(call.client, call, frame)
        if call.client is None:
            answer["resultType"] = mcp.COMPLETE_RESULT
        call.answered(jsonrpc.result(call.asker_id, answer))

    async def _ask_handshake(self, call: Call, frame: Frame, headers: Headers) -> None:
        """A modern client in front of a server that shakes hands."""
        if call.method == mcp.DISCOVER:
            await self._server.first_try()
        shakes_hands = Era.HANDSHAKE in self._server.reached.eras
        if not shakes_hands or rounds.round_in(frame)[1] is None:
            # Who comes back for a call that waits here needs no server for what became of it.
            self._server.require()
        if self._server.reached.modern is not None:
            self._server.reached.modern_link().ask(call, frame, headers)
        elif call.method == mcp.DISCOVER:
            found = eras.discovered(self._server.reached.hello)
            call.answered(jsonrpc.result(call.asker_id, found))
        elif call.method == mcp.LISTEN:
            await self._subscriptions.listen(call, frame, self._server.name)
        else:
            await self._bridge.ask_handshake(self._server.reached, call, frame, headers)
            self._prepare(call)

    def _link_at_hand(self, session: Session, method: str) -> Link | None:
        """The link on which this request can simply go on, if there is one."""
        link = session.links.get(self._server.name)
        if link is None and method not in ABOUT_THE_LINK:
            link = session.shared.get(self._server.name)
        return link if link is not None and session.greeted and link.is_open else None

    async def _ask_first(self, session: Session, call: Call, frame: Frame) -> None:
        """The handshake, and every request on a link that is shared or was lost."""
        greets = call.method == mcp.INITIALIZE
        if greets:
            await self._server.first_try()
        self._server.require()
        if greets:
            session.introduce(jsonrpc.params_of(frame))
            session.reads = self._gate.reader_of(call.outbox.actor, self._server.name)
        if Era.HANDSHAKE not in self._server.reached.eras:
            await self._ask_across(session, call, frame)
            return
        link, sharers = await self._server.reached.link_for(session, greeted=not greets)
        if greets:
            self._greet(session, call, frame, link, sharers)
            return
        if sharers is not None:
            await self._ask_shared(session, call, frame, link, sharers)
            return
        self._prepare(call)
        link.ask(call, frame)

    async def _ask_across(self, session: Session, call: Call, frame: Frame) -> None:
        """A handshake client in front of a server of the modern era."""
        if call.method != mcp.INITIALIZE:
            await self._bridge.ask_modern(self._server.reached, session, call, frame)
            self._prepare(call)
            return
        wanted = jsonrpc.text(jsonrpc.params_of(frame).get("protocolVersion"))
        answer = eras.welcome(self._server.reached.discovered, wanted)
        session.version = str(answer["protocolVersion"])
        session.greeted = True
        self._subscriptions.attach(session, call.outbox.actor, self._server.name)
        call.answered(jsonrpc.result(call.asker_id, answer))

    def _greet(
        self, session: Session, call: Call, frame: Frame, link: Link, sharers: Sharers | None
    ) -> None:
        if sharers is None:
            call.adapt = _note_welcome(session, link)
            if frame.params is not UNSET:
                said = self._server.reached.introduced(link, frame.params)
                frame = jsonrpc.with_params(frame, said)
            link.ask(call, frame)
            return
        assert link.hello is not None
        wanted = jsonrpc.text(jsonrpc.params_of(frame).get("protocolVersion"))
        agreed = jsonrpc.text(link.hello.get("protocolVersion")) or mcp.LATEST_HANDSHAKE
        session.version = min(wanted, agreed) if wanted in mcp.HANDSHAKE_VERSIONS else agreed
        session.greeted = True
        session.agree(link.hello)
        hello = link.hello if session.speaks_mgp_with_servers else silenced(link.hello)
        if frame.params is UNSET or not speaks_live(frame.params):
            hello = features.silenced(hello)
        answer = {**hello, "protocolVersion": session.version}
        call.answered(jsonrpc.result(call.asker_id, answer))

    def _prepare(self, call: Call) -> None:
        """Have left out of a list what its reader may not use, as its server has written it."""
        kind = KIND_OF_LIST.get(call.method)
        if kind is None:
            return
        seen = self._gate.sight(call.outbox.actor, kind, self._server.name)
        if seen is None:
            return
        after = call.adapt

        def adapt(frame: Frame) -> Frame:
            kept = _leave_out(frame, kind, seen)
            return kept if after is None else after(kept)

        call.adapt = adapt

    async def _ask_shared(
        self, session: Session, call: Call, frame: Frame, link: Link, sharers: Sharers
    ) -> None:
        if call.method == mcp.PING:
            call.answered(jsonrpc.result(call.asker_id, {}))
        elif call.method == mcp.SET_LEVEL:
            session.level = jsonrpc.text(jsonrpc.params_of(frame).get("level"))
            lowest = {"level": sharers.lowest_level() or session.level}
            link.ask(call, jsonrpc.with_params(frame, jsonrpc.to_raw(lowest)))
        elif call.method in (mcp.SUBSCRIBE, mcp.UNSUBSCRIBE):
            follow(session, call, frame, link, sharers)
        else:
            self._prepare(call)
            link.ask(call, frame)


def with_name(headers: Headers, name: str | None) -> Headers:
    """The headers of a modern request with the name its server knows."""
    kept = tuple(pair for pair in headers if pair[0] != mcp.NAME_HEADER)
    return kept if name is None else (*kept, (mcp.NAME_HEADER, wrap(name)))


def follow(session: Session, call: Call, frame: Frame, link: Link, sharers: Sharers) -> None:
    """Count who follows a resource on a shared link; only the last to leave tells the server."""
    uri = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
    if uri is None:
        raise MalformedMessage("uri is missing", INVALID_PARAMS)
    if call.method == mcp.SUBSCRIBE:
        sharers.follow(session, uri)
    elif not sharers.unfollow(session, uri):
        call.answered(jsonrpc.result(call.asker_id, {}))
        return
    link.ask(call, frame)


def _note_welcome(session: Session, link: Link) -> Callable[[Frame], Frame]:
    def note(frame: Frame) -> Frame:
        assert frame.result is not UNSET
        link.welcome(frame.result)
        said = link.hello or {}
        session.version = jsonrpc.text(said.get("protocolVersion")) or mcp.LATEST_HANDSHAKE
        session.greeted = True
        session.agree(said)
        if link.live is None:
            return frame
        # The gateway asked about MCPL, and not the client.
        kept = jsonrpc.to_raw(features.silenced(said))
        return msgspec.structs.replace(frame, result=kept)

    return note


def _leave_out(frame: Frame, kind: Kind, seen: Sees) -> Frame:
    """A list without what its reader may not use; one that cannot be read is none. Raises."""
    assert frame.result is not UNSET
    result = jsonrpc.members(frame.result)
    try:
        entries = _list_of_objects.decode(result.get(kind, b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage(f"a misshapen list of {kind}") from None
    kept = [entry for entry in entries if seen(jsonrpc.text(entry.get(KEYS[kind])) or "", entry)]
    if len(kept) == len(entries):
        return frame
    return msgspec.structs.replace(frame, result=jsonrpc.to_raw({**result, kind: kept}))


def _reference(params: Mapping[str, Raw]) -> tuple[Kind, str | None]:
    """What a request is to complete an argument of."""
    reference = jsonrpc.members(params.get("ref", Raw(b"{}")))
    if jsonrpc.text(reference.get("type")) == "ref/prompt":
        return Kind.PROMPT, jsonrpc.text(reference.get("name"))
    return Kind.TEMPLATE, jsonrpc.text(reference.get("uri"))
