"""`comity grants`, `comity servers permissions` and the review of tools."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from comity.app.records import open_store
from comity.approvals.model import ApprovalDecision
from comity.cli import api_client
from tests.cli.program import Desk, Ran, Terminal
from tests.conformance.guarding import guarded, guarding
from tests.interop.processes import answers, running
from tests.support.decisions import Decisions
from tests.support.fork_server import COMITY

pytestmark = pytest.mark.timeout(300)

STORE = 'port = 0\n[store]\nurl = "sqlite:///comity.db"\n'
DECIDED = """
[[grants]]
subject = "*"
target = "docs"
reason = "for everybody"

[[forbid]]
subject = "agent:*"
target = "*/delete_*"
reason = "it is gone then"
"""


@pytest.fixture
def kept(desk: Desk) -> Desk:
    desk.write("comity.toml", STORE + DECIDED)
    return desk


def run(desk: Desk, *words: str) -> Ran:
    return desk.run("grants", *words, "--offline")


def test_grants_are_added_listed_and_removed_in_the_store(kept: Desk) -> None:
    added = run(kept, "create", "agent:ci", "files__read", "--reason", "nightly", "--expires", "8h")
    assert added.status == 0, added.err
    assert "files/read" in added.out
    listed = run(kept)
    for said in (
        "agent:ci",
        "nightly",
        "person:local",
        "configuration",
        "for everybody",
        "grant: deny",
    ):
        assert said in listed.out
    assert "it is gone then" in listed.out
    found = run(kept, "--principal", "agent:ci", "-o", "json").json["grants"]
    assert [grant["target"] for grant in found] == ["files/read"]
    assert run(kept, "delete", "agent:ci", "files/read").status == 0
    assert run(kept, "delete", "agent:ci", "files/read").status == 5


def test_a_grant_with_a_condition_is_shown_with_it_and_removed_by_itself(kept: Desk) -> None:
    where = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'
    run(kept, "create", "agent:ci", "files__read", "--ask")
    added = run(kept, "create", "agent:ci", "files__read", "--where", where)
    assert added.status == 0, added.err
    assert "CONDITION" in added.out
    assert "under /project" in run(kept).out
    told = run(kept, "explain", "agent:ci", "files__read").out
    assert "conditional" in told
    assert "under /project" in told
    left = run(kept, "delete", "agent:ci", "files/read")
    assert "Conditional grants that remain: 1" in left.out
    assert run(kept, "delete", "agent:ci", "files/read", "--conditional").status == 0
    assert run(kept, "delete", "agent:ci", "files/read", "--conditional").status == 5
    assert "is no JSON" in run(kept, "create", "agent:ci", "files/read", "--where", "x").err


def test_what_the_file_grants_is_only_changed_there(kept: Desk) -> None:
    ran = run(kept, "delete", "*", "docs")
    assert ran.status == 5
    assert "Remove it there" in ran.out


def test_an_explanation_names_what_decides_in_a_sentence(kept: Desk) -> None:
    run(kept, "create", "agent:ci", "files", "--deny")
    run(kept, "create", "agent:ci", "files/read")
    told = run(kept, "explain", "agent:ci", "files__read")
    assert told.lines[0].startswith("agent:ci may call files/read: an entry about this target")
    assert "less specific" in told.out
    assert "may not call files/write: an entry about its server (files/*) says deny" in (
        run(kept, "explain", "agent:ci", "files/write").out
    )
    assert "a guardrail forbids tools/call on */delete_* to agent:* (it is gone then)." in (
        run(kept, "explain", "agent:ci", "files/delete_all").out
    )
    assert "no entry is about it, and the default policy of web is deny" in (
        run(kept, "explain", "agent:ci", "web/get").out
    )


def test_an_explanation_reckons_with_the_bounds_of_a_key(kept: Desk) -> None:
    made = kept.run(
        *("keys", "create", "agent:ci", "--permission", "ToolInvoke(docs/read)", "-o", "json"),
        "--offline",
    ).json
    with_key = ("explain", "agent:ci", "docs/write", "--key", made["id"])
    assert "outside of its bounds" in run(kept, *with_key).out
    assert run(kept, "explain", "agent:ci", "docs/write").out.startswith("agent:ci may call")
    assert "has no key" in run(kept, *with_key[:-1], "nope").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create", "agent:*", "files"), "must be one principal"),
        (("create", "agent:ci", "fi les"), "must be server/tool"),
        (("create", "agent:ci", "files", "--verb", "*/list"), "must be a method"),
        (("create", "agent:ci", "files", "--expires", "2020-01-01"), "in the past"),
        (("explain", "agent:ci", "read"), "name the server of"),
    ],
)
def test_a_mistake_is_told_with_what_would_do(
    kept: Desk, words: tuple[str, ...], told: str
) -> None:
    ran = run(kept, *words)
    assert ran.status == 2
    assert told in ran.err


def test_a_running_gateway_is_asked_and_has_it_in_force(kept: Desk, tmp_path: Path) -> None:
    server = f'[[servers]]\nid = "ex"\ncommand = "{COMITY}"\nargs = ["dev", "example-server"]\n'
    kept.write("comity.toml", STORE + DECIDED + server)
    command = [str(COMITY), "serve", "-c", str(kept.folder / "comity.toml"), "--port", "0"]
    here = {"COMITY_STORE_URL": f"sqlite:///{kept.folder}/comity.db"}
    with running(command, here) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        at = {"COMITY_URL": origin}
        assert kept.run("grants", "create", "agent:ci", "ex__echo", **at).status == 0
        # By its bare name, which only a gateway can tell.
        told = kept.run("grants", "explain", "agent:ci", "echo", **at)
        assert told.lines[0].startswith("agent:ci may call ex/echo")
        assert "agent:ci" in kept.run("grants", **at).out
    assert "files" not in run(kept, "--principal", "agent:ci").out


CONFIGURED = """
[store]
url = "sqlite:///comity.db"

[[servers]]
id = "fs"
command = "COMITY"
args = ["dev", "example-server"]

[[grants]]
subject = "agent:x"
target = "fs"
effect = "ask"
""".replace("COMITY", COMITY)


def _a_path(number: int) -> Mapping[str, object]:
    return {"message": f"/project/{number}.txt"}


def _elsewhere(number: int) -> Mapping[str, object]:
    return {"message": f"/etc/{number}", "more": True}


@dataclass
class Gateway:
    """One that runs, and its store."""

    desk: Desk
    origin: str

    def run(self, *words: str) -> Ran:
        return self.desk.run("grants", *words, COMITY_URL=self.origin, COLUMNS="100")

    def decide(
        self, decided: Decisions, count: int, verdict: ApprovalDecision = ApprovalDecision.ACCEPT
    ) -> None:
        """Have people decide so often about calls of the tool `echo`, as it is now."""
        tools = api_client.ApiClient(self.origin).get("definitions", all="true")["tools"]
        (digest,) = [each["digest"] for each in tools if each["tool"] == "echo"]
        arguments = _a_path if verdict is ApprovalDecision.ACCEPT else _elsewhere

        async def put() -> None:
            records = open_store(f"sqlite:///{self.desk.folder}/comity.db")
            await records.open()
            try:
                echo = replace(decided, server="fs", tool="echo", definition=digest)
                await echo.put(records, count, arguments, verdict)
            finally:
                await records.close()

        asyncio.run(put())


@contextmanager
def _gateway(desk: Desk) -> Generator[Gateway]:
    desk.write("comity.toml", CONFIGURED)
    command = [str(COMITY), "serve", "-c", str(desk.folder / "comity.toml"), "--port", "0"]
    here = {"COMITY_STORE_URL": f"sqlite:///{desk.folder}/comity.db"}
    with running(command, here) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Gateway(desk, origin)


def test_suggestions_are_shown_accepted_and_dismissed(desk: Desk) -> None:
    with _gateway(desk) as gateway:
        assert "There are no suggestions" in gateway.run("suggestions").out
        gateway.decide(Decisions(days=9), 23)
        gateway.decide(Decisions(days=2), 1, ApprovalDecision.DECLINE)
        told = gateway.run("suggestions", "--replay")
        assert told.status == 0, told.err
        assert "always allow `fs__echo` under /project for agent:x: 23 of 23 approved by two" in (
            told.out
        )
        assert "would have allowed 23; would not have covered 1" in told.out
        assert "/etc/0" in told.out
        assert "would have" not in gateway.run("suggestions").out
        (found,) = gateway.run("suggestions", "-o", "json").json["suggestions"]
        assert found["dry_run"]["allowed"] == 23

        gone = gateway.run("suggestions", "dismiss", found["id"], "--reason", "not yet")
        assert "returns after 46 approvals" in gone.out
        assert "There are no suggestions" in gateway.run("suggestions").out
        again = gateway.run("suggestions", "accept", found["id"])
        assert again.status == 5
        assert "this grant is not suggested" in again.err

        gateway.decide(Decisions(asker="agent:y", days=9), 12)
        gateway.run("create", "agent:y", "fs", "--ask")
        (other,) = gateway.run("suggestions", "-o", "json").json["suggestions"]
        done = gateway.run("suggestions", "accept", other["id"], "--reason", "they only read")
        assert done.status == 0, done.err
        assert "Granted fs/echo to agent:y: under /project" in done.out
        listed = gateway.run("--principal", "agent:y")
        assert "under /project" in listed.out
        assert "they only read" in listed.out
        back = gateway.run("delete", "agent:y", "fs/echo", "--conditional")
        assert back.status == 0, back.out


def test_a_terminal_shows_what_is_suggested_within_its_width(desk: Desk) -> None:
    with _gateway(desk) as gateway:
        gateway.decide(Decisions(days=4), 12)
        gateway.decide(Decisions(days=2), 3, ApprovalDecision.DECLINE)
        desk.env["COMITY_URL"] = gateway.origin
        with Terminal(desk, "grants", "suggestions", "--replay") as terminal:
            terminal.until("would not have covered 3")
            assert terminal.end() == 0
        assert "NOT COVERED" in terminal.seen


@pytest.fixture(scope="module")
def guarded_gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    look: dict[str, object] = {
        "name": "look",
        "description": "Looks\u200b.",
        "security": {"permissions_required": []},
    }
    with guarding(
        tmp_path_factory.mktemp("gateway"),
        mail=guarded("shell", "camera", approval_policy="interactive"),
        odd=guarded(tools=[look]),
        new=guarded(tools=[{"name": "look", "description": "Looks."}], trust_definitions="approve"),
    ) as house:
        yield house.origin


def test_what_waits_is_listed_and_can_be_decided(desk: Desk, guarded_gateway: str) -> None:
    ran = desk.run("servers", "permissions", "--url", guarded_gateway)
    assert ran.status == 0
    waits = desk.run("servers", "permissions", "--check", "--url", guarded_gateway)
    assert waits.status == 1, "a permission waits for a decision"
    assert ran.lines[0].split()[:4] == ["SERVER", "PERMISSION", "RISK", "STATUS"]
    assert ran.lines[1].split()[:4] == ["mail", "shell.execute", "dangerous", "deferred"]
    shown = desk.run("servers", "show", "mail", "--url", guarded_gateway)
    assert "Permissions it needs:" in shown.lines
    order = (
        "mail",
        "shell",
        "--expires",
        "8h",
        "--reason",
        "it deploys",
        "--url",
        guarded_gateway,
    )
    approved = desk.run("servers", "permissions", "approve", *order)
    assert (approved.status, "it deploys" in approved.out) == (0, True)
    denied = desk.run(
        "servers", "permissions", "deny", "mail", "camera", "-o", "json", "--url", guarded_gateway
    )
    assert denied.json["permissions"][0]["decision"] == "denied"
    settled = desk.run(
        "servers", "permissions", "list", "--server", "mail", "--url", guarded_gateway
    )
    assert (settled.status, "person:local" in settled.out) == (0, True)
    forgotten = desk.run(
        "servers", "permissions", "reset", "mail", "camera", "--url", guarded_gateway
    )
    assert "deferred" in forgotten.out
    early = desk.run(
        "servers", "permissions", "deny", "mail", "memory.read", "--url", guarded_gateway
    )
    assert "has not requested memory.read yet" in early.out


def test_where_nothing_is_needed_that_is_said(desk: Desk, guarded_gateway: str) -> None:
    ran = desk.run("servers", "permissions", "--server", "odd", "--url", guarded_gateway)
    assert (ran.status, ran.lines) == (0, ["No server needs a permission."])
    listed = desk.run(
        "servers", "permissions", "--server", "odd", "-o", "json", "--url", guarded_gateway
    )
    assert listed.json == {"permissions": []}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("approve", "nowhere", "camera"), 5, "there is no server 'nowhere'"),
        (("approve", "mail", "a*b"), 2, "no permission can be named"),
        (("approve", "mail", "camera", "--expires", "soon"), 2, "must be a time"),
    ],
)
def test_mistake_about_a_permission_is_explained(
    desk: Desk, guarded_gateway: str, arguments: tuple[str, ...], status: int, told: str
) -> None:
    ran = desk.run("servers", "permissions", *arguments, "--url", guarded_gateway)
    assert (ran.status, told in ran.err) == (status, True), ran.err


def test_what_a_tool_hides_is_shown_and_can_be_accepted(desk: Desk, guarded_gateway: str) -> None:
    ran = desk.run("tools", "diff", "odd", "--url", guarded_gateway)
    assert ran.status == 0
    waits = desk.run("tools", "diff", "odd", "--exit-code", "--url", guarded_gateway)
    assert waits.status == 1, "a tool waits"
    assert ran.lines[:2] == ["odd look", "may deceive its readers"]
    assert r"\u{200b}" in ran.out
    assert desk.run("tools", "accept", "odd", "--url", guarded_gateway).status == 2
    both = desk.run("tools", "accept", "odd", "look", "nothing", "--url", guarded_gateway)
    assert (both.status, both.lines[0]) == (1, "Accepted of odd: look")
    assert desk.run("call", "odd__look", "--url", guarded_gateway).status == 0
    one = desk.run("tools", "diff", "odd", "look", "-o", "json", "--url", guarded_gateway)
    assert (one.status, one.json["tools"][0]["state"]) == (0, "accepted")


def test_a_new_server_is_accepted_as_a_whole(desk: Desk, guarded_gateway: str) -> None:
    assert "waits to be accepted" in desk.run("tools", "diff", "new", "--url", guarded_gateway).out
    ran = desk.run("tools", "accept", "new", "--all", "-o", "json", "--url", guarded_gateway)
    assert (ran.status, "look" in ran.json["accepted"]) == (0, True)
    left = desk.run("tools", "diff", "new", "--url", guarded_gateway)
    assert (left.status, left.lines) == (0, ["Every tool is accepted as it is now."])
