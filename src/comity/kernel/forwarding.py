"""One server behind its own door: everything crosses as it is, in both directions.

Where the session has a link of its own, each message simply goes on. Where it shares one, only what
would change the link for the others is handled here: the handshake, log levels, subscriptions.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from comity.kernel.call import Call, Underway
from comity.kernel.catalog import Catalog
from comity.kernel.links import Link
from comity.kernel.outbox import Outbox
from comity.kernel.servers import Server
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.ports import Headers
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era

ABOUT_THE_LINK: Final = frozenset(
    {mcp.INITIALIZE, mcp.PING, mcp.SET_LEVEL, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE}
)
"""What would change a shared link for the others, and so cannot simply go on."""

_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


class Desk(Protocol):
    """What a door needs of the kernel: take a client's messages, in either era."""

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call: ...
    def hear(self, session: Session, frame: Frame) -> None: ...
    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call: ...


class OneServer:
    """The desk of `/servers/{id}/mcp`."""

    def __init__(self, server: Server, catalog: Catalog, underway: Underway) -> None:
        self._server = server
        self._catalog = catalog
        self._underway = underway

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        """Send a request on its way; its answer, or why there is none, comes into the outbox."""
        call = self._underway.begin(frame, outbox, session)
        try:
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
        elif shared is not None and notice.method != mcp.INITIALIZED:
            # A shared link was initialised once, when it was opened.
            shared.tell(notice)

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        call = self._underway.begin(frame, outbox, None)
        try:
            modern = self._server.modern
            link = modern.link if modern is not None else await self._server.modern_link()
            if call.method == mcp.LIST_TOOLS:
                call.adapt = self._without_quarantined()
            link.ask(call, frame, headers)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)
        return call

    def _link_at_hand(self, session: Session, method: str) -> Link | None:
        """The link on which this request can simply go on, if there is one."""
        link = session.links.get(self._server.name)
        if link is None and method not in ABOUT_THE_LINK:
            link = session.shared.get(self._server.name)
        return link if link is not None and session.greeted and link.is_open else None

    async def _ask_first(self, session: Session, call: Call, frame: Frame) -> None:
        """The handshake, and every request on a link that is shared or was lost."""
        await self._server.first_try()
        self._server.require(Era.HANDSHAKE)
        greets = call.method == mcp.INITIALIZE
        if greets:
            session.introduce(jsonrpc.params_of(frame))
        link, sharers = await self._server.link_for(session, greeted=not greets)
        if greets:
            self._greet(session, call, frame, link, sharers)
            return
        if sharers is not None:
            await self._ask_shared(session, call, frame, link, sharers)
            return
        self._prepare(call)
        link.ask(call, frame)

    def _greet(
        self, session: Session, call: Call, frame: Frame, link: Link, sharers: Sharers | None
    ) -> None:
        if sharers is None:
            call.adapt = _note_welcome(session, link)
            link.ask(call, frame)
            return
        assert link.hello is not None
        wanted = jsonrpc.text(jsonrpc.params_of(frame).get("protocolVersion"))
        agreed = jsonrpc.text(link.hello.get("protocolVersion")) or mcp.LATEST_HANDSHAKE
        session.version = min(wanted, agreed) if wanted in mcp.HANDSHAKE_VERSIONS else agreed
        session.greeted = True
        answer = {**link.hello, "protocolVersion": session.version}
        call.answered(jsonrpc.result(call.asker_id, answer))

    def _prepare(self, call: Call) -> None:
        if call.method == mcp.LIST_TOOLS:
            call.adapt = self._without_quarantined()

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

    def _without_quarantined(self) -> Callable[[Frame], Frame] | None:
        quarantined = self._catalog.quarantined(self._server.name)
        return (lambda frame: _leave_out(frame, frozenset(quarantined))) if quarantined else None


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
        return frame

    return note


def _leave_out(frame: Frame, quarantined: frozenset[str]) -> Frame:
    assert frame.result is not UNSET
    result = jsonrpc.members(frame.result)
    try:
        tools = _list_of_objects.decode(result.get("tools", b"[]"))
    except msgspec.DecodeError:
        return frame
    kept = [tool for tool in tools if jsonrpc.text(tool.get("name")) not in quarantined]
    return msgspec.structs.replace(frame, result=jsonrpc.to_raw({**result, "tools": kept}))
