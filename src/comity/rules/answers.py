"""Whether an answer fits its question: it is looked at before it is kept, and so before it counts.

Rule 1: what can be chosen is what was offered, to the letter.
Rule 2: who does not accept fills in nothing.
Rule 3: what was filled in may be a secret: it is never part of a reason.
"""

import hmac
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from comity.rules.callbacks import CHOICE, TEXT
from comity.rules.forms import LONGEST_TEXT
from comity.rules.forms import why_unfit as why_unfit_for_form
from comity.wire.asks import Ask, Kind, Verdict
from comity.wire.callbacks import CONFIRM

EXPIRES: Final = "expires_at"
"""Under which name an answer says until when a permission is given."""

type Content = Mapping[str, object]


def why_unfit(ask: Ask, verdict: Verdict, content: Content, at: datetime) -> str | None:
    """Why this cannot be the answer; None where it can."""
    check = _CHECKS.get(ask.kind)
    if ask.kind is Kind.NOTICE:
        return "a notice wants no answer"
    if check is None or (ask.kind is Kind.CONFIRM and not ask.options):
        return None
    if verdict is not Verdict.ACCEPT:
        return "only who accepts fills something in" if content else None
    return check(ask, content, at)


def ends_at(content: Content) -> datetime | None:
    """Until when a permission is given; None is for good. Raises ValueError."""
    said = content.get(EXPIRES)
    if said is None:
        return None
    if not isinstance(said, str):
        raise ValueError("not a time")  # noqa: TRY004  # one kind for callers
    found = datetime.fromisoformat(said)
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found


def marked(key: bytes, content: Content) -> str:
    """A mark of what was filled in: equal for equal, and no way back from it. (security §5)"""
    said = msgspec.json.encode(dict(content), order="deterministic")
    return f"hmac-sha256:{hmac.digest(key, said, 'sha256').hex()}"


def _confirm(ask: Ask, content: Content, at: datetime) -> str | None:
    if not content and CONFIRM in ask.options:
        return None
    return _choose(ask, content, at)


def _choose(ask: Ask, content: Content, at: datetime) -> str | None:
    if set(content) == {CHOICE} and content[CHOICE] in ask.options:
        return None
    return f"choose one of {', '.join(map(repr, ask.options)):.1000}"


def _fill_in(ask: Ask, content: Content, at: datetime) -> str | None:
    if ask.schema is not None:
        return why_unfit_for_form(ask.schema, content)
    said = content.get(TEXT)
    if set(content) != {TEXT} or not isinstance(said, str) or not 0 < len(said) <= LONGEST_TEXT:
        return f"a text of at most {LONGEST_TEXT} characters has to be filled in"
    return None


def _permit(ask: Ask, content: Content, at: datetime) -> str | None:
    try:
        until = ends_at(content)
        fits = set(content) <= {EXPIRES} and (until is None or until > at)
    except ValueError:
        fits = False
    return None if fits else f"{EXPIRES} is a moment to come, with its zone"


_CHECKS: Final[Mapping[Kind, Callable[[Ask, Content, datetime], str | None]]] = {
    Kind.CONFIRM: _confirm,
    Kind.SELECT: _choose,
    Kind.INPUT: _fill_in,
    Kind.PERMISSION: _permit,
}
