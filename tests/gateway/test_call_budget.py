"""What one call does on each path is exactly what the committed table says."""

import json
import subprocess
import sys

import pytest

from bench.call_budget import (
    AUDIT_PATHS,
    COMMAND,
    PATHS,
    PYTHON,
    TABLE,
    Figures,
    differences,
    read_table,
)
from bench.processes import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.version_info[:2] != PYTHON, reason="the table is of another version of Python"
    ),
]
NAMES = [path.name for path in (*PATHS, *AUDIT_PATHS)]


@pytest.fixture(scope="module")
def found() -> dict[str, Figures]:
    """The figures of this code, counted in a process of their own."""
    counted = subprocess.run(
        [sys.executable, "-m", "bench.call_budget", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert counted.returncode == 0, counted.stderr[-4000:]
    return json.loads(counted.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_call_does_what_the_table_says(name: str, found: dict[str, Figures]) -> None:
    differing = differences(read_table().get(name, {}), found[name])
    told = "\n".join([f"a call on the path {name!r} has changed:", *differing])
    advice = f"if this is intended, run `{COMMAND}` and say why in the commit"
    assert not differing, f"{told}\n{advice}"


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("view modern", "merged modern"),
        ("view modern, fixed argument", "merged modern"),
        ("governed view, fixed argument", "governed merged"),
    ],
)
def test_call_through_a_view_costs_at_most_a_twentieth_more(path: str, other: str) -> None:
    table = read_table()
    assert table[path]["python"] <= 1.05 * table[other]["python"]


def test_table_has_no_other_paths() -> None:
    assert list(read_table(TABLE)) == NAMES


def test_differences_name_old_and_new() -> None:
    before: Figures = dict.fromkeys(("python", "c_calls", "tasks", "futures"), 0)
    before |= {"decodes": 3, "encodes": 4, "python": 70, "allocations": 30}
    after = before | {"python": 71, "allocations": 33}
    assert differences(before, before) == []
    assert differences(before, after) == ["python: 70 in the table, 71 now"]


def test_figures_of_threads_may_vary_a_little() -> None:
    durable: Figures = {"python": 400, "c_calls": 500, "tasks": 0, "futures": 6}
    durable |= {"decodes": 3, "encodes": 4, "allocations": 30}
    assert differences(durable, durable | {"c_calls": 504}) == []
    assert differences(durable, durable | {"c_calls": 530}) != []
    assert differences(durable, durable | {"decodes": 4}) != []
