"""The index of tools: it follows the catalog, a server at a time, and holds nobody up."""

import asyncio
import time

import pytest

from comity.kernel import tool_index
from comity.kernel.catalog import Kind
from comity.kernel.tool_index import ServerWords, ToolIndex, Usable
from tests.kernel.finding_scene import ME, Scene, Vectors, allowed, offer
from tests.pace import here


async def test_every_tool_of_every_server_is_in_it() -> None:
    scene = Scene(allowed("*/*"))
    await scene.finder.index.settle()
    assert len(scene.finder.index) == 6
    assert set(scene.finder.index.servers) == {"files", "mail", "weather"}


async def test_a_catalog_that_was_there_before_is_taken_in_whole() -> None:
    scene = Scene(allowed("*/*"))
    late = ToolIndex(scene.catalog, lambda _: ServerWords(), lambda _: Usable())
    await late.settle()
    assert len(late) == 6


async def test_only_what_has_changed_gets_another_slot() -> None:
    vectors = Vectors({})
    scene = Scene(allowed("*/*"), vectors=vectors)
    index = scene.finder.index
    await index.settle()
    before = {name: index.slot("files", name) for name in ("read_file", "write_file")}
    scene.offer("files", read_file="Read what a file holds, by its path.", write_file="!")
    await index.settle()
    assert index.slot("files", "read_file") == before["read_file"]
    assert index.slot("files", "search_files") is None
    assert len(index) == 5
    names = sorted(tool.name for tool in vectors.held.values() if tool.server == "files")
    assert names == ["read_file", "write_file"]


async def test_slots_are_used_again() -> None:
    scene = Scene(allowed("*/*"))
    for turn in range(10):
        scene.offer("files", **{f"tool_{turn}_{number}": "Do it." for number in range(5)})
        await scene.finder.index.settle()
    assert len(scene.finder.index) == 8
    assert len(scene.finder.index.offers) <= 13


async def test_a_server_that_calls_itself_otherwise_is_read_anew() -> None:
    scene = Scene(allowed("*/*"))
    assert await scene.words("umbrella") == []
    scene.about["weather"] = ServerWords("Umbrella advice", "")
    scene.catalog.announce("weather", Kind.TOOL)
    assert await scene.words("umbrella") == ["get_forecast"]


async def test_what_is_gone_is_not_shown_while_the_index_does_not_know_it_yet() -> None:
    scene = Scene(allowed("*/*"))
    index = scene.finder.index
    await index.settle()
    slot = index.slot("mail", "send_mail")
    assert slot is not None
    assert index.at(slot) is not None
    scene.catalog.clear("mail")
    assert index.at(slot) is None
    assert index.at(10_000) is None


async def test_other_kinds_of_offers_are_left_alone() -> None:
    scene = Scene(allowed("*/*"))
    await scene.finder.index.settle()
    generation = scene.finder.index.generation
    scene.catalog.put("files", Kind.PROMPT, [offer("files", "explain")])
    await scene.finder.index.settle()
    assert scene.finder.index.generation == generation


async def test_a_long_list_is_taken_in_by_pieces() -> None:
    scene = Scene(allowed("*/*"))
    await scene.finder.index.settle()
    many = [offer("many", f"tool_{n}", "Does one thing or another. " * 20) for n in range(600)]
    scene.catalog.put("many", Kind.TOOL, many)
    turns, longest = 0, 0.0
    work = asyncio.ensure_future(scene.finder.index.settle())
    while not work.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
        turns += 1
    assert turns > 20
    assert longest < here(0.1)
    assert len(scene.finder.index) == 606


async def test_a_search_does_not_wait_for_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_index, "SMALL_BACKLOG", 1_000)
    scene = Scene(allowed("*/*"))
    await scene.finder.index.settle()
    many = [offer("many", f"tool_{n}", "Does something.") for n in range(2_000)]
    scene.catalog.put("many", Kind.TOOL, many)
    found = await scene.find("read file", ME)
    assert found.total < 2_006
    await scene.finder.index.settle()
    assert (await scene.find("read file", ME)).total == 2_006
    scene.finder.stop()


async def test_categories_are_forgotten_with_their_last_tool() -> None:
    scene = Scene(allowed("*/*"))
    await scene.finder.index.settle()
    assert "weather/read" in scene.finder.index.categories
    scene.catalog.clear("weather")
    await scene.finder.index.settle()
    assert "weather" not in scene.finder.index.categories
    assert "weather/read" not in scene.finder.index.categories
