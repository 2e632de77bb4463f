"""Real gateways, killed or not, and a receiver that fails in every way: each event arrives."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.storage import postgres, schema
from comity.toolkit.text import as_uuid
from tests.cli.program import Desk
from tests.contracts.stores import a_database
from tests.events.webhook_gateway import Client, House, calling, kill
from tests.events.webhook_receiver import SECRET, TAKES, Fault, Receiver, a_receiver
from tests.interop.processes import comity

pytestmark = pytest.mark.integration
FAILURES = tuple(fault for fault in Fault if fault not in (*TAKES, Fault.GONE, Fault.TOO_LARGE))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    house = House(folder, f"sqlite:///{folder / 'store.db'}")
    with comity(house.config) as origin:
        yield origin


@pytest.fixture
async def client(origin: str) -> AsyncGenerator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http:
        client = Client(http, origin)
        await client.greet()
        yield client


async def called(client: Client, times: int = 1) -> list[str]:
    traces = [await client.call() for _ in range(times)]
    assert None not in traces
    return [as_uuid(trace or "") for trace in traces]


def completed(receiver: Receiver) -> list[str]:
    return [said["data"]["trace_id"] for _, said in receiver.taken]


async def subscribed(client: Client, receiver: Receiver, **more: Any) -> str:
    answer = await client.subscribe(receiver.url, "tool.completed", **more)
    return answer["result"]["id"]


@pytest.mark.parametrize("fault", [*FAILURES, *sorted(TAKES)])
async def test_an_event_arrives_whatever_its_place_did_before(client: Client, fault: Fault) -> None:
    async with a_receiver([fault, fault]) as receiver:
        await subscribed(client, receiver)
        (trace,) = await called(client)
        await receiver.until(lambda: trace in completed(receiver))
        (first, *_) = receiver.tried
        assert first[1] is fault
        # However often it was posted, it was under one name.
        assert {id for id, _ in receiver.tried} == {first[0]}
        assert receiver.trapped == 0


async def test_events_come_in_their_order_and_after_failures_too(client: Client) -> None:
    async with a_receiver([Fault.NONE, Fault.ERROR, Fault.CUT]) as receiver:
        await subscribed(client, receiver)
        traces = await called(client, 8)
        await receiver.until(lambda: len(receiver.taken) >= 8)
        assert completed(receiver) == traces
        assert receiver.most_at_once == 1


async def test_a_place_that_hangs_keeps_nobody_else_waiting(client: Client) -> None:
    async with a_receiver([Fault.SILENT] * 200) as slow, a_receiver() as quick:
        await subscribed(client, slow)
        await subscribed(client, quick)
        traces = await called(client, 5)
        await slow.until(lambda: bool(slow.tried))
        await quick.until(lambda: completed(quick) == traces)
        assert not slow.taken


async def test_one_that_is_gone_is_disabled_and_comes_back_when_an_operator_says_so(
    client: Client, origin: str, tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    async with a_receiver([Fault.GONE]) as receiver:
        id = await subscribed(client, receiver)
        traces = await called(client, 2)
        await receiver.until(lambda: len(receiver.tried) >= 1)
        # Its state and the event of the second call are written one after the other.
        async with asyncio.timeout(60):
            while True:
                ran = await asyncio.to_thread(
                    desk.run, "webhooks", "show", id, "--url", origin, "-o", "json"
                )
                if (ran.json["state"], ran.json["waiting"]) == ("disabled", 2):
                    break
        assert ran.status == 0
        assert ran.json["last_error"] == "http_4xx"
        assert "team=a" not in ran.out
        listed = await asyncio.to_thread(desk.run, "webhooks", "list", "--url", origin)
        assert (listed.status, id in listed.out) == (0, True)
        checked = await asyncio.to_thread(desk.run, "webhooks", "list", "--check", "--url", origin)
        assert checked.status == 1
        again = await asyncio.to_thread(desk.run, "webhooks", "retry", id, "--url", origin)
        assert again.status == 0
        await receiver.until(lambda: completed(receiver) == traces)
        gone = await asyncio.to_thread(desk.run, "webhooks", "delete", id, "--yes", "--url", origin)
        assert gone.status == 0
        missing = await asyncio.to_thread(desk.run, "webhooks", "show", id, "--url", origin)
        assert missing.status == 5
        journal = await asyncio.to_thread(desk.run, "audit", "tail", "-o", "json", "--url", origin)
        assert "webhook_disabled" in journal.out


async def test_a_place_that_does_not_want_it_gets_nothing(client: Client) -> None:
    async with a_receiver() as receiver:
        receiver.is_echoing = False
        answer = await client.subscribe(receiver.url)
        assert answer["error"]["code"] == -32015
        assert "challenge_failed" in answer["error"]["message"]
        await called(client)
        assert receiver.tried == []
    answer = await client.subscribe("http://127.0.0.1:1/")
    assert "connection_refused" in answer["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data/",
        "https://10.1.2.3/",
        "https://localhost/",
        "https://[::ffff:127.0.0.1]/",
        "http://hooks.example.org/",
        "https://user:password@hooks.example.org/",
        "https://hooks.example.org:22/",
    ],
)
async def test_attack_9_a_hostile_place_is_refused_with_words(client: Client, url: str) -> None:
    answer = await client.subscribe(url)
    assert answer["error"]["code"] == -32602
    assert "cannot be posted to" in answer["error"]["message"]
    assert "password" not in str(answer)


async def test_a_secret_is_changed_without_a_gap(client: Client) -> None:
    other = "whsec_" + "QUJD" * 10
    async with a_receiver() as receiver:
        id = await subscribed(client, receiver)
        place = {"mode": "webhook", "url": receiver.url, "secret": other}
        renewed = await client.ask(
            "events/subscribe", {"name": "tool.completed", "delivery": place, "ttlMs": 90_000}
        )
        assert renewed["result"]["id"] == id
        assert renewed["result"]["deliveryStatus"]["active"] is True
        assert "secret" not in renewed["result"]
        assert receiver.secrets == [SECRET], "whoever knows the old one still can tell"
        (first,) = await called(client)
        await receiver.until(lambda: completed(receiver) == [first])
        receiver.secrets = [b"ABC" * 10]
        (second,) = await called(client)
        await receiver.until(lambda: completed(receiver) == [first, second])
        assert receiver.challenged == 1


async def test_who_ends_it_hears_no_more(client: Client) -> None:
    async with a_receiver() as receiver:
        await subscribed(client, receiver)
        ended = {"name": "tool.completed", "delivery": {"url": receiver.url}}
        assert "error" not in await client.ask("events/unsubscribe", ended)
        await called(client)
        assert receiver.tried == []
        again = await client.ask("events/unsubscribe", ended)
        assert again["error"]["code"] == -32011


async def test_events_can_be_listed_and_polled(client: Client) -> None:
    listed = await client.ask("events/list")
    names = [each["name"] for each in listed["result"]["events"]]
    assert {"tool.completed", "security.access_denied"} <= set(names)
    asked = {"name": "tool.completed"}
    first = (await client.ask("events/poll", asked))["result"]
    assert first["events"] == []
    traces = await called(client, 3)
    found: list[str] = []
    cursor = first["cursor"]
    async with asyncio.timeout(30):
        while len(found) < 3:
            page = await client.ask("events/poll", {**asked, "cursor": cursor, "maxEvents": 2})
            found += [each["data"]["trace_id"] for each in page["result"]["events"]]
            cursor = page["result"]["cursor"]
    assert found == traces
    lost = await client.ask("events/poll", {**asked, "cursor": "elsewhere.7"})
    assert lost["result"]["truncated"] is True
    unknown = await client.ask("events/poll", {"name": "nothing.such"})
    assert unknown["error"]["code"] == -32011


KILLS = 3
FAULTS = (
    *(Fault.NONE, Fault.ERROR, Fault.CUT, Fault.NONE, Fault.REDIRECT, Fault.SLOW_HEAD),
    *(Fault.HUGE_BODY, Fault.SILENT, Fault.NONE, Fault.HUGE_HEAD, Fault.SLOW_BODY, Fault.NO_HTTP),
)


@asynccontextmanager
async def in_sqlite(folder: Path) -> AsyncGenerator[str]:
    yield f"sqlite:///{folder / 'store.db'}"


@asynccontextmanager
async def in_postgres(_: Path) -> AsyncGenerator[str]:
    async with a_database() as url:
        fresh = postgres.product(url)
        await schema.upgrade_schema(fresh.engine)
        await fresh.close()
        yield url


STORES = {"sqlite": in_sqlite, "postgres": in_postgres}


def told(receiver: Receiver) -> set[str]:
    return {
        said["data"]["trace_id"] for _, said in receiver.taken if said["name"] == "tool.completed"
    }


async def one_life(house: House, receiver: Receiver, answered: list[str], life: int) -> None:
    """Start, call from several hands, and kill it amid calls and posts."""
    timeout = aiohttp.ClientTimeout(30)
    async with house.open() as (program, origin), aiohttp.ClientSession(timeout=timeout) as http:
        clients = [Client(http, origin) for _ in range(3)]
        for client in clients:
            await client.greet()
        if life == 0:
            made = await clients[0].subscribe(receiver.url)
            assert made["result"]["id"].startswith("sub_"), made
        before, until = len(answered), asyncio.Event()
        hands = [asyncio.create_task(calling(each, until, answered)) for each in clients]
        async with asyncio.timeout(60):
            while len(answered) < before + 7 + 5 * life:
                await asyncio.sleep(0.005)
        kill(program)
        until.set()
        await asyncio.gather(*hands)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", STORES)
async def test_every_call_that_was_answered_is_told_at_least_once_after_kills(
    tmp_path: Path, store: str
) -> None:
    answered: list[str] = []
    async with STORES[store](tmp_path) as url, a_receiver(FAULTS * 3) as receiver:
        house = House(tmp_path, url)
        for life in range(KILLS):
            await one_life(house, receiver, answered, life)
        promised = {as_uuid(trace) for trace in answered}
        assert len(promised) >= 7 * KILLS
        async with house.open():
            await receiver.until(lambda: promised <= told(receiver), 120)
    bodies: dict[str, set[str]] = {}
    for id, said in receiver.taken:
        bodies.setdefault(id, set()).add(json.dumps(said, sort_keys=True))
    # What came twice came under one name, and was the same.
    assert all(len(each) == 1 for each in bodies.values())
    traces = [s["data"]["trace_id"] for _, s in receiver.taken if s["name"] == "tool.completed"]
    ids = {id for id, said in receiver.taken if said["name"] == "tool.completed"}
    assert len(ids) == len(set(traces))
    assert receiver.trapped == 0
    assert receiver.challenged == 1


@pytest.mark.timeout(240)
async def test_what_a_dead_node_left_is_posted_by_another(tmp_path: Path) -> None:
    """Its last entries were looked through by nobody, and its claims are settled by nobody."""
    timeout = aiohttp.ClientTimeout(30)
    # The first posts hang, so that the one who dies holds a claim.
    async with in_postgres(tmp_path) as url, a_receiver([Fault.SILENT]) as receiver:
        house = House(tmp_path, url)
        async with house.open() as (dying, origin), house.open():
            async with aiohttp.ClientSession(timeout=timeout) as http:
                client = Client(http, origin)
                await client.greet()
                assert "result" in await client.subscribe(receiver.url, "tool.completed")
                traces = [await client.call()]
                await receiver.until(lambda: bool(receiver.tried))
                traces += [await client.call() for _ in range(3)]
                kill(dying)
            promised = {as_uuid(trace or "") for trace in traces}
            await receiver.until(lambda: promised <= told(receiver), 120)
        assert len({id for id, _ in receiver.taken}) == len(promised)
