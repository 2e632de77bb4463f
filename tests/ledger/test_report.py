"""What people and programs read from the ledger."""

import json
from pathlib import Path

import pytest

from tests.ledger import report
from tests.ledger.catalogue import DEVIATIONS, REQUIREMENTS
from tests.ledger.record import Record, Run
from tests.ledger.report import Ledger, main

ROWS = """id\tsource section\tstrength\trole\trequirement
MGP-1-a\t000 MGP §1\tMUST\tgateway\tA.
MCP-1-a\t002 MCP §1\tMUST\tgateway\tA.
MCP-1-b\t002 MCP §1\tMUST\tgateway\tB.
MCP-1-c\t002 MCP §1\tMUST\tgateway\tC.
"""
RUN = Run(commit="c0ffee" * 6, date="2026-01-02T03:04:05+00:00", form="short", python="3.12.1")


def _record(root: Path, *outcomes: tuple[str, str, str]) -> None:
    record = Record()
    for test, row, outcome in outcomes:
        record.note(test, [row], phase="call", outcome=outcome)
    record.write(root, RUN)


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / REQUIREMENTS).parent.mkdir(parents=True)
    (tmp_path / REQUIREMENTS).write_text(ROWS, encoding="utf-8")
    (tmp_path / DEVIATIONS).write_text("id\treason\nMCP-1-b\tBecause.\n", encoding="utf-8")
    _record(tmp_path, ("test", "MCP-1-a", "passed"), ("test", "MCP-1-b", "passed"))
    monkeypatch.setattr(report, "head", lambda root: RUN.commit)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return tmp_path


def test_a_row_is_proved_or_reasoned_or_open_and_never_two_of_them(root: Path) -> None:
    tally = Ledger.read(root).tallies()["mcp"]
    assert (tally.rows, tally.proved, tally.reasoned, tally.open) == (3, 1, 1, 1)


def test_programs_get_one_object_in_the_order_of_the_documents(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--json"], root)
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == ["mgp", "mcpx", "mcp", "registry", "mcpl"]
    assert answer["mgp"] == {"rows": 1, "proved": 0, "reasoned": 0, "open": 1}


def test_open_rows_are_listed_with_their_text(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--open", "mcp"], root)
    assert capsys.readouterr().out == "MCP-1-c\tMUST\tgateway\tC.\n"


def test_people_get_a_table_that_ends_with_the_sum_and_the_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], root) == 0
    *_, total, run = capsys.readouterr().out.splitlines()
    assert total.split() == ["all", "4", "1", "1", "2"]
    assert (
        run == "The short form ran on 2026-01-02T03:04:05+00:00 at c0ffeec0ffee with Python 3.12.1."
    )


def test_a_ledger_without_a_full_run_says_so(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / ".ledger/full-run.json").unlink()
    main([], root)
    assert "No full run is on record" in capsys.readouterr().out


def test_a_row_that_no_longer_exists_is_not_counted(root: Path) -> None:
    (root / REQUIREMENTS).write_text(ROWS.replace("MCP-1-a", "MCP-1-z"), encoding="utf-8")
    assert Ledger.read(root).tallies()["mcp"].proved == 0


def _checked(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["--check"], root)
    return code, [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()[8:]]


PROVED = [("test", "MGP-1-a", "passed"), ("test", "MCP-1-a", "passed"), ("t", "MCP-1-c", "passed")]


def test_a_check_passes_where_every_row_is_settled_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(root, *PROVED)
    assert _checked(root, capsys) == (0, ["Every row is settled once."])


def test_a_check_fails_on_open_rows_and_on_rows_settled_twice(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(root, ("test", "MCP-1-a", "failed"), ("test", "MCP-1-b", "passed"), PROVED[2])
    code, lines = _checked(root, capsys)
    assert code == 1
    assert lines == [
        "open    MGP-1-a",
        "open    MCP-1-a",
        "both    MCP-1-b",
        "The ledger has 3 faults.",
    ]


@pytest.mark.parametrize("checked_out", ["beef", ""])
def test_a_check_fails_on_a_record_of_another_commit(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checked_out: str,
) -> None:
    _record(root, *PROVED)
    monkeypatch.setattr(report, "head", lambda root: checked_out)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    code, lines = _checked(root, capsys)
    there = f"The last full run was of {RUN.commit}, and {checked_out or 'no commit'}"
    assert code == 1
    assert lines == [f"record  {there} is checked out.", "The ledger has 1 faults."]


def test_a_check_fails_without_a_record(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".ledger/full-run.json").unlink()
    code, lines = _checked(root, capsys)
    assert code == 1
    assert "record  No full run is on record" in lines


def test_a_row_whose_test_passed_on_a_second_try_is_proved_and_the_test_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(root, ("test", "MGP-1-a", "rerun"), *PROVED)
    assert _checked(root, capsys) == (0, ["rerun   test", "Every row is settled once."])
