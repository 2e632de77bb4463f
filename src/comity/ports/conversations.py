"""Where conversations with models are kept, turn by turn, and the turns that are still to be taken.

Rule 1: no cause has two turns, for good: `begin` gives the one that its cause has.
Rule 2: of one conversation one turn is under way at a time, in the order in which they began.
Rule 3: whoever claims a turn has it until then, or until it is written as ended. A claim that
        lapsed can write nothing: so what comes of a turn is written once.
Rule 4: a store that does not answer raises Unavailable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from comity.ports.models import Step
from comity.wire.contents import Content
from comity.wire.inference import Usage

PAGE: Final = 50


class State(StrEnum):
    """How far a turn has come. `decided` is what is to be said, and not yet said everywhere."""

    WAITING = "waiting"
    DECIDED = "decided"
    DONE = "done"
    WITHHELD = "withheld"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        return self in OPEN


OPEN: Final = frozenset({State.WAITING, State.DECIDED})


@dataclass(frozen=True, slots=True)
class Facts:
    """What operators see of a turn afterwards."""

    model: str = ""
    usage: Usage = field(default_factory=Usage)
    injected: tuple[str, ...] = ()
    rewrote: tuple[str, ...] = ()
    tools: int = 0
    error: str = ""
    # What became of it in the end, once its words were out.
    ends_as: State = State.DONE


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """One turn. `errand` is all else that is known of why it is taken, as a document.

    `steps` are what the model said and did so far, `said` what goes out in the end.
    """

    id: str
    cause: str
    conversation: str
    errand: Mapping[str, Any]
    content: Content
    at: datetime
    index: int = 0
    state: State = State.WAITING
    attempts: int = 0
    steps: tuple[Step, ...] = ()
    said: Content = ()
    thinking: str = ""
    facts: Facts = field(default_factory=Facts)
    ended_at: datetime | None = None
    # By when it was begun: the greater, the later.
    number: int = 0


class ConversationRecords(Protocol):
    async def begin(self, turn: KeptTurn) -> KeptTurn:
        """Keep it, with its place in the conversation; or give the one that its cause has."""
        ...

    async def get(self, id: str) -> KeptTurn | None: ...

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[KeptTurn]:
        """Those that are due, each the first that is open in its conversation; for this holder
        alone until then. It counts as one more attempt."""
        ...

    async def renew(self, holder: str, id: str, until: datetime) -> bool:
        """Hold it longer; False where the holder has it no more."""
        ...

    async def write(self, holder: str, turn: KeptTurn, again_at: datetime | None = None) -> bool:
        """Write how far it has come; False, and nothing done, where the holder has it no more.

        The claim ends where the turn does, and where it is to be tried again at some time.
        """
        ...

    async def abandon(self, holders: str) -> None:
        """Void the claims of all holders whose names begin so."""
        ...

    async def history(self, conversation: str, before: int, limit: int) -> Sequence[KeptTurn]:
        """The turns before that index in which something was said, the last of them first."""
        ...

    async def page(
        self, before: int = 0, limit: int = PAGE, conversation: str = ""
    ) -> Sequence[KeptTurn]:
        """The last turns first, from before that number on; all, or those of one conversation."""
        ...

    async def prune(self, ended_before: datetime) -> int:
        """Forget what was said in turns that ended before then. That they were stays."""
        ...
