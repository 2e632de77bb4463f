"""What a verb or a target of a grant is about; `*` stands for any characters. (D-85, S12)

Rule 1: a target has a server's part and a name's part, and neither reaches across the `/`.
Rule 2: a verb is itself, everything, or all below a `/`; never a pattern in its middle.
Rule 3: no pattern takes longer than the text is long, whoever wrote it and whatever it is put to.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final

from comity.wire.grants import EVERYTHING

ANY: Final = "*"
_BELOW: Final = "/*"


class Level(IntEnum):
    """How much of a target an entry names; the higher one counts alone."""

    EVERYTHING = 0
    SERVER = 1
    OFFER = 2


@lru_cache(10_000)
def _pieces(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split(ANY))


def covers(pattern: str, text: str) -> bool:
    """Whether a pattern is about this text."""
    if ANY not in pattern:
        return pattern == text
    if pattern == ANY:
        return True
    first, *middle, last = _pieces(pattern)
    end = len(text) - len(last)
    if end < len(first) or not (text.startswith(first) and text.endswith(last)):
        return False
    # The earliest place of each piece leaves the most room for the next, so nothing is tried twice.
    place = len(first)
    for piece in middle:
        found = text.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True


def verb_covers(pattern: str, verb: str) -> bool:
    """Whether an entry with this verb is about that one."""
    if pattern in (verb, ANY):
        return True
    return pattern.endswith(_BELOW) and verb.startswith(pattern[:-1])


def parts(target: str) -> tuple[str, str]:
    """The server and the name that a target is about."""
    if target == EVERYTHING:
        return ANY, ANY
    server, _, name = target.partition("/")
    return server, name


def target_covers(target: str, server: str, name: str) -> bool:
    """Whether a target is about an offer."""
    of_server, of_name = parts(target)
    return covers(of_server, server) and covers(of_name, name)


def level_of(target: str) -> Level:
    """Where an entry stands: a pattern at the level of what it leaves open."""
    server, name = parts(target)
    if ANY in server:
        return Level.EVERYTHING
    return Level.SERVER if ANY in name else Level.OFFER
