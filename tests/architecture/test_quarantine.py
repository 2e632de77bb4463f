"""Failed tests are not tried again, except for those in quarantine, each with its reason."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "tests/quarantine.toml").read_text()).get("test", [])


def functions_of(file: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, kinds)}


def test_only_tests_in_quarantine_are_tried_again() -> None:
    assert "--reruns" not in (ROOT / "scripts/test").read_text()
    assert "--reruns" not in (ROOT / "pyproject.toml").read_text()


def test_what_is_in_quarantine_exists_and_says_why() -> None:
    failures: list[str] = []
    for entry in ENTRIES:
        file, _, name = entry["id"].partition("::")
        if not (ROOT / file).is_file() or name.partition("[")[0] not in functions_of(ROOT / file):
            failures.append(f"{entry['id']}: there is no such test")
        if len(entry.get("reason", "").split()) < 5:
            failures.append(f"{entry['id']}: the reason is missing")
    assert failures == []
