"""What people and programs read from the ledger."""

import json
from pathlib import Path

import pytest

from tests.ledger.catalogue import DEVIATIONS, REQUIREMENTS
from tests.ledger.record import Record
from tests.ledger.report import Ledger, main

ROWS = """id\tsource section\tstrength\trole\trequirement
MGP-1-a\t000 MGP §1\tMUST\tgateway\tA.
MCP-1-a\t002 MCP §1\tMUST\tgateway\tA.
MCP-1-b\t002 MCP §1\tMUST\tgateway\tB.
MCP-1-c\t002 MCP §1\tMUST\tgateway\tC.
"""


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    (tmp_path / REQUIREMENTS).parent.mkdir(parents=True)
    (tmp_path / REQUIREMENTS).write_text(ROWS, encoding="utf-8")
    (tmp_path / DEVIATIONS).write_text("id\treason\nMCP-1-b\tBecause.\n", encoding="utf-8")
    record = Record()
    record.note("test", ["MCP-1-a", "MCP-1-b"], phase="call", outcome="passed")
    record.write(tmp_path)
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


def test_people_get_a_table_that_ends_with_the_sum(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([], root)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "4", "1", "1", "2"]


def test_a_ledger_without_a_full_run_says_so(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / ".ledger/full-run.json").unlink()
    main([], root)
    assert "No full run is on record" in capsys.readouterr().out


def test_a_row_that_no_longer_exists_is_not_counted(root: Path) -> None:
    (root / REQUIREMENTS).write_text(ROWS.replace("MCP-1-a", "MCP-1-z"), encoding="utf-8")
    assert Ledger.read(root).tallies()["mcp"].proved == 0
