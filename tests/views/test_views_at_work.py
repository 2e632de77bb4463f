"""500 tools of 20 servers, cut to three views of a real gateway: the SDK, the API, the commands."""

import tomllib
from collections.abc import Generator
from pathlib import Path

import mcp_types
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from comity.mcp.actors import LOCAL
from tests.cli.program import Desk
from tests.interop.processes import comity, on_pipes
from tests.scale.gateway import many_servers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]
SERVERS, TOOLS = 20, 25
VIEWS = """
[[views]]
name = "research"
title = "Research"
select = ["server-1/*", "server-2/tool-1*"]

[[views]]
name = "support"
prefix = "never"
select = ["*/tool-3", "server-4/tool-4"]

[[views]]
name = "payments"
prefix = "always"

[[views.tools]]
tool = "server-7/tool-7"
name = "find_payment"
title = "Find a payment"
description = "Finds a payment by its subject."
arguments = { limit = 5 }
annotations = { openWorldHint = false }
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views") / "comity.toml"


@pytest.fixture(scope="module")
def origin(config: Path) -> Generator[str]:
    with many_servers(TOOLS) as upstream:
        servers = [
            f'[[servers]]\nid = "server-{n}"\nurl = "{upstream}/server-{n}/mcp"\n'
            for n in range(SERVERS)
        ]
        config.write_text("\n".join([*servers, VIEWS]))
        with comity(config) as origin:
            yield origin


async def listed(origin: str, path: str, mode: str) -> list[mcp_types.Tool]:
    async with Client(f"{origin}{path}", mode=mode, read_timeout_seconds=60) as client:
        return (await client.list_tools()).tools


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdk_sees_three_views_of_500_tools(origin: str, mode: str) -> None:
    everything = await listed(origin, "/mcp", mode)
    assert len(everything) == SERVERS * TOOLS
    research = [tool.name for tool in await listed(origin, "/views/research/mcp", mode)]
    # `tool-1` and `tool-10` to `tool-19` of both servers conflict, and the others do not.
    assert len(research) == TOOLS + 11
    assert {"server-1__tool-1", "server-2__tool-1", "tool-2", "tool-24"} <= set(research)
    support = [tool.name for tool in await listed(origin, "/views/support/mcp", mode)]
    # Without prefixes, one of 20 tools with the same name remains, by the order of the servers.
    assert support == ["tool-3", "tool-4"]
    (payment,) = await listed(origin, "/views/payments/mcp", mode)
    assert (payment.name, payment.title) == ("find_payment", "Find a payment")
    assert payment.description == "Finds a payment by its subject."
    assert list(payment.input_schema["properties"]) == ["subject"]
    async with Client(f"{origin}/views/payments/mcp", mode=mode) as client:
        called = await client.call_tool("find_payment", {"subject": "x"})
        assert not called.is_error
        refused = await client.call_tool("find_payment", {"subject": "x", "limit": 100})
        assert refused.is_error
        assert "fixed by this view" in str(refused.content)


async def test_commands_show_views_and_suggest_one_from_real_calls(
    origin: str, tmp_path: Path
) -> None:
    async with Client(f"{origin}/mcp") as client:
        for _ in range(2):
            assert not (await client.call_tool("server-9__tool-9", {"subject": "x"})).is_error
    desk = Desk(tmp_path, COMITY_URL=origin, COLUMNS="80")
    views = desk.run("views", "-o", "json").json["views"]
    assert {each["name"]: (each["tools"], len(each["problems"])) for each in views} == {
        "research": (TOOLS + 11, 0),
        "support": (2, SERVERS - 1),
        "payments": (1, 0),
    }
    assert views[1]["problems"][0].startswith("server-1/tool-3 is left out: server-0/tool-3 has")
    assert desk.run("views", "list", "--check").status == 1
    table = desk.run("views").lines
    assert max(map(len, table)) <= 80
    assert table[1].split()[:3] == ["research", "/views/research/mcp", "36"]
    shown = desk.run("views", "show", "payments")
    assert shown.status == 0
    assert "find_payment" in shown.out
    assert "limit = 5" in shown.out
    assert max(map(len, shown.lines)) <= 80
    assert desk.run("views", "show", "nothing").status != 0
    suggested = desk.run("views", "suggest", LOCAL.party, "--name", "mine", "--days", "1")
    (view,) = tomllib.loads(suggested.out)["views"]
    assert view["name"] == "mine"
    assert "server-9/tool-9" in view["select"]
    nothing = desk.run("views", "suggest", "agent:nobody").out
    assert nothing == "agent:nobody called no tools in 30 days.\n"


def test_a_command_explains_which_view_lets_a_tool_through(origin: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, COMITY_URL=origin)
    assert desk.run("grants", "create", "agent:ci", "view:payments").status == 0
    told = desk.run("grants", "explain", "agent:ci", "server-7/tool-7")
    assert told.lines[0].startswith("agent:ci may not call server-7/tool-7: no entry is about it")
    said = " ".join(told.out.split())
    assert "In the view payments, as find_payment: agent:ci may call server-7/tool-7: an" in said
    assert "an entry about the view (view:payments) says allow for agent:ci" in said
    refused = desk.run("grants", "explain", "agent:ci", "view:payments")
    assert refused.status != 0
    assert "name a tool of the view 'view:payments'" in refused.err


async def test_a_client_at_stdio_joins_a_view(origin: str, config: Path) -> None:
    command, *arguments = on_pipes(config)
    server = StdioServerParameters(command=command, args=[*arguments, "--view", "payments"])
    async with Client(stdio_client(server), mode="legacy", read_timeout_seconds=60) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find_payment"]
        assert not (await client.call_tool("find_payment", {"subject": "x"})).is_error
