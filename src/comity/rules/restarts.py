"""Whether a server that came to its end is started again: a table and a limit. (MGP §11.5, D-22)

Rule 1: what follows an end is a row of FOLLOWING; nothing else decides it.
Rule 2: a start that follows by itself counts against the limit. Past the limit nothing follows but
        an operator's word, and an operator's word begins the count anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from comity.rules.phrases import count_noun
from comity.wire.lifecycle import Reason, RestartPolicy

NEVER, ON_FAILURE, ALWAYS = RestartPolicy


class Ended(StrEnum):
    """How a server came to its end by itself; otherwise there is a `Reason`."""

    FAILED = "failed"
    """It exited with an error, its link was lost, it could not be started, it did not answer."""
    LEFT = "left"
    """It exited as one does whose work is done: with status 0, unasked."""


class Next(StrEnum):
    """What follows the end of a server."""

    AGAIN = "again"
    ON_USE = "on use"
    STAY = "stay"
    GIVE_UP = "give up"


type End = Ended | Reason

FOLLOWING: Final[dict[tuple[End, RestartPolicy], Next]] = {
    (Ended.FAILED, NEVER): Next.GIVE_UP,
    (Ended.FAILED, ON_FAILURE): Next.AGAIN,
    (Ended.FAILED, ALWAYS): Next.AGAIN,
    (Ended.LEFT, NEVER): Next.STAY,
    (Ended.LEFT, ON_FAILURE): Next.ON_USE,
    (Ended.LEFT, ALWAYS): Next.AGAIN,
    # Whoever exceeded a limit has failed, whatever it thinks of itself.
    (Reason.RESOURCE_LIMIT, NEVER): Next.GIVE_UP,
    (Reason.RESOURCE_LIMIT, ON_FAILURE): Next.AGAIN,
    (Reason.RESOURCE_LIMIT, ALWAYS): Next.AGAIN,
    **{(Reason.IDLE_TIMEOUT, policy): Next.ON_USE for policy in RestartPolicy},
    **{(Reason.CONFIGURATION_CHANGE, policy): Next.AGAIN for policy in RestartPolicy},
    # Or no operator could ever stop a server. (D-22)
    **{(Reason.OPERATOR_REQUEST, policy): Next.STAY for policy in RestartPolicy},
    **{(Reason.KERNEL_SHUTDOWN, policy): Next.STAY for policy in RestartPolicy},
}


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a server may be started again by itself; None is as often as it takes."""

    policy: RestartPolicy = ON_FAILURE
    most: int | None = 5
    window: timedelta = timedelta(seconds=300)

    def within(self, earlier: Sequence[datetime], now: datetime) -> list[datetime]:
        """Which of the earlier restarts still count."""
        return [at for at in earlier if now - at < self.window]

    def after(self, end: End, earlier: Sequence[datetime], now: datetime) -> Next:
        """What follows this end, after these restarts."""
        following = FOLLOWING[end, self.policy]
        is_its_own = isinstance(end, Ended) or end is Reason.RESOURCE_LIMIT
        counts = following in (Next.AGAIN, Next.ON_USE) and is_its_own
        if counts and self.most is not None and len(self.within(earlier, now)) >= self.most:
            return Next.GIVE_UP
        return following

    def why_not(self, earlier: Sequence[datetime], now: datetime) -> str:
        """Why a server that failed is not started again, as its reason says it. (MGP §11.5)"""
        if self.policy is NEVER:
            return "its restart policy is never"
        window = f"{self.window.total_seconds():g} s"
        times = len(self.within(earlier, now))
        return f"restart_limit_exceeded: started again {count_noun(times, 'time')} in {window}"
