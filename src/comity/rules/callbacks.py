"""A server's callback as a question to people, and their answer as the server's. (MGP §13.4, D-28)

Rule 1: what a server offers as a choice is one only where it was chosen: to accept says `confirm`,
        and nothing else, unless somebody names an option.
Rule 2: whatever is not accepted is `cancel` to a confirmation and nothing to the rest. (D-28)
Rule 3: a server's words are shown as its own, and never as ours.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from comity.rules.permissions import SUBJECT
from comity.rules.safe_text import safe
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.callbacks import CANCEL, CONFIRM, Callback, Type

KINDS: Final[Mapping[Type, Kind]] = {
    Type.CONFIRMATION: Kind.CONFIRM,
    Type.INPUT: Kind.INPUT,
    Type.SELECTION: Kind.SELECT,
    Type.NOTIFICATION: Kind.NOTICE,
}
_ANSWERED: Final = frozenset({Kind.CONFIRM, Kind.INPUT, Kind.SELECT})
CHOICE: Final = "choice"
TEXT: Final = "text"
"""Under which names an answer holds what was chosen, and what was filled in."""

MOST_OPEN: Final = 16
"""Of one call, at once."""

MOST_REMEMBERED: Final = 256
"""Of one call, with their answers."""

MOST_OF_SERVER: Final = 1_000


def options_of(callback: Callback) -> tuple[str, ...]:
    """Among what people choose; a form to fill in and a notice have no options."""
    if callback.type is Type.CONFIRMATION:
        return callback.options or (CONFIRM, CANCEL)
    return callback.options if callback.type is Type.SELECTION else ()


def silence(of: Type) -> str | None:
    """What a server is answered where nobody has said anything, or nobody could be asked."""
    return CANCEL if of is Type.CONFIRMATION else None


def response_to(callback: Callback, ask: Ask) -> object:
    """What a server is answered once its question has ended so."""
    accepted = [each for each in ask.answers if each.verdict is Verdict.ACCEPT]
    if ask.state is not State.USED or not accepted:
        return silence(callback.type)
    content = accepted[-1].content
    if callback.type is Type.INPUT:
        return content.get(TEXT)
    return content.get(CHOICE, CONFIRM if callback.type is Type.CONFIRMATION else None)


def is_callback(ask: Ask) -> bool:
    """Whether an ask is a question that a server put by a callback, and wants to be answered."""
    by_server = str(ask.about.get("asked_by", "")).startswith(SUBJECT)
    return by_server and ask.kind in _ANSWERED and ask.schema is None


def answer_of(kind: Kind, said: str | None) -> tuple[Verdict, dict[str, object]]:
    """What a client's response means as an answer; whether it fits, its ask says."""
    if said is None:
        return Verdict.CANCEL, {}
    if kind is Kind.CONFIRM and said == CANCEL:
        return Verdict.DECLINE, {}
    return Verdict.ACCEPT, {TEXT if kind is Kind.INPUT else CHOICE: said}


def digest(server: str, callback: Callback, call: str) -> str:
    """To what an answer is bound: this question, in these words, amid this call."""
    whole = [server, callback.id, call, callback.type, callback.message, options_of(callback)]
    return hashlib.sha256(msgspec.json.encode(whole)).hexdigest()


def quoted(words: str) -> str:
    """A server's words on one line, between marks that they cannot close."""
    said = " ".join(safe(words).split())
    return "\N{LEFT DOUBLE QUOTATION MARK}" + said.translate(_MARKS) + _CLOSING


_CLOSING: Final = "\N{RIGHT DOUBLE QUOTATION MARK}"
_MARKS: Final = str.maketrans({"\N{LEFT DOUBLE QUOTATION MARK}": '"', _CLOSING: '"'})
