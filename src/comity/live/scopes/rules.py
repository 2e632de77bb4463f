"""Rules that compare the scope of a call with the bounds that the operator set."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

from comity.mcp.mcpl import ScopeBounds, ScopeClaim
from comity.toolkit.patterns import SEPARATOR, is_glob_match
from comity.validation.paths import PathVerdict

MAX_LABEL_LENGTH: Final = 4096
MAX_STRINGS: Final = 1000
MAX_DEPTH: Final = 16
_UP: Final = ".."
_NO_BOUNDS: Final = ScopeBounds()
_INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def normalize_label(label: str) -> str:
    """Collapse repeated slashes and resolve `..`. A relative path that leads out keeps its `..`."""
    if SEPARATOR not in label:
        return label
    is_absolute = label.startswith(SEPARATOR)
    parts: list[str] = []
    for part in label.split(SEPARATOR):
        if part in ("", "."):
            continue
        if part != _UP:
            parts.append(part)
        elif parts and parts[-1] != _UP:
            parts.pop()
        elif not is_absolute:
            parts.append(_UP)
    return (SEPARATOR if is_absolute else "") + SEPARATOR.join(parts) or "."


def list_readings(label: str) -> frozenset[str]:
    """Return every reading of a label: with escapes, backslashes or Unicode interpreted.

    A server may decode a label in any of these ways, so a check has to cover all of them.
    """
    if label.isascii() and label.isprintable() and not {"%", "\\"} & set(label):
        return frozenset((normalize_label(label),))
    found = {label, unquote(label), unquote(unquote(label))}
    found |= {unicodedata.normalize(form, each) for each in found for form in ("NFC", "NFKC")}
    found |= {each.replace("\\", SEPARATOR) for each in found}
    found |= {"".join(sign for sign in each if _is_visible(sign)) for each in found}
    return frozenset(normalize_label(each) for each in found)


def _is_visible(sign: str) -> bool:
    return (sign.isascii() and sign.isprintable()) or unicodedata.category(
        sign
    ) not in _INVISIBLE_CATEGORIES


def is_denied(label: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches any reading of the label, regardless of case."""
    named = [each.casefold() for each in _with_tails(list_readings(label))]
    return any(is_glob_match(pattern.casefold(), each) for pattern in patterns for each in named)


def _with_tails(names: Iterable[str]) -> list[str]:
    """Add the targets that a leading `..` could reach from any directory."""
    kept = list(names)
    for each in names:
        tail = each
        while tail.startswith(_UP + SEPARATOR):
            tail = tail.removeprefix(_UP + SEPARATOR)
        if tail != each:
            kept += [tail, SEPARATOR + tail]
    return kept


def is_allowed(label: str, patterns: Iterable[str]) -> bool:
    """Whether patterns cover every reading of the label.

    A reading that leads out is never covered.
    """
    kept = tuple(patterns)
    return all(
        not _leads_out(each) and any(is_glob_match(pattern, each) for pattern in kept)
        for each in list_readings(label)
    )


def _leads_out(label: str) -> bool:
    return label == _UP or label.startswith(_UP + SEPARATOR)


def check_label(label: str, bounds: ScopeBounds | None, denied: Iterable[str] = ()) -> PathVerdict:
    """Return the verdict on a scope that the gateway found itself. `denied` always applies."""
    kept = bounds or _NO_BOUNDS
    if len(label) > MAX_LABEL_LENGTH or is_denied(label, (*kept.blacklist, *denied)):
        return PathVerdict.DENIED
    return PathVerdict.ALLOWED if is_allowed(label, kept.whitelist) else PathVerdict.OUTSIDE


def check_claim(scope: ScopeClaim, bounds: ScopeBounds | None) -> PathVerdict:
    """Return the verdict on a scope that a server claims itself. (§7.6, D-62)"""
    leaves = strings_in(scope.payload)
    found = check_label(scope.label, bounds)
    if found is PathVerdict.DENIED or leaves is None:
        return PathVerdict.DENIED
    kept = bounds or _NO_BOUNDS
    if any(len(each) > MAX_LABEL_LENGTH or is_denied(each, kept.blacklist) for each in leaves):
        return PathVerdict.DENIED
    label = normalize_label(scope.label)
    is_named = any(normalize_label(each) == label for each in leaves)
    places = [each for each in leaves if _looks_like_path(each)]
    if is_named and all(is_allowed(each, kept.whitelist) for each in places):
        return found
    return PathVerdict.OUTSIDE


def _looks_like_path(text: str) -> bool:
    return text.startswith(("#", "~", ".")) or SEPARATOR in text or "\\" in text


def strings_in(value: object) -> list[str] | None:
    """Return all strings in a value. None if they are too many or nested too deeply."""
    found: list[str] = []
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > MAX_DEPTH or len(found) > MAX_STRINGS:
            return None
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, Mapping):
            inside = cast("Mapping[object, object]", each)
            waiting += [(one, depth + 1) for pair in inside.items() for one in pair]
        elif isinstance(each, list | tuple):
            waiting += [(one, depth + 1) for one in cast("list[object]", each)]
    return found


def strings_at(arguments: object, pointer: str) -> tuple[str, ...]:
    """Return the string or strings that a JSON pointer leads to, or nothing. (RFC 6901)"""
    here: Any = arguments
    for part in _steps(pointer):
        if isinstance(here, dict):
            here = cast("dict[str, Any]", here).get(part)
        elif isinstance(here, list) and part.isascii() and part.isdecimal():
            several, place = cast("list[Any]", here), int(part[:9])
            here = several[place] if place < len(several) else None
        else:
            return ()
    texts = cast("list[object]", here) if isinstance(here, list) else [here]
    return tuple(cast("list[str]", texts)) if all(isinstance(each, str) for each in texts) else ()


def scope_of(arguments: object, pointer: str) -> ScopeClaim | None:
    """Return the scope of a call with these arguments. None if they do not name it."""
    texts = strings_at(arguments, pointer)
    if not texts:
        return None
    name = _steps(pointer)[-1]
    if len(texts) == 1:
        return ScopeClaim(normalize_label(texts[0]), {name: texts[0]})
    return ScopeClaim(", ".join(normalize_label(each) for each in texts), {name: [*texts]})


def _steps(pointer: str) -> list[str]:
    parts = pointer.removeprefix("/").split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def strictest_verdict(found: Iterable[PathVerdict]) -> PathVerdict:
    """Return the strictest verdict: denied before outside, outside before allowed."""
    kept = set(found)
    return next(
        (each for each in (PathVerdict.DENIED, PathVerdict.OUTSIDE) if each in kept),
        PathVerdict.ALLOWED,
    )
