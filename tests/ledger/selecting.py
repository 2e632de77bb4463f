"""The pytest plugin of scripts/mutate: runs the tests of one row, and tells which of them failed.

It is loaded by `-p tests.ledger.selecting` alone.
"""

import json
from pathlib import Path

import pytest

_DEAREST = ("cli", "conformance", "live", "docs", "interop", "scale", "cluster")
_TOLD = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", help="run only the tests that name this row")
    parser.addoption("--only", type=Path, help="run only the tests whose ids stand in this file")
    parser.addoption("--told", type=Path, required=True, help="where the outcome is written")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    row, only = config.getoption("row"), config.getoption("only")
    if row:
        items[:] = [each for each in items if ("requirement", row) in each.user_properties]
    if only:
        ids = set(only.read_text(encoding="utf-8").splitlines())
        items[:] = [each for each in items if each.nodeid in ids]
    # The first failure ends the run, so what takes longest comes last.
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    folder = item.nodeid.split("/")[1]
    return _DEAREST.index(folder) if folder in _DEAREST else -1


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TOLD] = {"passed": [], "failed": [], "error": []}
    config.pluginmanager.register(_Telling(config), "comity-telling")


class _Telling:
    """Writes the ids of the tests that ran by how they ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._path = Path(str(config.getoption("told")))
        self._told = config.stash[_TOLD]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._told["failed" if report.when == "call" else "error"].append(report.nodeid)
        elif report.when == "call" and report.passed:
            self._told["passed"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._told), encoding="utf-8")
