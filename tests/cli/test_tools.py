"""`comity tools` and `comity tools search`: tools listed, shown and found."""

import json

import pytest

from tests.cli.program import Desk
from tests.conformance.ways import on_pipes
from tests.interop.processes import comity


def test_tools_are_listed_one_to_a_line(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == ["TOOL", "HINTS", "DESCRIPTION"]
    assert [line.split()[0] for line in ran.lines[1:]] == [
        f"example__{name}" for name in ("countdown", "delete_note", "echo", "greet", "now")
    ]
    assert all(line == line.rstrip() for line in ran.lines)
    assert "\x1b" not in ran.out, "colours are for terminals"
    assert "reports progress" in ran.out


@pytest.mark.requirement("MCP-5.1-hintsui")
def test_a_list_shows_which_tools_read_and_which_destroy(desk: Desk) -> None:
    config = desk.home / "mcp.json"
    servers = {"near": on_pipes("talker", TALKER_NAME="near")}
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    with comity(config) as origin:
        lines = desk.run("tools", "--url", origin).lines
    hints = {line.split()[0]: line[lines[0].index("HINTS") :].split()[:1] for line in lines[1:]}
    assert hints["near__get_weather"] == ["read-only"]
    assert hints["near__delete_file"] == ["destructive"]
    assert hints["near__echo"] == []


def test_the_width_that_was_asked_for_is_kept(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--url", gateway, COLUMNS="60")
    assert max(len(line) for line in ran.lines) <= 60
    assert "…" in ran.out
    assert "example__countdown" in ran.out


def test_every_word_that_is_sought_must_be_found(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "RETURNS", "message", "--url", gateway, "-o", "json")
    assert [tool["name"] for tool in ran.json["tools"]] == ["example__echo"]
    nothing = desk.run("tools", "nowhere", "--url", gateway)
    assert (nothing.status, "No tool matches" in nothing.out) == (0, True)


def test_the_tools_of_one_server_are_listed(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "--server", "example", "-o", "json", "--url", gateway)
    assert {tool["server"] for tool in ran.json["tools"]} == {"example"}
    missing = desk.run("tools", "--server", "none", "--url", gateway)
    assert (missing.status, "'none'" in missing.err) == (5, True)


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
    ran = desk.run("tools", "show", "example__now", "-o", "json", "--url", gateway)
    assert ran.json["definition"]["outputSchema"]["required"] == ["time"]
    missing = desk.run("tools", "show", "example__then", "--url", gateway)
    assert (missing.status, "'example__then'" in missing.err) == (5, True)


def test_what_fits_is_shown_with_its_score_and_why(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "search", "say", "a", "greeting", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == ["SCORE", "TOOL", "SERVER", "REASON", "DESCRIPTION"]
    score, tool, server = ran.lines[1].split()[:3]
    assert (tool, server) == ("example__greet", "example")
    assert 0 < float(score) <= 1


def test_a_name_finds_its_tool_first_however_it_is_mistyped(desk: Desk, gateway: str) -> None:
    for typed in ("countdown", "count_down", "example__countdown", "cuontdown"):
        words = ("tools", "search", typed, "--strategy", "keyword", "--limit", "1")
        ran = desk.run(*words, "--url", gateway, "-o", "json")
        assert [tool["name"] for tool in ran.json["tools"]] == ["example__countdown"]


def test_a_program_is_given_all_that_the_gateway_answered(desk: Desk, gateway: str) -> None:
    ran = desk.run(
        "tools", "search", "time", "--strategy", "category", "--url", gateway, "-o", "json"
    )
    assert set(ran.json) == {
        *("tools", "total_available", "search_strategy", "fallback_strategy", "query_time_ms"),
    }
    assert ran.json["search_strategy"] == "category"
    assert ran.json["total_available"] == 5
    assert {"relevance_score", "score_parts", "categories", "security"} <= set(ran.json["tools"][0])


def test_that_nothing_fits_is_said(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "search", "zzzz", "--strategy", "keyword", "--url", gateway)
    assert (ran.status, "of 5 tools that you may call" in ran.out) == (0, True)


def test_words_that_stand_in_for_meaning_are_told(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "search", "greet", "--url", gateway, "-o", "json")
    told = "Keyword search only" in desk.run("tools", "search", "greet", "--url", gateway).out
    assert told == (ran.json["fallback_strategy"] == "keyword")


def test_what_cannot_be_searched_is_a_mistake(desk: Desk, gateway: str) -> None:
    assert desk.run("tools", "search", "--url", gateway).status == 2
    assert desk.run("tools", "search", "x", "--limit", "0", "--url", gateway).status == 2
    assert desk.run("tools", "search", "x", "--strategy", "luck", "--url", gateway).status == 2
