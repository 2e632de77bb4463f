"""The classes of call outcomes, from every fault that there is."""

import pytest

from comity import errors
from comity.errors import Fault
from comity.telemetry.outcomes import CANCELLED, OK, TOOL_ERROR, OutcomeClass, class_of
from tests.support.cases import loop_over

FAULTS = [each for each in vars(errors).values() if isinstance(each, Fault)]


@loop_over(
    ("outcome", "expected"),
    [
        (OK, OutcomeClass.DONE),
        (TOOL_ERROR, OutcomeClass.FAILED),
        (CANCELLED, OutcomeClass.CANCELLED),
        ("pending_approval", OutcomeClass.WAITING),
        ("sign_in_required", OutcomeClass.WAITING),
        ("not_run", OutcomeClass.WAITING),
        ("access_denied", OutcomeClass.DENIED),
        ("declined", OutcomeClass.DENIED),
        ("rate_limited", OutcomeClass.DENIED),
        ("validation_blocked", OutcomeClass.DENIED),
        ("tool_disabled", OutcomeClass.WITHHELD),
        ("permission_denied", OutcomeClass.WITHHELD),
        ("tool_not_found", OutcomeClass.UNKNOWN),
        ("timeout", OutcomeClass.FAILED),
        ("server_stopped", OutcomeClass.FAILED),
        ("a fault of a newer version", OutcomeClass.FAILED),
    ],
)
def test_an_outcome_has_the_class_that_people_expect(outcome: str, expected: OutcomeClass) -> None:
    assert class_of(outcome) is expected


@pytest.mark.parametrize("outcome", OutcomeClass)
def test_every_class_but_done_and_cancelled_has_a_fault(outcome: OutcomeClass) -> None:
    found = [each.error_type for each in FAULTS if class_of(each.error_type) is outcome]
    assert bool(found) is (outcome not in (OutcomeClass.DONE, OutcomeClass.CANCELLED))
