"""Path scopes: the folders that a path argument may reach."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_CHARACTERS: Final = 4096
MAX_PARTS: Final = 128
MAX_STARS: Final = 6
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}|%u[0-9A-Fa-f]{4}|&#|\\|\x00")
# Characters that look like, or decompose to, the dot and the slash.
_LOOKALIKES: Final = frozenset("\u2024\u2025\u2026\u2044\u2215\u29f8\uff0e\uff0f\ufe52\u3002\uff61")

type Matches = Callable[[str, str, bool], bool]
"""Returns whether a pattern covers a path. The third argument ignores case."""


class PathVerdict(StrEnum):
    """The decision of a scope on a path. The caller decides about a path outside of it."""

    ALLOWED = "allowed"
    DENIED = "denied"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class PathScope:
    """Patterns of absolute paths. A denial wins over a permission."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def denials(self) -> tuple[str, ...]:
        return _with_tops(self.deny)

    def allowances(self) -> tuple[str, ...]:
        return _with_tops(self.allow)


def _with_tops(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Add `X` for every `X/**`, because listing a directory reveals its contents."""
    tops = [pattern.removesuffix("/**") for pattern in patterns if pattern.endswith("/**")]
    return tuple(dict.fromkeys((*patterns, *filter(None, tops))))


def pattern_problem(pattern: str) -> str | None:
    """Return why a pattern is not valid in a scope, or None."""
    plain = path_problem(pattern.replace("*", "x").replace("?", "x"))
    if not pattern.startswith(("/", "**/")):
        return "must begin with / or **/"
    if plain is not None and pattern.startswith("/"):
        return plain
    if any(sign in pattern for sign in "[]{}!()|~"):
        return "may hold no signs of patterns but * and ?"
    # Each further star multiplies the time of a match against a hostile path.
    if pattern.replace("**", "*").count("*") > MAX_STARS:
        return f"may hold at most {MAX_STARS} stars"
    return None


def path_problem(path: str) -> str | None:
    """Return why a path is ambiguous, or None."""
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
    if len(parts) > MAX_PARTS:
        return f"has over {MAX_PARTS} parts"
    for part in parts:
        if part and not part.strip("."):
            return "holds a part that is only dots"
        if part != part.strip() or part.endswith("."):
            return "has a part that begins or ends with a space, or ends with a dot"
        # A file system or a program may use the compatibility form of these characters.
        if _new_separator(part):
            return "holds a sign that becomes a separator in another form"
    return None


def _new_separator(part: str) -> bool:
    folded = part if part.isascii() else unicodedata.normalize("NFKC", part)
    return folded.count(".") != part.count(".") or "/" in folded


def collapse_slashes(path: str) -> str:
    """Return the path without repeated and trailing slashes."""
    return re.sub(r"/{2,}", "/", path).rstrip("/") or "/"


def judge_path(path: str, scope: PathScope, matches: Matches) -> PathVerdict:
    """Return the decision of the scope on an unambiguous path."""
    plain = collapse_slashes(path)
    # A file system that ignores case would open a denied file under another name.
    folded = unicodedata.normalize("NFKC", plain)
    if any(matches(pattern, each, True) for pattern in scope.denials() for each in (plain, folded)):
        return PathVerdict.DENIED
    if any(matches(pattern, plain, False) for pattern in scope.allowances()):
        return PathVerdict.ALLOWED
    return PathVerdict.OUTSIDE


def path_refusal_reason(path: str, scope: PathScope, matches: Matches) -> str | None:
    """Return why a tool may not receive this path, or None."""
    problem = path_problem(path)
    if problem is not None:
        return f"the path {problem}"
    ruling = judge_path(path, scope, matches)
    if ruling is PathVerdict.DENIED:
        return "the path is denied to this tool"
    return (
        None if ruling is PathVerdict.ALLOWED else "the path is outside of what this tool may use"
    )
