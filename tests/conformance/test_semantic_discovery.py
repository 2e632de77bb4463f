"""Search by meaning through the doors, with the real model; and without it. (MGP §16.4, D-32)"""

import asyncio
import sys
from typing import Any

import pytest

from tests.conformance.toolshed import ERAS, toolshed
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
