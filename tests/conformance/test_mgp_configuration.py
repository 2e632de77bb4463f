"""MGP §15.2: `comity serve` without a file, in folders where MGP's files stand or do not."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from comity.config.trust import content_digest, trust_file
from tests.conformance.ways import COMITY
from tests.interop.peers import ROOT
from tests.interop.processes import answers, running
from tests.support.visitor import SECONDS, request, visiting_at

TELLER = str(ROOT / "tests" / "conformance" / "servers" / "teller.py")
IN_FOLDER = ["/bin/sh", "-c", 'cd "$0" && exec "$@"']


class Places:
    """A project's folder and a person's home."""

    def __init__(self, tmp_path: Path) -> None:
        self.project = tmp_path / "project"
        self.home = tmp_path / "home"
        self.elsewhere = tmp_path / "elsewhere.toml"
        self.local = self.project / "mgp.toml"
        self.user = self.home / ".config" / "mgp" / "servers.toml"
        self.project.mkdir()
        self.user.parent.mkdir(parents=True)

    @contextmanager
    def served(self, *files: str, **environ: str) -> Generator[str]:
        """`comity serve` in the project's folder; yields its origin once every server was tried."""
        named = [word for file in files for word in ("-c", file)]
        command = [*IN_FOLDER, str(self.project), COMITY, "serve", *named, "--port", "0"]
        if self.local.exists():
            trust_file(self.local, content_digest(self.local.read_bytes()))
        with running(command, {"HOME": str(self.home), **environ}) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"))
            yield origin


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def server(name: str, *lines: str, command: str = sys.executable) -> str:
    """A table of mgp.toml as the document has it, for a server whose one tool is `tell`."""
    args = json.dumps([TELLER, "tell"])
    table = ["[[servers]]", f'id = "{name}"', f'command = "{command}"', f"args = {args}"]
    return "\n".join([*table, 'transport = "stdio"', *lines, ""])


@asynccontextmanager
async def told(origin: str, name: str) -> AsyncGenerator[dict[str, Any]]:
    """What a server tells of its start, asked at its own door."""
    async with visiting_at(origin) as somebody:
        visitor = somebody.other(f"/servers/{name}/mcp")
        await visitor.greet()
        (answer,) = await (await visitor.call("tell")).frames()
        yield answer["result"]["structuredContent"]


async def is_there(origin: str, name: str) -> bool:
    async with visiting_at(origin) as visitor:
        return (await visitor.send("OPTIONS", path=f"/servers/{name}/mcp")).status != 404


@pytest.mark.requirement("MGP-15.2-local", "MGP-15.2-user")
async def test_the_projects_file_comes_first_and_then_the_users(places: Places) -> None:
    whose = '[servers.env]\nTELLER_FROM = "{}"'
    places.local.write_text(server("both", whose.format("project")))
    places.user.write_text(
        server("both", whose.format("user")) + server("mine", whose.format("user"))
    )
    with places.served() as origin:
        async with told(origin, "both") as both, told(origin, "mine") as mine:
            assert both["env"] == {"TELLER_FROM": "project"}
            assert mine["env"] == {"TELLER_FROM": "user"}


@pytest.mark.requirement("MGP-15.2-env")
async def test_the_file_that_the_variable_names_is_the_only_one(places: Places) -> None:
    places.local.write_text(server("local"))
    places.user.write_text(server("mine"))
    places.elsewhere.write_text(server("named"))
    with places.served(MGP_CONFIG_PATH=str(places.elsewhere)) as origin:
        async with told(origin, "named") as named:
            assert named["args"] == ["tell"]
        assert not await is_there(origin, "local")
        assert not await is_there(origin, "mine")


@pytest.mark.requirement("MGP-15.2-toml-server", "MGP-15.2-toml-env")
async def test_a_server_is_started_by_its_table_and_gets_its_variables(places: Places) -> None:
    env = '[servers.env]\nTELLER_KEY = "${ALMANAC_TOKEN}"\nTELLER_PLAIN = "as it is"'
    places.local.write_text(server("sea.almanac", env))
    with places.served(ALMANAC_TOKEN="k3y") as origin:
        async with told(origin, "sea.almanac") as started:
            assert started["args"] == ["tell"]
            assert started["env"] == {"TELLER_KEY": "k3y", "TELLER_PLAIN": "as it is"}


@pytest.mark.requirement("MGP-15.2-toml-env")
def test_a_variable_that_is_missing_is_an_error_that_names_it(places: Places) -> None:
    places.local.write_text(server("a", '[servers.env]\nKEY = "${NOT_SET_ANYWHERE}"'))
    told_where = r"mgp\.toml:7: servers\[a\]\.env\.KEY: .*ANYWHERE is not set"
    with pytest.raises(RuntimeError, match=told_where), places.served():
        pass


GOVERNED = """
[servers.mgp]
extensions = ["security", "lifecycle", "streaming"]
permissions_required = ["network.outbound"]
trust_level = "sandboxed"
restart_policy = "on_failure"
"""
MGP_CLIENT = {"mgp": {"version": "0.3.0", "extensions": ["discovery"]}}


async def listed(origin: str, **wanted: object) -> dict[str, Any]:
    """The servers of which MGP's discovery tells, by their ids."""
    async with visiting_at(origin) as somebody:
        visitor = somebody.other("/mcp")
        await visitor.greet(capabilities=MGP_CLIENT)
        asked = request(1, "mgp/discovery/list", {"filter": wanted})
        (answer,) = await (await visitor.post(asked)).frames()
        return {each["id"]: each for each in answer["result"]["servers"]}


@pytest.mark.requirement("MGP-15.2-toml-mgp", "MGP-15.2-advertise")
async def test_a_server_is_plain_mcp_unless_its_table_says_more(places: Places) -> None:
    # Neither can be started, so all that is known of them is from the file.
    places.local.write_text(
        server("plain", command="./no-such-program")
        + server("governed", GOVERNED, command="./no-such-program")
    )
    with places.served() as origin:
        both = await listed(origin)
        assert both["governed"]["extensions"] == ["lifecycle", "security", "streaming"]
        assert both["governed"]["trust_level"] == "sandboxed"
        assert (both["plain"]["extensions"], both["plain"]["mgp_version"]) == ([], None)
        assert list(await listed(origin, permissions=["network.outbound"])) == ["governed"]
    places.local.write_text(server("plain") + server("governed", GOVERNED))
    with places.served() as origin:
        async with told(origin, "plain") as plain, told(origin, "governed") as governed:
            assert plain["args"] == governed["args"] == ["tell"]


@pytest.mark.requirement("MGP-15.2-mcpfile")
async def test_a_file_for_mcp_is_read_as_it_is_and_may_say_more(places: Places) -> None:
    plain = {"command": sys.executable, "args": [TELLER, "tell"], "env": {"TELLER_FROM": "mcp"}}
    governed = {**plain, "mgp": {"trust_level": "sandboxed", "extensions": ["security"]}}
    file = places.project / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"plain": plain, "governed": governed}}))
    with places.served(str(file)) as origin:
        for name in ("plain", "governed"):
            async with told(origin, name) as started:
                assert (started["args"], started["env"]) == (["tell"], plain["env"])
        both = await listed(origin)
        assert both["governed"]["trust_level"] == "sandboxed"
        assert both["plain"]["trust_level"] != "sandboxed"


CLAIMS = (
    '[servers.env]\nCLAIMS = \'{"version": "0.3.0", "extensions": [], "restart_policy": "%s"}\''
)
POLICY = '[servers.mgp]\nrestart_policy = "%s"\nbackoff_base_ms = 10'


@pytest.mark.requirement("MGP-11.5-config")
async def test_how_a_server_is_restarted_is_what_its_file_says_and_not_what_it_says(
    places: Places,
) -> None:
    places.local.write_text(
        server("stays", POLICY % "never", CLAIMS % "always")
        + server("returns", POLICY % "on_failure", CLAIMS % "never")
    )
    with places.served() as origin:
        async with told(origin, "returns") as before:
            for name in ("stays", "returns"):
                await end(origin, name)
            async with asyncio.timeout(SECONDS):
                while await state_of(origin, "returns") != "connected":
                    await asyncio.sleep(0.02)
            async with told(origin, "returns") as after:
                assert after["life"] != before["life"]
        assert await state_of(origin, "stays") == "error"


async def end(origin: str, name: str) -> None:
    """Have a server die in the midst of a call."""
    async with visiting_at(origin) as somebody:
        visitor = somebody.other(f"/servers/{name}/mcp")
        await visitor.greet()
        params = {"name": "tell", "arguments": {"die": True}}
        (answer,) = await (await visitor.post(request(1, "tools/call", params))).frames()
        assert "error" in answer or answer["result"]["isError"]


async def state_of(origin: str, name: str) -> str:
    async with visiting_at(origin) as visitor:
        return (await (await visitor.send("GET", path=f"/api/servers/{name}")).json())["state"]
