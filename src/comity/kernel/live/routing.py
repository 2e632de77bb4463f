"""Who is asked first, and who where that one fails; conversations keep to a model. (MCPL §11.5)

Rule 1: a conversation stays with the model that its first request was routed to, for each server
        and feature set by itself, as long as that one can read it all.
Rule 2: a model that fails as a whole is left alone for a while; then one request tries it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from comity.rules.circuit import Circuit, Passed, Phase, after
from comity.rules.inference_routes import Choice, Route, Sought, choices, each_once

MOST_PINS: Final = 10_000
REST: Final = timedelta(seconds=30)

type Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the operator wrote: routes, who is asked without one, who where that fails."""

    routes: Sequence[Route] = ()
    default: str = ""
    fallbacks: Sequence[str] = ()


class Routing:
    def __init__(self, plan: Plan, windows: Mapping[str, int]) -> None:
        self._plan = plan
        self._windows = windows
        self._pins: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def chain(self, sought: Sought) -> list[Choice]:
        """Models in the order in which they are to be asked; may be empty."""
        found = choices(self._plan.routes, self._plan.default, sought, self._windows)
        pinned = self._pinned(sought)
        if pinned is not None:
            found.insert(0, pinned)
        fallbacks = [Choice(each, "fallback") for each in self._plan.fallbacks]
        # After the first, only who is named as a fallback: other routes are for others.
        chain = [*found[:1], *(each for each in fallbacks if each.model in self._windows)]
        return each_once(chain)

    def pin(self, sought: Sought, model: str) -> None:
        """Have this conversation stay with that model."""
        if not sought.conversation:
            return
        self._pins[_key(sought)] = model
        self._pins.move_to_end(_key(sought))
        while len(self._pins) > MOST_PINS:
            self._pins.popitem(last=False)

    def _pinned(self, sought: Sought) -> Choice | None:
        model = self._pins.get(_key(sought)) if sought.conversation else None
        said = any(each.conversation == sought.conversation for each in self._plan.routes)
        if model is None or said or self._windows.get(model, 0) < sought.tokens:
            return None
        return Choice(model, f"conversation {sought.conversation}")


class Circuits:
    """Which models fail as a whole just now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._circuits: dict[str, Circuit] = {}
        self._opened: dict[str, datetime] = {}

    def rests(self, model: str) -> timedelta | None:
        """For how long nobody is to ask it; None where it may be asked."""
        circuit = self._circuits.get(model, Circuit())
        if circuit.phase is Phase.CLOSED:
            return None
        left = self._opened[model] + REST - self._clock()
        if left > timedelta():
            return left
        # Whoever comes now tries it; others wait for what comes of that.
        self._opened[model] = self._clock()
        self._circuits[model] = after(circuit, Passed.WAITED)
        return None

    def left(self, model: str) -> timedelta | None:
        """How long it rests still, for those who only look."""
        if self._circuits.get(model, Circuit()).phase is Phase.CLOSED:
            return None
        return max(self._opened[model] + REST - self._clock(), timedelta())

    def passed(self, model: str, passed: Passed) -> None:
        circuit = after(self._circuits.get(model, Circuit()), passed)
        if circuit.phase is Phase.OPEN:
            self._opened[model] = self._clock()
        self._circuits[model] = circuit


def _key(sought: Sought) -> tuple[str, str, str]:
    return sought.conversation, sought.server, sought.feature
