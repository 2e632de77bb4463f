"""The threat model counts every attack and every hole, and names no test that is not there."""

import ast
import re
from functools import lru_cache

from tests.docs.pages import ROOT
from tests.support.cases import loop_over

PAGE = (ROOT / "docs" / "design" / "threat-model.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
_SECTIONS = PAGE.partition("## Holes in the documents")[0]
ATTACKS = re.findall(r"^### (\d+)\. (.*?)(?=^##|\Z)", _SECTIONS, flags=re.MULTILINE | re.DOTALL)


@lru_cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@loop_over(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert name in names_in(file)


def test_every_attack_has_its_number() -> None:
    assert [int(number) for number, _ in ATTACKS] == list(range(1, 28))


@loop_over(("number", "told"), ATTACKS)
def test_an_attack_has_tests_or_says_what_it_waits_for(number: str, told: str) -> None:
    assert re.search(r"^- `tests/|^Coming with \w", told, flags=re.MULTILINE), number


def test_every_hole_has_its_decision() -> None:
    rows = re.findall(r"^\| (S\d+) \|.*\| (built|coming with)[^|]* \|$", PAGE, flags=re.MULTILINE)
    assert [number for number, _ in rows] == [f"S{number}" for number in range(1, 19)]


def test_every_test_of_an_attack_is_named() -> None:
    """A test that makes an attack by its number belongs on the page."""
    made = {
        name
        for file in sorted((ROOT / "tests" / "security").glob("test_*.py"))
        for name in names_in(str(file.relative_to(ROOT)))
        if name.startswith("test_attack_")
    }
    assert made - {name for _, name in NAMED} == set()
