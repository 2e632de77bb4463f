"""Calls that stream, through real processes, to every client and at every endpoint. (MGP §12)"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.interop.conftest import by_hand, command_of
from tests.interop.hand_client import Frame, frames_of
from tests.interop.processes import answers, http_server, operator_headers, running
from tests.interop.streaming_clients import PEERS, ByHand, Client, client
from tests.interop.streaming_signals import SECONDS, Signals, signals
from tests.interop.streaming_talks import CANCEL, CHUNK, MGP, PROGRESS, SHARE, Talk, talk
from tests.pace import here
from tests.support.fork_server import COMITY

MANY = 32
PIECES = 20


@dataclass(frozen=True)
class Gateway:
    origin: str
    pid: int

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def door(self, label: str) -> tuple[str, str]:
        """The address of an endpoint, and what a tool's name begins with there."""
        door, server = label.split(" ")
        if door == "all":
            return self.url, f"{server}__"
        return f"{self.origin}/servers/{server}/mcp", ""

    def held(self) -> int:
        """How many bytes of memory it has now."""
        said = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(row.split()[1]) for row in said.splitlines() if row[:6] == "VmRSS:") * 1024


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    """Comity before servers that stream, reached in each way, and one that does not."""
    folder = tmp_path_factory.mktemp("streaming")
    config = folder / "comity.toml"
    with (
        http_server(lambda port: command_of("writer", str(port))) as far,
        http_server(lambda port: command_of("both_eras", str(port))) as plain,
    ):
        command = by_hand("writer")
        run = "\n".join(f"{name} = {json.dumps(value)}" for name, value in command.items())
        servers = [
            f'[[servers]]\nid = "near"\ntransport = "stdio"\n{run}',
            f'[[servers]]\nid = "alone"\ntransport = "stdio"\nprocess_per = "session"\n{run}',
            f'[[servers]]\nid = "far"\ntransport = "streamable-http"\nurl = "{far}/mcp"',
            f'[[servers]]\nid = "plain"\ntransport = "streamable-http"\nurl = "{plain}/mcp"',
        ]
        config.write_text("\n".join([f'[store]\nurl = "sqlite:///{folder}/c.db"', *servers, ""]))
        with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"))
            yield Gateway(origin, program.pid)


@pytest.fixture(params=["near", "far"])
def server(request: pytest.FixtureRequest) -> str:
    """Where the tool is: behind stdio, or behind HTTP."""
    return request.param


@pytest.fixture(params=list(PEERS))
async def peer(gateway: Gateway, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    async with client(*PEERS[request.param], gateway.url) as made:
        yield made


@pytest.fixture
async def lines() -> AsyncGenerator[Signals]:
    async with signals() as made:
        yield made


@pytest.mark.requirement("MGP-12.3-stream", "MGP-12.4-chunk", "MGP-12.5-final")
async def test_the_first_words_arrive_while_the_tool_still_waits(
    peer: Client, server: str, lines: Signals
) -> None:
    await peer.begin("a", f"{server}__speaks", {"name": "a", "port": lines.port})
    await lines.when("a", "waits")
    assert await peer.texts("a", 1) == ["The first words, "]
    assert not lines.has("a", "done")
    lines.go("a")
    assert await peer.result("a") == ["The first words, and the rest."]
    assert peer.heard("a") == ["The first words, ", "and the rest."]


@pytest.mark.requirement("MGP-12.4-index", "MGP-12.5-final")
async def test_many_streams_at_once_are_each_whole_and_in_order(peer: Client, server: str) -> None:
    names = [f"s{number}" for number in range(MANY)]
    for name in names:
        await peer.begin(name, f"{server}__counts", {"name": name, "many": PIECES})
    for name in names:
        expected = [f"{name}:{number} " for number in range(PIECES)]
        assert await peer.result(name) == ["".join(expected)]
        assert peer.heard(name) == expected


@pytest.mark.requirement("MGP-12.7-cancel", "MGP-12.7-cancel-result", "MGP-12.7-partial")
async def test_a_cancelled_tool_stops_within_a_second(
    peer: Client, server: str, lines: Signals
) -> None:
    await peer.begin("a", f"{server}__speaks", {"name": "a", "port": lines.port})
    await lines.when("a", "waits")
    await peer.texts("a", 1)
    before = time.monotonic()
    await peer.cancel("a")
    assert await lines.when("a", "cancelled") - before < here(1.0)
    if isinstance(peer, ByHand):
        said = [{"type": "text", "text": "The first words, "}]
        assert peer.partial == {"cancelled": True, "partial_result": {"content": said}}
        assert await peer.result("a") == ["The first words, "]
        assert peer.answers["a"]["_mgp"]["cancelled"] is True
        await peer.cancel("a")
        assert peer.partial == {"cancelled": False, "reason": "not_active"}


ASKS: Frame = {"stream": True}
FEW = {"many": 3, "size": 8}
MIRRORED: Frame = {"dev.comity/mgp": {"stream": True}}


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["all near", "all alone", "all far", "own near", "own alone", "own far"])
def door(gateway: Gateway, request: pytest.FixtureRequest) -> tuple[str, str]:
    return gateway.door(request.param)


def pieces(frames: list[Frame]) -> list[tuple[object, int, str]]:
    told = [each["params"] for each in frames]
    return [(each["request_id"], each["index"], each["content"]["text"]) for each in told]


@pytest.mark.requirement(
    *("MGP-12.2-declare", "MGP-12.3-stream", "MGP-12.4-chunk", "MGP-12.4-index", "MGP-12.5-final"),
    *("MGP-12.5-meta", "MGP-2.2-ext-streaming"),
)
@pytest.mark.parametrize("named", [7, "7", 2**52, "a name"])
async def test_pieces_come_under_the_clients_own_id(
    door: tuple[str, str], era: str, named: object
) -> None:
    url, prefix = door
    async with talk(url, era) as client:
        arguments = {"name": "n", "many": 3}
        exchange = await client.call(f"{prefix}counts", arguments, named=named, _mgp=ASKS)
    expected = [(named, index, f"n:{index} ") for index in range(3)]
    found = pieces(exchange.said(CHUNK))
    assert found == expected
    assert {type(each[0]) for each in found} == {type(named)}
    assert exchange.result["content"] == [{"type": "text", "text": "n:0 n:1 n:2 "}]
    said = exchange.result["_mgp"]
    assert (said["streamed"], said["chunks_sent"]) == (True, 3)
    assert said["duration_ms"] >= 0
    assert exchange.result["_meta"]["dev.comity/mgp"] == said


@pytest.mark.requirement("MGP-12.3-stream")
async def test_pieces_can_be_asked_for_where_sdks_let_it_through(
    door: tuple[str, str], era: str
) -> None:
    url, prefix = door
    async with talk(url, era) as client:
        exchange = await client.call(f"{prefix}counts", {"name": "n", "many": 2}, _meta=MIRRORED)
    assert len(exchange.said(CHUNK)) == 2


@pytest.mark.requirement("MGP-12.2-declare", "MGP-12.3-ignore")
async def test_without_an_agreement_a_call_is_answered_whole(
    door: tuple[str, str], era: str
) -> None:
    url, prefix = door
    async with talk(url, era, {}) as client:
        exchange = await client.call(f"{prefix}counts", {"name": "n", "many": 2}, _mgp=ASKS)
        assert [len(exchange.frames), "_mgp" in exchange.result] == [1, False]
        assert exchange.result["content"] == [{"type": "text", "text": "n:0 n:1 "}]
        refused = (await client.request(CANCEL, {"request_id": 1})).response
    assert refused["error"]["code"] == -32601


@pytest.mark.requirement("MGP-12.3-ignore")
@pytest.mark.parametrize("label", ["all plain", "own plain"])
async def test_a_plain_server_answers_whole(gateway: Gateway, era: str, label: str) -> None:
    url, prefix = gateway.door(label)
    async with talk(url, era) as client:
        exchange = await client.call(f"{prefix}greet", {"name": "Ana"}, _mgp=ASKS)
    assert len(exchange.frames) == 1
    assert exchange.result["structuredContent"]["text"] == "Hello, Ana!"
    assert "_mgp" not in exchange.result


@pytest.mark.requirement(
    *("MGP-12.7-cancel", "MGP-12.7-cancel-result", "MGP-12.7-partial", "MGP-2.2-ext-streaming"),
    "MGP-12.7-relay",
)
async def test_a_cancellation_stops_the_tool_and_brings_what_has_come(
    door: tuple[str, str], era: str, lines: Signals
) -> None:
    url, prefix = door
    heard, arguments = asyncio.Event(), {"name": "a", "port": lines.port}

    async def hear(frame: Frame) -> None:
        heard.set()

    async with talk(url, era) as client, talk(url, era) as other:
        calling = asyncio.create_task(
            client.call(f"{prefix}speaks", arguments, named="mine", meanwhile=hear, _mgp=ASKS)
        )
        async with asyncio.timeout(SECONDS):
            await heard.wait()
        await lines.when("a", "waits")
        if era == "handshake":
            # Another session cannot end it, whatever id it guesses.
            assert await other.cancel("mine") == {"cancelled": False, "reason": "not_active"}
        cancelled = await client.cancel("mine")
        await lines.when("a", "cancelled")
        so_far = [{"type": "text", "text": "The first words, "}]
        assert cancelled["cancelled"] is True
        assert cancelled["partial_result"] == {"content": so_far}
        answer = (await calling).result
        assert answer["content"] == so_far
        assert answer["_mgp"]["cancelled"] is True
        again = await client.cancel("mine")
        assert (again["cancelled"], again["reason"]) == (False, "not_active")


async def shares(client: Talk, tool: str, lines: Signals, **more: object) -> list[Frame]:
    """What is heard of a tool that says how far it is, before it is let go."""
    heard: asyncio.Queue[Frame] = asyncio.Queue()
    name = f"w{len(more)}"
    arguments = {"name": name, "port": lines.port}
    calling = asyncio.create_task(
        client.call(tool, arguments, named="mine", meanwhile=heard.put, **more)
    )
    await lines.when(name, "waits")
    async with asyncio.timeout(SECONDS):
        first = await heard.get()
    lines.go(name)
    await calling
    return [first, *(heard.get_nowait() for _ in range(heard.qsize()))]


@pytest.mark.requirement("MGP-12.6-progress", "MGP-12.6-plain")
async def test_progress_of_a_streaming_server_is_told_in_both_tongues(
    door: tuple[str, str], era: str, lines: Signals
) -> None:
    url, prefix = door
    async with talk(url, era) as client:
        (share,) = await shares(client, f"{prefix}works", lines)
    assert share["method"] == SHARE
    expected = {"request_id": "mine", "progress": 0.25, "message": "a quarter"}
    assert expected.items() <= share["params"].items()
    async with talk(url, era, {}) as client:
        (step,) = await shares(client, f"{prefix}works", lines, _meta={"progressToken": "t"})
    assert step["method"] == PROGRESS
    told = {"progressToken": "t", "progress": 0.25, "total": 1, "message": "a quarter"}
    assert step["params"] == told


@pytest.mark.requirement("MGP-12.6-progress")
async def test_a_plain_servers_progress_is_a_share_to_a_client_of_mgp(
    gateway: Gateway, era: str
) -> None:
    url, prefix = gateway.door("all plain")
    async with talk(url, era) as client:
        exchange = await client.call(f"{prefix}count", {"steps": 4}, named="mine")
        both = await client.call(
            f"{prefix}count", {"steps": 2}, named="mine", _meta={"progressToken": 5}
        )
    told = [each["params"] for each in exchange.said(SHARE)]
    assert [each["progress"] for each in told] == [0.25, 0.5, 0.75, 1.0]
    assert {each["request_id"] for each in told} == {"mine"}
    assert told[0]["message"] == "step 1"
    assert not exchange.said(PROGRESS)
    assert [each["params"]["progressToken"] for each in both.said(PROGRESS)] == [5, 5]
    assert len(both.said(SHARE)) == 2


async def journalled(gateway: Gateway, tool: str) -> list[Frame]:
    """What the journal holds of the calls of one tool, as operators read it."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(
            f"{gateway.origin}/api/audit",
            params={"tool": tool},
            headers=operator_headers(gateway.origin),
        ) as reply,
    ):
        found = await reply.json()
        assert reply.status == 200, found
        return [each["details"] for each in found["entries"]]


async def test_the_journal_says_that_a_call_was_streamed(gateway: Gateway, lines: Signals) -> None:
    async with talk(gateway.url, "handshake", MGP) as client:
        await client.call("near__floods", {"name": "f", "port": lines.port, **FEW}, _mgp=ASKS)
    streamed: list[object] = []
    async with asyncio.timeout(SECONDS):
        while not streamed:
            entries = await journalled(gateway, "floods")
            streamed = [each["streamed"] for each in entries if "streamed" in each]
    # What the pieces said was something else than the answer, which is noticed, and not kept.
    assert streamed == [{"chunks": 3, "differs": True}]


FLOOD_PIECES, PIECE_BYTES = 4000, 16 * 1024
FLOOD = FLOOD_PIECES * PIECE_BYTES
MAX_HELD_BYTES = 16 * 1024 * 1024
"""What may wait for one reader: its own bounds, those of its sockets, and some slack."""


def flood(server: str, lines: Signals) -> Frame:
    arguments = {"name": server, "port": lines.port, "many": FLOOD_PIECES, "size": PIECE_BYTES}
    params = {"name": f"{server}__floods", "arguments": arguments, "_mgp": {"stream": True}}
    return {"jsonrpc": "2.0", "id": "flood", "method": "tools/call", "params": params}


async def rest_of(reply: aiohttp.ClientResponse) -> tuple[list[int], Frame]:
    """The places of all pieces that come now, and the answer."""
    places: list[int] = []
    async with asyncio.timeout(SECONDS):
        async for frame in frames_of(reply):
            if frame.get("method") == CHUNK:
                places.append(frame["params"]["index"])
            elif "result" in frame:
                return places, frame["result"]
    raise ConnectionError("the stream ended without an answer")


async def others_go_on(client: Talk, server: str) -> None:
    """Whoever else calls the same server has its pieces, all of them."""
    for number in range(5):
        name = f"o{number}"
        made = await client.call(
            f"{server}__counts", {"name": name, "many": 50}, _mgp={"stream": True}
        )
        assert len(made.said(CHUNK)) == 50
        assert "chunks_missing" not in made.result["_mgp"]


@pytest.mark.requirement("MGP-12.5-whole")
async def test_a_shared_process_is_held_up_by_nobody_and_the_gap_is_told(
    gateway: Gateway, lines: Signals
) -> None:
    """Over stdio nobody can be made to wait alone, so pieces are dropped."""
    async with talk(gateway.url, "handshake") as slow, talk(gateway.url, "handshake") as other:
        await others_go_on(other, "near")
        before = gateway.held()
        async with slow.post(flood("near", lines)) as reply:
            await others_go_on(other, "near")
            await lines.when("near", "done")
            assert gateway.held() - before < MAX_HELD_BYTES < FLOOD / 3
            places, answer = await rest_of(reply)
    assert places == sorted(set(places))
    assert answer["content"] == [{"type": "text", "text": "a great deal"}]
    said = answer["_mgp"]
    assert (said["chunks_sent"], said["chunks_missing"]) == (
        FLOOD_PIECES,
        FLOOD_PIECES - len(places),
    )
    assert 0 < len(places) < FLOOD_PIECES


async def test_a_server_at_a_distance_waits_for_its_reader_and_nothing_is_lost(
    gateway: Gateway, lines: Signals
) -> None:
    """Over HTTP each call has a stream of its own, which its reader can hold up."""
    async with talk(gateway.url, "handshake") as slow, talk(gateway.url, "handshake") as other:
        await others_go_on(other, "far")
        before = gateway.held()
        async with slow.post(flood("far", lines)) as reply:
            await others_go_on(other, "far")
            assert gateway.held() - before < MAX_HELD_BYTES < FLOOD / 3
            assert not lines.has("far", "done")
            places, answer = await rest_of(reply)
    assert places == list(range(FLOOD_PIECES))
    assert "chunks_missing" not in answer["_mgp"]
