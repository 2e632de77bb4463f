"""A client of MGP hears pieces at every door, in both eras, from servers however reached."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.interop.conftest import by_hand, command_of
from tests.interop.hand_client import Frame
from tests.interop.processes import comity, http_server, operator_headers
from tests.interop.streaming_signals import SECONDS, Signals, signals
from tests.interop.streaming_talks import CANCEL, CHUNK, MGP, PROGRESS, SHARE, Talk, talk

ASKS: Frame = {"stream": True}
FEW = {"many": 3, "size": 8}
MIRRORED: Frame = {"dev.comity/mgp": {"stream": True}}


@dataclass(frozen=True)
class House:
    origin: str
    folder: Path

    def door(self, label: str) -> tuple[str, str]:
        """The address of a door, and what a tool's name begins with there."""
        door, server = label.split(" ")
        if door == "all":
            return f"{self.origin}/mcp", f"{server}__"
        return f"{self.origin}/servers/{server}/mcp", ""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    folder = tmp_path_factory.mktemp("doors")
    config = folder / "comity.toml"
    with (
        http_server(lambda port: command_of("writer", str(port))) as far,
        http_server(lambda port: command_of("both_eras", str(port))) as plain,
    ):
        command = by_hand("writer")
        run = "\n".join(f"{name} = {json.dumps(value)}" for name, value in command.items())
        servers = [
            f'[[servers]]\nid = "near"\ntransport = "stdio"\n{run}',
            f'[[servers]]\nid = "alone"\ntransport = "stdio"\nsharing = "session"\n{run}',
            f'[[servers]]\nid = "far"\ntransport = "streamable-http"\nurl = "{far}/mcp"',
            f'[[servers]]\nid = "plain"\ntransport = "streamable-http"\nurl = "{plain}/mcp"',
        ]
        config.write_text("\n".join([f'[store]\nurl = "sqlite:///{folder}/c.db"', *servers, ""]))
        with comity(config) as origin:
            yield House(origin, folder)


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["all near", "all alone", "all far", "own near", "own alone", "own far"])
def door(house: House, request: pytest.FixtureRequest) -> tuple[str, str]:
    return house.door(request.param)


@pytest.fixture
async def lines() -> AsyncGenerator[Signals]:
    async with signals() as made:
        yield made


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
async def test_a_plain_server_answers_whole(house: House, era: str, label: str) -> None:
    url, prefix = house.door(label)
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
    house: House, era: str
) -> None:
    url, prefix = house.door("all plain")
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


async def journalled(house: House, tool: str) -> list[Frame]:
    """What the journal holds of the calls of one tool, as operators read it."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(
            f"{house.origin}/api/journal",
            params={"tool": tool},
            headers=operator_headers(house.origin),
        ) as reply,
    ):
        found = await reply.json()
        assert reply.status == 200, found
        return [each["details"] for each in found["entries"]]


async def test_the_journal_says_that_a_call_was_streamed(house: House, lines: Signals) -> None:
    async with talk(f"{house.origin}/mcp", "handshake", MGP) as client:
        await client.call("near__floods", {"name": "f", "port": lines.port, **FEW}, _mgp=ASKS)
    streamed: list[object] = []
    async with asyncio.timeout(SECONDS):
        while not streamed:
            entries = await journalled(house, "floods")
            streamed = [each["streamed"] for each in entries if "streamed" in each]
    # What the pieces said was something else than the answer, which is noticed, and not kept.
    assert streamed == [{"chunks": 3, "differs": True}]
