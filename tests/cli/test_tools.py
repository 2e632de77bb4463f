"""`comity tools`: listed, sought, and shown with what they take."""

import json

import pytest

from tests.cli.program import Desk
from tests.conformance.ways import on_pipes
from tests.interop.processes import comity


def test_tools_are_listed_one_to_a_line(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == ["TOOL", "HINTS", "ABOUT"]
    assert [line.split()[0] for line in ran.lines[1:]] == [
        f"example__{name}" for name in ("countdown", "echo", "greet", "now")
    ]
    assert all(line == line.rstrip() for line in ran.lines)


@pytest.mark.requirement("MCP-5.1-hintsui")
def test_a_list_shows_which_tools_read_and_which_destroy(desk: Desk) -> None:
    config = desk.home / "mcp.json"
    servers = {"near": on_pipes("talker", TALKER_NAME="near")}
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    with comity(config) as origin:
        lines = desk.run("tools", "--url", origin).lines
    hints = {line.split()[0]: line[lines[0].index("HINTS") :].split()[:1] for line in lines[1:]}
    assert hints["near__get_weather"] == ["reads"]
    assert hints["near__delete_file"] == ["destroys"]
    assert hints["near__echo"] == []


def test_the_width_that_was_asked_for_is_kept(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--url", gateway, COLUMNS="60")
    assert max(len(line) for line in ran.lines) <= 60
    assert "…" in ran.out
    assert "example__countdown" in ran.out
    assert "reports each step" in desk.run("tools", "--url", gateway).out


def test_colours_are_for_terminals_alone(desk: Desk, gateway: str) -> None:
    assert "\x1b" not in desk.run("tools", "--url", gateway).out


def test_every_word_that_is_sought_must_be_found(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "message", "BACK", "--url", gateway, "--json")
    assert [tool["name"] for tool in ran.json["tools"]] == ["example__echo"]
    nothing = desk.run("tools", "nowhere", "--url", gateway)
    assert (nothing.status, "no tools that fit" in nothing.out) == (0, True)


def test_the_tools_of_one_server_are_listed(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--server", "example", "--json", "--url", gateway)
    assert {tool["server"] for tool in ran.json["tools"]} == {"example"}
    missing = desk.run("tools", "--server", "none", "--url", gateway)
    assert (missing.status, "'none'" in missing.err) == (2, True)


def test_a_tool_is_shown_with_what_it_takes_and_how_to_call_it(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "show", "example__countdown", "--url", gateway)
    assert ran.status == 0
    assert "example__countdown" in ran.lines[0]
    assert any(line.split()[:2] == ["seconds", "integer"] for line in ran.lines)
    assert "(default 3)" in ran.out
    assert ran.lines[-1] == "comity call example__countdown"
    echo = desk.run("tools", "show", "example__echo", "--url", gateway)
    assert echo.lines[-1] == "comity call example__echo message=STRING"


def test_a_program_reads_the_whole_definition(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "show", "example__now", "--json", "--url", gateway)
    assert ran.json["definition"]["outputSchema"]["required"] == ["time"]
    missing = desk.run("tools", "show", "example__then", "--url", gateway)
    assert (missing.status, "'example__then'" in missing.err) == (2, True)
