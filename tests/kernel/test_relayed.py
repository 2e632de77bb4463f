"""A server that another node runs: called from here as if it were here, and once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from comity.kernel import relayed as room
from comity.kernel.call import Call
from comity.kernel.carrying import Reply
from comity.kernel.catalog import Kind
from comity.kernel.forwarding import OneServer
from comity.kernel.gate import Gate
from comity.kernel.leasing import Place
from comity.kernel.outbox import Outbox
from comity.kernel.relayed import WHAT, AtOwner, CarriedUnderway, Relay
from comity.kernel.servers import Server
from comity.kernel.subscribing import Subscriptions
from comity.wire import carried, jsonrpc, mcp
from comity.wire.carried import RelayHead
from comity.wire.errors import CUT_OFF, SERVER_NOT_READY, Unavailable
from comity.wire.jsonrpc import LIMITS, Frame
from comity.wire.lifecycle import State
from comity.wire.mcp import Era, Stream
from comity.wire.parties import Actor
from tests.kernel.carriers import SILENCE, Clock, Params, Script, params_of, settled, until
from tests.kernel.desks import MODERN, Front, one_server
from tests.kernel.node_house import OneNode, some_nodes
from tests.kernel.server_house import options, tools

CALL: Params = {"name": "write", "arguments": {"n": "1"}}


@dataclass
class Scene:
    """A client at `a`, and the server at `b`."""

    a: OneNode
    b: OneNode
    clock: Clock
    owner: Front
    entry: Front
    place: Place
    relay: Relay

    async def ask(self, outbox: Outbox, meta: Params) -> Call:
        frame = jsonrpc.request(1, mcp.CALL_TOOL, {**CALL, "_meta": meta})
        return await self.entry.desk.ask_modern(frame, outbox, ())

    @property
    def server(self) -> Server:
        return self.entry.servers.need("srv")


@asynccontextmanager
async def relayed(script: Script) -> AsyncGenerator[Scene]:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b), one_server(script) as owner:
        gate, server = Gate(owner.catalog), owner.servers.need("srv")
        subscriptions = Subscriptions(owner.servers, gate)
        underway = CarriedUnderway(clock)
        desk = OneServer(server, gate, underway, owner.bridge, subscriptions)
        at_owner = AtOwner(lambda name: desk if name == "srv" else None, LIMITS)
        b.carrying.answer(WHAT, at_owner.answer)
        place = Place("srv", 12.0, clock)
        place.is_held_by(b.id)
        relay = Relay(place, a.carrying)
        entry = Front({})
        here = entry.servers.add("srv", relay, options())
        entry.desk = OneServer(here, entry.gate, entry.underway, entry.bridge, entry.subscriptions)
        try:
            await entry.ready()
            yield Scene(a, b, clock, owner, entry, place, relay)
        finally:
            async with asyncio.timeout(10):
                await entry.sessions.close()
                await entry.servers.stop()


def a_script(**replies: object) -> Script:
    script = Script(costs_a_process=True)
    script.replies[mcp.LIST_TOOLS] = tools("write")
    script.replies.update({name.replace("_", "/"): said for name, said in replies.items()})
    return script


async def test_it_is_met_listed_and_called_as_if_it_were_here() -> None:
    script = a_script(tools_call={"content": [], "isError": False})
    async with relayed(script) as scene:
        assert scene.server.state is State.CONNECTED
        assert scene.entry.catalog.count("srv", Kind.TOOL) == 1
        said = await scene.entry.ask_modern(mcp.CALL_TOOL, CALL).result()
        assert said["isError"] is False
        asked = params_of(script.last.asked(mcp.CALL_TOOL)[-1])
        assert (asked["name"], asked["arguments"]) == ("write", {"n": "1"})
        session = await scene.entry.client()
        assert (await scene.entry.ask(session, mcp.CALL_TOOL, CALL).result())["isError"] is False
        assert len(script.last.asked(mcp.CALL_TOOL)) == 2


async def test_progress_comes_while_it_runs_and_a_withdrawal_goes_to_the_server() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        outbox = Outbox()
        call = await scene.ask(outbox, {**MODERN, "progressToken": "mine"})
        frame = await sent_call(script)
        token = msgspec.convert(params_of(frame)["_meta"], Params)["progressToken"]
        told = {"progressToken": token, "progress": 1}
        script.last.says(jsonrpc.notification(mcp.PROGRESS, told), frame)
        await until(lambda: outbox.frames)
        (progress,) = outbox.take()
        assert params_of(jsonrpc.decode(progress)) == {"progressToken": "mine", "progress": 1}
        call.withdraw(None)
        await until(lambda: script.last.asked(mcp.CANCELLED))
        # What is left is the ear for new tools.
        await until(lambda: len(scene.a.carrying) == len(scene.b.carrying) == 1)


async def sent_call(script: Script) -> Frame:
    await until(lambda: script.last.asked(mcp.CALL_TOOL))
    return script.last.asked(mcp.CALL_TOOL)[-1]


async def test_new_tools_of_the_server_are_known_here() -> None:
    script = a_script()
    async with relayed(script) as scene:
        script.replies[mcp.LIST_TOOLS] = tools("write", "more")
        script.last.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        async with asyncio.timeout(10):
            while scene.entry.catalog.count("srv", Kind.TOOL) < 2:
                await asyncio.sleep(0.01)


async def test_a_server_that_cannot_be_used_there_is_refused_here_in_the_same_words() -> None:
    script = a_script()
    async with relayed(script) as scene:
        await scene.owner.servers.halt("srv")
        refusal = await scene.entry.ask_modern(mcp.CALL_TOOL, CALL).refusal()
        assert refusal["error_type"] == "server_stopped"
        assert script.last.asked(mcp.CALL_TOOL) == []


async def test_nothing_is_asked_of_a_node_that_does_not_run_it() -> None:
    async with relayed(a_script()) as scene:
        head = RelayHead("other", (), "", "nonsense")
        answers = await scene.a.carrying.open(scene.b.id, WHAT, carried.encode(head), b"{}")
        with pytest.raises(Unavailable, match="does not run") as refused:
            await anext(answers)
        assert refused.value.fault is SERVER_NOT_READY


async def test_of_a_call_whose_node_died_nobody_knows_and_it_is_not_made_again() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        asked = scene.entry.ask_modern(mcp.CALL_TOOL, CALL)
        await sent_call(script)
        scene.clock.passes(6 * 3600)
        scene.a.peers.look()
        refusal = await asked.refusal()
        assert refusal["error_type"] == CUT_OFF.error_type
        assert refusal["retryable"] is False
        await settled()
        assert len(script.last.asked(mcp.CALL_TOOL)) == 1


async def test_a_call_that_could_not_be_sent_is_worth_another_try() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        scene.a.bus.cut_off()
        refusal = await scene.entry.ask_modern(mcp.CALL_TOOL, CALL).refusal()
        assert (refusal["error_type"], refusal["retryable"]) == (CUT_OFF.error_type, True)
        assert "retry_after_ms" in refusal
        assert script.last.asked(mcp.CALL_TOOL) == []


async def test_when_it_moves_its_link_ends_and_nothing_is_sent_to_where_it_was() -> None:
    async with relayed(a_script(tools_call=SILENCE)) as scene:
        asked = scene.entry.ask_modern(mcp.CALL_TOOL, CALL)
        await until(lambda: len(scene.b.carrying) > 1)
        scene.place.is_held_by("c-1")
        refused = scene.entry.ask_modern(mcp.CALL_TOOL, CALL)
        assert (await refused.refusal())["retryable"] is True
        scene.relay.end()
        assert "moved" in str((await asked.refusal())["reason"])
        assert scene.relay.links == set()
        await until(lambda: scene.server.state is not State.CONNECTED)


async def test_a_server_that_nobody_runs_is_said_to_be_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_PARK_SECONDS", 0.01)
    async with some_nodes("a") as (a,):
        relay = Relay(Place("srv", 12.0, Clock()), a.carrying)
        for era in (Era.MODERN, Era.HANDSHAKE):
            carrier = relay.carrier(era)
            with pytest.raises(Unavailable, match="no node that can be reached runs"):
                await carrier.open(Deaf())
            with pytest.raises(Unavailable):
                carrier.send(jsonrpc.request(1, mcp.PING), 1)
            carrier.send(jsonrpc.notification(mcp.CANCELLED), 1)
            assert (carrier.hints(), carrier.ended_well) == ((), False)


class Deaf:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def heard(self, data: bytes, stream: Stream, status: int) -> bool:
        self.said.append((data, stream, status))
        return True

    def stream_opened(self, stream: Stream) -> None:
        self.said.append("opened")

    def stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        self.said.append(because)

    def stream_suspended(self, stream: Stream) -> None: ...

    def awaits(self, stream: Stream) -> bool:
        return True

    def renewed(self) -> None: ...

    def faltered(self, because: str, in_a_call: bool) -> None: ...

    def closed(self, because: str) -> None:
        self.said.append(because)


async def test_a_slow_reader_stops_the_stream_and_nonsense_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(head: bytes, body: bytes, reply: Reply) -> None:
        for said in (b"s", b"what is this", b"m200{}", b"m503{}"):
            await reply.send(said)

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer(WHAT, answer)
        place, receiver = Place("srv", 12.0, Clock()), Deaf()
        place.is_held_by(b.id)
        carrier = Relay(place, a.carrying).carrier(Era.MODERN)
        await carrier.open(receiver)
        carrier.pause(1)
        carrier.send(jsonrpc.request(1, mcp.PING), 1)
        await settled()
        assert receiver.said == ["opened"]
        carrier.resume(1)
        await until(lambda: len(receiver.said) == 4)
        assert receiver.said == ["opened", (b"{}", 1, 200), (b"{}", 1, 503), None]
        assert "says something else" in caplog.text
        await carrier.close()


async def test_who_asks_is_told_to_the_node_that_runs_it() -> None:
    """So that what waits there for somebody's answer is found by nobody else. (attack 7)"""
    heads: list[RelayHead] = []
    script = a_script(tools_call={"content": [], "isError": False})
    async with relayed(script) as scene:

        async def answer(head: bytes, body: bytes, reply: Reply) -> None:
            heads.append(carried.relay_head(head))
            raise Unavailable("not now", SERVER_NOT_READY)

        scene.b.carrying.answer(WHAT, answer)
        outbox = Outbox()
        outbox.actor = Actor("agent:ci")
        await scene.ask(outbox, MODERN)
        await outbox.until_final()
    assert (heads[0].party, heads[0].kind, heads[0].server) == ("agent:ci", "agent", "srv")
