"""The event stream of the console, and the samples of the traffic, also across nodes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from comity.approvals.call_results import ApprovedCallResult, CallResults
from comity.cluster.in_process import MemoryBus, MemoryBusHub
from comity.console import samples
from comity.console.cluster import ConsoleBus
from comity.console.samples import (
    BUCKETS,
    SAMPLE_SECONDS,
    TrafficSample,
    TrafficSampler,
    percentile_ms,
    sample_view,
)
from comity.console.stream import ChangeHint, HintBuffer, HintStream, HintTopic
from comity.errors import ACCESS_DENIED, PENDING_APPROVAL, TOOL_DISABLED
from comity.http import event_stream
from comity.mcp.framing import SseParser
from comity.policy.grants import Effect, Grant
from comity.telemetry.metrics import CallMetrics
from comity.telemetry.outcomes import OutcomeClass
from tests.conformance.governed import ADMIN, Guest
from tests.support.credentials import bearer
from tests.support.inbox_scene import ANA, BEN, Scene, an_inbox
from tests.support.noted import NOON
from tests.support.visitor import SECONDS, Reply

TOOL_PARAMS: Any = b'{"name":"write"}'
RESULT = ApprovedCallResult("ask", OutcomeClass.DONE, "refunded 40 EUR", NOON, 300)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        yield scene


class Watching:
    """One stream, read hint by hint."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._parser = SseParser()
        self._events: list[tuple[str, Any]] = []

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(SECONDS):
            while not self._events:
                piece = await self.reply._chunk()  # pyright: ignore[reportPrivateUsage]
                if not piece:
                    raise EOFError
                found = self._parser.feed(piece)
                self._events += [(each.event, json.loads(each.data)) for each in found if each.data]
        return self._events.pop(0)

    async def until(self, topic: str, **fields: object) -> Any:
        """The first hint of that topic with these fields."""
        while True:
            _, said = await self.next()
            if said.get("topic") == topic and fields.items() <= said.items():
                return said


async def watch(scene: Scene, guest: Guest) -> Watching:
    headers = {"accept": "text/event-stream", **bearer(guest.key)}
    reply = await scene.governed.visitor.send("GET", headers.items(), path="/api/stream")
    assert (reply.status, reply.is_stream) == (200, True)
    return Watching(reply)


def stream_of(scene: Scene) -> HintStream:
    return scene.governed.visitor.parts.console.stream


async def test_a_reader_with_admin_read_hears_of_every_change(scene: Scene) -> None:
    watching = await watch(scene, scene.person(ADMIN))
    request = await scene.ask()
    assert await watching.until("approvals", id=request.id) == {
        "topic": "approvals",
        "id": request.id,
    }
    await watching.until("audit")
    await scene.governed.grant(Grant(BEN, "tools/call", "files/read", Effect.ALLOW))
    assert (await watching.until("grants"))["topic"] == "grants"


async def test_an_approver_hears_only_of_requests_that_it_may_see(scene: Scene) -> None:
    watching = await watch(scene, scene.person(ANA))
    await scene.ask(1, server="mail", tool="send")
    seen = await scene.ask(2)
    assert await watching.next() == ("message", {"topic": "approvals", "id": seen.id})


async def test_a_stream_ends_with_the_credentials_of_its_reader(scene: Scene) -> None:
    ana = scene.person()
    watching = await watch(scene, ana)
    scene.governed.given_out.revoke(ana.key)
    event, said = await watching.next()
    assert event == "end"
    assert ana.key not in str(said)
    with pytest.raises(EOFError):
        await watching.next()


async def test_a_reader_that_leaves_is_forgotten(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    assert len(stream_of(scene)) == 1
    watching.reply.leave()
    async with asyncio.timeout(SECONDS):
        while len(stream_of(scene)):
            await asyncio.sleep(0.01)


async def test_streams_end_with_the_gateway_and_a_new_one_is_refused(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    scene.governed.visitor.parts.end_streams()
    with pytest.raises(EOFError):
        await watching.until("nothing more")
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path="/api/stream")
    assert reply.status == 503


async def test_a_quiet_stream_sends_comments(scene: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(event_stream, "CHECK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "CHECKS_PER_KEEP_ALIVE", 2)
    watching = await watch(scene, scene.person())
    async with asyncio.timeout(SECONDS):
        while not (await watching.reply._chunk()).startswith(b": still here"):  # pyright: ignore[reportPrivateUsage]
            pass


async def test_a_principal_has_a_limited_number_of_streams(scene: Scene) -> None:
    sessions = scene.governed.visitor.parts.sessions
    sessions.streams.limit = 1
    await watch(scene, scene.person())
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path="/api/stream")
    assert reply.status == 503


def test_a_buffer_holds_one_hint_for_each_record_and_one_for_a_topic_with_too_many() -> None:
    buffer = HintBuffer(2)
    for id in ("a", "a", "b"):
        buffer.add(ChangeHint(HintTopic.SERVERS, id))
    assert [hint.id for hint in buffer.take()] == ["a", "b"]
    for id in ("a", "b", "c", "d"):
        buffer.add(ChangeHint(HintTopic.SERVERS, id))
    assert buffer.take() == [ChangeHint(HintTopic.SERVERS)]
    assert buffer.take() == []


def make_sampler(node: str, metrics: CallMetrics) -> TrafficSampler:
    return TrafficSampler(node, lambda: metrics, lambda: 3, lambda: (0, 0))


async def test_a_sample_counts_how_calls_ended_since_the_one_before() -> None:
    metrics = CallMetrics(lambda server, tool: True)
    sampler = make_sampler("a", metrics)
    metrics.at("files").add("tools/call", TOOL_PARAMS, "write", "ok", 0.004)
    await sampler.take(SAMPLE_SECONDS)
    for fault in ("ok", "tool_error", ACCESS_DENIED, PENDING_APPROVAL, TOOL_DISABLED):
        outcome = fault if isinstance(fault, str) else fault.error_type
        metrics.at("files").add("tools/call", TOOL_PARAMS, "write", outcome, 0.004)
    taken = await sampler.take(2 * SAMPLE_SECONDS)
    view = sample_view([taken])
    assert (view["calls"], view["waiting"]) == (5, 3)
    # A call that waits for a person is not denied, and neither is one that nobody can make.
    assert {name: count for name, count in view["outcomes"].items() if count} == {
        "done": 1,
        "failed": 1,
        "denied": 1,
        "waiting": 1,
        "withheld": 1,
    }
    assert view["p50_ms"] is not None
    assert 2.5 <= view["p50_ms"] <= 5


async def test_a_sample_of_another_version_is_dropped() -> None:
    sampler = make_sampler("a", CallMetrics(lambda server, tool: True))
    sampler.keep(TrafficSample("other", SAMPLE_SECONDS, buckets=(0,) * (BUCKETS + 1)))
    sampler.keep(TrafficSample("newer", SAMPLE_SECONDS, outcomes=(0,)))
    sampler.keep(TrafficSample("b", SAMPLE_SECONDS))
    await sampler.take(SAMPLE_SECONDS)
    assert set(sampler.latest()) == {"a", "b"}
    assert sampler.sum_at(SAMPLE_SECONDS)["waiting"] == 3


async def test_a_sample_that_fails_does_not_end_the_sampler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samples, "SAMPLE_SECONDS", 0.01)
    sampler = make_sampler("a", CallMetrics(lambda server, tool: True))
    taken = asyncio.Queue[TrafficSample]()

    def fail_once(sample: TrafficSample) -> None:
        taken.put_nowait(sample)
        if taken.qsize() == 1:
            raise IndexError("a bug")

    sampler.watchers.append(fail_once)
    running = asyncio.ensure_future(sampler.run())
    async with asyncio.timeout(SECONDS):
        while taken.qsize() < 2:
            await asyncio.sleep(0.01)
    running.cancel()
    assert "A sample of the traffic failed" in caplog.text


def test_a_percentile_lies_in_the_bucket_of_its_call() -> None:
    assert percentile_ms([0] * BUCKETS, 0.5) is None
    assert percentile_ms([1, *[0] * (BUCKETS - 2), 1], 0.95) == 300_000.0


async def test_every_node_answers_with_the_sum_and_hears_the_hints_of_the_others() -> None:
    network = MemoryBusHub()
    heard: list[ChangeHint] = []
    samplers = [make_sampler(name, CallMetrics()) for name in ("a", "b")]
    buses: list[ConsoleBus] = []
    results = [CallResults(lambda: NOON) for _ in samplers]
    for sampler, kept in zip(samplers, results, strict=True):
        bus = MemoryBus(network)
        await bus.open()
        stream: Any = SimpleNamespace(publish=heard.append)
        buses.append(ConsoleBus(bus, "test", stream, sampler, kept))
    async with buses[0].running(), buses[1].running(), asyncio.timeout(SECONDS):
        samplers[0].watchers[-1](TrafficSample("a", 5, calls=4))
        samplers[0].keep(TrafficSample("a", 5, calls=4))
        samplers[1].keep(TrafficSample("b", 5, calls=1))
        buses[0].on_hint(ChangeHint(HintTopic.SERVERS, "files"))
        buses[0].on_hint(ChangeHint(HintTopic.GRANTS, "sent by the store"))
        results[0].add(RESULT)
        while not heard or not results[1].get("ask") or samplers[1].sum_at(5)["calls"] != 5:
            await asyncio.sleep(0)
        assert heard == [ChangeHint(HintTopic.SERVERS, "files")]
        assert [each["calls"] for each in samplers[1].series(6)] == [5]
        assert results[1].get("ask") == RESULT


async def test_the_overview_counts_open_requests_and_servers(scene: Scene) -> None:
    await scene.ask()
    status, view = await scene.person(ADMIN).http("GET", "/api/overview")
    assert status == 200
    assert view["open_approvals"] == 1
    assert sum(view["servers"].values()) == len(scene.governed.visitor.parts.servers)
