"""Who speaks of MCPL or MGP with whom, and that nothing changes for those who do not. (MCPL §3)

The first table has every pair of a host and a server that do and do not speak of each, at the
server's own door. The second has the clients and servers of the official SDKs, which speak of
neither, before a gateway at which everything live is switched on: each does there what it does
without Comity.
"""

import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import DIRECT
from tests.interop.hand_client import HandClient, initialize, over_http
from tests.interop.matrix.parties import CLIENTS, Client, Server, servers
from tests.interop.matrix.stage import ALL_SERVERS, SERVER_ADDRESS, Stage, entry_of, started
from tests.interop.peers import ROOT
from tests.interop.processes import comity
from tests.live.talker_scene import BOUNDS, DECLARED, TOOLS, name_of, talking

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="this goes both ways by itself"),
    pytest.mark.timeout(1200),
]

type Frame = dict[str, Any]

# Pairs of a host and a server.

MGP: Frame = {"version": "0.3.0", "extensions": ["security", "streaming"]}
HOST: Frame = {
    "mcpl": {"experimental": {"mcpl": {"version": "0.4", "pushEvents": True, "featureSets": True}}},
    "mgp": {"mgp": MGP},
}
LIVE = '[servers.live]\nenabled = ["*"]\n' + BOUNDS
SPEAKS = [True, False]
WAYS = ("handshake pipes", "handshake http")


@pytest.fixture(scope="module", params=SPEAKS, ids=["extended server", "plain server"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[bool, str]]:
    """A gateway before a server that speaks of both, or of neither, over each transport."""
    said: Frame = {"declared": DECLARED, "mgp": MGP} if request.param else {"declared": None}
    folder = tmp_path_factory.mktemp("pairs")
    with talking(folder, WAYS, LIVE, **said) as (origin, _, _):
        yield request.param, origin


async def told(client: HandClient, tool: str, **given: Any) -> Any:
    exchange = await client.request("tools/call", {"name": tool, "arguments": given})
    return exchange.result["structuredContent"]["told"]


@pytest.mark.requirement(
    *("MCPL-2-compat", "MCPL-2-orthogonal", "MCPL-3.1-experimental", "MCPL-3.3-skip"),
    *("MGP-1.3-mcp-mcp", "MGP-1.3-mcp-mgp", "MGP-1.3-mgp-mcp", "MGP-1.3-mgp-mgp"),
    "MGP-1.3-noconfig",
)
@pytest.mark.parametrize("dialect", ["mcpl", "mgp"])
@pytest.mark.parametrize("host_speaks", SPEAKS, ids=["extended host", "plain host"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_host_and_a_server_speak_of_what_both_speak_of_and_work_in_any_case(
    stage: tuple[bool, str], way: str, host_speaks: bool, dialect: str
) -> None:
    server_speaks, origin = stage
    door = f"{origin}/servers/{name_of(way)}/mcp"
    async with over_http(door) as client:
        heard: list[str] = []

        def answer(frame: Frame) -> Frame:
            heard.append(frame["method"])
            return {"result": {"accepted": True}}

        client.answer = answer
        welcome = await initialize(client, HOST[dialect] if host_speaks else {})
        # The same MCP in every case, with the same tools, which give the same.
        assert welcome["protocolVersion"] == "2025-11-25"
        said = json.dumps(welcome["capabilities"])
        assert (dialect in said) is (host_speaks and server_speaks)
        assert ({"mcpl": "mgp", "mgp": "mcpl"}[dialect] in said) is False
        listed = (await client.request("tools/list", {})).result["tools"]
        assert [each["name"] for each in listed] == [
            *("ask", "tell", "seen"),
            *(each["name"] for each in TOOLS),
        ]
        assert (await told(client, "plain", text="hi"))["arguments"] == {"text": "hi"}
        if dialect == "mcpl":
            await _reaches_who_agreed(client, heard, both=host_speaks and server_speaks)


async def _reaches_who_agreed(client: HandClient, heard: list[str], *, both: bool) -> None:
    """What a live server asks comes to the host that agreed on it, and to no plain client."""
    await client.listen()
    greetings = [each for each in await told(client, "seen") if each["method"] == "initialize"]
    offered = [each["params"]["capabilities"].get("experimental") for each in greetings]
    if both:
        assert HOST["mcpl"]["experimental"] in offered
        assert (await told(client, "ask", frames=[{"method": "push/event"}])) == [
            {"result": {"accepted": True}}
        ]
    assert heard == (["push/event"] if both else [])


# Everybody's SDK, before a gateway at which everything live is switched on.

NAMES = ("everything-stdio", "python1-stdio", "python1-http", "python2-stdio", "python2-http")
"""The TypeScript SDK 1 is what the first is made with; of its second line there is no server."""

CLIENT_NAMES = (
    *("python1", "python2", "python2-modern"),
    *("typescript1", "typescript2", "typescript2-modern"),
)
BRIEFLY = ("python1", "python2-modern", "typescript2")
IS_BRIEF = os.environ.get("CI") == "true" and os.environ.get("COMITY_MATRIX") != "all"
PLAYED = [each for each in CLIENTS if each.id in (BRIEFLY if IS_BRIEF else CLIENT_NAMES)]
PLACES = [
    pytest.param(client, door, name, id=f"{client.id}, {door}, {name}")
    for client in PLAYED
    for door in (SERVER_ADDRESS, ALL_SERVERS)
    for name in NAMES
]
DECIDED = """
[servers.live]
enabled = ["*"]
positions = ["system", "beforeUser", "afterUser"]
rewrites = true
"""


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The SDKs' servers, of which everything is enabled, and a live one among them."""
    folder = tmp_path_factory.mktemp("live-matrix")
    served = folder / "served"
    served.mkdir()
    cast = tuple(each for each in servers(served) if each.id in NAMES)
    with ExitStack() as stack:
        origins = started([each for each in cast if each.over != "stdio"], stack)
        config = folder / "comity.toml"
        written = [_table(server, origins) for server in cast]
        config.write_text("\n".join([*written, _live_one()]))
        gateway = stack.enter_context(comity(config))
        yield Stage(folder, served, cast, origins, gateway, (SERVER_ADDRESS, ALL_SERVERS))


def _table(server: Server, origins: dict[str, str]) -> str:
    entry = {"id": server.id, **entry_of(server, origins)}
    kind = entry.pop("type", None)
    if kind is not None:
        entry["transport"] = kind
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    return "\n".join(["[[servers]]", *lines, DECIDED])


def _live_one() -> str:
    declared = json.dumps(json.dumps(DECLARED))
    return "\n".join(
        [
            "[[servers]]",
            'id = "live"',
            f"command = {json.dumps(sys.executable)}",
            'args = ["-m", "tests.live.live_talker"]',
            f"env = {{ MCPL = {declared}, PYTHONPATH = {json.dumps(str(ROOT))} }}",
            DECIDED,
        ]
    )


@pytest.mark.requirement("MCPL-2-compat", "MCPL-2-orthogonal", "MCPL-3.3-skip")
@pytest.mark.parametrize(("client", "door", "name"), PLACES)
def test_nothing_changes_for_the_clients_and_servers_of_the_official_sdks(
    gathered: Stage, client: Client, door: str, name: str
) -> None:
    (cell,) = [
        cell for cell in gathered.play(client) if (cell.door, cell.server.id) == (door, name)
    ]
    assert [str(difference) for difference in cell.differences()] == []


def test_what_is_played_has_every_sdk_on_either_side() -> None:
    assert {each.id for each in CLIENTS} >= set(CLIENT_NAMES)
    assert {each.id for each in servers(Path())} >= set(NAMES)
