"""Whether a server that is asked how it is can be taken for lost. (MGP §11.3, D-23)

Rule 1: one that was heard lately is not asked: an answer to a call proves as much as one to a ping.
Rule 2: several unanswered probes in a row are needed, since one may be lost in a busy moment.
Rule 3: a server that has calls to answer may be silent for as long as a call may take. Many servers
        do one thing at a time, and cannot say that they are well while they work. Past that time
        every call of before has ended at its deadline, and new ones are no excuse.
"""

from dataclasses import dataclass
from datetime import timedelta

from comity.wire.lifecycle import Status


@dataclass(frozen=True, slots=True)
class Probing:
    """How a server is asked whether it is well; `every` of zero asks never."""

    every: timedelta = timedelta(seconds=30)
    within: timedelta = timedelta(seconds=5)
    most_missed: int = 3
    # How soon one is asked again that did not answer, or whose calls fail.
    when_in_doubt: timedelta = timedelta(seconds=1)
    # How long one that has calls to answer may be silent.
    while_busy: timedelta = timedelta(minutes=5)

    @property
    def is_wanted(self) -> bool:
        return self.every > timedelta(0)

    def next_after(self, health: "Health") -> timedelta:
        """How long to wait before the next probe."""
        return min(self.when_in_doubt, self.every) if health.missed else self.every

    def finds_lost(self, health: "Health", busy: bool, silent: timedelta) -> bool:
        """Whether the server is to be given up; `silent` is since anything was heard of it."""
        if health.missed < self.most_missed:
            return False
        return not busy or silent >= self.while_busy


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes say of a server: its own word, and how many it left unanswered in a row."""

    status: Status | None = None
    missed: int = 0

    def after_answer(self, said: str | None) -> "Health":
        """It answered; a word that is none of the three says only that it lives."""
        return Health(Status(said) if said in set(Status) else None)

    def after_sign_of_life(self) -> "Health":
        """It was heard otherwise: what it last said of itself stands."""
        return Health(self.status)

    def after_miss(self) -> "Health":
        return Health(self.status, self.missed + 1)
