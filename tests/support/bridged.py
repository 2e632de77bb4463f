"""Clients of one era before scripted servers of the other, and what must not be left behind."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.sessions.calls import GatewayCall
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.tracing import Headers
from tests.support.carriers import Params, Script, ScriptedCarrier, discovered, hello, until
from tests.support.desks import Asked, Front, one_server
from tests.support.server_house import tools

EVERYTHING: Params = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
FORM: Params = {"message": "your name?", "requestedSchema": {"type": "object", "properties": {}}}
ACCEPT: Params = {"action": "accept", "content": {"name": "you"}}
DONE: Params = {"content": [{"type": "text", "text": "done"}]}


def handshake_server(process: bool = False, **replies: object) -> Script:
    greeting: Params = {protocol.INITIALIZE: hello(tools={}, logging={}), protocol.SET_LEVEL: {}}
    return Script(starts_process=process, replies={**greeting, **_replies(replies)})


def modern_server(process: bool = False, **replies: object) -> Script:
    found: Params = {protocol.DISCOVER: discovered(tools={}, logging={})}
    scripted = {**found, **_replies(replies)}
    return Script(starts_process=process, handshake=False, modern=True, replies=scripted)


def _replies(replies: Mapping[str, object]) -> dict[str, object]:
    named = {name.replace("_", "/"): reply for name, reply in replies.items()}
    return {protocol.LIST_TOOLS: tools("t"), **named}


@dataclass
class Bridged:
    """A door to one server, as its clients of the other era use it."""

    front: Front
    script: Script
    ids: list[int] = field(default_factory=list[int])

    @property
    def carrier(self) -> ScriptedCarrier:
        """The link on which the last tool was called."""
        called = [each for each in self.script.carriers if each.asked(protocol.CALL_TOOL)]
        return called[-1]

    @property
    def asked(self) -> Frame:
        """The last tool call that the server saw."""
        return self.carrier.asked(protocol.CALL_TOOL)[-1]

    @property
    def calls(self) -> list[Frame]:
        return [frame for each in self.script.carriers for frame in each.asked(protocol.CALL_TOOL)]

    def modern(
        self,
        method: str = protocol.CALL_TOOL,
        params: Params | None = None,
        meta: Params | None = None,
        headers: Headers = (),
        can: Params = EVERYTHING,
    ) -> Asked:
        """A request of a modern client's that can do everything, unless said otherwise."""
        self.ids.append(len(self.ids) + 1)
        envelope = {
            protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
            protocol.CLIENT_CAPABILITIES: can,
            **(meta or {}),
        }
        asked: Params = {"name": "t", "arguments": {}} if params is None else params
        frame = jsonrpc.make_request(f"own-{self.ids[-1]}", method, {**asked, "_meta": envelope})
        outbox = ClientStream()
        desk = self.front.desk
        return Asked(
            outbox, asyncio.ensure_future(desk.handle_modern_request(frame, outbox, headers))
        )

    def retry(
        self,
        state: object,
        responses: Mapping[str, object] | None,
        params: Params | None = None,
        meta: Params | None = None,
        can: Params = EVERYTHING,
    ) -> Asked:
        """The same call once more, with the state it was given and these answers."""
        again: Params = {"name": "t", "arguments": {}, "requestState": state}
        if responses is not None:
            again["inputResponses"] = responses
        return self.modern(params={**again, **(params or {})}, meta=meta, can=can)

    async def called(self, meta: Params | None = None, can: Params = EVERYTHING) -> Asked:
        """A modern client's tool call that has reached the server."""
        before = len(self.calls)
        asked = self.modern(meta=meta, can=can)
        await until(lambda: len(self.calls) > before)
        return asked

    def asks(
        self, question: object = "q-1", method: str = protocol.ELICIT, params: object = FORM
    ) -> None:
        """The handshake server asks amid the last call."""
        assert isinstance(question, int | str)
        self.carrier.says(jsonrpc.make_request(question, method, params), self.asked)

    def finishes(self, result: object = DONE) -> None:
        self.carrier.answers(self.asked, result)

    def heard_by_server(self, question: object) -> list[Frame]:
        """What the server got as answers to a question of its own."""
        return [frame for frame in self.carrier.told() if frame.id == question]

    def nothing_is_left(self) -> bool:
        """Whether every question, call and place is settled; what the gateway listens to stays."""
        links = [carrier.receiver for carrier in self.script.carriers if carrier.is_open]
        return (
            not len(self.front.parking)
            and not len(self.front.underway)
            and not len(self.front.bridge)
            and all(not _open(link) for link in links if isinstance(link, UpstreamConnection))
            and all(not len(session.conversation) for session in self.front.sessions)
        )


def _open(link: UpstreamConnection) -> int:
    own = [each for each in link.conversation.pending_requests if isinstance(each, GatewayCall)]
    return len(link.conversation) - len(own)


@asynccontextmanager
async def bridged(script: Script) -> AsyncGenerator[Bridged]:
    """At the end of a test everything has to be settled, whatever happened in it."""
    async with one_server(script) as front:
        house = Bridged(front, script)
        yield house
        async with asyncio.timeout(10):
            await until(house.nothing_is_left)


def inputs(result: Params) -> dict[str, Params]:
    """What an `input_required` asks, by its keys."""
    assert result["resultType"] == "input_required"
    return msgspec.convert(result["inputRequests"], dict[str, Params])


def inside(found: Params, name: str) -> Params:
    """An object inside an object."""
    return msgspec.convert(found[name], Params)


async def parked(house: Bridged, *questions: str) -> tuple[dict[str, Params], str]:
    """A call that the server asks about; gives what the client was asked, and the state."""
    asked = await house.called()
    for question in questions or ("q-1",):
        house.asks(question)
    result = await asked.result()
    state = result["requestState"]
    assert isinstance(state, str)
    return inputs(result), state


async def question_to(session: Session, asked: Asked) -> Frame:
    """The next request that a handshake client finds on the stream of its call."""
    await until(lambda: asked.outbox.frames)
    frame = jsonrpc.decode_frame(asked.outbox.frames.pop(0))
    assert frame.method is not UNSET
    return frame


def answers(session: Session, question: Frame, result: object) -> None:
    """A handshake client answers."""
    assert question.id is not UNSET
    session.handle_message(jsonrpc.make_result(question.id, result))


def wants(requests: object = None, state: object = None) -> Params:
    """What a modern server says that wants to know something first."""
    found = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
    return {name: each for name, each in found.items() if each is not None}
