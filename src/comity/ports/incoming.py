"""What came in from outside channels and what was said there: each remembered, so that it is once.

Rule 1: of all who take a deed, on whatever node, exactly one has it. One that was to lapse does so
        at its time, and can then be taken by another; one without such a time never lapses.
Rule 2: what was settled stays so until it is forgotten, whatever became of its holder.
Rule 3: who has lost a deed can settle nothing of it.
Rule 4: a store that does not answer raises Unavailable.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

MOST_AT_ONCE: Final = 500


class Standing(StrEnum):
    """How it stands with a deed for whoever wants to take it."""

    OURS = "ours"
    BUSY = "busy"
    DONE = "done"


class Deed(NamedTuple):
    """What taking one came to; `note` is what was written down when it was settled."""

    key: str
    standing: Standing
    note: str = ""


class IncomingRecords(Protocol):
    async def take(
        self, keys: Sequence[str], holder: str, now: datetime, until: datetime | None
    ) -> Sequence[Deed]:
        """Take each that nobody has; in the order of the keys, of which none stands twice."""
        ...

    async def settle(self, holder: str, done: Mapping[str, str], now: datetime) -> None:
        """These are done, each with a note; a key that nobody took is done from now on."""
        ...

    async def release(self, holder: str, keys: Sequence[str]) -> None:
        """These were not done, and anybody may take them again."""
        ...

    async def prune(self, before: datetime) -> int:
        """Forget what was taken before then; how many that were."""
        ...
