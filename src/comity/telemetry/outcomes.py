"""The classes of call outcomes, for everything that counts or shows how calls ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from comity import errors
from comity.errors import Fault

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
ERROR: Final = "error"
CANCELLED: Final = "cancelled"
NOT_RUN: Final = "not_run"
"""The outcome of a call whose intent was recorded before a person had to decide about it."""


class OutcomeClass(StrEnum):
    """How a call ended, in the few classes that people tell apart.

    A `waiting` call needs a person first. A rule or a person refused a `denied` one. A `withheld`
    one was refused for every caller, because of the state of its tool. The name of an `unknown` one
    means nothing.
    """

    DONE = "done"
    WAITING = "waiting"
    DENIED = "denied"
    WITHHELD = "withheld"
    UNKNOWN = "unknown"
    FAILED = "failed"
    CANCELLED = "cancelled"


_DENYING_CATEGORIES: Final = frozenset({"security", "validation", "resource"})
_CLASS_BY_OUTCOME: Final[Mapping[str, OutcomeClass]] = {
    **{
        fault.error_type: OutcomeClass.DENIED
        for fault in vars(errors).values()
        if isinstance(fault, Fault) and fault.category in _DENYING_CATEGORIES
    },
    OK: OutcomeClass.DONE,
    CANCELLED: OutcomeClass.CANCELLED,
    NOT_RUN: OutcomeClass.WAITING,
    errors.PENDING_APPROVAL.error_type: OutcomeClass.WAITING,
    errors.SIGN_IN_REQUIRED.error_type: OutcomeClass.WAITING,
    errors.URL_ELICITATION_REQUIRED.error_type: OutcomeClass.WAITING,
    errors.TOOL_DISABLED.error_type: OutcomeClass.WITHHELD,
    errors.PERMISSION_DENIED.error_type: OutcomeClass.WITHHELD,
    errors.TOOL_NOT_FOUND.error_type: OutcomeClass.UNKNOWN,
    errors.RESOURCE_NOT_FOUND.error_type: OutcomeClass.UNKNOWN,
    # No rule refused these: the server was too slow, or had too much to do.
    errors.TIMEOUT.error_type: OutcomeClass.FAILED,
    errors.EXHAUSTED.error_type: OutcomeClass.FAILED,
}


def class_of(outcome: str) -> OutcomeClass:
    """Return the class of an outcome, which is `ok` or the type of an error."""
    return _CLASS_BY_OUTCOME.get(outcome, OutcomeClass.FAILED)
