"""A consumer that stops reading bounds what the gateway holds, and hurts nobody. (MGP §12)"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.interop.conftest import by_hand, command_of
from tests.interop.hand_client import Frame, frames_of
from tests.interop.processes import answers, http_server, running
from tests.interop.streaming_signals import SECONDS, Signals, signals
from tests.interop.streaming_talks import CHUNK, Talk, talk

MANY, SIZE = 4000, 16 * 1024
FLOOD = MANY * SIZE
MOST = 16 * 1024 * 1024
"""What may wait for one reader: its own bounds, those of its sockets, and some slack."""


@dataclass(frozen=True)
class Gateway:
    url: str
    pid: int

    def held(self) -> int:
        """How many bytes of memory it has now."""
        said = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(row.split()[1]) for row in said.splitlines() if row[:6] == "VmRSS:") * 1024


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    config = tmp_path_factory.mktemp("slowly") / "mcp.json"
    with http_server(lambda port: command_of("writer", str(port))) as upstream:
        far = {"type": "http", "url": f"{upstream}/mcp"}
        config.write_text(json.dumps({"mcpServers": {"near": by_hand("writer"), "far": far}}))
        command = [str(Path(sys.executable).with_name("comity")), "serve", str(config), "--port=0"]
        with running(command) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"))
            yield Gateway(f"{origin}/mcp", program.pid)


@pytest.fixture
async def lines() -> AsyncGenerator[Signals]:
    async with signals() as made:
        yield made


def flood(server: str, lines: Signals) -> Frame:
    arguments = {"name": server, "port": lines.port, "many": MANY, "size": SIZE}
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
            assert gateway.held() - before < MOST < FLOOD / 3
            places, answer = await rest_of(reply)
    assert places == sorted(set(places))
    assert answer["content"] == [{"type": "text", "text": "a great deal"}]
    said = answer["_mgp"]
    assert (said["chunks_sent"], said["chunks_missing"]) == (MANY, MANY - len(places))
    assert 0 < len(places) < MANY


async def test_a_server_at_a_distance_waits_for_its_reader_and_nothing_is_lost(
    gateway: Gateway, lines: Signals
) -> None:
    """Over HTTP each call has a stream of its own, which its reader can hold up."""
    async with talk(gateway.url, "handshake") as slow, talk(gateway.url, "handshake") as other:
        await others_go_on(other, "far")
        before = gateway.held()
        async with slow.post(flood("far", lines)) as reply:
            await others_go_on(other, "far")
            assert gateway.held() - before < MOST < FLOOD / 3
            assert not lines.has("far", "done")
            places, answer = await rest_of(reply)
    assert places == list(range(MANY))
    assert "chunks_missing" not in answer["_mgp"]
