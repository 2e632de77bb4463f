"""Whether a path lies in what an operator allowed: read in one way only, then matched. (attack 11)

Every way of writing a path that two readers could take differently is refused before anything is
matched: a dotted way up, an escape, a backslash, a letter in another form. What opens the path
later may still follow a link out of the scope; only whoever opens it can prevent that.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_CHARACTERS: Final = 4096
MOST_PARTS: Final = 128
MOST_STARS: Final = 6
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}|%u[0-9A-Fa-f]{4}|&#|\\|\x00")
# Signs that look like, or decompose to, the dot and the slash that separate.
_LOOKALIKES: Final = frozenset("\u2024\u2025\u2026\u2044\u2215\u29f8\uff0e\uff0f\ufe52\u3002\uff61")

type Matches = Callable[[str, str, bool], bool]
"""Whether a pattern covers a path; the third says that capitals do not count."""


class Ruling(StrEnum):
    """What a scope says of a path; one that is neither allowed nor denied is somebody's to ask."""

    ALLOWED = "allowed"
    DENIED = "denied"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Scope:
    """Patterns of absolute paths. What is denied is denied wherever it is allowed as well."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def denials(self) -> tuple[str, ...]:
        return _with_tops(self.deny)

    def allowances(self) -> tuple[str, ...]:
        return _with_tops(self.allow)


def _with_tops(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """With `X` for every `X/**`: a directory is a part of what is in it, and tells as much."""
    tops = [pattern.removesuffix("/**") for pattern in patterns if pattern.endswith("/**")]
    return tuple(dict.fromkeys((*patterns, *filter(None, tops))))


def pattern_problem(pattern: str) -> str | None:
    """Why a pattern cannot stand in a scope."""
    plain = path_problem(pattern.replace("*", "x").replace("?", "x"))
    if not pattern.startswith(("/", "**/")):
        return "must begin with / or **/"
    if plain is not None and pattern.startswith("/"):
        return plain
    if any(sign in pattern for sign in "[]{}!()|~"):
        return "may hold no signs of patterns but * and ?"
    # Each one more multiplies how long a hostile path can be matched against it.
    if pattern.replace("**", "*").count("*") > MOST_STARS:
        return f"may hold at most {MOST_STARS} stars"
    return None


def path_problem(path: str) -> str | None:
    """Why a path could be read in more than one way, or None."""
    if not path or len(path) > MOST_CHARACTERS:
        return f"must have 1 to {MOST_CHARACTERS} characters"
    if not path.startswith("/") or path.startswith("//"):
        return "must be absolute, with one / at its beginning"
    is_plain = path.isascii() and path.isprintable()
    if not is_plain and any(unicodedata.category(sign) in _UNSEEN for sign in path):
        return "holds a sign that cannot be seen"
    if _ESCAPE.search(path) or _LOOKALIKES & set(path):
        return "holds an escape, a backslash or a sign that looks like a separator"
    if unicodedata.normalize("NFC", path) != path:
        return "is not in Unicode's composed form (NFC)"
    return _parts_problem(path.split("/"))


def _parts_problem(parts: list[str]) -> str | None:
    if len(parts) > MOST_PARTS:
        return f"has over {MOST_PARTS} parts"
    for part in parts:
        if part and not part.strip("."):
            return "holds a part that is only dots"
        if part != part.strip() or part.endswith("."):
            return "has a part that begins or ends with a space, or ends with a dot"
        # Their compatibility forms may be what a file system or a program makes of them.
        if _new_separator(part):
            return "holds a sign that becomes a separator in another form"
    return None


def _new_separator(part: str) -> bool:
    folded = part if part.isascii() else unicodedata.normalize("NFKC", part)
    return folded.count(".") != part.count(".") or "/" in folded


def collapsed(path: str) -> str:
    """Without repeated and final slashes."""
    return re.sub(r"/{2,}", "/", path).rstrip("/") or "/"


def judge(path: str, scope: Scope, matches: Matches) -> Ruling:
    """What the scope says of a path that can be read in one way only."""
    plain = collapsed(path)
    # A file system that ignores capitals would open what a pattern denies under another name.
    folded = unicodedata.normalize("NFKC", plain)
    if any(matches(pattern, each, True) for pattern in scope.denials() for each in (plain, folded)):
        return Ruling.DENIED
    if any(matches(pattern, plain, False) for pattern in scope.allowances()):
        return Ruling.ALLOWED
    return Ruling.OUTSIDE


def examine(path: str, scope: Scope, matches: Matches) -> str | None:
    """Why a tool may not be given this path, or None."""
    problem = path_problem(path)
    if problem is not None:
        return f"the path {problem}"
    ruling = judge(path, scope, matches)
    if ruling is Ruling.DENIED:
        return "the path is denied to this tool"
    return None if ruling is Ruling.ALLOWED else "the path is outside of what this tool may use"
