"""Patterns of paths and channels: `*` stays within a folder, `**` goes across. (D-63)

Rule 1: no pattern takes longer than the text is long, whoever wrote either of them: all ways of
        matching are followed at once, as the bits of one number.
Rule 2: `**/` stands for any folders or none, and `X/**` is about `X` itself too: a folder is a part
        of what is in it, and tells as much.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

SEPARATOR: Final = "/"
_TOKEN: Final = re.compile(r"\*\*+|\*|\?|[^*?]", re.DOTALL)
_SLASHES: Final = re.compile(r"/{2,}")


@dataclass(frozen=True, slots=True)
class _Glob:
    """A pattern, laid out: bit n stands for "all before token n has been matched"."""

    # By which characters each place is left for the next, and the places that any would do for.
    signs: dict[str, int]
    single: int
    # The places at which one may stay: by any character, or by any but the separator.
    across: int
    within: int
    # Those that need not be matched at all, alone or with the separator that follows.
    optional: int
    folders: int
    ends: int

    def step(self, places: int, sign: str) -> int:
        left = places & self.signs.get(sign, 0)
        stays = places & self.across
        if sign != SEPARATOR:
            left |= places & self.single
            stays |= places & self.within
        # Whoever only stays is amid a folder's name, where none may be left out.
        return stays | self.rest(left << 1 | (stays & self.optional) << 1)

    def rest(self, places: int) -> int:
        """With the places that are reached from these without any character."""
        before = -1
        while places != before:
            before = places
            places |= (places & self.optional) << 1 | (places & self.folders) << 2
        return places


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is about this text, which is compared as it is."""
    glob = _laid_out(pattern)
    places = glob.rest(1)
    for sign in text:
        places = glob.step(places, sign)
        if not places:
            return False
    return bool(places & glob.ends)


@lru_cache(10_000)
def _laid_out(pattern: str) -> _Glob:
    tokens = _tokens(_SLASHES.sub(SEPARATOR, pattern))
    signs: dict[str, int] = {}
    single = across = within = folders = 0
    for place, part in enumerate(tokens):
        bit = 1 << place
        if part == "**":
            across |= bit
            at_start = place == 0 or tokens[place - 1] == SEPARATOR
            followed = place + 1 < len(tokens) and tokens[place + 1] == SEPARATOR
            folders |= bit if at_start and followed else 0
        elif part == "*":
            within |= bit
        elif part == "?":
            single |= bit
        else:
            signs[part] = signs.get(part, 0) | bit
    ends = 1 << len(tokens)
    if len(tokens) > 2 and tokens[-2:] == [SEPARATOR, "**"]:
        ends |= 1 << (len(tokens) - 2)
    return _Glob(signs, single, across, within, across | within, folders, ends)


def _tokens(pattern: str) -> list[str]:
    """Its parts; stars that touch are the widest of them."""
    found: list[str] = []
    for token in _TOKEN.findall(pattern):
        kind = "**" if token.startswith("**") else token
        if kind in ("*", "**") and found and found[-1] in ("*", "**"):
            found[-1] = "**" if "**" in (kind, found[-1]) else "*"
        else:
            found.append(kind)
    return found
