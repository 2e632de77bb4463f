"""What strangers wrote, shown without harm; and lengths of time as people say them."""

import json
from datetime import timedelta

import pytest
from rich.console import Console

from comity.cli.show import (
    first_line,
    length,
    paragraphs,
    plain,
    short_reason,
    show_json,
    state,
    table,
)

HOSTILE = "\x1b]0;owned\x07red\x1b[31m [bold]text[/bold]\x9b2J\r\nnext"


def test_no_word_of_a_stranger_steers_the_terminal() -> None:
    for shown in (plain(HOSTILE), paragraphs(HOSTILE)):
        assert "\x1b" not in shown.plain
        assert "\x9b" not in shown.plain
        assert "[bold]text[/bold]" in shown.plain
    assert "\n" not in plain(HOSTILE).plain
    assert paragraphs(HOSTILE).plain.count("\n") == 1


def test_json_on_a_terminal_says_the_same_and_steers_nothing(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    said = HOSTILE + "\u202e\u2066\u200b\ufeff\U000e0041\ud800 caf\u00e9 \U0001f600"
    show_json({"said": said})
    shown = capfdbinary.readouterr().out.decode()
    assert json.loads(shown) == {"said": said}
    assert "caf\u00e9 \U0001f600" in shown
    assert all(each.isprintable() for each in shown if each != "\n")


def test_a_name_is_never_cut_and_the_last_column_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a-rather-long-name", "about " * 20), ("b", "short")]
    console = Console(width=40)
    with console.capture() as captured:
        console.print(table(("NAME", "ABOUT"), rows, cut="ABOUT"))
    lines = captured.get().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("a-rather-long-name")
    assert lines[1].rstrip().endswith("…")
    with console.capture() as captured:
        console.print(table(("NAME", "WHY"), rows))
    assert "…" not in captured.get()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0.0 s"), (0.25, "0.2 s"), (42, "42 s"), (119, "119 s"), (150, "2 min"), (7300, "2 h")],
)
def test_a_length_of_time_is_told_in_one_unit(seconds: float, said: str) -> None:
    assert length(timedelta(seconds=seconds)) == said


def test_a_description_is_known_by_its_first_line() -> None:
    assert first_line("\n\n  It looks.\nAnd more.") == "It looks."
    assert first_line(None) == ""


@pytest.mark.parametrize(
    ("said", "reason", "shown"),
    [
        ("connected", "", "connected"),
        ("restarting", "operator_request", "restarting"),
        ("restarting", "cannot start 'x': there is no such program", "failed"),
        ("error", "restart_limit_exceeded", "failed"),
        ("connecting", "it left", "connecting"),
    ],
)
def test_a_server_that_failed_is_called_so_while_it_waits_for_its_next_start(
    said: str, reason: str, shown: str
) -> None:
    assert state(said, reason).plain == shown


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("", ""),
        ("cannot start 'x': no such program; check it", "cannot start 'x': no such program"),
        ("it ended with status 3 | Traceback | ValueError", "it ended with status 3"),
        ("it left (restart_limit_exceeded: started again 5 times in 300 s; start it)", "it left"),
    ],
)
def test_a_short_reason_leaves_out_advice_and_last_words(reason: str, short: str) -> None:
    assert short_reason(reason) == short
