"""Calls that stream, through real processes: every client hears a tool before it ends. (MGP §12)"""

import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.interop.conftest import by_hand, command_of, served
from tests.interop.processes import http_server
from tests.interop.streaming_clients import PEERS, ByHand, Client, client
from tests.interop.streaming_signals import Signals, signals
from tests.pace import here

MANY = 32
PIECES = 20


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder: Path = tmp_path_factory.mktemp("streaming")
    with http_server(lambda port: command_of("writer", str(port))) as upstream:
        far = {"type": "http", "url": f"{upstream}/mcp"}
        with served({"near": by_hand("writer"), "far": far}, folder) as found:
            yield found


@pytest.fixture(params=["near", "far"])
def server(request: pytest.FixtureRequest) -> str:
    """Where the tool is: behind stdio, or behind HTTP."""
    return request.param


@pytest.fixture(params=list(PEERS))
async def peer(origin: str, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    async with client(*PEERS[request.param], f"{origin}/mcp") as made:
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
