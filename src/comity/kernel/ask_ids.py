"""An approval request by its id, which people shorten."""

from collections.abc import Callable
from typing import Final

from comity.ports.asking import AskRecords
from comity.wire.asks import Ask
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

LEAST_OF_AN_ID: Final = 4
WHOLE_ID: Final = 26
_PAGE: Final = 250


async def ask_beginning(
    asks: AskRecords, beginning: str, may_see: Callable[[Ask], bool] = lambda _: True
) -> Ask | None:
    """The only ask whose id begins so, of those that may be seen; None where there is none.

    Raises MalformedMessage where there are several.
    """
    # Ids are in order, and one that begins so comes right after what it begins with.
    following = await asks.page((), beginning, _PAGE)
    alike = [ask for ask in following if ask.id.startswith(beginning)]
    found = [ask for ask in alike if may_see(ask)]
    if len(found) > 1:
        raise MalformedMessage(
            f"several asks begin with {beginning!r:.40}; say more of the id", INVALID_PARAMS
        )
    return found[0] if found else None


async def ask_named(asks: AskRecords, name: str) -> Ask | None:
    """The ask of that id, or the only one whose id begins so. Raises as `ask_beginning` does."""
    if not LEAST_OF_AN_ID <= len(name) <= WHOLE_ID:
        return None
    return await (asks.get(name) if len(name) == WHOLE_ID else ask_beginning(asks, name))
