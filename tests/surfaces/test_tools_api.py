"""Tools under /api: all of them for an operator, its own for anybody else."""

from collections.abc import AsyncGenerator

import pytest

from comity.wire.grants import Effect, Grant
from tests.conformance.governed import ADMIN, Governed, governed

AGENT = "agent:ci"


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed() as scene:
        await scene.grant(Grant(AGENT, "tools/call", "files/read", Effect.ALLOW))
        yield scene


async def test_an_operator_is_shown_every_tool_and_an_agent_its_own(scene: Governed) -> None:
    status, shown = await scene.guest(ADMIN).http("GET", "/api/tools")
    assert status == 200
    assert len(shown["tools"]) == 9
    status, shown = await scene.guest(AGENT).http("GET", "/api/tools")
    assert status == 200
    assert [tool["name"] for tool in shown["tools"]] == ["files__read"]


@pytest.mark.parametrize("name", ["files__read", "read"])
async def test_a_tool_that_may_be_used_is_shown_whole(scene: Governed, name: str) -> None:
    status, shown = await scene.guest(AGENT).http("GET", f"/api/tools/{name}")
    assert status == 200
    assert shown["name"] == "files__read"
    assert "inputSchema" in shown["definition"]


async def test_a_tool_that_may_not_be_used_is_as_one_that_is_not_there(scene: Governed) -> None:
    agent = scene.guest(AGENT)
    denied = await agent.http("GET", "/api/tools/files__write")
    absent = await agent.http("GET", "/api/tools/files__other")
    assert denied[0] == absent[0] == 404
    said = [each[1]["error"]["message"] for each in (denied, absent)]
    assert said[0].replace("write", "other") == said[1]


async def test_a_server_of_which_nothing_may_be_used_is_not_there(scene: Governed) -> None:
    agent = scene.guest(AGENT)
    assert (await agent.http("GET", "/api/tools?server=mail"))[0] == 404
    assert (await agent.http("GET", "/api/tools?server=files"))[0] == 200
    assert (await scene.guest(ADMIN).http("GET", "/api/tools?server=mail"))[0] == 200


async def test_only_words_that_are_in_a_tool_find_it(scene: Governed) -> None:
    agent = scene.guest(AGENT)
    assert (await agent.http("GET", "/api/tools?search=nowhere"))[1] == {"tools": []}
    assert len((await agent.http("GET", "/api/tools?search=FILES%20read"))[1]["tools"]) == 1


async def test_nothing_is_changed_there(scene: Governed) -> None:
    assert (await scene.guest(AGENT).http("POST", "/api/tools", {}))[0] == 403
    assert (await scene.guest(ADMIN).http("POST", "/api/tools", {}))[0] == 404
