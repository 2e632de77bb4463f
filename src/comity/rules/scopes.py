"""How far a live server may reach: what a call would, and what its operator says of that. (MCPL §7)

Rule 1: what may be read in several ways is allowed only if each of them is, and denied if any is: a
        way up, a backslash, an escape, another form of a letter.
Rule 2: a server's own words deny or ask. They allow only what they also name in the payload, and
        nothing else that looks like a place. (D-62)
Rule 3: what is neither denied nor allowed is somebody's to ask.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

from comity.rules.globs import SEPARATOR, matches
from comity.rules.paths import Ruling
from comity.wire.features import Bounds, Scope

LONGEST_LABEL: Final = 4096
MOST_LEAVES: Final = 1000
DEEPEST: Final = 16
_UP: Final = ".."
_NOWHERE: Final = Bounds()
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def normal(label: str) -> str:
    """Without repeated slashes, and with each way up taken; what leads out of itself stays so."""
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


def readings(label: str) -> frozenset[str]:
    """What it may be to somebody who reads escapes, backslashes or letters in another way."""
    if label.isascii() and label.isprintable() and not {"%", "\\"} & set(label):
        return frozenset((normal(label),))
    found = {label, unquote(label), unquote(unquote(label))}
    found |= {unicodedata.normalize(form, each) for each in found for form in ("NFC", "NFKC")}
    found |= {each.replace("\\", SEPARATOR) for each in found}
    found |= {"".join(sign for sign in each if _is_seen(sign)) for each in found}
    return frozenset(normal(each) for each in found)


def _is_seen(sign: str) -> bool:
    return (sign.isascii() and sign.isprintable()) or unicodedata.category(sign) not in _UNSEEN


def is_denied(label: str, patterns: Iterable[str]) -> bool:
    """Whether one of these is about it, however it is written: capitals do not count."""
    named = [each.casefold() for each in _with_tails(readings(label))]
    return any(matches(pattern.casefold(), each) for pattern in patterns for each in named)


def _with_tails(found: Iterable[str]) -> list[str]:
    """With what a way up and out may lead to, seen from wherever it begins."""
    kept = list(found)
    for each in found:
        tail = each
        while tail.startswith(_UP + SEPARATOR):
            tail = tail.removeprefix(_UP + SEPARATOR)
        if tail != each:
            kept += [tail, SEPARATOR + tail]
    return kept


def is_allowed(label: str, patterns: Iterable[str]) -> bool:
    """Whether each way of reading it is within these; what leads out of itself is within none."""
    kept = tuple(patterns)
    return all(
        not _leads_out(each) and any(matches(pattern, each) for pattern in kept)
        for each in readings(label)
    )


def _leads_out(label: str) -> bool:
    return label == _UP or label.startswith(_UP + SEPARATOR)


def ruled(label: str, bounds: Bounds | None, denied: Iterable[str] = ()) -> Ruling:
    """What is said of a scope that the host itself has found; `denied` counts in any case."""
    kept = bounds or _NOWHERE
    if len(label) > LONGEST_LABEL or is_denied(label, (*kept.blacklist, *denied)):
        return Ruling.DENIED
    return Ruling.ALLOWED if is_allowed(label, kept.whitelist) else Ruling.OUTSIDE


def claimed(scope: Scope, bounds: Bounds | None) -> Ruling:
    """What is said of a scope that a server names itself. (§7.6, D-62)"""
    leaves = strings_in(scope.payload)
    found = ruled(scope.label, bounds)
    if found is Ruling.DENIED or leaves is None:
        return Ruling.DENIED
    kept = bounds or _NOWHERE
    if any(len(each) > LONGEST_LABEL or is_denied(each, kept.blacklist) for each in leaves):
        return Ruling.DENIED
    label = normal(scope.label)
    is_named = any(normal(each) == label for each in leaves)
    places = [each for each in leaves if _looks_like_a_place(each)]
    if is_named and all(is_allowed(each, kept.whitelist) for each in places):
        return found
    return Ruling.OUTSIDE


def _looks_like_a_place(text: str) -> bool:
    return text.startswith(("#", "~", ".")) or SEPARATOR in text or "\\" in text


def strings_in(value: object) -> list[str] | None:
    """All texts within; None where they are too many, or lie too deep."""
    found: list[str] = []
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > DEEPEST or len(found) > MOST_LEAVES:
            return None
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, Mapping):
            inside = cast("Mapping[object, object]", each)
            waiting += [(one, depth + 1) for pair in inside.items() for one in pair]
        elif isinstance(each, list | tuple):
            waiting += [(one, depth + 1) for one in cast("list[object]", each)]
    return found


def found_at(arguments: object, pointer: str) -> tuple[str, ...]:
    """What a JSON pointer leads to, if that is a text or are texts; else nothing. (RFC 6901)"""
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


def scope_of(arguments: object, pointer: str) -> Scope | None:
    """The scope of a call with these arguments; None where they do not say."""
    texts = found_at(arguments, pointer)
    if not texts:
        return None
    name = _steps(pointer)[-1]
    if len(texts) == 1:
        return Scope(normal(texts[0]), {name: texts[0]})
    return Scope(", ".join(normal(each) for each in texts), {name: [*texts]})


def _steps(pointer: str) -> list[str]:
    parts = pointer.removeprefix("/").split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def strictest(found: Iterable[Ruling]) -> Ruling:
    """Of several places: one that is denied outweighs all, and one that is outside the others."""
    kept = set(found)
    return next((each for each in (Ruling.DENIED, Ruling.OUTSIDE) if each in kept), Ruling.ALLOWED)
