"""State through whole gateways: carried with calls, kept before answers, rolled back, dropped."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from mcp import Client
from mcp_types import CallToolResult, TextContent
from mcp_types.version import LATEST_MODERN_VERSION

from comity.storage import postgres, schema
from tests.cluster.nodes import modern
from tests.contracts.stores import a_database
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, operator_headers
from tests.pace import at_length, here

COMITY: Final = str(Path(sys.executable).with_name("comity"))
PATIENCE: Final = 60.0
ERAS: Final = (LATEST_MODERN_VERSION, "legacy")
SERVERS: Final = f"""
[[servers]]
id = "desk"
command = "{sys.executable}"
args = ["-m", "tests.live.state_server"]
env = {{ PYTHONPATH = "{ROOT}" }}
[servers.live]
enabled = ["notes.*", "git.commit", "fixed"]
[servers.tools."*"]
risk = "safe"

[[servers]]
id = "shut"
command = "{sys.executable}"
args = ["-m", "tests.live.state_server"]
env = {{ PYTHONPATH = "{ROOT}" }}

[[servers]]
id = "plain"
command = "{COMITY}"
args = ["dev", "example-server"]
"""
type Answer = dict[str, Any]


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def given(result: Answer) -> Answer:
    """What the server says that it was given beside the arguments."""
    return json.loads(result["content"][0]["text"])


@dataclass
class Desk:
    """Somebody who calls tools as any client, and looks after state as an operator."""

    http: aiohttp.ClientSession
    origin: str
    program: Program

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """What the server was given beside the arguments."""
        return given(await self.raw(tool, **arguments))

    async def raw(self, tool: str, of: str = "desk", **arguments: Any) -> Answer:
        """The result as it comes over the wire."""
        return await self.sent({"name": f"{of}__{tool}", "arguments": arguments})

    async def sent(self, params: Answer) -> Answer:
        said = await modern(self.http, self.origin, "tools/call", params)
        assert "result" in said.body, said
        return said.body["result"]

    def client(self, era: str) -> Client:
        return Client(f"{self.origin}/mcp", mode=era, read_timeout_seconds=here(PATIENCE))

    async def say(self, name: str, **state: Any) -> Answer:
        return await self.call("say", state={"checkpoint": name, **state}, knows=[name])

    async def current(self) -> Answer:
        """What a call of the notes would carry now."""
        return (await self.call("look"))["beside"]

    async def get(self, *place: str, status: int = 200) -> Answer:
        async with self.http.get("/".join((f"{self.origin}/api/state", *place))) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def post(self, *place: str, status: int = 200, **body: Any) -> Answer:
        url = "/".join((f"{self.origin}/api/state", *place))
        async with self.http.post(url, json=body) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def rollback(self, name: str, feature: str = "notes.edit", **more: Any) -> Answer:
        return await self.post("desk", feature, "rollback", checkpoint=name, **more)

    async def journal(self, type: str, least: int = 1) -> list[Answer]:
        """The entries of a kind, the newest last; what safe calls did is written a little later."""
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                url = f"{self.origin}/api/audit?type=dev.comity.{type}"
                async with self.http.get(url) as reply:
                    assert reply.status == 200, await reply.text()
                    entries = (await reply.json())["entries"]
                found = [each for each in entries if each["type"] == f"dev.comity.{type}"]
                if len(found) >= least:
                    return found[::-1]
                await asyncio.sleep(0.05)

    async def cli(self, *words: str) -> tuple[int, str]:
        """A command of an operator's."""
        command = (COMITY, *words, "--url", self.origin)
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, error = await asyncio.wait_for(ran.communicate(), here(PATIENCE))
        return ran.returncode or 0, out.decode() + error.decode()


class House:
    """One configuration, served again and again."""

    def __init__(self, folder: Path, more: str = "", store: str = "") -> None:
        self.config = folder / "comity.toml"
        url = store or f"sqlite:///{folder / 'store.db'}"
        self.config.write_text(f'[store]\nurl = "{url}"\n{more}{SERVERS}', "utf-8")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Desk]:
        environment = {"COMITY_PEPPER": "pepper-" * 8}
        program = Program([COMITY, "serve", "-c", str(self.config), "--port", "0"], environment)
        try:
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = found.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready?strict"))
            timeout = aiohttp.ClientTimeout(here(120))
            shown = operator_headers(origin)
            async with aiohttp.ClientSession(timeout=timeout, headers=shown) as http:
                yield Desk(http, origin, program)
        finally:
            await asyncio.to_thread(program.stop)
            print(program.said, file=sys.stderr)


pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]
STATE, CHECKPOINT = "dev.comity/state", "dev.comity/checkpoint"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with House(tmp_path).open() as desk:
        yield desk


def names(tree: dict[str, Any]) -> list[str]:
    return [each["checkpoint"] for each in tree["checkpoints"]]


def one(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in tree["checkpoints"] if each["checkpoint"] == name)


@pytest.mark.requirement(
    "MCPL-8.2-checkpoint", "MCPL-8.3-data", "MCPL-8.3-patch", "MCPL-8.3-store", "MCPL-8.3-apply"
)
@pytest.mark.requirement("MCPL-8.4-state", "MCPL-8.3-opaque", "MCPL-8.4-checkpoint")
@pytest.mark.parametrize("era", ERAS)
async def test_what_calls_leave_comes_with_the_next(desk: Desk, era: str) -> None:
    async with desk.client(era) as client:
        told: list[Any] = []
        for text in ("one", "two", "three"):
            result = await client.call_tool("desk__add_note", {"text": text})
            assert not result.is_error
            # Its client is not told of it.
            assert STATE not in (result.meta or {})
            told.append(json.loads(text_of(result)))
        assert [each["beside"] for each in told] == [
            {},
            {"state": {"notes": ["one"]}},
            {"state": {"notes": ["one", "two"]}},
        ]
        assert told[2]["mirrored"] == {STATE: {"notes": ["one", "two"]}, CHECKPOINT: "chk_2"}
        # A set whose server keeps its state itself is told no more than a name.
        commits = [
            json.loads(text_of(await client.call_tool("desk__git_commit", {"message": "fix"})))
            for _ in range(2)
        ]
        assert commits[0] == {"beside": {}, "mirrored": {}}
        assert commits[1] == {"beside": {"checkpoint": "chk_1"}, "mirrored": {CHECKPOINT: "chk_1"}}
    tree = await desk.get("desk", "notes.edit")
    assert [each["stored_as"] for each in tree["checkpoints"]] == ["data", "data", "data"]
    assert (tree["head"], tree["can_roll_back"]) == ("chk_3", True)
    last = await desk.get("desk", "notes.edit", "chk_3")
    assert (last["data"], last["parent"]) == ({"notes": ["one", "two", "three"]}, "chk_2")
    assert "data" not in await desk.get("desk", "git.commit", "chk_2")


@pytest.mark.requirement("MCPL-8.3-store", "MCPL-8.3-apply", "MCPL-8.4-checkpoint")
async def test_state_outlives_the_gateway_and_its_server(tmp_path: Path) -> None:
    house = House(tmp_path)
    long = "x" * 400
    async with house.open() as desk:
        for text in (long, "two", "three"):
            await desk.call("add_note", text=text)
        await desk.call("git_commit", message="fix")
        tree = await desk.get("desk", "notes.edit")
        assert [each["stored_as"] for each in tree["checkpoints"]] == ["data", "patch", "patch"]
    async with house.open() as desk:
        assert await desk.get("desk", "notes.edit") == tree
        assert await desk.current() == {"state": {"notes": [long, "two", "three"]}}
        # The server has begun anew, and knows by the call what its patch is of.
        await desk.call("add_note", text="four")
        assert (await desk.current())["state"]["notes"][1:] == ["two", "three", "four"]
        assert (await desk.call("git_commit", message="more"))["beside"] == {"checkpoint": "chk_1"}


@pytest.mark.requirement(
    "MCPL-4.1-rollback", "MCPL-8.1-rollback", "MCPL-8.2-tree", "MCPL-8.5-rollback"
)
@pytest.mark.requirement("MCPL-8.6-result", "MCPL-8.3-opaque")
async def test_a_rollback_and_what_follows_it_make_a_branch(desk: Desk) -> None:
    for text in ("one", "two", "three"):
        await desk.call("add_note", text=text)
        await desk.call("git_commit", message=text)
    for feature in ("notes.edit", "git.commit"):
        done = await desk.rollback("chk_1", feature)
        assert (done["success"], done["reason"]) == (True, None)
    assert await desk.current() == {"state": {"notes": ["one"]}}
    await desk.call("add_note", text="other")
    told = await desk.call("git_commit", message="other")
    assert told["beside"] == {"checkpoint": "chk_1"}
    for feature in ("notes.edit", "git.commit"):
        tree = await desk.get("desk", feature)
        assert names(tree) == ["chk_1", "chk_2", "chk_3", "chk_4"]
        assert [each["follows"] for each in tree["checkpoints"]] == [
            None,
            "chk_1",
            "chk_2",
            "chk_1",
        ]
        assert [each["is_on_line"] for each in tree["checkpoints"]] == [True, False, False, True]
        assert tree["head"] == "chk_4"
    assert await desk.current() == {"state": {"notes": ["one", "other"]}}
    # And over to the other branch.
    assert (await desk.rollback("chk_3"))["success"]
    assert await desk.current() == {"state": {"notes": ["one", "two", "three"]}}
    written = await desk.journal("state_rolled_back", 3)
    assert [each["result"] for each in written] == ["SUCCESS"] * 3
    assert written[0]["details"]["feature_set"] == "notes.edit"
    assert written[0]["details"]["checkpoint"] == "chk_1"
    assert written[0]["actor"] != "server:desk"


@pytest.mark.requirement("MCPL-8.5-rollback")
async def test_a_principal_rolls_back_a_server_that_it_was_granted_and_no_other(
    desk: Desk,
) -> None:
    for text in ("one", "two"):
        await desk.call("add_note", text=text)
    keys: dict[str, str] = {}
    for principal, target in (("agent:writer", "desk/*"), ("agent:reader", "other/*")):
        made = await desk.post("..", "keys", principal=principal)
        keys[principal] = made["key"]
        await desk.post(
            *("..", "grants"), subject=principal, verb="admin/write", target=target, effect="allow"
        )
    url = f"{desk.origin}/api/state/desk/notes.edit/rollback"
    for principal, refusal in (("agent:reader", "access_denied"), ("agent:writer", "")):
        shown = {"authorization": f"Bearer {keys[principal]}"}
        async with desk.http.post(url, json={"checkpoint": "chk_1"}, headers=shown) as reply:
            text = await reply.text()
            assert (reply.status == 200, refusal in text) == (not refusal, True), text
    assert await desk.current() == {"state": {"notes": ["one"]}}
    (entry,) = await desk.journal("state_rolled_back")
    assert entry["actor"] == "agent:writer"


@pytest.mark.requirement(
    "MCPL-8.6-result",
    "MCPL-8.6-besteffort",
    "MCPL-8.7-retention",
    "MCPL-8.7-notfound",
    "MCPL-8.7-noassume",
    "MCPL-A-32005",
)
async def test_a_rollback_that_fails_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async with House(tmp_path, '[state]\nrollback_timeout = "2s"\n').open() as desk:
        for text in ("one", "two"):
            await desk.call("add_note", text=text)
        before = await desk.get("desk", "notes.edit")

        await desk.call("refuse", reason="External API call cannot be undone")
        told = await desk.rollback("chk_1")
        assert (told["success"], told["reason"]) == (False, "External API call cannot be undone")
        # For what is not stored, no server is asked.
        assert (await desk.rollback("nowhere"))["code"] == -32005
        assert await desk.get("desk", "notes.edit") == before

        await desk.call("forget")
        told = await desk.rollback("chk_1")
        assert (told["success"], told["code"]) == (False, -32005)
        assert "Checkpoint not found" in told["reason"]
        tree = await desk.get("desk", "notes.edit")
        assert [each["is_lost"] for each in tree["checkpoints"]] == [True, False]
        assert (tree["head"], await desk.current()) == (
            "chk_2",
            {"state": {"notes": ["one", "two"]}},
        )
        written = await desk.journal("state_rolled_back", 3)
        assert [each["details"]["outcome"] for each in written] == [
            "refused",
            "checkpoint_unknown",
            "checkpoint_unknown",
        ]
        assert {each["result"] for each in written} == {"FAILURE"}


@pytest.mark.requirement("MCPL-8.6-result")
async def test_a_server_that_answers_a_rollback_wrongly_or_never_is_not_followed(
    tmp_path: Path,
) -> None:
    async with House(tmp_path, '[state]\nrollback_timeout = "2s"\n').open() as desk:
        for text in ("one", "two"):
            await desk.call("add_note", text=text)
        await desk.call("refuse", **{"as": "chk_2"})
        told = await desk.rollback("chk_1", status=400)
        assert "another checkpoint" in told["error"]["message"]
        await desk.call("refuse", silent=True)
        told = await desk.rollback("chk_1", status=503)
        assert "did not answer" in told["error"]["message"]
        assert (await desk.get("desk", "notes.edit"))["head"] == "chk_2"


LONG = "x" * 3000
CANNOT_BE_HAD: list[tuple[dict[str, Any], str]] = [
    ({"parent": "root", "patch": [{"op": "remove", "path": "/secret"}]}, "does not fit"),
    ({"parent": "root", "patch": [{"op": "test", "path": "/n", "value": 2}]}, "failed test"),
    (
        {"parent": "root", "patch": [{"op": "add", "path": "/n", "value": 9}, {"op": "x"}]},
        "operation 1 is invalid",
    ),
    ({"parent": "root", "patch": {"op": "add"}}, "no list"),
    ({"parent": "elsewhere", "patch": []}, "not stored"),
    ({"patch": []}, "not stored"),
    ({"parent": "root", "data": {"n": LONG}}, "longer than 2048 bytes"),
    (
        {"parent": "root", "patch": [{"op": "add", "path": "/n", "value": LONG}]},
        "longer than 2048 bytes",
    ),
]


@pytest.mark.requirement("MCPL-8.3-apply", "MCPL-8.3-opaque", "MCPL-8-tolerate-h")
async def test_state_that_cannot_be_had_leaves_a_name(tmp_path: Path) -> None:
    async with House(tmp_path, "[state]\nmax_bytes = 2048\n").open() as desk:
        for number, (state, why) in enumerate(CANNOT_BE_HAD):
            await desk.say("root", data={"n": 1})
            result = await desk.raw("say", state={"checkpoint": "next", **state})
            # The answer is no worse for it.
            assert result["content"]
            assert "state" not in result
            assert await desk.current() == {"checkpoint": "next"}
            tree = await desk.get("desk", "notes.edit")
            kept = one(tree, "next")
            assert (kept["holds"], tree["head"]) == ("reference", "next")
            assert why in kept["drop_reason"]
            assert (await desk.get("desk", "notes.edit", "root"))["data"] == {"n": 1}
            written = await desk.journal("state_dropped", number + 1)
            assert why in written[-1]["details"]["reason"]
            assert (written[-1]["result"], written[-1]["tool"]) == ("FAILURE", "say")
            assert "secret" not in json.dumps(written)
            # What follows it has no state either, until there is some that stands by itself.
            await desk.say("after", parent="next")
            assert await desk.current() == {"checkpoint": "after"}
            await desk.say("whole", parent="after", data={"n": 7})
            assert await desk.current() == {"state": {"n": 7}}
            await desk.post("desk", "notes.edit", "delete")


async def test_data_counts_where_a_patch_comes_with_it(desk: Desk) -> None:
    patch = [{"op": "add", "path": "/n", "value": 2}]
    await desk.say("root", data={"n": 1})
    await desk.say("both", parent="root", data={"n": 3}, patch=patch)
    assert await desk.current() == {"state": {"n": 3}}
    written = await desk.journal("state_stored", 2)
    assert "data counts" in written[-1]["details"]["warning"]


UNREADABLE: tuple[object, ...] = (
    *(7, None, "chk", [], {}, {"checkpoint": 7}, {"checkpoint": ""}, {"checkpoint": "a\u0000"}),
    *({"checkpoint": "a", "parent": []}, {"checkpoint": "x" * 300}, {"data": {"n": 2}}),
)


@pytest.mark.requirement("MCPL-8-tolerate-h", "MCPL-8-optional")
async def test_state_that_cannot_be_read_is_left_alone(desk: Desk) -> None:
    await desk.say("root", data={"n": 1})
    for state in UNREADABLE:
        result = await desk.raw("say", state=state)
        assert result["content"]
        # What nobody here knows goes on as it came.
        assert result["other"] == 1
        assert "state" not in result, state
        assert await desk.current() == {"state": {"n": 1}}


async def test_state_that_an_sdk_would_drop_is_taken_from_its_mirror(desk: Desk) -> None:
    result = await desk.raw("say", mirror={"checkpoint": "root", "data": {"n": 1}})
    assert STATE not in result.get("_meta", {})
    assert await desk.current() == {"state": {"n": 1}}


async def test_one_name_again_and_again_is_the_newest_state(desk: Desk) -> None:
    await desk.say("now", data={"n": 1})
    await desk.say("child", parent="now", patch=[{"op": "add", "path": "/m", "value": 5}])
    await desk.say("now", parent="now", patch=[{"op": "replace", "path": "/n", "value": 2}])
    assert await desk.current() == {"state": {"n": 2}}
    # What rested on the old one is what it was.
    assert (await desk.get("desk", "notes.edit", "child"))["data"] == {"n": 1, "m": 5}
    # To name one that is known, without a state, is to go there.
    await desk.say("child")
    assert await desk.current() == {"state": {"n": 1, "m": 5}}
    assert sorted(names(await desk.get("desk", "notes.edit"))) == ["child", "now"]


async def test_no_client_gives_a_server_state(desk: Desk) -> None:
    mirrored = {STATE: {"n": 666}, CHECKPOINT: "forged"}
    forged = {"state": {"n": 666}, "checkpoint": "forged", "arguments": {}, "_meta": mirrored}
    for tool in ("desk__look", "desk__say_whole", "shut__say_whole"):
        told = given(await desk.sent({"name": tool, **forged}))
        assert told == {"beside": {}, "mirrored": {}}
    await desk.say("root", data={"n": 1})
    told = given(await desk.sent({"name": "desk__look", **forged}))
    assert told["beside"] == {"state": {"n": 1}}
    assert told["mirrored"] == {STATE: {"n": 1}, CHECKPOINT: "root"}


@pytest.mark.requirement("MCPL-8-optional")
async def test_what_is_not_enabled_is_neither_kept_nor_touched(desk: Desk) -> None:
    left = {"checkpoint": "chk", "data": {"n": 1}}
    result = await desk.raw("say_whole", "shut", state=left)
    assert result["state"] == left
    assert given(await desk.raw("say_whole", "shut"))["beside"] == {}
    assert await desk.get() == {"state": []}


async def test_a_tool_of_no_set_shares_the_state_of_its_server(desk: Desk) -> None:
    await desk.call("say_whole", state={"checkpoint": "root", "data": {"n": 1}})
    assert (await desk.call("say_whole"))["beside"] == {"state": {"n": 1}}
    assert await desk.current() == {}
    tree = await desk.get("desk", "*")
    assert (tree["feature_set"], tree["can_roll_back"]) == (None, False)
    told = await desk.rollback("root", "*", status=400)
    assert "rolled back" in told["error"]["message"]


@pytest.mark.requirement("MCPL-8.1-rollback")
async def test_a_set_that_declares_no_way_back_is_not_asked_for_one(desk: Desk) -> None:
    await desk.call("say_fixed", state={"checkpoint": "root", "data": {"n": 1}})
    assert (await desk.call("say_fixed"))["beside"] == {"state": {"n": 1}}
    for feature in ("fixed", "off", "nothing"):
        await desk.rollback("root", feature, status=400)
    assert not (await desk.get("desk", "fixed"))["can_roll_back"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_plain_server_is_as_it_was(desk: Desk, era: str) -> None:
    async with desk.client(era) as client:
        result = await client.call_tool("plain__echo", {"message": "hello"})
        assert "hello" in text_of(result)
        assert STATE not in (result.meta or {})
    assert await desk.get() == {"state": []}


@pytest.mark.requirement("MCPL-8.7-noassume", "MCPL-8.3-apply")
async def test_only_so_many_are_kept_and_all_of_them_can_be_rebuilt(tmp_path: Path) -> None:
    async with House(tmp_path, "[state]\nmax_checkpoints = 4\n").open() as desk:
        for number in range(20):
            await desk.call("add_note", text=f"{number} {'x' * 50}")
        tree = await desk.get("desk", "notes.edit")
        assert names(tree) == ["chk_17", "chk_18", "chk_19", "chk_20"]
        assert tree["checkpoints"][0]["follows"] is None
        for number in range(17, 21):
            found = await desk.get("desk", "notes.edit", f"chk_{number}")
            assert len(found["data"]["notes"]) == number
        assert (await desk.rollback("chk_1"))["code"] == -32005
        assert (await desk.rollback("chk_17"))["success"]
        assert len((await desk.current())["state"]["notes"]) == 17


async def test_many_calls_at_once_lose_nothing(desk: Desk) -> None:
    await desk.say("root", data={"pad": "x" * 300})
    many = range(30)
    await asyncio.gather(
        *(
            desk.say(f"c{n}", parent="root", patch=[{"op": "add", "path": f"/{n}", "value": n}])
            for n in many
        )
    )
    tree = await desk.get("desk", "notes.edit")
    assert sorted(names(tree)) == sorted(["root", *(f"c{n}" for n in many)])
    assert tree["head"] == names(tree)[-1]
    for n in many:
        found = await desk.get("desk", "notes.edit", f"c{n}")
        assert found["data"] == {"pad": "x" * 300, str(n): n}
    assert (await desk.current())["state"].keys() == {"pad", tree["head"][1:]}


async def test_operators_see_branches_and_go_back_by_command(desk: Desk) -> None:
    for text in ("one", "two"):
        await desk.call("add_note", text=text)
    status, said = await desk.cli("servers", "state", "rollback", "desk", "notes.edit", "chk_1")
    assert (status, said) == (0, "Rolled desk back to chk_1 of notes.edit.\n")
    await desk.call("add_note", text="other")
    status, said = await desk.cli("servers", "state")
    assert status == 0
    lines = [line.split()[:2] for line in said.splitlines()]
    assert lines == [
        ["desk", "notes.edit"],
        ["CHECKPOINT", "CONTENT"],
        ["○", "chk_1"],
        ["├─○", "chk_2"],
        ["└─●", "chk_3"],
    ]
    assert "current" in said
    status, said = await desk.cli("servers", "state", "show", "desk", "notes.edit", "chk_2")
    assert json.loads(said) == {"notes": ["one", "two"]}
    status, said = await desk.cli("servers", "state", "rollback", "desk", "notes.edit", "chk_9")
    assert (status, "not stored" in said) == (1, True)
    status, said = await desk.cli("servers", "state", "delete", "desk", "notes.edit")
    assert (status, said) == (0, "Deleted 3 checkpoints of notes.edit of desk.\n")
    assert await desk.current() == {}
    (written,) = await desk.journal("state_deleted")
    assert written["details"]["dropped"] == 3


MANY = at_length(40, 16)


@pytest.fixture
async def desks(tmp_path: Path) -> AsyncGenerator[list[Desk]]:
    async with a_database() as url, AsyncExitStack() as stack:
        fresh = postgres.product(url)
        await schema.upgrade_schema(fresh.engine)
        await fresh.close()
        houses: list[Desk] = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            house = House(folder, f'[audit]\nnode = "{name}"\n', store=url)
            houses.append(await stack.enter_async_context(house.open()))
        yield houses


@pytest.mark.requirement("MCPL-8.3-store", "MCPL-8.4-state", "MCPL-8.2-tree")
async def test_what_one_node_was_left_the_other_carries(desks: list[Desk]) -> None:
    one, two = desks
    await one.call("add_note", text="one")
    assert (await two.call("add_note", text="two"))["beside"] == {"state": {"notes": ["one"]}}
    assert await one.current() == {"state": {"notes": ["one", "two"]}}
    root = (await one.get("desk", "notes.edit"))["checkpoints"][0]["checkpoint"]
    await two.raw("say", knows=[root])
    assert (await two.rollback(root))["success"]
    assert await one.current() == {"state": {"notes": ["one"]}}
    assert await one.get("desk", "notes.edit") == await two.get("desk", "notes.edit")


@pytest.mark.requirement("MCPL-8.3-apply", "MCPL-8.2-tree")
async def test_calls_at_both_nodes_at_once_lose_nothing(desks: list[Desk]) -> None:
    await desks[0].say("root", data={"pad": "x" * 300})

    async def leave(number: int) -> None:
        patch = [{"op": "add", "path": f"/{number}", "value": number}]
        await desks[number % 2].say(f"c{number}", parent="root", patch=patch)

    await asyncio.gather(*map(leave, range(MANY)))
    trees = [await desk.get("desk", "notes.edit") for desk in desks]
    assert trees[0] == trees[1]
    found = [each["checkpoint"] for each in trees[0]["checkpoints"]]
    assert sorted(found) == sorted(["root", *(f"c{number}" for number in range(MANY))])
    # What counts is the last that was written.
    assert trees[0]["head"] == found[-1]
    for number in range(0, MANY, 5):
        state = await desks[1].get("desk", "notes.edit", f"c{number}")
        assert state["data"] == {"pad": "x" * 300, str(number): number}
    carried = [await desk.current() for desk in desks]
    assert carried[0] == carried[1]
    assert carried[0]["state"].keys() == {"pad", trees[0]["head"][1:]}


@pytest.mark.requirement("MCPL-8.3-apply")
async def test_one_name_of_both_nodes_keeps_all_that_was_patched(desks: list[Desk]) -> None:
    """The hardest for two nodes: each patch is of what the other may just have written."""
    await desks[0].say("now", data={})

    async def leave(number: int) -> None:
        patch = [{"op": "add", "path": f"/{number}", "value": number}]
        await desks[number % 2].say("now", parent="now", patch=patch)

    await asyncio.gather(*map(leave, range(MANY)))
    assert (await desks[0].current())["state"] == {str(number): number for number in range(MANY)}
    assert len((await desks[1].get("desk", "notes.edit"))["checkpoints"]) == 1
