"""Where pushes are kept until what follows from them is done, and remembered after that. (0046)

Rule 1: what `add` has returned for is durable, with its route. Of one server there is one with an
        id.
Rule 2: one holder at a time does what follows from a push. A claim that nobody settled in time
        lapses, and one that lapsed can settle nothing.
Rule 3: what is done is remembered, without what was in it, for as long as an operator wants.
Rule 4: a store that does not answer raises Unavailable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from comity.wire.pushes import KeptPush

PAGE: Final = 100


class Claim(NamedTuple):
    """Who does what follows, and until when it is that one's alone."""

    holder: str
    until: datetime


class Admitted(NamedTuple):
    """The push as it is kept; `is_new` is false where it was there before."""

    kept: KeptPush
    is_new: bool


@dataclass(frozen=True, slots=True)
class PushFigures:
    """How many there are of each kind."""

    waiting: int = 0
    done: int = 0
    failed: int = 0


class PushRecords(Protocol):
    async def add(self, kept: KeptPush, claim: Claim, most: int) -> Admitted | None:
        """Keep it, claimed, unless it is kept; None where so many of its server wait already."""
        ...

    async def get(self, server: str, id: str) -> KeptPush | None: ...

    async def claim(self, claim: Claim, now: datetime, limit: int) -> Sequence[KeptPush]:
        """Those that are due and nobody's, for this holder alone until then; the oldest first."""
        ...

    async def settle(self, holder: str, kept: KeptPush) -> bool:
        """Write down what came of a claim, which ends it; False where the holder has it no more."""
        ...

    async def abandon(self, holders: str) -> None:
        """Void the claims of all holders whose names begin so."""
        ...

    async def page(
        self, before: int = 0, limit: int = PAGE, server: str = ""
    ) -> Sequence[KeptPush]:
        """By number, the newest first, from the one before that number on; of one server or all."""
        ...

    async def figures(self) -> PushFigures: ...

    async def retry(self, number: int, now: datetime) -> bool:
        """Have one that failed wait again; False where there is none."""
        ...

    async def prune(self, remembered: datetime) -> int:
        """Forget what was done or failed before then; how many that were."""
        ...


class Firsts(Protocol):
    """Who knows at once, at all nodes, whether something was there lately. (JetStream)"""

    async def is_first(self, key: str) -> bool:
        """Whether nobody has asked so before. Raises Unavailable."""
        ...
