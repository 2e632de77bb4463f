"""Two and three real gateways on NATS and PostgreSQL: one owner, any door, and what a cut costs."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from comity.mcp.framing import SseParser
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.cluster.nodes import (
    SECONDS,
    Cable,
    Node,
    Notes,
    Session,
    Setting,
    a_cable,
    call,
    called,
    modern,
    some_nodes,
    until,
)
from tests.cluster.postgres import Postgres

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def setting(
    nats: NatsCluster, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Setting:
    return Setting(tmp_path_factory.mktemp("nodes"), nats.urls, postgres.url)


@pytest.fixture(scope="module")
def nodes(setting: Setting) -> Generator[list[Node]]:
    with some_nodes(setting, "a", "b", "c") as started:
        yield started


@pytest.fixture
def notes(setting: Setting) -> Notes:
    return Notes(setting.notes)


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


def others(nodes: list[Node], notes: Notes) -> list[Node]:
    """Those that reach the server through the one that runs it."""
    return [node for node in nodes if node.name != notes.runs_at]


async def test_a_server_that_runs_once_is_called_through_each_node(
    nodes: list[Node], notes: Notes, http: aiohttp.ClientSession
) -> None:
    for node in nodes:
        said = await called(http, node.origin, "fenced__write", node.name)
        (ran,) = [each for each in notes.of("call") if each["n"] == node.name]
        assert said == f"{ran['node']} {ran['fence']} did {node.name}"
        assert ran["told"] == ran["fence"] > 0
    notes.show_one_owner_at_every_moment()


async def test_progress_cancellation_and_new_tools_come_through_other_nodes(
    nodes: list[Node], notes: Notes, http: aiohttp.ClientSession
) -> None:
    there = others(nodes, notes)[0].origin
    meta = {"progressToken": "mine"}
    said = await call(http, there, "fenced__steps", "1", _meta=meta)
    told = [each for each in said.messages if each.get("method") == "notifications/progress"]
    assert [each["params"]["progress"] for each in told] == [0, 1, 2, 3, 4]
    assert {each["params"]["progressToken"] for each in told} == {"mine"}
    assert said.text.endswith("did 1")
    waiting = asyncio.ensure_future(call(http, there, "fenced__wait", "gone"))
    await until(lambda: [each for each in notes.of("call") if each["n"] == "gone"])
    waiting.cancel()
    await until(lambda: [each for each in notes.of("withdrawn") if each["n"] == "gone"])
    await called(http, there, "fenced__learn", "it")

    async def is_listed_everywhere() -> bool:
        lists = [await modern(http, node.origin, "tools/list", {}) for node in nodes]
        return all("fenced__learnt-it" in json.dumps(each.body) for each in lists)

    await until(is_listed_everywhere)


async def test_a_session_is_at_home_at_one_node_and_served_through_all(
    nodes: list[Node], http: aiohttp.ClientSession
) -> None:
    a, b, c = (node.origin for node in nodes)
    session = Session(http)
    await session.begin(a)
    for origin in (a, b, c):
        said = await session.ask(
            origin, "tools/call", name="local__echo", arguments={"message": origin}
        )
        assert said.text == origin
    # A name that another node could have given, and did not.
    forged = Session(http, session.id[:16] + "0" * 32)
    assert (await forged.ask(b, "ping")).status == 404
    async with (
        asyncio.timeout(SECONDS),
        http.get(f"{b}/mcp", headers={**session.headers, "accept": "text/event-stream"}) as stream,
    ):
        assert stream.status == 200
        learning = await session.ask(
            c, "tools/call", name="fenced__learn", arguments={"n": "session"}
        )
        assert learning.text
        parser, heard = SseParser(), ""
        while "notifications/tools/list_changed" not in heard:
            events = parser.feed(await stream.content.readany())
            heard += "".join(each.data.decode() for each in events)
    async with http.delete(f"{c}/mcp", headers=session.headers) as ended:
        assert ended.status == 200
    assert (await session.ask(a, "ping")).status == 404
    assert (await session.ask(b, "ping")).status == 404


async def test_a_nats_server_that_is_killed_costs_no_more_than_a_moment(
    nats: NatsCluster, nodes: list[Node], notes: Notes, http: aiohttp.ClientSession
) -> None:
    session = Session(http)
    await session.begin(nodes[0].origin)
    nats.servers[0].kill()
    try:
        for node in nodes:
            await called(http, node.origin, "fenced__write", f"without one {node.name}")
            await until(lambda node=node: _is_known(session, node))
    finally:
        nats.servers[0].start()
        await nats.ready()
    notes.show_one_owner_at_every_moment()


async def _is_known(session: Session, node: Node) -> bool:
    said = await session.ask(node.origin, "ping")
    assert said.status in (200, 503)
    return said.status == 200


@dataclass
class Callers:
    """Those who write on and on, each at its node, each thing once."""

    http: aiohttp.ClientSession
    done: Counter[str] = field(default_factory=Counter[str])
    refused: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_at(self, node: Node, name: str) -> None:
        for number in itertools.count():
            if self.is_over.is_set():
                return
            n = f"{name}-{number}"
            try:
                said = await call(self.http, node.origin, "fenced__write", n)
            except aiohttp.ClientError:
                return
            if said.text:
                self.done[n] += 1
            else:
                self.refused.append(said.refusal)
            await asyncio.sleep(0.02)

    async def until_done_at(self, nodes: list[Node]) -> None:
        """Until something was written from now on through each of them."""
        known, names = set(self.done), {node.name for node in nodes}
        await until(lambda: {n[0] for n in set(self.done) - known} >= names)


async def test_when_its_node_is_killed_another_runs_it_and_nothing_runs_twice(
    nodes: list[Node], notes: Notes, http: aiohttp.ClientSession
) -> None:
    callers, session = Callers(http), Session(http)
    work = [
        asyncio.ensure_future(callers.write_at(node, f"{node.name}{number}"))
        for node in nodes
        for number in range(2)
    ]
    await callers.until_done_at(nodes)
    victim = next(node for node in nodes if node.name == notes.runs_at)
    alive = [node for node in nodes if node is not victim]
    await session.begin(victim.origin)
    before = len(notes.of("start"))
    victim.kill()
    await until(lambda: len(notes.of("start")) > before)
    latest = notes.of("start")[-1]
    taken = latest["at"] - max(
        each["at"] for each in notes.read() if each["fence"] < latest["fence"]
    )
    await callers.until_done_at(alive)
    callers.is_over.set()
    await asyncio.gather(*work)
    notes.show_one_owner_at_every_moment()
    ran = Counter(each["n"] for each in notes.of("call") if each["tool"] == "write")
    assert max(ran[n] for n in callers.done) == 1
    assert max(ran.values()) == 1
    assert set(callers.done) <= set(ran)
    assert callers.refused
    print(f"it ran again {taken:.1f} s later; {len(callers.refused)} calls were refused meanwhile")
    # The session of the dead is nowhere, so that its client begins anew.
    await until(lambda: _is_unknown(session, alive[0]))


async def _is_unknown(session: Session, node: Node) -> bool:
    said = await session.ask(node.origin, "ping")
    assert said.status in (404, 503)
    return said.status == 404


@asynccontextmanager
async def behind_cables(
    setting: Setting, nats: NatsCluster
) -> AsyncGenerator[tuple[Node, list[Cable]]]:
    """One more node, whose ways to NATS can be cut."""
    async with AsyncExitStack() as stack:
        cables = [await stack.enter_async_context(a_cable(each.port)) for each in nats.servers]
        urls = [f"nats://127.0.0.1:{cable.port}" for cable in cables]
        starting = some_nodes(setting, "d", urls=urls)
        (node,) = await asyncio.to_thread(starting.__enter__)
        stack.push_async_callback(asyncio.to_thread, starting.__exit__, None, None, None)
        yield node, cables


async def ready(
    http: aiohttp.ClientSession, node: Node, query: str = ""
) -> tuple[int, dict[str, object]]:
    async with http.get(f"{node.origin}/ready{query}") as reply:
        return reply.status, await reply.json()


async def test_a_node_that_is_cut_off_says_so_serves_what_is_local_and_heals(
    setting: Setting,
    nats: NatsCluster,
    nodes: list[Node],
    notes: Notes,
    http: aiohttp.ClientSession,
) -> None:
    async with behind_cables(setting, nats) as (node, cables):
        await called(http, node.origin, "fenced__write", "before")
        session = Session(http)
        await session.begin(next(each for each in nodes if each.name == notes.runs_at).origin)
        assert (await session.ask(node.origin, "ping")).status == 200
        for cable in cables:
            cable.cut()

        async def is_cut_off() -> bool:
            return (await ready(http, node))[0] == 503

        await until(is_cut_off)
        told = (await ready(http, node))[1]
        assert told["status"] == "cut off"
        assert "127.0.0.1" not in json.dumps(told["cluster"])
        await _show_what_is_refused(http, node, session)
        for cable in cables:
            cable.mend()
        await called(http, node.origin, "fenced__write", "after")
        assert (await ready(http, node))[0] == 200
        assert (await session.ask(node.origin, "ping")).status == 200
    assert not [each for each in notes.of("call") if each["n"] == "cut off"]
    notes.show_one_owner_at_every_moment()


async def _show_what_is_refused(http: aiohttp.ClientSession, node: Node, session: Session) -> None:
    """Only what would need the others, and so that it is tried again."""
    assert (await ready(http, node, "?local"))[0] == 200
    async with http.get(f"{node.origin}/health") as reply:
        assert reply.status == 200
    here = {"name": "local__echo", "arguments": {"message": "here"}}
    assert (await modern(http, node.origin, "tools/call", here)).text == "here"
    refused = await call(http, node.origin, "fenced__write", "cut off")
    assert refused.refusal["retryable"] is True, refused
    elsewhere = await session.ask(node.origin, "ping")
    assert (elsewhere.status, elsewhere.headers["retry-after"]) == (503, "1")
    assert elsewhere.refusal["error_type"] == "cut_off"
