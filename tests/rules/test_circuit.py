"""The circuit: every row by hand, and what holds on every way through it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.circuit import MOST_FAILURES, Circuit, Passed, Phase, after

ROWS = """
closed    | answered | closed
closed    | failed   | closed
closed    | waited   | closed
open      | answered | open
open      | failed   | open
open      | waited   | half open
half open | answered | closed
half open | failed   | open
half open | waited   | half open
"""


@pytest.mark.parametrize("row", [line for line in ROWS.splitlines() if line])
def test_a_phase_follows_as_its_row_says(row: str) -> None:
    phase, passed, following = (cell.strip() for cell in row.split("|"))
    assert after(Circuit(Phase(phase)), Passed(passed)).phase == following


def test_it_opens_at_the_last_failure_in_a_row_that_is_borne() -> None:
    circuit = Circuit()
    for number in range(1, MOST_FAILURES + 1):
        assert circuit.phase is Phase.CLOSED
        circuit = after(circuit, Passed.FAILED)
        assert circuit.failures == number
    assert circuit.phase is Phase.OPEN


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    circuit = Circuit()
    for _ in range(20):
        for _ in range(MOST_FAILURES - 1):
            circuit = after(circuit, Passed.FAILED)
        circuit = after(circuit, Passed.ANSWERED)
    assert circuit == Circuit()


def test_what_is_answered_late_does_not_close_it() -> None:
    opened = Circuit(Phase.OPEN, MOST_FAILURES)
    assert after(opened, Passed.ANSWERED).phase is Phase.OPEN


@given(st.lists(st.sampled_from(Passed)), st.integers(1, 8))
def test_it_is_never_closed_but_by_an_answer_to_a_probe(happened: list[Passed], most: int) -> None:
    circuit = Circuit()
    for passed in happened:
        before, circuit = circuit, after(circuit, passed, most)
        if circuit.phase is Phase.CLOSED and before.phase is not Phase.CLOSED:
            assert (before.phase, passed) == (Phase.HALF_OPEN, Passed.ANSWERED)
        if circuit.phase is Phase.OPEN and before.phase is Phase.CLOSED:
            assert (passed, circuit.failures) == (Passed.FAILED, most)
