"""What was lately said in a topic, as far as later envelopes refer to it. (D-39, D-54)

Rule 1: an id is used once, by whoever it is, so that nobody answers in another's name.
Rule 2: only whoever a request was addressed to answers it, or anybody where it was for all.
Rule 3: what is remembered is bounded; the oldest is forgotten first.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from comity.rules.kinds import Kind, parse
from comity.wire.envelope import REQUEST, Envelope

MOST_REMEMBERED: Final = 2_000
MOST_NAMES: Final = 4_000
LONGEST_CHAIN: Final = 8


class Step(NamedTuple):
    """One envelope, as far as it is remembered."""

    sender: str
    to: tuple[str, ...]
    kind: str
    follows: str


class Trail:
    """The last envelopes of one topic."""

    __slots__ = ("_most", "_names", "_steps")

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._steps: dict[str, Step] = {}
        # How many names are in them: of those one envelope may hold many.
        self._names = 0

    def __contains__(self, id: str) -> bool:
        return id in self._steps

    def get(self, id: str) -> Step | None:
        return self._steps.get(id)

    def add(self, envelope: Envelope) -> None:
        """Remember it, unless its id is known: the first who used an id is whom it stands for."""
        if envelope.id in self._steps:
            return
        self._names += len(envelope.to)
        while len(self._steps) >= self._most or (self._names > MOST_NAMES and self._steps):
            self._names -= len(self._steps.pop(next(iter(self._steps))).to)
        self._steps[envelope.id] = Step(
            envelope.sender, envelope.to, envelope.kind, envelope.correlation_id
        )

    def why_not_answer(self, response: Envelope) -> str:
        """Why its sender may not answer what it refers to; empty where it may."""
        asked = self._steps.get(response.correlation_id)
        if asked is None or parse(asked.kind).family != REQUEST:
            return "no request with the id in correlation_id was seen here"
        if asked.to and response.sender not in asked.to:
            return "the request was not addressed to you"
        return ""

    def concerned(self, envelope: Envelope) -> frozenset[str]:
        """Who said what an envelope follows from, however it is addressed. (D-39)"""
        return frozenset(step.sender for step in self._back(envelope.correlation_id))

    def asked(self, id: str) -> Kind | None:
        """The kind of an envelope that is remembered."""
        step = self._steps.get(id)
        return None if step is None else parse(step.kind)

    def _back(self, id: str) -> Iterable[Step]:
        for _ in range(LONGEST_CHAIN):
            step = self._steps.get(id)
            if step is None:
                return
            yield step
            id = step.follows
