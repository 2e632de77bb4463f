"""The ledger's plugin, run on small projects of its own."""

from pathlib import Path

import pytest

from tests.ledger.record import RECORD, read_record

ROWS = """id\tsource section\tstrength\trole\trequirement
MCP-1-one\t002 MCP §1\tMUST\tgateway\tOne.
MCP-1-two\t002 MCP §1\tMUST\tgateway\tTwo.
"""
A_TEST = """
import pytest

@pytest.mark.requirement({rows})
def test_it():
    {body}
"""


@pytest.fixture(name="project")
def _project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Loading every plugin that is installed takes a second for each of these runs.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makefile(".tsv", **{"docs/design/requirements": ROWS})
    # As in this project: pytest keeps these options among the overridden settings.
    pytester.makeini("[pytest]\ntestpaths = tests\naddopts = --strict-markers --strict-config\n")
    pytester.mkdir("tests")
    return pytester


def _write(project: pytest.Pytester, name: str, rows: str, body: str = "pass") -> None:
    text = A_TEST.format(rows=rows, body=body)
    (project.path / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")


def _run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "tests.ledger.plugin", *arguments)


def _proved(project: pytest.Pytester) -> list[str]:
    rows = read_record(project.path).rows
    return [row for row, proof in rows.items() if not proof.fallen]


def _has_record(path: Path) -> bool:
    return (path / RECORD).exists()


def test_a_full_run_records_the_rows_of_passing_tests(project: pytest.Pytester) -> None:
    _write(project, "both", '"MCP-1-one", "MCP-1-two"')
    _run(project).assert_outcomes(passed=1)
    assert _proved(project) == ["MCP-1-one", "MCP-1-two"]


def test_one_failing_test_leaves_its_row_open(project: pytest.Pytester) -> None:
    _write(project, "good", '"MCP-1-one", "MCP-1-two"')
    _write(project, "bad", '"MCP-1-one"', "assert False")
    _run(project).assert_outcomes(passed=1, failed=1)
    assert _proved(project) == ["MCP-1-two"]


@pytest.mark.parametrize("body", ["pytest.skip('later')", "pytest.xfail('known')"])
def test_a_test_that_did_not_pass_proves_nothing(project: pytest.Pytester, body: str) -> None:
    _write(project, "good", '"MCP-1-one"')
    _write(project, "idle", '"MCP-1-one"', body)
    _run(project)
    assert _proved(project) == []


def test_a_test_that_breaks_while_it_is_cleared_away_proves_nothing(
    project: pytest.Pytester,
) -> None:
    text = """
    import pytest

    @pytest.fixture
    def litter():
        yield
        raise RuntimeError

    @pytest.mark.requirement("MCP-1-one")
    def test_it(litter):
        pass
    """
    project.makepyfile(**{"tests/test_litter": text})
    _run(project).assert_outcomes(passed=1, errors=1)
    assert _proved(project) == []


@pytest.mark.parametrize("row", ['"MCP-9-none"', "", '"MCP-1-one", why="because"', "7"])
def test_a_mark_that_names_no_row_fails_its_test(project: pytest.Pytester, row: str) -> None:
    _write(project, "wrong", row)
    _run(project).assert_outcomes(errors=1)
    assert _proved(project) == []


def test_an_unknown_row_is_named_in_the_failure(project: pytest.Pytester) -> None:
    _write(project, "wrong", '"MCP-9-none"')
    _run(project).stdout.fnmatch_lines(["*has no row MCP-9-none*"])


@pytest.mark.parametrize(
    "narrowing",
    [
        ("-k", "both"),
        ("-m", "requirement"),
        ("tests/test_both.py",),
        ("--deselect", "tests/test_other.py"),
        ("--ignore", "tests/test_other.py"),
        ("--lf",),
        ("--collect-only",),
        ("-o", "testpaths=tests"),
        ("-c", "tox.ini"),
    ],
)
def test_part_of_a_run_leaves_the_record_as_it_was(
    project: pytest.Pytester, narrowing: tuple[str, ...]
) -> None:
    _write(project, "both", '"MCP-1-one"')
    _run(project, *narrowing)
    assert not _has_record(project.path)


def test_a_run_past_comity_leaves_the_record_as_it_was(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_DIRECT", "1")
    _write(project, "both", '"MCP-1-one"')
    _run(project).assert_outcomes(passed=1)
    assert not _has_record(project.path)


def test_a_pass_on_a_second_try_proves_and_is_recorded(project: pytest.Pytester) -> None:
    _write(project, "b_good", '"MCP-1-two"')
    text = """
    import pytest

    tries = []

    @pytest.mark.requirement("MCP-1-one")
    def test_it():
        tries.append(1)
        assert len(tries) == 2
    """
    project.makepyfile(**{"tests/test_fickle": text})
    _run(project, "-p", "pytest_rerunfailures", "--reruns", "1")
    rerun = {row: proof.rerun for row, proof in read_record(project.path).rows.items()}
    assert _proved(project) == ["MCP-1-one", "MCP-1-two"]
    assert rerun == {"MCP-1-one": ["tests/test_fickle.py::test_it"], "MCP-1-two": []}


def test_a_failed_test_that_passes_by_itself_proves_and_is_recorded(
    project: pytest.Pytester,
) -> None:
    _write(project, "good", '"MCP-1-one"')
    _write(project, "bad", '"MCP-1-two"', "assert False")
    _run(project).assert_outcomes(passed=1, failed=1)
    _run(project, "--last-failed").assert_outcomes(failed=1)
    assert _proved(project) == ["MCP-1-one"]
    _write(project, "bad", '"MCP-1-two"')
    _run(project, "--last-failed").assert_outcomes(passed=1)
    assert _proved(project) == ["MCP-1-one", "MCP-1-two"]
    assert read_record(project.path).rows["MCP-1-two"].rerun == ["tests/test_bad.py::test_it"]


def test_a_run_that_stops_at_its_first_failure_leaves_the_record_as_it_was(
    project: pytest.Pytester,
) -> None:
    _write(project, "a_bad", '"MCP-1-one"', "assert False")
    _write(project, "b_good", '"MCP-1-two"')
    _run(project, "-x").assert_outcomes(failed=1)
    assert not _has_record(project.path)


def test_a_run_that_cannot_read_every_test_leaves_the_record_as_it_was(
    project: pytest.Pytester,
) -> None:
    _write(project, "good", '"MCP-1-one"')
    (project.path / "tests" / "test_torn.py").write_text("def", encoding="utf-8")
    _run(project)
    assert not _has_record(project.path)


WHETHER_FULL = """
from tests.ledger.plugin import is_full_run

def test_it(request):
    assert is_full_run(request.config)
"""


@pytest.mark.parametrize(("paths", "outcome"), [((), {"passed": 1}), (("tests",), {"failed": 1})])
def test_a_worker_knows_whether_the_run_is_full(
    project: pytest.Pytester, paths: tuple[str, ...], outcome: dict[str, int]
) -> None:
    project.makepyfile(**{"tests/test_full": WHETHER_FULL})
    project.syspathinsert(Path(__file__).parents[2])
    _run(project, "-p", "xdist.plugin", "-n", "1", *paths).assert_outcomes(**outcome)


def test_workers_report_their_rows_to_the_process_that_writes(project: pytest.Pytester) -> None:
    _write(project, "good", '"MCP-1-one"')
    _write(project, "bad", '"MCP-1-two"', "assert False")
    # The workers are processes of their own and must find the plugin from this project's root.
    project.syspathinsert(Path(__file__).parents[2])
    _run(project, "-p", "xdist.plugin", "-n", "2").assert_outcomes(passed=1, failed=1)
    assert _proved(project) == ["MCP-1-one"]
