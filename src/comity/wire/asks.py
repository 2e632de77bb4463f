"""A question to an authority, as it is kept: about what, whose, for whom, and what came of it.

One inbox for every mechanism that asks somebody something. (design §1, D-28, D-98, D-102)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

META: Final = "dev.comity/ask"
"""By what `_meta` of a message of ours says which ask it is about."""

ANSWER: Final = "ask/answer"
ANSWER_OWN: Final = "ask/answer_own"
"""The verbs: to answer what others ask, and what one asks oneself. Only people ever may."""


class Kind(StrEnum):
    """What is asked for."""

    CONFIRM = "confirm"
    PERMISSION = "permission"
    INPUT = "input"
    SELECT = "select"
    NOTICE = "notice"
    VISIT = "visit"
    REGISTRATION = "registration"
    SCOPE = "scope"
    BUDGET = "budget"
    SAMPLING = "sampling"


class State(StrEnum):
    """What became of it. `used` is an accepted one that has authorised its one call."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    USED = "used"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    DEFERRED = "deferred"


class Verdict(StrEnum):
    """What an authority says."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    DEFER = "defer"


@dataclass(frozen=True, slots=True)
class Answer:
    """One authority's word."""

    by: str
    verdict: Verdict
    at: datetime
    reason: str = ""
    content: Mapping[str, object] = _NOTHING
    """What was filled in or chosen, where something was."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question. `digest` binds its answer to exactly one thing; `about` is what people read.

    `about` holds no secret: it has passed redaction. `schema` is what an answer must look like, and
    `options` what it can be, where it is more than yes or no. `own` is whether its asker may answer
    it; `quorum` how many must accept. `expires_at` is when nobody can answer any more, or, once it
    was accepted, when the answer is void.
    """

    id: str
    kind: Kind
    asker: str
    server: str
    tool: str
    digest: str
    message: str
    about: Mapping[str, object]
    created_at: datetime
    expires_at: datetime
    state: State = State.PENDING
    quorum: int = 1
    own: bool = False
    trace: str = ""
    options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None
    answers: tuple[Answer, ...] = ()
    call: str = ""
    """The call that used it."""
    ended_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.state in (State.PENDING, State.DEFERRED)
