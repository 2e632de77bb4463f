"""`comity check`: mistakes by file and line, what would be served, and whether it starts."""

import pytest

from tests.cli.program import EXAMPLE, Desk

MISTAKEN = """\
prot = 5

[[servers]]
id = "a"
comand = "canary-1"
"""


def test_every_mistake_is_told_with_its_file_and_line(desk: Desk) -> None:
    desk.write("comity.toml", MISTAKEN)
    ran = desk.run("check")
    assert ran.status == 1
    told = [line for line in ran.lines if "comity.toml:" in line]
    assert ":1: prot" in told[0]
    assert any(":5: servers[a].comand" in line for line in told)
    assert "canary" not in ran.out + ran.err
    listed = desk.run("check", "--json")
    assert (listed.status, listed.json["mistakes"][0]["line"]) == (1, 1)


def test_what_would_be_served_is_told(desk: Desk) -> None:
    off = {"url": "https://example.org/canary-1?key=canary-2", "disabled": True}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "off": off}})
    ran = desk.run("check")
    assert ran.status == 0
    assert "No mistakes" in ran.out
    assert any(line.split()[:3] == ["off", "http", "example.org"] for line in ran.lines)
    assert "canary" not in ran.out
    told = desk.run("check", "mcp.json", "--json").json
    assert [(each["id"], each["disabled"]) for each in told["servers"]] == [
        ("example", False),
        ("off", True),
    ]
    assert told["listen"] == "127.0.0.1:2664"


def test_files_that_are_passed_over_are_told(desk: Desk) -> None:
    desk.write("comity.toml", "")
    desk.write("mcp.json", {"mcpServers": {}})
    ran = desk.run("check")
    assert (ran.status, "assed over" in ran.out) == (0, True)
    assert "no servers to serve" in ran.out


def test_every_server_can_be_started_once_to_see(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    ran = desk.run("check", "--start")
    assert (ran.status, "is ready" in ran.out) == (0, True)
    failing = {"command": "sh", "args": ["-c", "echo I am not well >&2; read line; exit 3"]}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": failing}})
    ran = desk.run("check", "--start")
    assert (ran.status, "Not ready: failing." in ran.out) == (1, True)
    started = desk.run("check", "--start", "--json").json["started"]
    assert {each["id"]: each["state"] == "connected" for each in started} == {
        "example": True,
        "failing": False,
    }


@pytest.mark.parametrize("arguments", [(), ("absent.toml",)])
def test_a_configuration_that_is_not_there_is_the_operators_mistake(
    desk: Desk, arguments: tuple[str, ...]
) -> None:
    ran = desk.run("check", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("comity: ")
