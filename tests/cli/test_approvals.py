"""`comity approvals`, `approve` and `deny`, and calls that wait for approval."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from comity.approvals.model import ApprovalKind, ApprovalRequest
from comity.cli.approvals import answer_options, content_of, requests_table
from comity.cli.output import show_output
from comity.errors import Misconfigured
from tests.cli.asking_gateway import ANA, NOBODY_THERE, Asked, asking_gateway, made_ready
from tests.cli.lines import LineReader
from tests.cli.program import EXAMPLE, SECONDS, Desk, Terminal
from tests.interop.processes import comity
from tests.support.cases import loop_over
from tests.support.fork_server import COMITY

# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Generator[Asked]:
    with asking_gateway(tmp_path_factory.mktemp("asked")) as asked:
        yield asked


@pytest.mark.requirement("MCP-5.1-hitl", "MGP-4.4-dangerous")
def test_what_waits_is_listed_shown_and_approved(asked: Asked) -> None:
    id = asked.ask(message="to be approved")
    listed = asked.run("approvals")
    (row,) = [line for line in listed.lines if "to be approved" in line]
    assert row.startswith(id[:8])
    assert "dangerous" in row
    shown = asked.run("approvals", "show", id[:10])
    for part in ("agent:ci wants to call example__echo", '"message": "to be approved"', "Expires"):
        assert part in shown.out
    approved = asked.run("approve", id[:10], "--reason", "as agreed")
    assert (approved.status, "approved it: as agreed" in approved.out) == (0, True)
    assert asked.written(message="to be approved") == "to be approved"
    again = asked.run("approve", id)
    assert (again.status, "The call has run" in again.out) == (1, True)
    assert "to be approved" not in asked.run("approvals").out
    assert "consumed" in asked.run("approvals", "--all").out


@pytest.mark.requirement("MCP-5.1-hitl", "MGP-4.4-dangerous")
def test_what_is_denied_does_not_run_and_says_why(asked: Asked) -> None:
    id = asked.ask(message="to be denied")
    denied = asked.run("deny", id, "--reason", "not today")
    assert denied.status == 0
    told = asked.call(message="to be denied")["error"]
    assert "not today" in told["message"]
    assert asked.run("deny", id).status == 1
    found = asked.run("approvals", "--state", "denied", "-o", "json").json["approvals"]
    assert id in [each["id"] for each in found]


def test_programs_read_the_same_as_json(asked: Asked) -> None:
    id = asked.ask(message="for programs")
    found = asked.run("approvals", "-o", "json").json["approvals"]
    (view,) = [each for each in found if each["id"] == id]
    assert view["about"]["arguments"] == {"message": "for programs"}
    assert asked.run("approvals", "show", id, "-o", "json").json["id"] == id
    assert asked.run("deny", id, "-o", "json").json["state"] == "denied"


def test_nobody_else_sees_or_answers_it(asked: Asked) -> None:
    id = asked.ask(message="for ana alone")
    own = asked.run("approve", id, key=asked.agent)
    assert own.status == 4
    assert "only a person can answer this" in own.err
    assert "You cannot answer it" in asked.run("approvals", "show", id, key=asked.agent).out
    for words in (("approvals", "show", "zzzzzzzz"), ("approve", "zzzzzzzz")):
        assert asked.run(*words).status == 5
    assert asked.run("approvals", "show", "x").status == 2
    assert asked.run("approve", id, key="wrong").status == 4
    asked.run("deny", id)


def test_always_and_links_are_for_those_who_administer(asked: Asked) -> None:
    id = asked.ask(message="not for good")
    remembered = asked.run("approve", id, "--remember")
    assert remembered.status == 2
    assert "admin/write" in remembered.err
    assert "admin/write" in asked.run("approvals", "link", id, "--principal", ANA).err
    assert asked.run("deny", id).status == 0


def test_at_a_terminal_it_is_shown_what_would_run_before_it_is_approved(asked: Asked) -> None:
    trick = "\x1b[2J\u202eharmless\nRisk  safe"
    id = asked.ask(message=trick)
    desk = asked.desk
    desk.env |= {"COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    with Terminal(desk, "approve", id) as terminal:
        terminal.until("[y/N]")
        for part in ("Requested by", "agent:ci", "echo", "dangerous", "Definition", "Expires"):
            assert part in terminal.seen
        assert "\x1b[2J" not in terminal.seen
        assert "\u202e" not in terminal.seen
        assert "\nRisk  safe" not in terminal.seen.replace("\r", "")
        assert "x1b[2J" in terminal.seen
        terminal.type("n\n")
        terminal.until("still open")
        assert terminal.end() == 1
    assert asked.run("approvals", "show", id, "-o", "json").json["state"] == "pending"
    with Terminal(desk, "approve", id) as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        terminal.until("Approved")
        assert terminal.end() == 0
    assert asked.written(message=trick) == trick


def test_a_terminal_that_watches_shows_what_comes_and_goes(asked: Asked) -> None:
    desk = asked.desk
    desk.env |= {"COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    for left in asked.run("approvals", "-o", "json").json["approvals"]:
        asked.run("deny", left["id"])
    with Terminal(desk, "approvals", "--watch") as terminal:
        terminal.until("\x1b[")
        id = asked.ask(message="watched")
        terminal.until(id[:8])
        assert "watched" in terminal.seen
        terminal.seen = ""
        asked.run("deny", id)
        terminal.until("no open requests")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() in (130, -signal.SIGINT)


def test_piped_each_change_is_a_line(asked: Asked) -> None:
    env = {**asked.desk.env, "COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    before = asked.ask(message="before it is watched")
    program = subprocess.Popen(
        [COMITY, "approvals", "--watch", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
    )
    assert program.stdout is not None
    lines = LineReader(program.stdout)
    try:
        assert json.loads(lines.until(before))["state"] == "pending"
        id = asked.ask(message="while it is watched")
        assert json.loads(lines.until(id))["about"]["arguments"] == {
            "message": "while it is watched"
        }
        for each in (before, id):
            asked.run("deny", each)
            assert json.loads(lines.until(each))["state"] == "denied"
    finally:
        program.kill()
        program.wait(SECONDS)
        program.stdout.close()


def test_who_watches_where_nobody_answers_is_told_so(desk: Desk) -> None:
    assert desk.run("approvals", "--watch", **NOBODY_THERE).status == 3


def test_without_a_gateway_the_store_itself_is_asked(tmp_path: Path) -> None:
    with asking_gateway(tmp_path) as asked:
        id = asked.ask(message="left behind")
        other = asked.ask(message="also left behind")
        desk = asked.desk
    assert desk.run("approvals", **NOBODY_THERE).status == 3
    listed = desk.run("approvals", "--offline")
    assert "left behind" in listed.out
    made = desk.run("approvals", "link", id, "--principal", ANA, "--offline")
    assert f"/approvals/{id}?t=" in made.out
    assert len(made.lines) == 1
    approved = desk.run("approve", id[:12], "--remember", "--offline")
    assert approved.status == 0, approved.err
    assert "Granted example/echo to agent:ci." in approved.out
    assert desk.run("deny", other, "--offline").status == 0
    told = desk.run("audit", "list", "-o", "json", "--offline")
    assert told.out.count("approval_answered") >= 2
    assert "ACCESS_GRANTED" in told.out


def test_an_empty_inbox_says_so(tmp_path: Path) -> None:
    desk, _, _ = made_ready(tmp_path)
    assert "no open requests" in desk.run("approvals", "--offline").out
    assert desk.run("approvals", "--all", "--offline").out == "None.\n"


SERVER = f"""
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {EXAMPLE["args"]}
"""
LOCAL = f"""
[policy]
require_approval = "dangerous"
{SERVER}
"""
# Any port: a gateway of another test may have the usual one, and --offline would refuse.
KEYS = f"""
port = 0

[store]
url = "sqlite:///${{HOME}}/comity.db"

[identity]
mode = "required"
{SERVER}
"""
CALL = ("call", "example__echo", "message=hello")
WAITS = re.compile(r"comity: this call waits for approval \(request (\w+)\)\. (.*)")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))


@contextmanager
def serving(desk: Desk, written: str) -> Generator[str]:
    config = desk.write("comity.toml", written)
    with comity(config, desk.env) as origin:
        yield origin


@contextmanager
def script(desk: Desk, *arguments: str, **env: str) -> Generator["Script"]:
    with subprocess.Popen(
        [COMITY, *arguments],
        cwd=desk.folder,
        env={**desk.env, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Script(process)
        finally:
            process.kill()


class Script:
    """A command in the middle of a script: nobody sees what it asks, and nobody types."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.err = ""

    def waits(self) -> tuple[str, str]:
        """The request that it waits for, and who can approve it and how."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.err += line
            if found := WAITS.match(line):
                return found[1], found[2]
        raise AssertionError(self.err)

    def end(self) -> tuple[int, str]:
        out, err = self._process.communicate(timeout=SECONDS)
        self.err += err
        return self._process.returncode, out


def states(desk: Desk, origin: str, **env: str) -> dict[str, str]:
    found = desk.run("approvals", "list", "--all", "-o", "json", "--url", origin, **env).json[
        "approvals"
    ]
    return {each["id"]: each["state"] for each in found}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Desk, str]]:
    """A gateway without keys whose dangerous calls need approval."""
    root = tmp_path_factory.mktemp("local")
    desk = Desk(root, COMITY_STATE_DIR=str(root / "state"))
    with serving(desk, LOCAL) as origin:
        yield desk, origin


def test_a_script_waits_for_approval_and_never_denies_it(local: tuple[Desk, str]) -> None:
    desk, origin = local
    with script(desk, *CALL, "--url", origin) as call:
        request, how = call.waits()
        page = f"{origin}/approvals/{request}"
        assert (
            how == f"You can approve it at {page} or by `comity approve {request} --url {origin}`."
        )
        with urllib.request.urlopen(page, timeout=SECONDS) as shown:  # noqa: S310 - loopback only
            assert shown.status == 200
        assert states(desk, origin)[request] == "pending"
        assert desk.run("approve", request, "--yes", "--url", origin).status == 0
        assert call.end() == (0, "hello\n")
        assert states(desk, origin)[request] == "consumed"


def test_a_script_whose_time_runs_out_leaves_the_request_to_be_approved(
    local: tuple[Desk, str],
) -> None:
    desk, origin = local
    late = desk.run(*CALL, "--url", origin, "--timeout", "3")
    assert (late.status, late.out) == (1, "")
    found = re.search(r"still waits for approval \(request (\w+)\); nothing has run", late.err)
    assert found is not None, late.err
    assert "Then run the same command again" in late.err
    assert states(desk, origin)[found[1]] == "pending"
    assert desk.run("approve", found[1], "--yes", "--url", origin).status == 0
    again = desk.run(*CALL, "--url", origin)
    assert (again.status, again.out) == (0, "hello\n")


def test_a_gateway_for_one_command_serves_the_page_that_it_names(desk: Desk) -> None:
    config = desk.write("comity.toml", LOCAL)
    with script(desk, *CALL, "--local", "-c", str(config)) as call:
        request, how = call.waits()
        (page,) = re.findall(r"http://\S+", how)[:1]
        assert page.endswith(f"/approvals/{request}")
        with urllib.request.urlopen(page, timeout=SECONDS) as shown:  # noqa: S310 - loopback only
            assert shown.status == 200


def keys(desk: Desk, *names: str) -> Mapping[str, str]:
    """A key of each, made before a gateway runs; `person:me` may do everything."""
    here = ("--offline", "-c", str(desk.write("comity.toml", KEYS)))
    made = {name: desk.run("keys", "create", name, *here).lines[0] for name in names}
    assert desk.run("grants", "create", "person:me", "*", "--verb", "*", *here).status == 0
    return made


def test_a_requester_at_a_terminal_is_told_for_whom_it_waits_and_asked_nothing(desk: Desk) -> None:
    key = keys(desk, "person:me", "agent:two")
    here = ("--offline", "-c", str(desk.folder / "comity.toml"))
    assert desk.run("grants", "create", "agent:two", "example", *here).status == 0
    (desk.folder / "two.key").write_text(key["agent:two"])
    with (
        serving(desk, KEYS) as origin,
        Terminal(desk, *CALL, "--url", origin, "--key-file", "two.key") as terminal,
    ):
        terminal.until("waits for approval")
        terminal.until("comity approve")
        terminal.until("only a person can answer this")
        (request,) = states(desk, origin, COMITY_KEY=key["person:me"])
        approved = desk.run(
            "approve", request, "--yes", "--url", origin, COMITY_KEY=key["person:me"]
        )
        assert approved.status == 0
        terminal.until("hello")
        assert terminal.end() == 0
        assert (
            "A person with the grant approval/answer for example/echo can approve it"
            in terminal.seen
        )
        assert not re.search(r"\[y/N\]|agree|asks:", terminal.seen)


def test_a_single_operator_with_keys_is_told_the_way_out_and_it_works(desk: Desk) -> None:
    me = {"COMITY_KEY": keys(desk, "person:me")["person:me"]}
    with serving(desk, KEYS) as origin, script(desk, *CALL, "--url", origin, **me) as call:
        request, how = call.waits()
        assert "approve_own = true in [policy]" in how
        assert "approval/answer_own" in how
        refused = desk.run("approve", request, "--yes", "--url", origin, **me)
        assert (refused.status, "approve_own = true in [policy]" in refused.err) == (4, True)
    alone = f"{KEYS}\n[policy]\napprove_own = true\n"
    with serving(desk, alone) as origin, script(desk, *CALL, "--url", origin, **me) as call:
        same, how = call.waits()
        assert (same, how.startswith("You can approve it at ")) == (request, True)
        assert desk.run("approve", same, "--yes", "--url", origin, **me).status == 0
        assert call.end() == (0, "hello\n")


def call_request(id: str, **arguments: str) -> ApprovalRequest:
    about = {"tool": "example__echo", "risk": "dangerous", "arguments": arguments}
    now = datetime.now(UTC)
    named = (id, ApprovalKind.CONFIRM, "agent:ci", "example", "echo", "d" * 64, "Echo?", about)
    return ApprovalRequest(*named, now, now + timedelta(minutes=15))


LONG = "remove everything below /srv/data and then tell ana@example.org what was removed"
ASKS = [
    call_request("06gtu5so8n7jlh0rmk51g7iu0g", message=LONG),
    call_request("06gtu6aa8n7jlh0rmk51g7iu0g", a="b"),
]


def table_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_output(requests_table(ASKS))
    return capsys.readouterr().out.splitlines()


def test_a_narrow_terminal_shows_arguments_whole_below_each_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = table_lines(capsys)
    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["ID", "AGE", "RISK", "EXPIRES", "IN", "PRINCIPAL"]
    assert shown[1].startswith("06gtu5so  ")
    assert shown[1].index("agent:ci") == shown[0].index("PRINCIPAL")
    text = " ".join(line.strip() for line in shown[2:])
    assert f'call example__echo {{"message": "{LONG}"}}' in text
    assert shown[-1].strip() == 'call example__echo {"a": "b"}'


def test_a_wide_terminal_shows_each_ask_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    header, first, second = table_lines(capsys)
    assert header.endswith("PRINCIPAL  REQUEST")
    assert first.endswith(f'call example__echo {{"message": "{LONG}"}}')
    assert second.endswith('call example__echo {"a": "b"}')


NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
}


def input_request(
    kind: ApprovalKind = ApprovalKind.INPUT, schema: dict[str, Any] | None = None
) -> ApprovalRequest:
    named = ("agent:a", "srv", "tool", "digest", "message")
    return ApprovalRequest("1", kind, *named, {}, NOW, NOW + timedelta(hours=1), schema=schema)


def test_nothing_said_is_nothing_sent() -> None:
    assert content_of(input_request(), None, (), None) is None


@loop_over(
    ("fill", "content"),
    [
        (("name=a=b",), {"name": "a=b"}),
        (("days=3", "share=0.5"), {"days": 3, "share": 0.5}),
        (("sure=yes",), {"sure": True}),
        (("sure=False",), {"sure": False}),
        (("some=a, b",), {"some": ["a", "b"]}),
    ],
)
def test_each_value_is_of_its_field_s_type(fill: Sequence[str], content: dict[str, Any]) -> None:
    assert content_of(input_request(schema=FORM), None, fill, None) == content


@loop_over("wrong", ["days=three", "share=half", "sure=perhaps", "other=1"])
def test_what_cannot_be_meant_is_said_before_it_is_sent(wrong: str) -> None:
    with pytest.raises(Misconfigured):
        content_of(input_request(schema=FORM), None, (wrong,), None)


def test_a_question_without_a_form_has_one_text() -> None:
    assert content_of(input_request(), None, ("text=blue",), None) == {"text": "blue"}
    with pytest.raises(Misconfigured, match="--fill text"):
        content_of(input_request(), None, ("name=blue",), None)


def test_a_choice_is_what_was_chosen() -> None:
    assert content_of(input_request(ApprovalKind.SELECT), "staging", (), None) == {
        "choice": "staging"
    }


def test_only_a_permission_has_an_end() -> None:
    found = content_of(input_request(ApprovalKind.PERMISSION), None, (), "8h")
    assert found is not None
    ends = datetime.fromisoformat(str(found["expires_at"]))
    assert timedelta(hours=7, minutes=59) < ends - datetime.now(UTC) <= timedelta(hours=8)
    with pytest.raises(Misconfigured, match="--expires is for permissions only"):
        content_of(input_request(), None, (), "8h")


def test_a_secret_is_asked_for_and_not_shown() -> None:
    @click.command()
    @answer_options
    def command(choose: str | None, fill: tuple[str, ...]) -> None:
        found = content_of(input_request(), choose, fill, None)
        assert found == {"text": "hunter2"}
        click.echo("filled in")

    result = CliRunner().invoke(command, ["--fill", "text"], input="hunter2\n")
    assert result.exit_code == 0, result.output
    assert "filled in" in result.output
    assert "hunter2" not in result.output
