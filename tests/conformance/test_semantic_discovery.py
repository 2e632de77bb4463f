"""Search by meaning through the doors, with the real model; and without it. (MGP §16.4, D-32)"""

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.conformance.toolshed import ERAS, toolshed, wanted
from tests.support.visitor import SECONDS
from tests.support.weights import needs_weights

DISCOVER = "mgp/tools/discover"


@needs_weights
@pytest.mark.timeout(120)
@pytest.mark.requirement("MGP-16.4-semantic")
@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_is_found_by_what_it_means_without_a_word_in_common(era: str) -> None:
    async with toolshed(discovery_embedder="minilm", discovery_mode="on") as shed:
        client = await shed.client(era)
        query = {"query": "will it rain tomorrow", "strategy": "semantic", "max_results": 3}
        found: dict[str, Any] = {"fallback_strategy": "keyword"}
        async with asyncio.timeout(100):  # The model is loaded meanwhile.
            while "fallback_strategy" in found:
                await asyncio.sleep(0.05)
                found = await client.ask(DISCOVER, query)
        assert found["tools"][0]["name"] == "air__weather_here"
        words = await client.ask(DISCOVER, {**query, "strategy": "keyword"})
        assert "air__weather_here" not in [each["name"] for each in words["tools"]]


@needs_weights
@pytest.mark.timeout(120)
@pytest.mark.requirement("MGP-16.4-semantic")
async def test_meaning_finds_nothing_that_may_not_be_called() -> None:
    async with toolshed(discovery_embedder="minilm") as shed:
        client = await shed.client("modern", "agent:nobody")
        query = {"query": "will it rain tomorrow", "strategy": "semantic"}
        found = await client.ask(DISCOVER, query)
        assert (found["tools"], found["total_available"]) == ([], 0)


@pytest.mark.requirement("MGP-16.4-semantic", "MGP-16.5-discover-result")
@pytest.mark.parametrize("missing", ["onnxruntime", "numpy"])
async def test_without_the_extra_words_find_and_the_answer_says_so(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("semantic.minilm", "semantic.index", "semantic.vectors", "search.numpy_scorer"):
        monkeypatch.delitem(sys.modules, f"comity.catalog.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    async with toolshed(discovery_embedder="auto") as shed:
        client = await shed.client("modern")
        for strategy in ("semantic", "hybrid"):
            query = {"query": "read a text file", "strategy": strategy}
            found = await client.ask(DISCOVER, query)
            assert found["search_strategy"] == strategy
            assert found["fallback_strategy"] == "keyword"
            assert found["tools"][0]["name"] == "files__read_file"


class GatedEmbedder:
    """It knows what rain has to do with weather, and makes vectors of tools when a test says so."""

    name, size = "gated/weather", 2

    def __init__(self) -> None:
        self.is_reached = asyncio.Event()
        self.is_open = asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if any(":" in text for text in texts):  # Texts of tools have their name before a colon.
            self.is_reached.set()
            await self.is_open.wait()
        is_near = [any(word in text.lower() for word in ("rain", "weather")) for text in texts]
        return [(1.0, 0.0) if near else (0.0, 1.0) for near in is_near]

    async def close(self) -> None:
        self.is_open.set()


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> GatedEmbedder:
    embedder = GatedEmbedder()

    def load(name: str) -> GatedEmbedder:
        assert name == "gated"
        return embedder

    monkeypatch.setattr("comity.catalog.wiring.load_plugin_embedder", load)
    return embedder


RAIN = "will it rain tomorrow"
GATED: dict[str, Any] = {"discovery_embedder": "gated", "policy_require_approval": "auto"}


@pytest.mark.requirement("MGP-16.6-unavailable", "MGP-16.6-fulfilled")
async def test_a_request_for_tools_waits_for_an_index_that_is_being_made(
    embedder: GatedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A search itself waits for this long, and then goes by words.
    monkeypatch.setattr("comity.catalog.semantic.index.CATCH_UP_TIMEOUT_SECONDS", 0.05)
    async with toolshed(**GATED) as shed:
        client = await shed.client()
        request = asyncio.ensure_future(wanted(client, RAIN))
        async with asyncio.timeout(SECONDS):
            await embedder.is_reached.wait()
        done, _ = await asyncio.wait([request], timeout=1)
        assert not done
        embedder.is_open.set()
        answer = await request
        assert answer["status"] == "fulfilled"
        assert "air__weather_here" in [each["name"] for each in answer["tools_loaded"]]


@pytest.mark.requirement("MGP-16.6-unavailable", "MGP-14.5-retryable")
async def test_while_the_index_is_being_made_a_request_is_told_to_come_again(
    embedder: GatedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.catalog.discovery.MAX_WARMING_WAIT", timedelta(milliseconds=50))
    async with toolshed(**GATED) as shed:
        client = await shed.client()
        answer = await client.answer("mgp/tools/request", {"context": RAIN})
        assert answer["error"]["code"] == 2000
        advice = answer["error"]["data"]["_mgp"]
        assert (advice["retryable"], advice["retry_after_ms"]) == (True, 1000)
        # What the words find already needs no vectors.
        known = await wanted(client, "read file")
        assert known["status"] == "fulfilled"
        embedder.is_open.set()
        assert (await wanted(client, RAIN))["status"] == "fulfilled"
