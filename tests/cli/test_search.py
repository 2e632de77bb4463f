"""`comity search`: what fits, how well, and why."""

from tests.cli.program import Desk


def test_what_fits_is_shown_with_its_score_and_why(desk: Desk, gateway: str) -> None:
    ran = desk.run("search", "say", "a", "greeting", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == ["SCORE", "TOOL", "SERVER", "WHY", "ABOUT"]
    score, tool, server = ran.lines[1].split()[:3]
    assert (tool, server) == ("example__greet", "example")
    assert 0 < float(score) <= 1


def test_a_name_finds_its_tool_first_however_it_is_mistyped(desk: Desk, gateway: str) -> None:
    for typed in ("countdown", "count_down", "example__countdown", "cuontdown"):
        words = ("search", typed, "--strategy", "keyword", "--most", "1")
        ran = desk.run(*words, "--url", gateway, "--json")
        assert [tool["name"] for tool in ran.json["tools"]] == ["example__countdown"]


def test_a_program_is_given_all_that_the_gateway_answered(desk: Desk, gateway: str) -> None:
    ran = desk.run("search", "time", "--strategy", "category", "--url", gateway, "--json")
    assert set(ran.json) == {
        *("tools", "total_available", "search_strategy", "fallback_strategy", "query_time_ms"),
    }
    assert ran.json["search_strategy"] == "category"
    assert ran.json["total_available"] == 4
    assert {"relevance_score", "why", "categories", "security"} <= set(ran.json["tools"][0])


def test_that_nothing_fits_is_said(desk: Desk, gateway: str) -> None:
    ran = desk.run("search", "zzzz", "--strategy", "keyword", "--url", gateway)
    assert (ran.status, "of 4 tools that you may call" in ran.out) == (0, True)


def test_words_that_stand_in_for_meaning_are_told(desk: Desk, gateway: str) -> None:
    ran = desk.run("search", "greet", "--url", gateway, "--json")
    told = "by words alone" in desk.run("search", "greet", "--url", gateway).out
    assert told == (ran.json["fallback_strategy"] == "keyword")


def test_what_cannot_be_searched_is_a_mistake(desk: Desk, gateway: str) -> None:
    assert desk.run("search", "--url", gateway).status == 2
    assert desk.run("search", "x", "--most", "0", "--url", gateway).status == 2
    assert desk.run("search", "x", "--strategy", "luck", "--url", gateway).status == 2
