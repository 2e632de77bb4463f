"""The sentences of a query, each of which may ask for something else.

A vector of a whole request mixes all that is asked in it, and is near to nothing. Sought sentence
by sentence, each tool is as near as the sentence that it fits best.
"""

import re
from typing import Final

MOST: Final = 8
"""Sentences that are sought by themselves; each costs as much as a query."""

SHORTEST: Final = 3
"""Words; what is shorter, as "Thank you.", says too little by itself."""

_ENDS: Final = re.compile(r"(?<=[.?!;])\s+|(?<=[。？！；])\s*|\n+")  # noqa: RUF001 - their full stops
# In scripts that write no spaces, so many signs say as much as the words.
_SHORTEST_UNSPACED: Final = 6


def sentences(text: str) -> list[str]:
    """The sentences of a text; none where it is only one."""
    parts = [part.strip() for part in _ENDS.split(text)]
    found = [part for part in parts if _says_something(part)][:MOST]
    return found if len(found) > 1 else []


def _says_something(part: str) -> bool:
    return len(part.split()) >= SHORTEST or (
        not part.isascii() and len(part) >= _SHORTEST_UNSPACED and " " not in part
    )
