"""The record between a run and the report."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ledger.record import Proof, Record, Run, head, read_record

RUN = Run(commit="c0ffee", date="2026-01-02T03:04:05+00:00", form="short", python="3.12.1")


def test_nothing_is_proved_before_a_full_run(tmp_path: Path) -> None:
    record = read_record(tmp_path)
    assert (record.run, record.rows) == (None, {})


def test_a_record_tells_its_run_and_which_tests_prove_a_row(tmp_path: Path) -> None:
    record = Record()
    for phase in ("setup", "call", "teardown"):
        record.note("b", ["ROW"], phase=phase, outcome="passed")
        record.note("a", ["ROW"], phase=phase, outcome="passed")
    record.write(tmp_path, RUN)
    kept = read_record(tmp_path)
    assert (kept.run, kept.rows) == (RUN, {"ROW": Proof(["a", "b"], [], [])})


def test_a_record_of_another_commit_is_not_mended(tmp_path: Path) -> None:
    failed, passed = Record(), Record()
    failed.note("a", ["ROW"], phase="call", outcome="failed")
    passed.note("a", ["ROW"], phase="call", outcome="passed")
    passed.mend(tmp_path, RUN)
    assert read_record(tmp_path).run is None
    failed.write(tmp_path, RUN)
    passed.mend(tmp_path, replace(RUN, commit="deed"))
    assert read_record(tmp_path).rows == {"ROW": Proof(["a"], ["a"], [])}
    passed.mend(tmp_path, RUN)
    assert read_record(tmp_path).rows == {"ROW": Proof(["a"], [], ["a"])}


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_any_phase_can_undo_a_pass(phase: str) -> None:
    record = Record()
    record.note("a", ["ROW"], phase="call", outcome="passed")
    record.note("a", ["ROW"], phase=phase, outcome="failed")
    assert record.proofs() == {"ROW": Proof(["a"], ["a"], [])}


def test_a_pass_on_a_second_try_is_a_pass_and_says_so() -> None:
    record = Record()
    record.note("a", ["ROW"], phase="call", outcome="rerun")
    record.note("a", ["ROW"], phase="call", outcome="passed")
    record.note("b", ["ROW", "OTHER"], phase="call", outcome="rerun")
    record.note("b", ["ROW", "OTHER"], phase="call", outcome="failed")
    assert record.proofs() == {
        "OTHER": Proof(["b"], ["b"], []),
        "ROW": Proof(["a", "b"], ["b"], ["a"]),
    }


@pytest.mark.parametrize(
    ("environment", "form"),
    [({}, "full"), ({"CI": "true"}, "short"), ({"CI": "true", "COMITY_WHOLE": "1"}, "full")],
)
def test_a_run_knows_its_commit_and_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], form: str
) -> None:
    for name in ("CI", "COMITY_WHOLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert head(tmp_path) == ""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    commit = ["git", *author, "commit", "-q", "--allow-empty", "-m", "One."]
    subprocess.run(commit, cwd=tmp_path, check=True)
    run = Run.now(tmp_path)
    assert run.form == form
    assert re.fullmatch(r"[0-9a-f]{40}", run.commit)
    assert run.commit == head(tmp_path)
