"""The cost of a check against a schema, estimated before the check."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, cast

BUDGET: Final = 3_000_000
"""The budget of one check on the event loop: well under 100 ms, measured on slow machines."""

_MAX_ENTRIES: Final = 1_000_000
_BACKTRACKS: Final = 10_000
_DATA: Final = frozenset(
    {"enum", "const", "default", "examples", "title", "description", "$comment"}
)
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_ELSEWHERE: Final = frozenset({"$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"})
_LEADING: Final = _ELSEWHERE | {"$ref"}
_REPEAT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")


_MULTIPLYING: Final = _LEADING | {
    *("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "$id", "id"),
}


class SchemaCost(NamedTuple):
    """`parts` are visited for each value, `states` for each character."""

    parts: int
    states: int

    def fits(self, values: int, characters: int) -> bool:
        """Return whether the event loop can check arguments of this size."""
        return self.parts * values + self.states * characters <= BUDGET


TOO_HEAVY: Final = SchemaCost(BUDGET + 1, BUDGET + 1)


def is_plain(schema: Mapping[str, object]) -> bool:
    """Return whether nothing in a schema multiplies the cost, such as a reference or a pattern.

    A property with the name of a keyword counts as the keyword, which only costs time.
    """
    waiting: list[object] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            if _MULTIPLYING & table.keys():
                return False
            waiting += table.values()
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
    return True


def weigh_schema(schema: Mapping[str, object], is_linear: bool) -> SchemaCost:
    """Return the cost of a schema. Recursive schemas and external references are too costly."""
    known: dict[str, int] = {}
    states = sum(_states(pattern) for pattern in _patterns(schema))
    parts = _parts(schema, schema, known, ())
    if parts is None:
        return TOO_HEAVY
    # A backtracking pattern stops after this many steps, for each string that it is tried on.
    return SchemaCost(
        min(_MAX_ENTRIES, parts if is_linear else parts + _BACKTRACKS), min(_MAX_ENTRIES, states)
    )


def _parts(
    value: object, root: Mapping[str, object], known: dict[str, int], open_: tuple[str, ...]
) -> int | None:
    total = 1
    for name, inner in _subschemas(value):
        if name in _ELSEWHERE:
            return None
        part = (
            _target(inner, root, known, open_)
            if name == "$ref"
            else _parts(inner, root, known, open_)
        )
        if part is None:
            return None
        total += part * (3 if name.startswith("unevaluated") else 1)
        if total > _MAX_ENTRIES:
            return None
    return total


def _subschemas(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            is_part = name not in _DATA and name not in _DEFINITIONS
            if name in _LEADING or (is_part and isinstance(inner, dict | list)):
                yield name, inner
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield "", inner


def _target(
    reference: object, root: Mapping[str, object], known: dict[str, int], open_: tuple[str, ...]
) -> int | None:
    if not isinstance(reference, str) or reference in open_ or len(open_) > 64:
        return None
    if reference not in known:
        target = _at(reference, root)
        parts = None if target is None else _parts(target, root, known, (*open_, reference))
        if parts is None:
            return None
        known[reference] = parts
    return known[reference]


def _at(reference: str, root: Mapping[str, object]) -> object | None:
    if not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference[2:].split("/"):
        found = _member(found, step.replace("~1", "/").replace("~0", "~"))
    return found


def _member(value: object, name: str) -> object | None:
    return cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None


def _patterns(value: object) -> Iterator[str]:
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            table = cast("dict[str, object]", found)
            pattern, named = table.get("pattern"), table.get("patternProperties")
            if isinstance(pattern, str):
                yield pattern
            if isinstance(named, dict):
                yield from cast("dict[str, object]", named)
            waiting += table.values()
        elif isinstance(found, list):
            waiting += cast("list[object]", found)


def _states(pattern: str) -> int:
    """Return the maximum number of simultaneous states of a matcher."""
    states = len(pattern)
    for low, high in _REPEAT.findall(pattern)[:64]:
        states *= max(1, int((high or low)[:6]))
        if states > _MAX_ENTRIES:
            return _MAX_ENTRIES
    # A Unicode class consists of hundreds of ranges.
    return states * (20 if "\\p" in pattern or "\\w" in pattern or "\\P" in pattern else 1)
