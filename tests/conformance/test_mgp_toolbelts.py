"""What a toolbelt holds, through doors: pinned, cached, within its budget. (MGP §16.7, §16.8)"""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from comity.catalog.toolbelt import PinnedTools
from comity.policy.grants import Effect
from tests.conformance.toolshed import (
    DISCOVER,
    ERAS,
    EVICT,
    FILES,
    SESSION,
    Shed,
    allow,
    cost,
    tool,
    toolshed,
    wanted,
)


@pytest_asyncio.fixture
async def shed() -> AsyncGenerator[Shed]:
    async with toolshed() as shed:
        yield shed


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.requirement("MGP-16.7-session", "MGP-16.7-cache", "MGP-16.7-pinned")
@pytest.mark.requirement("MGP-16.8-max_tokens")
async def test_a_session_tells_what_is_pinned_and_cached_and_what_it_costs(era: str) -> None:
    pinned = (PinnedTools("agent:*", (("files", "read_file"), ("files", "no_such"))),)
    other = PinnedTools("person:*", (("data", "draw_chart"),))
    async with toolshed(discovery_pinned=(*pinned, other)) as shed:
        client = await shed.client(era)
        before = await client.ask(SESSION)
        await client.call("data__analyze_csv", {"path": "x"})
        await client.call("files__read_file", {"path": "x"})
        after = await client.ask(SESSION)
    read, analyze = cost("files", "read_file"), cost("data", "analyze_csv")
    assert (before["pinned"], before["cached"]) == (["files__read_file"], [])
    assert (before["total_tokens"], before["max_tokens"]) == (read, 8000)
    assert (after["pinned"], after["cached"]) == (["files__read_file"], ["data__analyze_csv"])
    assert after["total_tokens"] == read + analyze
    assert after["token_count"] == {"method": "bytes/4.3", "exact": False}


@pytest.mark.requirement("MGP-16.7-evict", "MGP-16.8-pinnedsafe")
async def test_what_is_cached_can_be_let_go_and_what_is_pinned_cannot(era: str) -> None:
    async with toolshed(discovery_pinned=(PinnedTools("*", (("files", "read_file"),)),)) as shed:
        client = await shed.client(era)
        await wanted(client, "statistics")
        named = ["data__analyze_csv", "files__read_file", "files__never_there"]
        done = await client.ask(EVICT, {"tools": named, "reason": "no_longer_needed"})
        assert done["evicted"] == ["data__analyze_csv"]
        left = await client.ask(SESSION)
    assert (left["pinned"], left["cached"]) == (["files__read_file"], [])
    assert left["total_tokens"] == cost("files", "read_file")


@pytest.mark.requirement("MGP-16.8-budget", "MGP-16.8-lru", "MGP-16.8-cache_limit")
@pytest.mark.requirement("MGP-16.8-pinnedsafe")
async def test_over_budget_goes_what_was_used_longest_ago(era: str) -> None:
    each = cost("files", "archive_0")
    pinned = (PinnedTools("*", (("files", "read_file"),)),)
    async with toolshed(
        discovery_cache_limit=3 * each + each // 2, discovery_pinned=pinned
    ) as shed:
        client = await shed.client(era)
        for number in (0, 1, 2, 0, 3):
            await client.call(f"files__archive_{number}", {"path": "x"})
        after = await client.ask(SESSION)
        assert after["cached"] == [f"files__archive_{number}" for number in (2, 0, 3)]
        assert after["total_tokens"] == 3 * each + cost("files", "read_file")
        assert after["pinned"] == ["files__read_file"]
        for number in range(12):
            await client.call(f"files__archive_{number}", {"path": "x"})
            now = await client.ask(SESSION)
            assert len(now["cached"]) <= 3
            assert now["total_tokens"] <= now["max_tokens"]
            assert now["pinned"] == ["files__read_file"]


@pytest.mark.requirement("MGP-16.8-max_tokens", "MGP-16.8-budget")
async def test_the_whole_budget_counts_where_its_parts_would_allow_more() -> None:
    async with toolshed(discovery_max_tokens=1500, discovery_cache_limit=9000) as shed:
        client = await shed.client("modern")
        for number in range(12):
            await client.call(f"files__archive_{number}", {"path": "x"})
        held = await client.ask(SESSION)
        found = await client.ask(DISCOVER, {"query": "archive volume of the records"})
    assert held["total_tokens"] <= 1500
    assert held["total_tokens"] + found["context_tokens"] <= 1500


@pytest.mark.requirement("MGP-16.8-pinned_reserve", "MGP-16.7-pinned")
async def test_pinned_tools_beyond_their_reserve_are_warned_of_and_what_is_listed_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("read_file", "write_file", "delete_file")
    reserve = cost("files", *names) - 1
    pinned = (PinnedTools("*", tuple(("files", name) for name in names)),)
    async with toolshed(discovery_pinned=pinned, discovery_pinned_reserve=reserve) as shed:
        client = await shed.client("modern")
        held = await client.ask(SESSION)
    assert held["pinned"] == ["files__read_file", "files__write_file"]
    assert held["omitted"] == ["files__delete_file"]
    assert held["total_tokens"] == cost("files", "read_file", "write_file") <= reserve
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    (told,) = [each for each in warned if "pinned_reserve" in each]
    assert "files__delete_file" in told


async def test_a_tool_that_vanishes_or_changes_or_is_not_granted_leaves_the_belt_at_once(
    era: str,
) -> None:
    async with toolshed(discovery_pinned=(PinnedTools("*", (("files", "read_file"),)),)) as shed:
        client = await shed.client(era)
        for name in ("files__write_file", "files__delete_file", "files__archive_1"):
            await client.call(name, {"path": "x"})
        await client.call("data__analyze_csv", {"path": "x"})
        assert len((await client.ask(SESSION))["cached"]) == 4
        changed = tool("write_file", "Write text into another file on disk", "moderate")
        kept = [each for each in FILES if each["name"] not in ("write_file", "delete_file")]
        await shed.relist("files", [changed, *kept])
        now = await client.ask(SESSION)
        assert now["cached"] == ["files__archive_1", "data__analyze_csv"]
        await shed.grant(*allow("data/analyze_csv", effect=Effect.DENY))
        await shed.grant(*allow("files/read_file", effect=Effect.DENY))
        now = await client.ask(SESSION)
        assert (now["pinned"], now["cached"]) == ([], ["files__archive_1"])
        assert now["total_tokens"] == cost("files", "archive_1")
        await shed.revoke("files/read_file")
        assert (await client.ask(SESSION))["pinned"] == ["files__read_file"]


@pytest.mark.requirement("MGP-16.7-cache")
async def test_a_belt_is_a_sessions_own_or_its_partys(shed: Shed) -> None:
    one, other = await shed.client("handshake"), await shed.client("handshake")
    first, second = await shed.client("modern"), await shed.client("modern")
    stranger = await shed.client("modern", "agent:nobody")
    for client in (one, first):
        await wanted(client, "statistics")
    assert [(await each.ask(SESSION))["cached"] for each in (one, other)] == [
        ["data__analyze_csv"],
        [],
    ]
    assert [(await each.ask(SESSION))["cached"] for each in (first, second, stranger)] == [
        ["data__analyze_csv"],
        ["data__analyze_csv"],
        [],
    ]
