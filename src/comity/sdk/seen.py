"""What was lately said in the topic, as far as a participant has to know it again. (D-39, D-42)

Rule 1: an id is whose it was first.
Rule 2: what is kept is bounded, in number and in size, whoever sends what.
"""

from typing import Final, NamedTuple

from comity.rules.kinds import Kind, parse
from comity.sdk.bounded import Bounded
from comity.wire.envelope import Envelope

MOST: Final = 4_000
MOST_OF_ONE: Final = 1_000
MOST_CHARACTERS: Final = 4_000_000


class Step(NamedTuple):
    """One envelope, as far as it is remembered."""

    sender: str
    to: tuple[str, ...]
    kind: Kind
    follows: str

    def may_be_answered_by(self, member: str) -> bool:
        """Whom it was addressed to; anybody where it was for all. (D-54)"""
        return not self.to or member in self.to


class Seen:
    """The last envelopes, ours among them."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: Bounded[Step] = Bounded(MOST, MOST_CHARACTERS, MOST_OF_ONE)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def weight(self) -> int:
        return self._steps.weight

    def get(self, id: str) -> Step | None:
        return self._steps.get(id)

    def add(self, envelope: Envelope) -> None:
        step = Step(envelope.sender, envelope.to, parse(envelope.kind), envelope.correlation_id)
        weight = sum(map(len, envelope.to)) + len(envelope.kind) + len(envelope.correlation_id)
        self._steps.put(envelope.id, step, weight, envelope.sender)
