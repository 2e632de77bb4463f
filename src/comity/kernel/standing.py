"""Where a server stands in its life: its state, since when and why, and what callers are told."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.rules.lifecycle import Happened, after, refusal_in
from comity.wire.errors import Unavailable
from comity.wire.lifecycle import State

SOON: Final = timedelta(seconds=1)
"""How long a start takes of which nobody knows that yet."""

AT_LEAST: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class Transition:
    """One step in the life of a server, and why it was taken."""

    server: str
    previous: State
    state: State
    reason: str
    at: datetime
    # Who ordered it, where somebody did; and whether nobody starts the server again after it.
    by: str = ""
    is_given_up: bool = False


class Standing:
    """The state of one server; only what has happened changes it. (MGP §11.2)"""

    def __init__(self, name: str, tell: Callable[[Transition], None]) -> None:
        self.name = name
        self.state = State.REGISTERED
        self.reason = ""
        self.since = datetime.now(UTC)
        self.was_connected = False
        # Whether the next call starts the server, and how long its last start took.
        self.starts_on_use = False
        self.start_takes = SOON
        self._starts_at: float | None = None
        self._tell = tell

    def will_start_in(self, wait: timedelta | None) -> None:
        """Note how long the next start is away, by a clock that nobody sets; None is when used."""
        self._starts_at = None if wait is None else time.monotonic() + wait.total_seconds()

    @property
    def wait(self) -> timedelta:
        """How long until the server can be used, if its start takes as long as the last one did."""
        now = time.monotonic()
        away = timedelta(seconds=(now if self._starts_at is None else self._starts_at) - now)
        return max(away + self.start_takes, AT_LEAST)

    def happen(self, happened: Happened, reason: str, *, is_given_up: bool = False) -> None:
        """Take the step that follows, if there is one in this state, and tell of it."""
        following = after(self.state, happened)
        if following is None:
            return
        previous, self.state = self.state, following
        self.reason, self.since = reason, datetime.now(UTC)
        self.was_connected = self.was_connected or following is State.CONNECTED
        step = Transition(self.name, previous, following, reason, self.since)
        self._tell(replace(step, is_given_up=is_given_up))

    def refusal(self) -> Unavailable:
        """Why no call can be made just now, and when to come back, as far as that is known."""
        fault = refusal_in(self.state, self.was_connected, self.starts_on_use)
        why = f": {self.reason}" if self.reason else ""
        because = f"server {self.name!r} is {self.state}{why}"
        return Unavailable(because, fault, self.wait if fault.retryable else None)
