"""Servers and sessions of other nodes: remote calls, leases with a fence, session routing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import cast

import msgspec
import pytest

from comity.cluster import streams
from comity.cluster.bus import Lease
from comity.cluster.leases import ServerLocation
from comity.cluster.streams import RemoteCallHeader, StreamReplyWriter
from comity.errors import CUT_OFF, SERVER_NOT_READY, Unavailable
from comity.gateway import remote_servers as room
from comity.gateway.one_server import McpEndpoint, ServerEndpoint
from comity.gateway.pipeline import CallGate
from comity.gateway.remote_servers import (
    FENCE_META_KEY,
    STREAM_SUBJECT,
    FencedTransport,
    PlacedServer,
    RemoteCallHandler,
    RemoteCalls,
    RemoteServer,
    SessionRouter,
    add_fence_token,
    lease_environment,
)
from comity.gateway.subscriptions import ListSubscriptions
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import EntryKind
from comity.mcp.eras import UNKEYED_TASK_IDS
from comity.mcp.jsonrpc import LIMITS, Frame
from comity.mcp.mgp import ServerLifecycleState
from comity.mcp.protocol import UNKNOWN, Era, Stream
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.upstream import TransportFactory, TransportListener, UpstreamTransport
from comity.telemetry.tracing import Headers
from tests.support.carriers import (
    SILENCE,
    Clock,
    Params,
    Script,
    ScriptedCarrier,
    params_of,
    settled,
    until,
)
from tests.support.desks import MODERN, Front, one_server
from tests.support.node_house import OneNode, some_nodes
from tests.support.server_house import options, tools

CALL: Params = {"name": "write", "arguments": {"n": "1"}}


@dataclass
class Scene:
    """A client at `a`, and the server at `b`."""

    a: OneNode
    b: OneNode
    clock: Clock
    owner: Front
    entry: Front
    place: ServerLocation
    relay: RemoteServer

    async def ask(self, outbox: ClientStream, meta: Params) -> Call:
        frame = jsonrpc.make_request(1, protocol.CALL_TOOL, {**CALL, "_meta": meta})
        return await self.entry.desk.handle_modern_request(frame, outbox, ())

    @property
    def server(self) -> UpstreamServer:
        return self.entry.servers.require("srv")


@asynccontextmanager
async def relayed(script: Script) -> AsyncGenerator[Scene]:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b), one_server(script) as owner:
        gate, server = CallGate(owner.catalog), owner.servers.require("srv")
        subscriptions = ListSubscriptions(owner.servers, gate)
        underway = RemoteCalls(clock)
        desk = ServerEndpoint(server, gate, underway, owner.bridge, subscriptions, UNKEYED_TASK_IDS)
        at_owner = RemoteCallHandler(lambda name: desk if name == "srv" else None, LIMITS)
        b.carrying.answer(STREAM_SUBJECT, at_owner.answer)
        place = ServerLocation("srv", 12.0, clock)
        place.set_other_holder(b.id)
        relay = RemoteServer(place, a.carrying)
        entry = Front({})
        here = entry.servers.add("srv", relay, options())
        entry.desk = ServerEndpoint(
            here,
            entry.call_gate,
            entry.underway,
            entry.bridge,
            entry.subscriptions,
            UNKEYED_TASK_IDS,
        )
        try:
            await entry.ready()
            yield Scene(a, b, clock, owner, entry, place, relay)
        finally:
            async with asyncio.timeout(10):
                await entry.sessions.close()
                await entry.servers.stop()


def a_script(**replies: object) -> Script:
    script = Script(starts_process=True)
    script.replies[protocol.LIST_TOOLS] = tools("write")
    script.replies.update({name.replace("_", "/"): said for name, said in replies.items()})
    return script


async def test_it_is_met_listed_and_called_as_if_it_were_here() -> None:
    script = a_script(tools_call={"content": [], "isError": False})
    async with relayed(script) as scene:
        assert scene.server.state is ServerLifecycleState.CONNECTED
        assert scene.entry.catalog.count("srv", EntryKind.TOOL) == 1
        said = await scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL).result()
        assert said["isError"] is False
        asked = params_of(script.last.asked(protocol.CALL_TOOL)[-1])
        assert (asked["name"], asked["arguments"]) == ("write", {"n": "1"})
        session = await scene.entry.client()
        assert (await scene.entry.ask(session, protocol.CALL_TOOL, CALL).result())[
            "isError"
        ] is False
        assert len(script.last.asked(protocol.CALL_TOOL)) == 2


async def test_what_only_comity_may_write_is_removed_at_the_node_of_the_server() -> None:
    forged = {"dev.comity/refusal": {"evil": True}, "mine": 1}
    script = a_script(tools_call={"content": [], "isError": False, "_meta": forged})
    async with relayed(script) as scene:
        said = await scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL).result()
        meta = msgspec.convert(said["_meta"], Params)
        assert meta["mine"] == 1
        assert not any(key.startswith("dev.comity/") for key in meta)
        # What that node says itself comes through.
        await scene.owner.servers.stop_server("srv")
        refusal = await scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL).refusal()
        assert refusal["error_type"] == "server_stopped"


async def test_progress_comes_while_it_runs_and_a_withdrawal_goes_to_the_server() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        outbox = ClientStream()
        call = await scene.ask(outbox, {**MODERN, "progressToken": "mine"})
        frame = await sent_call(script)
        token = msgspec.convert(params_of(frame)["_meta"], Params)["progressToken"]
        told = {"progressToken": token, "progress": 1}
        script.last.says(jsonrpc.make_notification(protocol.PROGRESS, told), frame)
        await until(lambda: outbox.frames)
        (progress,) = outbox.take()
        assert params_of(jsonrpc.decode_frame(progress)) == {"progressToken": "mine", "progress": 1}
        call.withdraw(None)
        await until(lambda: script.last.asked(protocol.CANCELLED))
        # What is left is the ear for new tools.
        await until(lambda: len(scene.a.carrying) == len(scene.b.carrying) == 1)


async def sent_call(script: Script) -> Frame:
    await until(lambda: script.last.asked(protocol.CALL_TOOL))
    return script.last.asked(protocol.CALL_TOOL)[-1]


async def test_new_tools_of_the_server_are_known_here() -> None:
    script = a_script()
    async with relayed(script) as scene:
        script.replies[protocol.LIST_TOOLS] = tools("write", "more")
        script.last.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        async with asyncio.timeout(10):
            while scene.entry.catalog.count("srv", EntryKind.TOOL) < 2:
                await asyncio.sleep(0.01)


async def test_a_server_that_cannot_be_used_there_is_refused_here_in_the_same_words() -> None:
    script = a_script()
    async with relayed(script) as scene:
        await scene.owner.servers.stop_server("srv")
        refusal = await scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL).refusal()
        assert refusal["error_type"] == "server_stopped"
        assert script.last.asked(protocol.CALL_TOOL) == []


async def test_nothing_is_asked_of_a_node_that_does_not_run_it() -> None:
    async with relayed(a_script()) as scene:
        head = RemoteCallHeader("other", (), "", "nonsense", "", (), None, ())
        answers = await scene.a.carrying.open(
            scene.b.id, STREAM_SUBJECT, streams.encode_message(head), b"{}"
        )
        with pytest.raises(Unavailable, match="does not run") as refused:
            await anext(answers)
        assert refused.value.fault is SERVER_NOT_READY


async def test_of_a_call_whose_node_died_nobody_knows_and_it_is_not_made_again() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        asked = scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL)
        await sent_call(script)
        scene.clock.passes(6 * 3600)
        scene.a.peers.look()
        refusal = await asked.refusal()
        assert refusal["error_type"] == CUT_OFF.error_type
        assert refusal["retryable"] is False
        await settled()
        assert len(script.last.asked(protocol.CALL_TOOL)) == 1


async def test_a_call_that_could_not_be_sent_is_worth_another_try() -> None:
    script = a_script(tools_call=SILENCE)
    async with relayed(script) as scene:
        scene.a.bus.cut_off()
        refusal = await scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL).refusal()
        assert (refusal["error_type"], refusal["retryable"]) == (CUT_OFF.error_type, True)
        assert "retry_after_ms" in refusal
        assert script.last.asked(protocol.CALL_TOOL) == []


async def test_when_it_moves_its_link_ends_and_nothing_is_sent_to_where_it_was() -> None:
    async with relayed(a_script(tools_call=SILENCE)) as scene:
        asked = scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL)
        await until(lambda: len(scene.b.carrying) > 1)
        scene.place.set_other_holder("c-1")
        refused = scene.entry.handle_modern_request(protocol.CALL_TOOL, CALL)
        assert (await refused.refusal())["retryable"] is True
        scene.relay.close_all()
        assert "moved" in str((await asked.refusal())["reason"])
        assert scene.relay.transports == set()
        await until(lambda: scene.server.state is not ServerLifecycleState.CONNECTED)


async def test_a_server_that_nobody_runs_is_said_to_be_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_NODE_WAIT_SECONDS", 0.01)
    async with some_nodes("a") as (a,):
        relay = RemoteServer(ServerLocation("srv", 12.0, Clock()), a.carrying)
        for era in (Era.MODERN, Era.HANDSHAKE):
            carrier = relay.create_transport(era)
            with pytest.raises(Unavailable, match="no node that can be reached runs"):
                await carrier.open(Deaf())
            with pytest.raises(Unavailable):
                carrier.send(jsonrpc.make_request(1, protocol.PING), 1)
            carrier.send(jsonrpc.make_notification(protocol.CANCELLED), 1)
            assert (carrier.stderr_lines(), carrier.has_exited_cleanly) == ((), False)


class Deaf:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        self.said.append((data, stream, status))
        return True

    def on_stream_opened(self, stream: Stream) -> None:
        self.said.append("opened")

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        self.said.append(because)

    def on_stream_suspended(self, stream: Stream) -> None: ...

    def is_for_caller(self, stream: Stream) -> bool:
        return True

    def is_awaited(self, stream: Stream) -> bool:
        return True

    def on_session_renewed(self) -> None: ...

    def on_failure(self, reason: str, is_in_call: bool) -> None: ...

    def on_closed(self, reason: str) -> None:
        self.said.append(reason)


async def test_a_slow_reader_stops_the_stream_and_nonsense_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        for said in (b"s", b"what is this", b"m200{}", b"m503{}"):
            await reply.send(said)

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer(STREAM_SUBJECT, answer)
        place, receiver = ServerLocation("srv", 12.0, Clock()), Deaf()
        place.set_other_holder(b.id)
        carrier = RemoteServer(place, a.carrying).create_transport(Era.MODERN)
        await carrier.open(receiver)
        carrier.pause(1)
        carrier.send(jsonrpc.make_request(1, protocol.PING), 1)
        await settled()
        assert receiver.said == ["opened"]
        carrier.resume(1)
        await until(lambda: len(receiver.said) == 4)
        assert receiver.said == ["opened", (b"{}", 1, 200), (b"{}", 1, 503), None]
        assert "has a different definition" in caplog.text
        await carrier.close()


async def test_who_asks_is_told_to_the_node_that_runs_it() -> None:
    """So that what waits there for somebody's answer is found by nobody else. (attack 7)"""
    heads: list[RemoteCallHeader] = []
    script = a_script(tools_call={"content": [], "isError": False})
    async with relayed(script) as scene:

        async def answer(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
            heads.append(streams.relay_head(head))
            raise Unavailable("not now", SERVER_NOT_READY)

        scene.b.carrying.answer(STREAM_SUBJECT, answer)
        outbox = ClientStream()
        outbox.actor = Actor("agent:ci")
        await scene.ask(outbox, MODERN)
        await outbox.wait_until_final()
    assert (heads[0].party, heads[0].kind, heads[0].server) == ("agent:ci", "agent", "srv")


class Listener:
    """An endpoint that notes who calls."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        self.actors.append(client_stream.actor)
        raise Unavailable("not now", SERVER_NOT_READY)


async def test_the_account_of_a_call_is_chosen_there_as_it_would_be_here() -> None:
    actor = Actor(
        "agent:ci",
        permissions=(("accounts/use", "srv/*"), ("tools/call", "srv/write")),
        excluded=("admin/",),
        groups=("deployers", "nightly"),
    )
    listener = Listener()
    async with relayed(a_script()) as scene:
        handler = RemoteCallHandler(lambda _: cast("McpEndpoint", listener), LIMITS)
        scene.b.carrying.answer(STREAM_SUBJECT, handler.answer)
        outbox = ClientStream()
        outbox.actor = actor
        await scene.ask(outbox, MODERN)
        await outbox.wait_until_final()
    assert listener.actors[0].authority == actor.authority


# Servers that run here by a lease.


LIFETIME = 12.0
LEASE = Lease("server.files", "a-1", 7)


@dataclass
class Heard:
    """A receiver, of which only the end matters here."""

    ends: list[str] = field(default_factory=list[str])

    def on_closed(self, reason: str) -> None:
        self.ends.append(reason)


@dataclass
class PlacedScene:
    clock: Clock = field(default_factory=Clock)
    script: Script = field(default_factory=lambda: Script(starts_process=True))
    heard: Heard = field(default_factory=Heard)

    def __post_init__(self) -> None:
        self.place = ServerLocation("files", LIFETIME, self.clock)
        self.there = Script(modern=True)
        self.leases: list[Lease] = []
        eras = frozenset({Era.HANDSHAKE})
        self.placed = PlacedServer(self.place, eras, self.here, self.there)

    def here(self, lease: Lease) -> TransportFactory:
        self.leases.append(lease)
        return self.script

    @property
    def receiver(self) -> TransportListener:
        return cast("TransportListener", self.heard)

    async def opened(self) -> UpstreamTransport:
        carrier = self.placed.create_transport(Era.HANDSHAKE)
        await carrier.open(self.receiver)
        return carrier


def test_it_is_a_process_only_where_this_node_holds_the_lease() -> None:
    scene = PlacedScene()
    assert not scene.placed.starts_process
    assert isinstance(scene.placed.create_transport(Era.MODERN), ScriptedCarrier)
    assert len(scene.there.carriers) == 1
    scene.place.set_held(LEASE, scene.clock())
    assert scene.placed.starts_process
    assert isinstance(scene.placed.create_transport(Era.HANDSHAKE), FencedTransport)
    assert scene.leases == [LEASE]
    assert lease_environment(LEASE) == {"COMITY_FENCE": "7", "COMITY_NODE": "a-1"}


async def test_each_call_carries_the_fence_whatever_its_client_says() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    params = {"name": "write", "_meta": {FENCE_META_KEY: 999, "progressToken": 1}}
    carrier.send(jsonrpc.make_request(1, protocol.CALL_TOOL, params), UNKNOWN)
    carrier.send(jsonrpc.make_request(2, protocol.LIST_TOOLS, {}), UNKNOWN)
    call, listing = (sent.frame for sent in scene.script.last.sent)
    assert params_of(call) == {"name": "write", "_meta": {FENCE_META_KEY: 7, "progressToken": 1}}
    assert params_of(listing) == {}
    bare = add_fence_token(jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "x"}), 8)
    assert params_of(bare) == {"name": "x", "_meta": {FENCE_META_KEY: 8}}


async def test_a_gateway_that_stood_still_finds_out_before_it_speaks() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.clock.passes(LIFETIME / 2)
    with pytest.raises(Unavailable) as refused:
        carrier.send(jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "write"}), UNKNOWN)
    assert refused.value.fault is SERVER_NOT_READY
    assert scene.script.last.sent == []
    with pytest.raises(Unavailable):
        await scene.placed.create_transport(Era.HANDSHAKE).open(scene.receiver)
    assert len(scene.script.open) == 1


async def test_a_process_of_a_lease_of_before_is_told_nothing_by_a_later_one() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.place.set_held(LEASE._replace(token=9), scene.clock())
    with pytest.raises(Unavailable):
        carrier.send(jsonrpc.make_request(1, protocol.PING), UNKNOWN)


async def test_it_is_spoken_to_only_in_the_eras_that_its_operator_wants() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    with pytest.raises(Unavailable, match="MCP version"):
        await scene.placed.create_transport(Era.MODERN).open(scene.receiver)
    assert scene.script.open == []


async def test_when_the_lease_is_lost_all_that_runs_here_is_ended() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    for _ in range(2):
        await scene.opened()
    scene.place.set_other_holder(None)
    async with asyncio.timeout(10):
        await scene.placed.stop_local()
    assert scene.script.open == []
    assert len(scene.heard.ends) == 2
    assert "may no longer run" in scene.heard.ends[0]


async def test_one_that_does_not_go_is_killed_before_the_lease_is_over() -> None:
    scene, was_killed = PlacedScene(), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_killed.set()

    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.script.last.close = hang
    waiting = asyncio.ensure_future(carrier.close())
    await settled()
    assert not waiting.done()
    scene.clock.passes(LIFETIME * 0.75)
    async with asyncio.timeout(10):
        await scene.placed.stop_local()
    await until(was_killed.is_set)
    # Whoever else waits for its end is not taken for cancelled.
    await waiting


async def test_who_hurries_has_it_killed() -> None:
    scene, was_killed = PlacedScene(), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_killed.set()

    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.script.last.close = hang
    waiting = asyncio.ensure_future(carrier.close())
    await settled()
    waiting.cancel()
    await until(was_killed.is_set)
    assert carrier.stderr_lines() == ("last words",)
    assert not carrier.has_exited_cleanly
    assert not carrier.has_separate_streams


async def test_all_else_is_the_carriers_own() -> None:
    scene = PlacedScene()
    scene.place.set_held(LEASE, scene.clock())
    carrier = await scene.opened()
    carrier.set_version("2025-11-25")
    carrier.listen()
    carrier.pause(1)
    carrier.resume(1)
    carrier.drop_stream(1)
    inner = scene.script.last
    assert (inner.versions, inner.listens) == (["2025-11-25"], 1)
    assert (inner.paused, inner.abandoned) == ([(True, 1), (False, 1)], [1])


# Session routing.


HOUR = 3600.0


def homes_of(node: OneNode) -> SessionRouter:
    return SessionRouter(node.peers, node.carrying)


async def test_a_session_is_at_the_node_that_named_it() -> None:
    async with some_nodes("a", "b") as (a, b):
        homes, session = homes_of(a), b.peers.me.session_id(token_bytes(16))
        assert homes.node_of(session) == b.id
        assert homes.node_of(a.peers.me.session_id(token_bytes(16))) is None
        assert homes.node_of("anything else") is None
        assert homes_of(b).node_of(session) is None


async def test_a_session_of_a_dead_node_is_nowhere() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        session = b.peers.me.session_id(token_bytes(16))
        clock.passes(6 * HOUR)
        a.peers.look()
        assert homes_of(a).node_of(session) is None


async def test_who_cannot_know_where_a_session_is_says_to_come_back() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        unknown = b.peers.me.session_id(token_bytes(16)).replace(b.peers.me.epoch, "f" * 16)
        with pytest.raises(Unavailable) as refused:
            homes_of(a).node_of(unknown)
        assert refused.value.fault is CUT_OFF
        clock.passes(3 * HOUR)
        assert homes_of(a).node_of(unknown) is None
        a.bus.cut_off()
        clock.passes(9 * HOUR)
        with pytest.raises(Unavailable):
            homes_of(a).node_of(unknown)
        # Of one that was there it is known; only nothing can be said to it.
        assert homes_of(a).node_of(b.peers.me.session_id(token_bytes(16))) == b.id


async def test_a_request_is_answered_at_home() -> None:
    async def answer(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        await reply.send(head + body)

    async with some_nodes("a", "b") as (a, b):
        homes_of(b).set_handler(answer)
        answers = await homes_of(a).forward_request(b.id, b"head ", b"body")
        assert [piece async for piece in answers] == [b"head body"]
        await settled()
