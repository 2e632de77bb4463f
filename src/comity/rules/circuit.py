"""When calls to a server that fails as a whole are no longer tried: a circuit as a table.

Closed, calls pass and failures in a row are counted. Open, calls are refused at once. Half open,
nobody's call is risked: the gateway's own probe decides.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Passed(StrEnum):
    """What came of a call or a probe, or of waiting."""

    ANSWERED = "answered"
    FAILED = "failed"
    WAITED = "waited"


@dataclass(frozen=True, slots=True)
class Circuit:
    """Where the circuit stands, and how many failures in a row brought it there."""

    phase: Phase = Phase.CLOSED
    failures: int = 0


MOST_FAILURES: Final = 5
"""So many calls in a row fail before the next ones are refused: one bad tool opens nothing while
the others answer."""

PHASES: Final[dict[tuple[Phase, Passed], Phase]] = {
    (Phase.CLOSED, Passed.ANSWERED): Phase.CLOSED,
    (Phase.CLOSED, Passed.WAITED): Phase.CLOSED,
    # What was under way when it opened may still be answered; only the probe closes it.
    (Phase.OPEN, Passed.ANSWERED): Phase.OPEN,
    (Phase.OPEN, Passed.FAILED): Phase.OPEN,
    (Phase.OPEN, Passed.WAITED): Phase.HALF_OPEN,
    (Phase.HALF_OPEN, Passed.ANSWERED): Phase.CLOSED,
    (Phase.HALF_OPEN, Passed.FAILED): Phase.OPEN,
    (Phase.HALF_OPEN, Passed.WAITED): Phase.HALF_OPEN,
}


def after(circuit: Circuit, passed: Passed, most: int = MOST_FAILURES) -> Circuit:
    """The circuit that follows; a closed one opens at the last failure that is borne."""
    if passed is Passed.ANSWERED:
        return Circuit(PHASES[circuit.phase, passed])
    if passed is Passed.WAITED:
        return replace(circuit, phase=PHASES[circuit.phase, passed])
    failures = circuit.failures + 1
    if circuit.phase is Phase.CLOSED:
        return Circuit(Phase.OPEN if failures >= most else Phase.CLOSED, failures)
    return Circuit(PHASES[circuit.phase, passed], failures)
