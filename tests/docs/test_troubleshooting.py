"""The page about troubleshooting quotes messages and error types that the program has."""

import ast
import re

from comity import errors
from comity.errors import Fault
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "comity"


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def quoted(heading: str) -> list[str]:
    """What is quoted in the first column of the table of a section."""
    rows = section(heading).partition("\n|---")[2]
    cells = re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or "…" for part in node.values)
    return ""


def texts_of_the_program() -> str:
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py"))
    return "\n".join(text for tree in trees for node in ast.walk(tree) if (text := _text_of(node)))


def test_every_quoted_message_is_one_of_the_program() -> None:
    known = texts_of_the_program()
    messages = [each for each in quoted("The gateway does not start") if " " in each]
    assert len(messages) >= 8
    parts = {part.strip() for each in messages for part in each.split("…")}
    assert sorted(part for part in parts if part not in known) == []


def test_every_error_type_is_one_of_the_program() -> None:
    known = {each.error_type for each in vars(errors).values() if isinstance(each, Fault)}
    named = {each for each in quoted("A call fails or hangs") if " " not in each}
    assert len(named) >= 6
    assert named - known == set()
