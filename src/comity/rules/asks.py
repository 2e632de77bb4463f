"""What may become of an ask, who may answer it, and to what its answer is bound. (design §1)

Rule 1: nothing changes a state but what this table has.
Rule 2: an answer is bound to one digest of who asks, which tool, as it was defined, with what.
Rule 3: only people answer; nobody answers for itself, unless that was granted too, or the operator
        let those who may do everything. (D-98)
Rule 4: an answer widens nothing. (D-102)
"""

import hashlib
from base64 import b32hexencode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from comity.wire.asks import ANSWER, ANSWER_OWN, Answer, Ask, State, Verdict
from comity.wire.parties import Actor, PartyKind


class Happened(StrEnum):
    """What can happen to an ask."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    DEFERRED = "deferred"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    USED = "used"
    RESTORED = "restored"


_OPEN: Final = (State.PENDING, State.DEFERRED)
TRANSITIONS: Final[Mapping[tuple[State, Happened], State]] = {
    **{(state, Happened.ACCEPTED): State.ACCEPTED for state in _OPEN},
    **{(state, Happened.DECLINED): State.DECLINED for state in _OPEN},
    **{(state, Happened.CANCELLED): State.CANCELLED for state in _OPEN},
    (State.PENDING, Happened.DEFERRED): State.DEFERRED,
    **{(state, Happened.EXPIRED): State.EXPIRED for state in (*_OPEN, State.ACCEPTED)},
    **{(state, Happened.WITHDRAWN): State.WITHDRAWN for state in (*_OPEN, State.ACCEPTED)},
    (State.ACCEPTED, Happened.USED): State.USED,
    # The call that was to use it never left: what was said still stands.
    (State.USED, Happened.RESTORED): State.ACCEPTED,
}
LIVE: Final = (*_OPEN, State.ACCEPTED)
"""The states of an ask that can still authorise a call."""

ENDINGS: Final[Mapping[State, Happened]] = {
    State.WITHDRAWN: Happened.WITHDRAWN,
    State.CANCELLED: Happened.CANCELLED,
    State.EXPIRED: Happened.EXPIRED,
}
"""How an ask ends without an authority's word."""

OWN: Final = (
    f"it is your own request. To approve your own requests you need the grant {ANSWER_OWN}, or the "
    "verb * on * together with approve_own = true in [policy]"
)
NEVER_OWN: Final = "it is your own request, and somebody else has to answer it"
CHANCE_BYTES: Final = 10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def new_ask_id(at: datetime, chance: bytes) -> str:
    """An id that grows with time: 48 bits of milliseconds, then 80 of chance, in 26 characters."""
    millis = max(0, (at - _EPOCH) // _MILLISECOND)
    whole = millis.to_bytes(6) + chance[:CHANCE_BYTES].rjust(CHANCE_BYTES, b"\0")
    # Of the alphabets of base 32 this is the one whose words sort as their bytes do.
    return b32hexencode(whole).decode().rstrip("=").lower()


def after(state: State, happened: Happened) -> State | None:
    return TRANSITIONS.get((state, happened))


def states_before(happened: Happened) -> frozenset[State]:
    """In which states this can happen."""
    return frozenset(state for state, what in TRANSITIONS if what is happened)


def happened(answers: Sequence[Answer], quorum: int) -> Happened | None:
    """What follows from all that authorities have said so far; None is that more must speak."""
    said = [answer.verdict for answer in answers]
    if Verdict.DECLINE in said:
        return Happened.DECLINED
    if Verdict.CANCEL in said:
        return Happened.CANCELLED
    if said.count(Verdict.ACCEPT) >= quorum:
        return Happened.ACCEPTED
    return Happened.DEFERRED if said and said[-1] is Verdict.DEFER else None


def stepped(ask: Ask, happened: Happened, at: datetime) -> Ask | None:
    """The ask after something happened to it; None where that cannot happen to it now."""
    state = after(ask.state, happened)
    if state is None:
        return None
    return replace(ask, state=state, ended_at=None if state in LIVE else at)


def answered(ask: Ask, answer: Answer, until: datetime) -> Ask | None:
    """The ask with one more word, and after what follows from it; None where it takes no word.

    Nobody has two words: but who said "later" may say at last what it decided.
    """
    if not ask.is_open or ask.expires_at <= answer.at:
        return None
    others = tuple(each for each in ask.answers if each.by != answer.by)
    spoken = [each.verdict for each in ask.answers if each.by == answer.by]
    if spoken and (spoken != [Verdict.DEFER] or answer.verdict is Verdict.DEFER):
        return None
    heard = replace(ask, answers=(*others, answer))
    what = happened(heard.answers, ask.quorum)
    after_it = heard if what is None else stepped(heard, what, answer.at) or heard
    return replace(after_it, expires_at=until) if what is Happened.ACCEPTED else after_it


FOR_OPERATORS: Final = (
    "in local mode an answer needs the operator token; use `comity approve`, or open the page by a "
    "link from `comity asks link`"
)


def why_not(ask: Ask, actor: Actor, *, may_answer: bool, may_answer_own: bool) -> str | None:
    """Why somebody cannot answer an ask; None where it can. The grants were judged before."""
    if actor.kind is not PartyKind.PERSON:
        return "only a person can answer this"
    if actor.lacks_token:
        return FOR_OPERATORS
    if actor.party == ask.asker:
        return None if ask.own and may_answer_own else OWN if ask.own else NEVER_OWN
    return None if may_answer else f"you need the grant {ANSWER}{_about(ask)}; see `comity grants`"


def approvers(ask: Ask) -> str:
    """Who can answer an ask, by role: names are not for everybody to see."""
    many = "a person" if ask.quorum == 1 else f"{ask.quorum} people"
    return f"{many} with the grant {ANSWER}{_about(ask)}"


def _about(ask: Ask) -> str:
    return f" for {ask.server}/{ask.tool}" if ask.server and ask.tool else ""


def digest(
    asker: str, server: str, tool: str, definition: str, arguments: object, key: bytes = b""
) -> str:
    """What an answer is bound to; without the key nobody can guess arguments by it."""
    whole = [asker, server, tool, definition, arguments]
    return arguments_digest(whole, key)


def arguments_digest(arguments: object, key: bytes = b"") -> str:
    """What a call was made with, for whoever wants to compare it without seeing it."""
    written = msgspec.json.encode(arguments, order="deterministic")
    return hashlib.blake2b(written, key=key[:64], digest_size=32).hexdigest()
