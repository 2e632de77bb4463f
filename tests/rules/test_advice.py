"""Every fault has a cause and something that can be done about it."""

import pytest

from comity.rules.advice import ADVICE, suggestions_for
from comity.wire import errors
from comity.wire.errors import Fault

FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}
each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


@each_fault
def test_a_fault_says_where_it_comes_from_and_what_to_do(fault: Fault) -> None:
    assert ADVICE[fault].cause.endswith(".")
    assert suggestions_for(fault)
    for suggestion in suggestions_for(fault):
        assert suggestion[0].isupper()
        assert suggestion.endswith(".")


def test_nothing_is_advised_of_what_cannot_happen() -> None:
    assert set(ADVICE) == set(FAULTS.values())
