"""The pytest plugin that ties tests to the rows of the five documents.

`@pytest.mark.requirement("MGP-5.4-grant", ...)` names the rows that a test proves. An unknown row
fails its test. A full run leaves a record of what was proved, and `--last-failed` adds to it what
passed then. Any other part of a run leaves it as it was.
"""

import os
from collections.abc import Iterable
from typing import Any, cast

import pytest

from tests.ledger.catalogue import REQUIREMENTS, Requirement, read_requirements
from tests.ledger.record import Record, Run

MARK = "requirement"
_FULL = "comity_full_run"
_KNOWN = pytest.StashKey[dict[str, Requirement]]()

# Any of these options, given a value, means that some tests were left out of the run.
_NARROWING = (
    "keyword",
    "markexpr",
    "deselect",
    "ignore",
    "ignore_glob",
    "lf",
    "stepwise",
    "collectonly",
    "continue_on_collection_errors",
    # With `-c FILE` the run takes its tests from somewhere else.
    "inifilename",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(id, ...): the rows that this test proves")
    config.stash[_KNOWN] = read_requirements(config.rootpath)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(config), "comity-ledger")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Properties travel with a report from a worker of pytest-xdist; marks do not.
    for item in items:
        item.user_properties.extend((MARK, row) for row in named_rows(item))


def pytest_runtest_setup(item: pytest.Item) -> None:
    marks = list(item.iter_markers(MARK))
    if any(not mark.args or mark.kwargs for mark in marks):
        pytest.fail(f"the mark {MARK!r} takes the ids of rows and nothing else", pytrace=False)
    unknown = sorted(map(str, set(named_rows(item)) - item.config.stash[_KNOWN].keys()))
    if unknown:
        pytest.fail(f"{REQUIREMENTS} has no row {', '.join(unknown)}", pytrace=False)


class Ledger:
    """Gathers the outcomes in the process that sees them all, and writes them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._record = Record()

    def pytest_sessionstart(self) -> None:
        # The commit of the beginning: a long run can see another one being checked out.
        self._run = Run.now(self._config.rootpath)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        # A worker of pytest-xdist gets the paths as arguments, so it cannot tell by itself.
        node.workerinput[_FULL] = is_full_run(self._config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [str(value) for name, value in report.user_properties if name == MARK]
        self._record.note(report.nodeid, rows, phase=report.when, outcome=report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ended_by_itself = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        stopped_early = bool(session.shouldfail or session.shouldstop)
        if not ended_by_itself or stopped_early:
            return
        if is_full_run(self._config):
            self._record.write(self._config.rootpath, self._run)
        elif self._config.getoption("lf", default=False):
            self._record.mend(self._config.rootpath, self._run)


def is_full_run(config: pytest.Config) -> bool:
    """Whether the run takes every test there is: no paths were named and nothing was left out."""
    given = getattr(config, "workerinput", None)
    if given is not None:
        return given[_FULL]
    # The tests of the interop folder then talk to each server past Comity.
    if os.environ.get("COMITY_DIRECT") == "1":
        return False
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return False
    # `-o testpaths=...` narrows a run as well. pytest keeps `--strict-markers` in the same list.
    overridden: list[str] = config.getoption("override_ini") or []
    if any(not setting.startswith("strict_") for setting in overridden):
        return False
    # The tests of the full tier prove no row that the others do not.
    if config.getoption("--tier", "full") == "fast":
        return False
    return not any(config.getoption(name, None) for name in _NARROWING)


def named_rows(item: pytest.Item) -> Iterable[str]:
    """The rows that the marks of one test name."""
    return [cast("str", row) for mark in item.iter_markers(MARK) for row in mark.args]
