"""Secrets that the gateway itself was given, found wherever they stand, however they are written.

As they are, percent-encoded, in base64 at any of its three offsets, and as JSON escapes them. A
value of several lines, as a key file is one, is looked for line by line.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

SHORTEST: Final = 6
_SHORTEST_ENCODED: Final = 7
_LOWER_HEX: Final = re.compile(r"%[0-9A-F]{2}")

type Tree = dict[str, "Tree"]


def spellings(known: Iterable[str]) -> dict[str, str]:
    """Every way in which a known value can be written, with the value."""
    found: dict[str, str] = {}
    for value in known:
        for line in value.splitlines():
            said = line.strip()
            if len(said) >= SHORTEST:
                found |= {written: said for written in _written(said) if written not in found}
    return found


def _written(value: str) -> Iterator[str]:
    yield value
    for encoded in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield encoded
        yield _LOWER_HEX.sub(lambda found: found[0].lower(), encoded)
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    data = value.encode("utf-8", "surrogatepass")
    for offset in range(3):
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            inner = _inside(alphabet(bytes(offset) + data).decode(), offset, len(data))
            if len(inner) >= _SHORTEST_ENCODED:
                yield inner


def _inside(encoded: str, offset: int, length: int) -> str:
    """The digits that depend on the value alone, and not on what stands before or after it."""
    first = (0, 2, 3)[offset]
    return encoded[first : (offset + length) * 8 // 6]


def pattern(written: Mapping[str, str]) -> re.Pattern[str] | None:
    """One pattern for all of them, the longest first; None where there is none.

    They are written as a tree, so that a place in a text costs no more for many than for a few.
    """
    tree: Tree = {}
    for each in written:
        branch = tree
        for letter in each:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return re.compile(_of(tree)) if tree else None


def hint(written: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that is found in every text in which one of them is, and in few others.

    Of each only a short piece is looked for, which begins with what stands rarely in a text: most
    places of most texts are then passed over at once.
    """
    pieces = {_rarest(each): "" for each in written}
    return pattern(pieces)


def _rarest(written: str) -> str:
    last = len(written) - _PIECE
    start = min(range(last + 1), key=lambda place: _OFTEN.get(written[place], 0))
    return written[start : start + _PIECE]


_PIECE: Final = 4
_OFTEN: Final = {letter: often for often, letter in enumerate("'\"QZXJ#$0123456789")} | {
    letter: often
    for often, letter in enumerate("KVWYBGFUPMHLDCRNIOATSEqjzx@&kvwybgfpumhldcrnioatse=:-._/ ", 30)
}
"""How often a letter stands in what is said, in order; others are rarer."""


def _of(tree: Tree) -> str:
    run = ""
    while len(tree) == 1 and "" not in tree:
        letter, tree = next(iter(tree.items()))
        run += re.escape(letter)
    longer = [re.escape(letter) + _of(below) for letter, below in tree.items() if letter]
    if not longer:
        return run
    return run + "(?:" + "|".join(longer) + (")?" if "" in tree else ")")
