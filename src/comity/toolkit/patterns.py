"""Glob patterns that match in linear time, for grants and feature sets."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

SEPARATOR: Final = "/"
_TOKEN: Final = re.compile(r"\*\*+|\*|\?|[^*?]", re.DOTALL)
_SLASHES: Final = re.compile(r"/{2,}")


@dataclass(frozen=True, slots=True)
class _GlobAutomaton:
    """A compiled pattern. Bit n of a state set means that all tokens before n have matched."""

    # The states that each character leaves for the next one, and those that any character leaves.
    signs: dict[str, int]
    single: int
    # The states that remain after any character, or after any character but the separator.
    across: int
    within: int
    # The states whose token may match nothing, alone or together with the following separator.
    optional: int
    folders: int
    ends: int

    def step(self, places: int, sign: str) -> int:
        left = places & self.signs.get(sign, 0)
        stays = places & self.across
        if sign != SEPARATOR:
            left |= places & self.single
            stays |= places & self.within
        # A state that only stays is inside a folder name, where `folders` must not skip ahead.
        return stays | self.rest(left << 1 | (stays & self.optional) << 1)

    def rest(self, places: int) -> int:
        """Return the states, with those reachable without consuming a character."""
        before = -1
        while places != before:
            before = places
            places |= (places & self.optional) << 1 | (places & self.folders) << 2
        return places


def is_glob_match(pattern: str, text: str) -> bool:
    """Return whether a pattern matches this text. The comparison is exact."""
    glob = _laid_out(pattern)
    places = glob.rest(1)
    for sign in text:
        places = glob.step(places, sign)
        if not places:
            return False
    return bool(places & glob.ends)


@lru_cache(10_000)
def _laid_out(pattern: str) -> _GlobAutomaton:
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
    return _GlobAutomaton(signs, single, across, within, across | within, folders, ends)


def _tokens(pattern: str) -> list[str]:
    """Return the tokens of a pattern. Adjacent stars become the widest of them."""
    found: list[str] = []
    for token in _TOKEN.findall(pattern):
        kind = "**" if token.startswith("**") else token
        if kind in ("*", "**") and found and found[-1] in ("*", "**"):
            found[-1] = "**" if "**" in (kind, found[-1]) else "*"
        else:
            found.append(kind)
    return found


def covers_feature(pattern: str, name: str) -> bool:
    """Return whether a name, a family (`memory.*`) or `*` matches this feature set."""
    if pattern in ("*", name):
        return True
    return pattern.endswith(".*") and name.startswith(pattern[:-1])
