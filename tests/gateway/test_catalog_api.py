"""Tools and their search under /api: all tools for an operator, its own for anybody else."""

from collections.abc import AsyncGenerator
from urllib.parse import quote

import pytest

from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, Governed, governed

AGENT = "agent:ci"


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed(discovery_embedder="none") as scene:
        await scene.grant(Grant(AGENT, "tools/call", "files/*", Effect.ALLOW))
        yield scene


@pytest.mark.requirement("MGP-16.4-index", "MGP-16.4-keyword")
async def test_an_agent_finds_its_own_tools_and_no_others(scene: Governed) -> None:
    status, found = await scene.guest(AGENT).http("GET", "/api/search?query=read")
    assert status == 200
    assert [tool["name"] for tool in found["tools"]] == ["files__read"]
    assert found["total_available"] == 3
    entry = found["tools"][0]
    assert entry["server"] == "files"
    assert entry["tool"] == "read"
    assert entry["relevance_score"] == 1.0
    assert "files" in entry["keywords"]
    assert entry["categories"]
    assert entry["security"]["risk_level"] in ("safe", "moderate", "dangerous")
    _, mistyped = await scene.guest(AGENT).http("GET", "/api/search?query=delte")
    assert [tool["name"] for tool in mistyped["tools"]] == ["files__delete"]


async def test_a_grant_that_is_taken_back_hides_its_tools_from_the_next_search(
    scene: Governed,
) -> None:
    agent = scene.guest(AGENT)
    assert (await agent.http("GET", "/api/search?query=read"))[1]["total_available"] == 3
    await scene.grant(Grant(AGENT, "tools/call", "files/*", Effect.DENY))
    found = (await agent.http("GET", "/api/search?query=read"))[1]
    assert found["total_available"] == 0
    assert found["tools"] == []


@pytest.mark.requirement("MGP-16.4-category", "MGP-16.3-L1")
async def test_categories_are_listed_and_searched_with_what_is_below_them(scene: Governed) -> None:
    agent = scene.guest(AGENT)
    status, shown = await agent.http("GET", "/api/search/categories")
    assert status == 200
    assert sum(each["tools"] for each in shown["categories"]) == 3
    # The index alone: how many tools a category has, and none of them.
    for each in [
        *shown["categories"],
        *(below for it in shown["categories"] for below in it["categories"]),
    ]:
        assert each.keys() == {"name", "tools", "categories"}
        assert isinstance(each["tools"], int)
    for each in shown["categories"]:
        where = f"/api/search?strategy=category&query={quote(each['name'])}"
        found = (await agent.http("GET", where))[1]["tools"]
        assert len(found) == each["tools"]
    nobody = await scene.guest("agent:nobody").http("GET", "/api/search/categories")
    assert nobody[1] == {"categories": []}


async def test_filters_leave_tools_out(scene: Governed) -> None:
    await scene.grant(Grant(AGENT, "tools/call", "*/*", Effect.ALLOW))
    agent = scene.guest(AGENT)
    of_one = (await agent.http("GET", "/api/search?query=read&server=web,none"))[1]
    assert [tool["name"] for tool in of_one["tools"]] == ["web__read"]
    assert of_one["total_available"] == 3
    there = (await agent.http("GET", "/api/search?query=read&status=connected&limit=2"))[1]
    assert len(there["tools"]) == 2
    assert there["total_available"] == 9
    away = (await agent.http("GET", "/api/search?query=read&status=error"))[1]
    assert away["total_available"] == 0
    safe = (await agent.http("GET", "/api/search?query=read&risk_level_max=safe"))[1]
    assert safe["total_available"] <= 9
    named = (await agent.http("GET", "/api/search?category=nothing/such"))[1]
    assert named["total_available"] == 0


@pytest.mark.parametrize(
    "query",
    [
        *("", "?query=", "?query=x&strategy=luck", "?query=x&limit=0", "?query=x&limit=many"),
        *("?query=x&risk_level_max=none", "?query=x&limit=101"),
    ],
)
async def test_what_cannot_be_asked_is_refused(scene: Governed, query: str) -> None:
    status, said = await scene.guest(AGENT).http("GET", f"/api/search{query}")
    assert status == 400
    assert said["error"]["message"]


async def test_nothing_else_is_there(scene: Governed) -> None:
    assert (await scene.guest(ADMIN).http("GET", "/api/search/other"))[0] == 404
    assert (await scene.guest(AGENT).http("POST", "/api/search", {}))[0] == 403


# The list of tools.


@pytest.fixture
async def tools_scene() -> AsyncGenerator[Governed]:
    async with governed() as tools_scene:
        await tools_scene.grant(Grant(AGENT, "tools/call", "files/read", Effect.ALLOW))
        yield tools_scene


async def test_an_operator_is_shown_every_tool_and_an_agent_its_own(tools_scene: Governed) -> None:
    status, shown = await tools_scene.guest(ADMIN).http("GET", "/api/tools")
    assert status == 200
    assert len(shown["tools"]) == 9
    status, shown = await tools_scene.guest(AGENT).http("GET", "/api/tools")
    assert status == 200
    assert [tool["name"] for tool in shown["tools"]] == ["files__read"]


@pytest.mark.parametrize("name", ["files__read", "read"])
async def test_a_tool_that_may_be_used_is_shown_whole(tools_scene: Governed, name: str) -> None:
    status, shown = await tools_scene.guest(AGENT).http("GET", f"/api/tools/{name}")
    assert status == 200
    assert shown["name"] == "files__read"
    assert "inputSchema" in shown["definition"]


async def test_a_tool_that_may_not_be_used_is_as_one_that_is_not_there(
    tools_scene: Governed,
) -> None:
    agent = tools_scene.guest(AGENT)
    denied = await agent.http("GET", "/api/tools/files__write")
    absent = await agent.http("GET", "/api/tools/files__other")
    assert denied[0] == absent[0] == 404
    said = [each[1]["error"]["message"] for each in (denied, absent)]
    assert said[0].replace("write", "other") == said[1]


async def test_a_server_of_which_nothing_may_be_used_is_not_there(tools_scene: Governed) -> None:
    agent = tools_scene.guest(AGENT)
    assert (await agent.http("GET", "/api/tools?server=mail"))[0] == 404
    assert (await agent.http("GET", "/api/tools?server=files"))[0] == 200
    assert (await tools_scene.guest(ADMIN).http("GET", "/api/tools?server=mail"))[0] == 200


async def test_only_words_that_are_in_a_tool_find_it(tools_scene: Governed) -> None:
    agent = tools_scene.guest(AGENT)
    assert (await agent.http("GET", "/api/tools?search=nowhere"))[1] == {"tools": []}
    assert len((await agent.http("GET", "/api/tools?search=FILES%20read"))[1]["tools"]) == 1


async def test_nothing_is_changed_there(tools_scene: Governed) -> None:
    assert (await tools_scene.guest(AGENT).http("POST", "/api/tools", {}))[0] == 403
    assert (await tools_scene.guest(ADMIN).http("POST", "/api/tools", {}))[0] == 404
