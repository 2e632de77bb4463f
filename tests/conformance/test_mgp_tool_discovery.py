"""Searching for tools, asking for them, keeping some within a budget. (MGP §16, decision 0038)"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from comity.approvals.model import ApprovalRequest, ApprovalStore
from comity.policy.grants import PERMISSION_VERB, Effect, Grant
from tests.conformance.toolshed import (
    AGENT,
    DATA,
    DISCOVER,
    ERAS,
    EVICT,
    FILES,
    REQUEST,
    SESSION,
    Shed,
    allow,
    cost,
    definition,
    tokens,
    tool,
    toolshed,
    wanted,
)

MAY_CALL = len(FILES) + len(DATA) + 1
"""All but the one whose server waits for a permission."""


@pytest_asyncio.fixture
async def shed() -> AsyncGenerator[Shed]:
    async with toolshed() as shed:
        yield shed


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.requirement("MGP-2.2-ext-tool_discovery", "MGP-16.5-discover")
@pytest.mark.requirement("MGP-16.5-discover-result", "MGP-16.5-discover-tool")
async def test_a_search_gives_whole_tools_with_what_is_known_of_them(shed: Shed, era: str) -> None:
    client = await shed.client(era)
    found = await client.ask(DISCOVER, {"query": "read a text file", "max_results": 3})
    first = found["tools"][0]
    assert first["name"] == "files__read_file"
    assert first["server_id"] == "files"
    assert first["description"] == FILES[0]["description"]
    assert first["inputSchema"] == FILES[0]["inputSchema"]
    label: dict[str, Any] = {"risk_level": "safe", "permissions_required": []}
    assert first["security"] == first["_meta"]["dev.comity/security"] == label
    scores = [each["relevance_score"] for each in found["tools"]]
    assert 0 < scores[-1] <= scores[0] <= 1
    assert scores == sorted(scores, reverse=True)
    assert len(found["tools"]) <= 3
    assert found["total_available"] == MAY_CALL
    assert found["search_strategy"] == "hybrid"
    assert found["query_time_ms"] >= 0
    assert found["truncated"] is False


@pytest.mark.requirement("MGP-2.2-ext-tool_discovery", "MGP-16.5-discover")
async def test_who_did_not_negotiate_it_has_no_such_methods(shed: Shed, era: str) -> None:
    for spoken in ({}, {"mgp": {"version": "0.3.0", "extensions": ["discovery"]}}):
        client = await shed.client(era, spoken=spoken)
        for method in (DISCOVER, REQUEST, SESSION, EVICT):
            answer = await client.answer(method, {"query": "x", "context": "x", "tools": []})
            assert answer["error"]["code"] == -32601


@pytest.mark.requirement("MGP-16.5-discover")
@pytest.mark.parametrize(
    ("method", "said"),
    [
        (DISCOVER, {}),
        (DISCOVER, {"query": 7}),
        (DISCOVER, {"query": "x", "strategy": "guess"}),
        (DISCOVER, {"query": "x", "max_results": 0}),
        (DISCOVER, {"query": "x", "filter": {"risk_level_max": "mild"}}),
        (REQUEST, {"reason": "capability_gap"}),
        (REQUEST, {"context": "x", "requirements": {"capabilities": "fly"}}),
        (EVICT, {}),
        (EVICT, {"tools": "all"}),
    ],
)
async def test_what_cannot_be_read_is_refused(
    shed: Shed, method: str, said: dict[str, Any]
) -> None:
    client = await shed.client("modern")
    answer = await client.answer(method, said)
    assert answer["error"]["code"] == -32602


@pytest.mark.requirement("MGP-16.5-discover-result")
async def test_what_may_not_be_called_is_neither_shown_nor_counted(shed: Shed, era: str) -> None:
    await shed.grant(*allow("data/analyze_csv", party="agent:narrow"))
    client = await shed.client(era, "agent:narrow")
    found = await client.ask(DISCOVER, {"query": "read a file", "max_results": 50})
    assert found["total_available"] == 1
    assert {each["name"] for each in found["tools"]} <= {"data__analyze_csv"}
    nobody = await shed.client(era, "agent:nobody")
    none = await nobody.ask(DISCOVER, {"query": "read a file"})
    assert (none["tools"], none["total_available"]) == ([], 0)


@pytest.mark.requirement("MGP-16.5-discover")
async def test_filters_are_applied_before_anything_is_ranked(shed: Shed) -> None:
    client = await shed.client("modern")

    async def names(query: str, **narrowed: Any) -> set[str]:
        said = {"query": query, "max_results": 50, "filter": narrowed}
        return {each["name"] for each in (await client.ask(DISCOVER, said))["tools"]}

    disk = {f"files__{name}_file" for name in ("read", "write", "delete")}
    assert disk <= await names("file disk")
    assert await names("file disk", risk_level_max="safe") & disk == {"files__read_file"}
    assert "files__delete_file" not in await names("file disk", risk_level_max="moderate")
    assert disk <= await names("file disk", status="connected")
    assert await names("file disk", status="error") == set()
    assert disk <= await names("file disk", categories=["filesystem"])
    assert await names("file disk", categories=["no-such-category"]) == set()
    alone = {"max_results": 50, "filter": {"categories": ["filesystem"]}}
    assert disk <= {each["name"] for each in (await client.ask(DISCOVER, alone))["tools"]}


@pytest.mark.requirement("MGP-16.3-browse")
async def test_a_client_starts_from_the_categories_alone_and_goes_down_to_a_tool(
    shed: Shed, era: str
) -> None:
    await shed.relist("files", [_placed(FILES[0], "disk/read"), _placed(FILES[1], "disk/write")])
    await shed.grant(*allow("files/*", party="agent:narrow"))
    client = await shed.client(era, "agent:narrow")
    index = await client.ask(DISCOVER, {"strategy": "category"})
    assert index["tools"] == []
    assert (index["total_available"], index["search_strategy"]) == (2, "category")
    (disk,) = [each for each in index["categories"] if each["name"] == "disk"]
    below: list[dict[str, Any]] = [
        {"name": name, "tools": 1, "categories": []} for name in ("read", "write")
    ]
    assert disk == {"name": "disk", "tools": 2, "categories": below}
    written = json.dumps({"categories": index["categories"]}, separators=(",", ":"))
    assert index["context_tokens"] == tokens(written.encode())
    chosen = {"strategy": "category", "filter": {"categories": ["disk/read"]}}
    found = await client.ask(DISCOVER, chosen)
    assert [each["name"] for each in found["tools"]] == ["files__read_file"]
    assert found["tools"][0]["inputSchema"] == FILES[0]["inputSchema"]


@pytest.mark.requirement("MGP-16.5-hierarchy")
async def test_a_category_brings_what_is_below_it_and_tells_where_to_go_on(shed: Shed) -> None:
    placed = [_placed(FILES[0], "disk/read"), _placed(FILES[1], "disk/write/text")]
    await shed.relist("files", [*placed, _placed(FILES[2], "bin")])
    client = await shed.client("modern")
    for query in ({}, {"strategy": "category"}):
        found = await client.ask(DISCOVER, {**query, "filter": {"categories": ["disk"]}})
        names = [each["name"] for each in found["tools"]]
        assert sorted(names) == ["files__read_file", "files__write_file"]
        (disk,) = found["categories"]
        assert [each["name"] for each in disk["categories"]] == ["read", "write"]
        assert [each["name"] for each in disk["categories"][1]["categories"]] == ["text"]
    plain = await client.ask(DISCOVER, {"query": "read a file"})
    assert "categories" not in plain


@pytest.mark.requirement("MGP-16.8-truncate")
async def test_an_index_too_large_for_the_budget_tells_of_the_largest_categories() -> None:
    async with toolshed(discovery_discovery_reserve=60) as shed:
        many = [
            _placed(each, "disk" if number % 2 else f"a-long-name-for-one-{number}")
            for number, each in enumerate(FILES)
        ]
        await shed.relist("files", many)
        client = await shed.client("modern")
        index = await client.ask(DISCOVER, {"strategy": "category"})
    assert index["truncated"] is True
    assert index["context_tokens"] <= 60
    assert "disk" in [each["name"] for each in index["categories"]]


def _placed(described: dict[str, Any], category: str) -> dict[str, Any]:
    return {**described, "_meta": {"dev.comity/category": category}}


@pytest.mark.requirement("MGP-16.5-discover")
async def test_several_queries_take_turns(shed: Shed, era: str) -> None:
    client = await shed.client(era)
    said = {"queries": ["read a text file", "statistics on csv tables"], "max_results": 2}
    names = [each["name"] for each in (await client.ask(DISCOVER, said))["tools"]]
    assert names == ["files__read_file", "data__analyze_csv"]


@pytest.mark.requirement("MGP-16.5-discover-result")
async def test_without_a_model_of_meaning_the_answer_says_what_stood_in(shed: Shed) -> None:
    client = await shed.client("modern")
    found = await client.ask(DISCOVER, {"query": "read a file", "strategy": "semantic"})
    assert found["search_strategy"] == "semantic"
    assert found["fallback_strategy"] == "keyword"
    plain = await client.ask(DISCOVER, {"query": "read a file", "strategy": "keyword"})
    assert "fallback_strategy" not in plain


@pytest.mark.requirement("MGP-16.8-truncate", "MGP-16.8-discovery_reserve")
async def test_eight_results_by_default_and_fewer_where_the_budget_ends() -> None:
    query = {"query": "archive volume of the records"}
    async with toolshed() as shed:
        client = await shed.client("modern")
        whole = await client.ask(DISCOVER, query)
    assert len(whole["tools"]) == 8
    assert whole["truncated"] is False
    each = tokens(definition("files", FILES[3]))
    assert whole["context_tokens"] == 8 * each
    async with toolshed(discovery_discovery_reserve=5 * each + each // 2) as shed:
        client = await shed.client("modern")
        fewer = await client.ask(DISCOVER, query)
        stronger = await client.ask(DISCOVER, {**query, "max_results": 2})
    assert [tool["name"] for tool in fewer["tools"]] == [t["name"] for t in whole["tools"][:5]]
    assert fewer["context_tokens"] == 5 * each
    assert fewer["truncated"] is True
    assert fewer["omitted"] == [t["name"] for t in whole["tools"][5:]]
    assert stronger["truncated"] is False


@pytest.mark.requirement("MGP-16.8-truncate")
async def test_a_tool_too_large_for_the_budget_lets_smaller_ones_pass_and_is_named(
    shed: Shed,
) -> None:
    huge = tool("read_all_files", "Read the contents of every text file", pad=20_000)
    await shed.relist("files", [huge, *FILES])
    client = await shed.client("modern")
    found = await client.ask(DISCOVER, {"query": "read the contents of every text file"})
    assert found["omitted"] == ["files__read_all_files"]
    assert found["truncated"] is True
    assert "files__read_file" in {each["name"] for each in found["tools"]}


@pytest.mark.requirement("MGP-16.7-results")
async def test_what_a_search_finds_is_in_no_belt(shed: Shed, era: str) -> None:
    client = await shed.client(era)
    assert (await client.ask(DISCOVER, {"query": "read a file"}))["tools"]
    assert (await client.ask(SESSION))["cached"] == []


@pytest.mark.requirement("MGP-16.6-request", "MGP-16.6-reason", "MGP-16.6-requirements")
@pytest.mark.requirement("MGP-16.6-request-result", "MGP-16.6-fulfilled")
async def test_a_request_that_is_fulfilled_loads_tools_right_to_the_token(
    shed: Shed, era: str
) -> None:
    client = await shed.client(era)
    trace = "9c1f0b52-6a3e-4d7c-8b21-5e0d94f7a386"
    done = await wanted(
        client,
        "statistics",
        context="The CSV is loaded; now its statistics are needed",
        requirements={"input_types": ["csv"], "preferred_risk_level": "safe"},
        task_trace_id=trace,
    )
    assert done["status"] == "fulfilled"
    (loaded,) = done["tools_loaded"]
    assert (loaded["name"], loaded["server_id"]) == ("data__analyze_csv", "data")
    assert loaded["inputSchema"] == DATA[0]["inputSchema"]
    assert loaded["security"]["risk_level"] == "safe"
    assert done["tools_unavailable"] == []
    assert done["session_tools_count"] == 1
    assert done["context_tokens_added"] == cost("data", "analyze_csv")
    again = await wanted(client, "statistics")
    assert (again["status"], again["context_tokens_added"]) == ("fulfilled", 0)
    entry, _ = await shed.journal("tools_requested")
    assert entry["actor"]["id"] == AGENT
    assert entry["details"]["task_trace_id"] == trace
    assert entry["details"]["reason"] == "capability_gap"
    assert entry["details"]["status"] == "fulfilled"
    assert entry["details"]["loaded"] == ["data__analyze_csv"]


@pytest.mark.requirement("MGP-16.6-partial", "MGP-16.6-unavailable")
async def test_what_there_is_no_tool_for_is_named(shed: Shed, era: str) -> None:
    client = await shed.client(era)
    some = await wanted(client, "statistics", "teleportation")
    assert some["status"] == "partial"
    assert [each["name"] for each in some["tools_loaded"]] == ["data__analyze_csv"]
    (lacking,) = some["tools_unavailable"]
    assert (lacking["capability"], lacking["reason"]) == ("teleportation", "unavailable")
    none = await wanted(client, "teleportation")
    assert (none["status"], none["tools_loaded"]) == ("unavailable", [])
    assert none["context_tokens_added"] == 0


@pytest.mark.requirement("MGP-16.6-unavailable")
async def test_a_tool_that_is_not_granted_is_as_if_it_were_not_there(shed: Shed) -> None:
    await shed.grant(Grant("agent:narrow", "tools/call", "files/*", Effect.ALLOW))
    client = await shed.client("modern", "agent:narrow")
    there = await wanted(client, "statistics")
    absent = await wanted(client, "teleportation")
    spoken = {**absent["tools_unavailable"][0], "capability": "statistics"}
    assert (there["status"], there["tools_unavailable"]) == ("unavailable", [spoken])


@pytest.mark.requirement("MGP-16.6-pending_approval")
async def test_a_tool_about_which_a_person_is_asked_waits_for_approval(
    shed: Shed, era: str
) -> None:
    await shed.grant(*allow("data/analyze_csv", effect=Effect.ASK))
    client = await shed.client(era)
    held = await wanted(client, "statistics")
    assert held["status"] == "pending_approval"
    assert [each["name"] for each in held["tools_loaded"]] == ["data__analyze_csv"]
    (waits,) = held["tools_unavailable"]
    assert (waits["name"], waits["server_id"]) == ("data__analyze_csv", "data")
    assert waits["reason"] == "pending_approval"


async def asks_for(asks: ApprovalStore, permission: str) -> list[ApprovalRequest]:
    return [ask for ask in await asks.page() if ask.about.get("permission") == permission]


@pytest.mark.requirement("MGP-16.6-pending_approval")
async def test_a_tool_whose_server_lacks_a_permission_names_the_ask(shed: Shed, era: str) -> None:
    client = await shed.client(era)
    asks = shed.visitor.parts.approval_components.approvals.store
    async with asyncio.timeout(30):
        while not (open_asks := await asks_for(asks, "network.outbound")):
            await asyncio.sleep(0.01)
    held = await wanted(client, "book_flight")
    assert held["status"] == "pending_approval"
    (waits,) = held["tools_unavailable"]
    assert waits["name"] == "air__book_flight"
    assert "network.outbound" in waits["message"]
    (open_ask,) = open_asks
    assert waits["approval_id"] == open_ask.id
    await shed.grant(Grant("server:air", PERMISSION_VERB, "network.outbound", Effect.ALLOW))
    # What servers may do is looked at once a second, or when one of them is asked after.
    shed.visitor.parts.server_policies.tool_reviews.check()
    assert (await wanted(client, "book_flight"))["status"] == "fulfilled"


@pytest.mark.requirement("MGP-16.6-requirements")
async def test_a_preferred_risk_is_preferred_and_not_demanded(shed: Shed) -> None:
    client = await shed.client("modern")
    for risk, name in (("safe", "files__read_file"), ("dangerous", "files__delete_file")):
        said = {"requirements": {"preferred_risk_level": risk}}
        done = await wanted(client, "delete file" if risk == "dangerous" else "file disk", **said)
        assert name in {each["name"] for each in done["tools_loaded"]}
    only = await wanted(client, "draw chart", requirements={"preferred_risk_level": "safe"})
    assert "data__draw_chart" in {each["name"] for each in only["tools_loaded"]}


@pytest.mark.requirement("MGP-16.6-types", "MGP-16.6-requirements")
@pytest.mark.parametrize("member", ["input_types", "output_types"])
async def test_what_a_tool_takes_and_gives_decides_between_equals(shed: Shed, member: str) -> None:
    kinds = ("csv", "parquet", "spreadsheet", "markdown")
    alike = [tool(f"convert_{kind}", f"Convert a table, {kind}") for kind in kinds]
    await shed.relist("data", alike)
    client = await shed.client("modern")
    for kind in kinds:
        done = await wanted(client, "convert a table", requirements={member: [kind]})
        assert done["tools_loaded"][0]["name"] == f"data__convert_{kind}"


async def test_searches_are_written_down_unless_that_is_switched_off(shed: Shed) -> None:
    client = await shed.client("modern")
    await client.ask(DISCOVER, {"query": "read a file with Bearer sk-proj-" + "a1B2" * 8})
    (entry,) = await shed.journal("tools_searched")
    assert "files__read_file" in entry["details"]["shown"]
    assert "a1B2" not in str(entry)
    async with toolshed(discovery_log_searches=False) as quiet:
        client = await quiet.client("modern")
        await client.ask(DISCOVER, {"query": "read a file"})
        assert await quiet.journal("tools_searched") == []
