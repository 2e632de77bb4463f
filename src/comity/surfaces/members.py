"""What the body of an operator's order says, member by member, or what is wrong with it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from comity.wire.errors import INVALID_PARAMS, MalformedMessage

type Body = Mapping[str, object]


def refuse_strangers(body: Body, known: AbstractSet[str]) -> None:
    """A member that nobody reads would otherwise be silently without effect."""
    strange = sorted(body.keys() - known)
    if strange:
        names = ", ".join(sorted(known))
        raise MalformedMessage(f"{strange[0]!r:.80} is not one of: {names}", INVALID_PARAMS)


def text(body: Body, name: str, longest: int, otherwise: str | None = None) -> str:
    """A text of bounded length; one that must be there has nothing else in its place."""
    found = body.get(name, otherwise)
    if not isinstance(found, str) or len(found) > longest:
        raise MalformedMessage(
            f"{name} must be a text of at most {longest} characters", INVALID_PARAMS
        )
    return found


def moment(body: Body, name: str) -> datetime | None:
    """A time that says its zone, or none."""
    found = body.get(name)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise MalformedMessage(
            f"{name} must be a time with its zone, as 2026-12-31T18:00:00Z", INVALID_PARAMS
        )
    return at.astimezone(UTC)
