"""`comity servers` and `comity status`: how each server is, what it said, and whether it runs."""

import socket
from collections.abc import Generator
from typing import Any

import pytest
from click.testing import CliRunner

from comity.servers.commands import (
    describe_reason,
    describe_report,
    find_new_lines,
    servers_command,
)
from tests.cli.program import COMITY, EXAMPLE, Desk
from tests.interop.processes import comity, running
from tests.support.cases import loop_over


def test_servers_are_listed_with_their_states_and_reasons(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "--url", gateway)
    assert ran.status == 0, "a list is a report"
    assert desk.run("servers", "--check", "--url", gateway).status == 1, "one of them has failed"
    assert ran.lines[0].split()[:3] == ["SERVER", "STATE", "TOOLS"]
    assert ran.lines[1].split()[:4] == ["example", "connected", "5", "stdio"]
    assert ran.lines[2].split()[0] == "absent"
    assert "no such program" in ran.lines[2]


def test_a_narrow_terminal_shows_short_reasons_below_the_servers(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "--url", gateway, COLUMNS="80")
    assert max(map(len, ran.lines)) <= 80
    assert "REASON" not in ran.lines[0]
    assert ran.lines[2].split()[:2] == ["absent", "failed"]
    below = ran.lines[ran.lines.index("") + 1 :]
    assert below[0].split() == ["SERVER", "REASON"]
    assert "there is no such program" in " ".join(below)
    assert "how it is spelt" not in ran.out
    assert below[-1] == "`comity servers show NAME` shows the details."
    assert "how it is spelt" in desk.run("servers", "show", "absent", "--url", gateway).out


def test_a_program_reads_every_server(desk: Desk, gateway: str) -> None:
    servers = desk.run("servers", "list", "-o", "json", "--url", gateway).json["servers"]
    assert {each["id"]: each["state"] == "connected" for each in servers} == {
        "example": True,
        "absent": False,
    }


def test_one_server_is_shown_with_all_that_is_known(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "show", "example", "--url", gateway)
    assert ran.status == 0
    facts = {line.split("  ")[0]: line for line in ran.lines[1:]}
    assert "connected" in facts["state"]
    assert "comity-example" in facts["reports as"]
    assert "5 tools" in facts["provides"]
    sick = desk.run("servers", "show", "absent", "--url", gateway)
    assert (sick.status, "no-such-program-anywhere" in sick.out) == (0, True)
    whole = desk.run("servers", "show", "example", "--url", gateway, "-o", "json").json
    assert whole["info"]["name"] == "comity-example"


def test_a_server_of_that_name_must_be_there(desk: Desk, gateway: str) -> None:
    for word in ("show", "logs", "restart", "stop", "start"):
        ran = desk.run("servers", word, "none", "--url", gateway)
        assert (ran.status, ran.out, "'none'" in ran.err) == (5, "", True)


def test_the_last_words_of_a_server_can_be_read(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "logs", "example", "--url", gateway)
    assert (ran.status, ran.out) == (0, "")
    assert "has no error output" in ran.err
    logs = desk.run("servers", "logs", "example", "-o", "json", "--url", gateway).json
    assert logs == {"id": "example", "lines": []}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A gateway that tests may give orders to, each about a server of its own."""
    desk = Desk(tmp_path_factory.mktemp("alone"))
    failing = {"command": "sh", "args": ["-c", "echo I am not well >&2; read line; exit 3"]}
    config = desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": failing}})
    with comity(config) as origin:
        yield origin


def test_a_server_is_stopped_started_and_restarted(desk: Desk, alone: str) -> None:
    stopped = desk.run("servers", "stop", "example", "--url", alone)
    assert (stopped.status, stopped.out.split()[:2]) == (0, ["example", "disconnected"])
    assert desk.run("tools", "--url", alone, "-o", "json").json["tools"] == []
    started = desk.run("servers", "start", "example", "--url", alone)
    assert (started.status, started.out.split()) == (0, ["example", "connected", "5", "tools"])
    again = desk.run("servers", "restart", "example", "--url", alone, "-o", "json")
    assert (again.status, again.json["state"], again.json["restarts"]) == (0, "connected", 1)


def test_a_server_that_does_not_come_back_is_told_with_its_reason(desk: Desk, alone: str) -> None:
    ran = desk.run("servers", "restart", "failing", "--url", alone)
    assert (ran.status, "I am not well" in ran.out) == (1, True)
    logs = desk.run("servers", "logs", "failing", "--url", alone)
    assert logs.out == "I am not well\n"
    shown = desk.run("servers", "show", "failing", "--url", alone).out
    assert "I am not well" in shown
    assert "went away: " in shown
    assert "server 'failing'" not in shown, "whose reason it is stands above it"


@loop_over(
    ("before", "now", "new"),
    [
        ("", "", ""),
        ("", "ab", "ab"),
        ("ab", "ab", ""),
        ("ab", "abcd", "cd"),
        ("abcd", "cdef", "ef"),
        ("abcd", "efgh", "efgh"),
        ("aaaa", "aaaa", ""),
        ("abx", "aby", "y"),
        ("abcd", "", ""),
    ],
)
def test_what_is_new_in_a_second_look_is_told_once(before: str, now: str, new: str) -> None:
    assert find_new_lines(list(before), list(now)) == list(new)


@loop_over(
    ("account", "said"),
    [
        ({}, ""),
        ({"problem": "it did not answer in time"}, "it did not answer in time"),
        ({"status": "healthy", "checks": {"disk": True}}, "healthy"),
        ({"status": "degraded", "checks": {"disk": "odd"}}, "degraded; not well: disk"),
        (
            {
                "status": None,
                "checks": {},
                "reported": {"new_state": "draining", "reason": "tired"},
            },
            "draining: tired",
        ),
    ],
)
def test_a_servers_own_word_of_its_health_is_one_line(account: dict[str, Any], said: str) -> None:
    assert describe_report(account) == said


def test_who_registered_a_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    brief: dict[str, Any] = {"state": "connected", "tools": 1, "transport": "stdio"}
    brief |= {"restarts": 0, "reason": "", "since": "2026-01-01T00:00:00Z"}
    found = [
        {"id": "files", **brief, "registered_by": None},
        {"id": "dynamic.stats", **brief, "registered_by": "agent:maker"},
    ]

    def get(*_: object) -> dict[str, Any]:
        return {"servers": found}

    monkeypatch.setattr("comity.cli.api_client.ApiClient.get", get)
    ran = CliRunner().invoke(servers_command, ["list"], standalone_mode=False)
    lines = ran.output.splitlines()
    assert lines[0].split()[-2:] == ["REGISTERED", "BY"]
    assert lines[2].split()[-1] == "agent:maker"
    assert "agent:maker" not in lines[1]
    assert "None" not in ran.output


def test_the_status_of_a_gateway_fits_on_a_few_lines(desk: Desk, gateway: str) -> None:
    ran = desk.run("status", "--url", gateway)
    assert ran.status == 0
    assert desk.run("status", "--check", "--url", gateway).status == 1, "a server has failed"
    assert gateway in ran.lines[0]
    assert any(line.split() == ["tools", "5"] for line in ran.lines)
    assert "no-such-program-anywhere" in ran.out
    assert any(line.endswith("2 (1 connected, 1 failed)") for line in ran.lines)


def test_a_program_reads_the_status_as_json(desk: Desk, gateway: str) -> None:
    ran = desk.run("status", "-o", "json", COMITY_URL=f"{gateway}/mcp")
    assert (ran.status, ran.err) == (0, "")
    assert (ran.json["url"], ran.json["tools"]) == (gateway, 5)
    assert ran.json["servers"]["connected"] == 1
    assert sum(ran.json["servers"].values()) == 2
    assert [each["id"] for each in ran.json["troubled"]] == ["absent"]


def test_a_gateway_that_is_not_there_is_told_apart_from_a_sick_one(desk: Desk) -> None:
    ran = desk.run("status", "--url", "http://127.0.0.1:9")
    assert (ran.status, ran.out) == (3, "")
    assert "comity serve" in ran.err
    assert "--url" in ran.err


def test_an_address_that_cannot_be_is_the_operators_mistake(desk: Desk) -> None:
    for url in ("ftp://127.0.0.1", "http://", "http://127.0.0.1:x"):
        ran = desk.run("status", "--url", url)
        assert (ran.status, ran.out) == (2, "")
        assert "http://127.0.0.1:2664" in ran.err


@pytest.mark.parametrize(
    "words",
    ["servers search files", "servers add io.example/files", "servers add-api shop http://HOST/x"],
)
def test_a_project_file_that_nobody_approved_sends_no_command_anywhere(
    desk: Desk, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0)
        host = f"127.0.0.1:{stranger.getsockname()[1]}"
        # A cloned repository brings such a file.
        (desk.folder / "comity.toml").write_text(f'[registry]\nsource_url = "http://{host}"\n')
        ran = desk.run(*words.replace("HOST", host).split())
        assert ran.status == 2, ran
        assert "you have not approved its content" in " ".join(ran.err.split())
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_the_details_of_a_server_name_no_empty_fact(desk: Desk, gateway: str) -> None:
    for name in ("example", "absent"):
        assert "None" not in desk.run("servers", "show", name, "--url", gateway).out
    assert describe_reason("operator_request") == "an operator restarted or stopped it"
    assert describe_reason("exited with status 1") == "exited with status 1"


def test_a_gateway_that_only_takes_webhooks_is_no_gateway_without_a_use(desk: Desk) -> None:
    (desk.folder / "gitlab.token").write_text("a-secret-token-of-gitlab")
    (desk.folder / "gitlab.token").chmod(0o600)
    hook = 'name = "gitlab"\nkind = "gitlab"\nsecret_file = "gitlab.token"\nto = "turn"\n'
    model = '[[models]]\nid = "main"\napi = "demo"\nmodel = "m"\n'
    config = desk.write("comity.toml", f"{model}\n[[inbound_webhooks]]\n{hook}")
    serve = f"cd '{desk.folder}' && exec {COMITY} serve --port 0"
    with running(["/bin/sh", "-c", serve], desk.env) as program:
        program.wait_for_line(r"listening on http://\S+")
        ran = desk.run("servers", "-c", str(config))
    assert ran.lines[0] == "No servers are configured. The gateway takes the webhooks gitlab."
