"""The bridge: every call whose client speaks of one era and its server of the other."""

import itertools
from collections.abc import Mapping

from msgspec import Raw

from comity.kernel.across import Way
from comity.kernel.call import Call
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.following import Followed
from comity.kernel.links import Link
from comity.kernel.parked import ParkedCall
from comity.kernel.parking import Parking
from comity.kernel.reached import Reached
from comity.kernel.repeated import RepeatedCall
from comity.kernel.sessions import Session
from comity.ports import Headers
from comity.rules import eras, mirrored, rounds, tasks
from comity.rules.eras import Said
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.headers import wrap
from comity.wire.jsonrpc import Frame


class Bridge:
    """The way of every call whose client and server speak of different eras."""

    def __init__(self, catalog: Catalog, parking: Parking) -> None:
        self._catalog = catalog
        self._parking = parking
        self._followed = Followed()
        self._tokens = itertools.count(1)

    def __len__(self) -> int:
        """How many resources are listened for on behalf of handshake clients."""
        return len(self._followed)

    async def ask_handshake(
        self, server: Reached, call: Call, frame: Frame, headers: Headers
    ) -> None:
        """A modern client's request, said to a server that shakes hands."""
        if call.method not in eras.CROSSING:
            raise MalformedMessage(f"{call.method:.80} does not exist here", METHOD_NOT_FOUND)
        offer = self._offer(server, frame) if call.method == mcp.CALL_TOOL else None
        if offer is not None:
            _compare(offer, frame, headers)
        said = eras.said_in(frame)
        about = server.hello.get("serverInfo")
        call.adapt = lambda answer: eras.modern_result(answer, call.method, about)
        call.retell = lambda notice: eras.retold(notice, said)
        _, state = rounds.round_in(frame)
        if state is not None:
            # A state that somebody else was given names nothing here. (attack 7)
            digest = rounds.digest(server.name, frame, call.outbox.actor.party)
            self._parking.find(state, digest).resume(call, frame)
            return
        plain = eras.handshake_request(frame, f"comity-{next(self._tokens)}")
        if offer is not None and tasks.must_be_task(offer.definition):
            plain = tasks.as_task(plain)
        capabilities = {name: jsonrpc.value(terms) for name, terms in said.capabilities.items()}
        link = await server.bridge_link(capabilities, call.outbox.actor.party)
        await _lower_level(link, said.level)
        ParkedCall(plain, call, Way(server.name, link.ask), said, self._parking).begin()

    async def ask_modern(self, server: Reached, session: Session, call: Call, frame: Frame) -> None:
        """A handshake client's request, said to a server of the modern era."""
        if call.method in eras.CROSSING:
            self._repeat(server, session, call, frame)
            return
        if call.method in (mcp.SUBSCRIBE, mcp.UNSUBSCRIBE):
            await self._follow(server, session, call.method, frame)
        elif call.method == mcp.SET_LEVEL:
            level = jsonrpc.text(jsonrpc.params_of(frame).get("level"))
            if level not in mcp.LOG_LEVELS:
                raise MalformedMessage("no such log level", INVALID_PARAMS)
            session.level = level
        elif call.method != mcp.PING:
            raise MalformedMessage(f"{call.method:.80} does not exist here", METHOD_NOT_FOUND)
        call.answered(jsonrpc.result(call.asker_id, {}))

    def headers_for(self, server: Reached, frame: Frame) -> Headers:
        """What a modern request repeats of its body for whoever stands on its way."""
        method, params = str(frame.method), jsonrpc.params_of(frame)
        named = jsonrpc.text(params.get(mcp.NAMED_BY.get(method, "")))
        headers = ((mcp.METHOD_HEADER, method.encode()),)
        if named is None:
            return headers
        headers = (*headers, (mcp.NAME_HEADER, wrap(named)))
        marks = self._marks(server, named) if method == mcp.CALL_TOOL else ()
        return (*headers, *mirrored.headers_for(marks, _arguments(params))) if marks else headers

    async def _follow(self, server: Reached, session: Session, method: str, frame: Frame) -> None:
        uri = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
        if uri is None:
            raise MalformedMessage("uri is missing", INVALID_PARAMS)
        if session.closed:
            raise Unavailable("the session has ended")
        session.farewells[self] = lambda: self._followed.leave(session)
        if method == mcp.SUBSCRIBE:
            await self._followed.follow(server, uri, session)
        else:
            self._followed.unfollow(server, uri, session)

    def _repeat(self, server: Reached, session: Session, call: Call, frame: Frame) -> None:
        said = Said(session.capabilities, session.info, session.level)
        call.adapt = lambda answer: eras.handshake_result(answer, call.method)
        call.retell = eras.retold_plainly
        plain, headers = eras.modern_request(frame, said), self.headers_for(server, frame)

        def send(across: Call, asked: Frame) -> None:
            server.modern_link().ask(across, asked, headers)

        RepeatedCall(plain, call, Way(server.name, send), session, self._parking).begin()

    def _offer(self, server: Reached, frame: Frame) -> Offer | None:
        name = jsonrpc.text(jsonrpc.params_of(frame).get("name"))
        return self._catalog.offered(server.name, Kind.TOOL, name or "")

    def _marks(self, server: Reached, tool: str) -> tuple[mirrored.Mark, ...]:
        offer = self._catalog.offered(server.name, Kind.TOOL, tool)
        return mirrored.marks_in(offer.definition) if offer is not None else ()


def _compare(offer: Offer, frame: Frame, headers: Headers) -> None:
    """Refuse a request whose headers say something else than its arguments."""
    marks = mirrored.marks_in(offer.definition)
    # Only HTTP has headers that anybody could have routed by.
    if marks and any(name == mcp.NAME_HEADER for name, _ in headers):
        arguments = _arguments(jsonrpc.params_of(frame))
        wrong = mirrored.contradiction(marks, arguments, headers)
        if wrong is not None:
            raise MalformedMessage(wrong, HEADER_MISMATCH)


def _arguments(params: Mapping[str, Raw]) -> object:
    return jsonrpc.value(params["arguments"]) if "arguments" in params else None


async def _lower_level(link: Link, level: str | None) -> None:
    """Have the server log from this level on too, where somebody else may want more."""
    if level not in mcp.LOG_LEVELS:
        return
    known = mcp.LOG_LEVELS.index
    if link.level is None or known(level) < known(link.level):
        await link.set_level(level)
