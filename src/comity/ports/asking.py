"""Where asks are kept. Each step is one atomic statement, so that of many who try one succeeds.

Rule 1: a step that the table of `rules.asks` does not have is not taken; None is given instead.
Rule 2: an answer of the asker's own is refused by the store itself where the ask is not `own`.
Rule 3: a store that does not answer raises Unavailable.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, Protocol

from comity.wire.asks import Answer, Ask, State

PAGE: Final = 250


class AskRecords(Protocol):
    async def open(self, ask: Ask) -> Ask:
        """Keep a new one; or give the one with the same digest that is open, or accepted and not
        yet used. At most one such has the same digest; one past its time ends here."""
        ...

    async def get(self, id: str) -> Ask | None: ...

    async def latest(self, digest: str) -> Ask | None:
        """The newest with this digest, whatever became of it."""
        ...

    async def page(
        self, states: Collection[State] = (), after: str = "", limit: int = PAGE
    ) -> Sequence[Ask]:
        """By id, which grows with time, from the one after that id on; no state named is all."""
        ...

    async def count(self, states: Collection[State]) -> int: ...

    async def answer(self, id: str, answer: Answer, until: datetime) -> Ask | None:
        """Put down somebody's word, and take the step that follows from all that were given.

        `until` is when an acceptance is void. None where it is not open, is past its time, or where
        this somebody has said something else already than "later".
        """
        ...

    async def use(self, id: str, call: str, at: datetime) -> Ask | None:
        """Have an accepted one authorise its one call: None for everybody but the first."""
        ...

    async def restore(self, id: str, call: str) -> Ask | None:
        """Take back that it was used by a call that never left; None where another one with the
        same digest has taken its place meanwhile."""
        ...

    async def end(self, id: str, state: State, at: datetime) -> Ask | None:
        """Withdraw, cancel or expire what is open, or accepted and not used."""
        ...

    async def expire(self, at: datetime, limit: int = PAGE) -> Sequence[Ask]:
        """End those that are past their time, the longest first; gives them as they now are."""
        ...

    async def erase(self, id: str) -> None:
        """Take out what was filled in; that something was said, and by whom, stays."""
        ...
