"""The files of the ledger: what they may say, and what this project's own files say."""

from pathlib import Path

import pytest

from tests.ledger.catalogue import (
    DEVIATIONS,
    DOCUMENTS,
    REQUIREMENTS,
    BrokenCatalogue,
    read_deviations,
    read_requirements,
)

ROOT = Path(__file__).parents[2]
HEAD = "id\tsource section\tstrength\trole\trequirement\n"
ROW = 'MCP-1-one\t002 MCP §1\tMUST\tgateway\tSay "one".\n'


def _write(root: Path, path: Path, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_this_project_carries_every_row_of_the_five_documents() -> None:
    demands = [row for row in read_requirements(ROOT).values() if not row.is_prose]
    page = ROOT / "docs" / "design" / "ledger.md"
    assert f"{len(demands)} rows" in page.read_text(encoding="utf-8")


def test_what_the_documents_say_in_prose_has_rows_in_each_of_them() -> None:
    prose = [row for row in read_requirements(ROOT).values() if row.is_prose]
    assert {row.document for row in prose} == set(DOCUMENTS.values())


def test_every_deviation_of_this_project_names_a_row_and_a_reason() -> None:
    read_deviations(ROOT, read_requirements(ROOT))


def test_a_quotation_mark_is_part_of_the_text(tmp_path: Path) -> None:
    _write(tmp_path, REQUIREMENTS, HEAD + ROW)
    assert read_requirements(tmp_path)["MCP-1-one"].text == 'Say "one".'


@pytest.mark.parametrize(
    ("row_id", "document"),
    [
        ("MGP-1-a", "mgp"),
        ("MCPX-1-a", "mcpx"),
        ("MCP-1-a", "mcp"),
        ("REG-1-a", "registry"),
        ("MCPL-1-a", "mcpl"),
    ],
)
def test_the_first_word_of_an_id_tells_its_document(
    tmp_path: Path, row_id: str, document: str
) -> None:
    _write(tmp_path, REQUIREMENTS, HEAD + ROW.replace("MCP-1-one", row_id))
    assert read_requirements(tmp_path)[row_id].document == document


@pytest.mark.parametrize("rows", [ROW + ROW, "ABC-1-a\t1\tMUST\tgateway\tOne.\n", "MCP-1-one\n"])
def test_a_row_that_cannot_be_counted_is_refused(tmp_path: Path, rows: str) -> None:
    _write(tmp_path, REQUIREMENTS, HEAD + rows)
    with pytest.raises(BrokenCatalogue):
        read_requirements(tmp_path)


@pytest.mark.parametrize("line", ["MCP-9-none\twhy", "MCP-1-one\t ", "MCP-1-one\ta\nMCP-1-one\tb"])
def test_a_deviation_without_a_row_or_a_reason_is_refused(tmp_path: Path, line: str) -> None:
    _write(tmp_path, REQUIREMENTS, HEAD + ROW)
    _write(tmp_path, DEVIATIONS, f"id\treason\n{line}\n")
    with pytest.raises(BrokenCatalogue):
        read_deviations(tmp_path, read_requirements(tmp_path))
