"""How long it can take to hold arguments against a schema, before it is tried. (attack 17)

A schema multiplies: references that name each other twice, patterns that repeat repetitions. Where
the product could hold the event loop, the check goes to a process that may die of it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, cast

BUDGET: Final = 3_000_000
"""What the event loop spends on one check: well under 100 ms, measured on slow machines."""

_MOST: Final = 1_000_000
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


class Weight(NamedTuple):
    """`parts` are visited for each value, `states` for each character."""

    parts: int
    states: int

    def fits(self, values: int, characters: int) -> bool:
        """Whether arguments of this size can be checked on the event loop."""
        return self.parts * values + self.states * characters <= BUDGET


TOO_HEAVY: Final = Weight(BUDGET + 1, BUDGET + 1)


def is_plain(schema: Mapping[str, object]) -> bool:
    """Whether nothing in it multiplies: no reference, no pattern, nothing that looks again.

    A property may be called as a keyword is; it is taken for one then, which only costs time.
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


def weigh(schema: Mapping[str, object], is_linear: bool) -> Weight:
    """The weight of a schema; one that leads back to itself, or out of itself, is too heavy."""
    known: dict[str, int] = {}
    states = sum(_states(pattern) for pattern in _patterns(schema))
    parts = _parts(schema, schema, known, ())
    if parts is None:
        return TOO_HEAVY
    # A backtracking pattern is given up after so many steps, for each text that it is tried on.
    return Weight(min(_MOST, parts if is_linear else parts + _BACKTRACKS), min(_MOST, states))


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
        if total > _MOST:
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
    """At most how many places a matcher can be at, at once."""
    states = len(pattern)
    for low, high in _REPEAT.findall(pattern)[:64]:
        states *= max(1, int((high or low)[:6]))
        if states > _MOST:
            return _MOST
    # A class of Unicode's is hundreds of ranges.
    return states * (20 if "\\p" in pattern or "\\w" in pattern or "\\P" in pattern else 1)
