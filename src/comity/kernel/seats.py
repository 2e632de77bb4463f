"""A member of a topic on this node: who it is, where it is given what is said, what it missed.

Rule 1: a member is given everything at once, or it is told how much it was not given; it never
        makes anybody wait.
Rule 2: what it says is within its rates; what it is told of its faults is bounded as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from comity.rules.capabilities import Capabilities
from comity.rules.rates import Rate
from comity.rules.topics import Mode
from comity.wire.envelope import CHAT, Envelope
from comity.wire.parties import Actor

FLOOD: Final = 10
"""So many times its rate may a member go on after it was told; then it has to go."""


class Said:
    """One envelope on its way to members: the very bytes, and what was read of them.

    `frame` is for whoever gives it to many over the same kind of wire, to be made once. It is
    `is_from_here` at the node where it came in, and at no other.
    """

    __slots__ = ("envelope", "frame", "is_from_here", "text")

    def __init__(self, text: bytes, envelope: Envelope, *, is_from_here: bool = True) -> None:
        self.text = text
        self.envelope = envelope
        self.frame = b""
        self.is_from_here = is_from_here


class Outlet(Protocol):
    """Where a member is given what is said. Neither waits, nor raises."""

    def give(self, said: Said) -> bool:
        """Whether it was taken; what was not is counted for the member."""
        ...

    def end(self, code: int, because: str) -> None: ...


@dataclass(slots=True)
class Missed:
    """What a member was not given."""

    count: int = 0
    first: str = ""
    last: str = ""

    def add(self, id: str, number: int = 1) -> None:
        self.first = self.first or id
        self.last = id or self.last
        self.count += number


@dataclass(frozen=True, slots=True)
class Pace:
    """How much one member may say in a minute; none is no bound. (D-55)"""

    messages: Rate | None
    chats: Rate | None


NO_PACE: Final = Pace(None, None)


@dataclass(slots=True)
class Spent:
    """How much of its pace a member has used; it stays so when it goes and comes again."""

    due: float = 0.0
    chats_due: float = 0.0
    # It may come as often in a minute as it may say something.
    joins_due: float = 0.0
    strikes: int = 0

    def is_owing(self, now: float) -> bool:
        return max(self.due, self.chats_due, self.joins_due) > now


class Seat:
    """One member; `outlet` is None while it is away for a moment."""

    __slots__ = (
        "_pace",
        "actor",
        "away_since",
        "connection",
        "is_built_in",
        "joined_at",
        "may",
        "missed",
        "mode",
        "outlet",
        "party",
        "spent",
        "stamp",
        "until",
    )

    def __init__(self, actor: Actor, mode: Mode, outlet: Outlet, connection: str) -> None:
        self.actor = actor
        self.party = actor.party
        self.mode = mode
        self.outlet: Outlet | None = outlet
        self.connection = connection
        self.may = Capabilities(())
        self.until: datetime | None = None
        self.joined_at: datetime | None = None
        # Of two connections of one party the one with the greater stamp is the newer.
        self.stamp = ""
        self.missed = Missed()
        self.away_since = 0.0
        # Part of the gateway: it takes nobody's place, and its words are not counted.
        self.is_built_in = False
        self.spent = Spent()
        self._pace = NO_PACE

    def keep_to(self, pace: Pace, spent: Spent | None = None) -> None:
        """Have it say no more than this; `spent` is what it has used of that before."""
        self._pace = pace
        self.spent = spent or self.spent

    def give(self, said: Said) -> None:
        outlet = self.outlet
        if outlet is None or not outlet.give(said):
            self.missed.add(said.envelope.id)

    def hasten(self, kind: str, now: float) -> float:
        """How long an envelope comes too early; zero: it may pass, and is counted."""
        messages, chats, spent = self._pace.messages, self._pace.chats, self.spent
        wait = 0.0 if messages is None else messages.wait(spent.due, now)
        if kind == CHAT and chats is not None:
            wait = max(wait, chats.wait(spent.chats_due, now))
        if wait:
            return wait
        spent.strikes = 0
        if messages is not None:
            spent.due = messages.after(spent.due, now)
        if kind == CHAT and chats is not None:
            spent.chats_due = chats.after(spent.chats_due, now)
        return 0.0

    def came(self, now: float) -> None:
        """Count that it came; whoever comes and goes is told to everybody, too."""
        rate = self._pace.messages
        if rate is not None:
            self.spent.joins_due = rate.after(self.spent.joins_due, now)

    def is_early(self, now: float) -> bool:
        """Whether anything comes too early that it says now."""
        messages = self._pace.messages
        return messages is not None and messages.wait(self.spent.due, now) > 0

    def strike(self) -> int:
        """Count what came too early; how often in a row that was so."""
        self.spent.strikes += 1
        return self.spent.strikes

    @property
    def patience(self) -> int:
        """After how many envelopes in a row that came too early a member has to go."""
        messages = self._pace.messages
        return FLOOD * (messages.burst if messages is not None else 1_000)


type Now = Callable[[], float]
