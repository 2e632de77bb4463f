"""The record between a run and the report."""

from pathlib import Path

import pytest

from tests.ledger.record import Record, read_proved


def test_nothing_is_proved_before_a_full_run(tmp_path: Path) -> None:
    assert read_proved(tmp_path) == {}


def test_a_record_tells_which_tests_prove_a_row(tmp_path: Path) -> None:
    record = Record()
    for phase in ("setup", "call", "teardown"):
        record.note("b", ["ROW"], phase=phase, outcome="passed")
        record.note("a", ["ROW"], phase=phase, outcome="passed")
    record.write(tmp_path)
    assert read_proved(tmp_path) == {"ROW": ["a", "b"]}


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_any_phase_can_undo_a_pass(phase: str) -> None:
    record = Record()
    record.note("a", ["ROW"], phase="call", outcome="passed")
    record.note("a", ["ROW"], phase=phase, outcome="failed")
    assert record.proved() == {}
