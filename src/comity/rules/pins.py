"""A tool's definition as one text and one digest, and what is other in a second one. (attack 2)

Rule 1: the digest is over the whole tool: whatever its server can write there, somebody may read.
Rule 2: what means the same to every reader is the same: the order of keys, 1 and 1.0, an escape.
Rule 3: what two readers could understand differently is no definition: a key that stands twice.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from comity.rules.looks import revealed
from comity.rules.namesakes import skeleton
from comity.wire import jsonrpc

LONGEST: Final = 1024 * 1024
"""Bytes of a definition that are read at all; longer ones are not accepted."""

MOST_TOLD: Final = 100
LONGEST_TOLD: Final = 2_000

# The digest says what it is a digest of, so that it can never stand for something else.
_PREFIX: Final = b"comity tool definition 1\0"
_ABSENT: Final = object()

type Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two definitions are not the same; None for what is not there."""

    pointer: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.pointer} is new: {self.after}"
        if self.after is None:
            return f"{self.pointer} is gone: {self.before}"
        return f"{self.pointer} was {self.before} and is {self.after}"


def canonical(definition: Mapping[str, Raw], name: str) -> bytes:
    """A definition by the server's own name for it, so written that equal ones are equal.

    Raises MalformedMessage where it cannot be read in one way only.
    """
    whole = jsonrpc.to_json({**definition, "name": name})
    return msgspec.json.encode(_plain(cast("Json", jsonrpc.value(whole))), order="sorted")


def digest(written: bytes) -> str:
    """The SHA-256 of a canonical definition."""
    return hashlib.sha256(_PREFIX + written).hexdigest()


def without(written: bytes, *members: str) -> bytes:
    """A canonical definition without some of its members."""
    found: dict[str, Json] = jsonrpc.shaped(written, dict[str, Any])
    kept = {name: value for name, value in found.items() if name not in members}
    return msgspec.json.encode(kept, order="sorted")


def differences(before: bytes, after: bytes) -> list[Difference]:
    """What is other in the second of two canonical definitions, as people can read it."""
    found = _differences("", *(jsonrpc.shaped(each, dict[str, Any]) for each in (before, after)))
    told = [each for _, each in zip(range(MOST_TOLD + 1), found, strict=False)]
    if len(told) > MOST_TOLD:
        told[MOST_TOLD:] = [Difference("", None, "there are more differences than are shown")]
    return told


def _plain(value: Json) -> Json:
    """The same with each whole number written as one, as JSON itself does not tell them apart."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _differences(pointer: str, before: object, after: object) -> Iterator[Difference]:
    old, new = _parts(before), _parts(after)
    if old is not None and new is not None and type(before) is type(after):
        # Part by part: to Python, {"a": 1} and {"a": true} are equal.
        for key in {**old, **new}:
            place = f"{pointer}/{revealed(key).replace('~', '~0').replace('/', '~1')}"
            yield from _differences(place, old.get(key, _ABSENT), new.get(key, _ABSENT))
        return
    if type(before) is type(after) and before == after:
        return
    alike = (
        isinstance(before, str) and isinstance(after, str) and skeleton(before) == skeleton(after)
    )
    yield Difference(pointer, _told(before, alike), _told(after, alike))


def _parts(value: object) -> dict[str, object] | None:
    """What stands in a table by its keys, and in a list by its numbers."""
    if isinstance(value, list):
        return {str(number): each for number, each in enumerate(cast("list[object]", value))}
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _told(value: object, alike: bool) -> str | None:
    """A value as text; where two would look the same to a reader, by the numbers of its letters."""
    if value is _ABSENT:
        return None
    written = revealed(json.dumps(value, ensure_ascii=alike))
    cut = len(written) > LONGEST_TOLD
    return f"{written[:LONGEST_TOLD]}… ({len(written)} characters)" if cut else written
