"""Arguments that a tool's JSON Schema should let pass, made from what the schema says. (D-82)

They are candidates: whoever shows one has it validated first. A schema is a stranger's text, so
what is made of one has a bound, in depth and in size, and is the same each time.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

from comity.rules.pattern_text import texts_like

type Schema = Mapping[str, Any]

DEEPEST: Final = 12
MOST_PARTS: Final = 500
MOST_ITEMS: Final = 32
LONGEST_TEXT: Final = 512
MOST_MERGED: Final = 32
SMALLEST_STEP: Final = 1e-6
VARIANTS: Final = 4
"""The least that is needed, all that is known, and two more in which other choices are taken."""

_FORMATS: Final = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "PT15M",
    "email": "ana@example.org",
    "idn-email": "ana@example.org",
    "hostname": "example.org",
    "idn-hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.org/",
    "uri-reference": "/path",
    "iri": "https://example.org/",
    "iri-reference": "/path",
    "uri-template": "/path/{name}",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "json-pointer": "/path",
    "relative-json-pointer": "0",
    "regex": "^a+$",
}
_HINTS: Final = (
    ("object", ("properties", "required", "additionalProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "contains")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
_WORDS: Final = "text for an example "


def candidates(schema: object) -> Iterator[object]:
    """Candidates in a stable order, none of them twice; the schema's own examples come first."""
    root = _table(schema)
    bare = {key: value for key, value in root.items() if key != "examples"}
    seen: list[object] = []
    made = (_Making(root, variant).value(bare, 0) for variant in range(VARIANTS))
    for candidate in (*_list(root.get("examples"))[:VARIANTS], *made):
        if isinstance(candidate, dict) and candidate not in seen:
            seen.append(cast("object", candidate))
            yield seen[-1]


@dataclass(slots=True)
class _Making:
    """One candidate in the making; when it has grown too large, nothing more is added to it."""

    root: Schema
    variant: int
    parts: int = 0

    def value(self, said: object, depth: int) -> object:
        self.parts += 1
        if self.parts > MOST_PARTS or depth > DEEPEST:
            return None
        schema = self._merged(_table(said))
        chosen = self._stated(schema)
        if chosen:
            return chosen[0]
        return self._of_type(_type_of(schema, self.variant), schema, depth)

    def _of_type(self, kind: str, schema: Schema, depth: int) -> object:
        makers: dict[str, Callable[[], object]] = {
            "object": lambda: self._object(schema, depth),
            "array": lambda: self._array(schema, depth),
            "integer": lambda: _number(schema, self.variant, 1),
            "number": lambda: _number(schema, self.variant, None),
            "boolean": lambda: self.variant % 2 == 0,
            "null": lambda: None,
        }
        return makers.get(kind, lambda: _text(schema))()

    def _stated(self, schema: Schema) -> list[object]:
        """What the schema itself names as a value, in a list of one, or nothing."""
        if "const" in schema:
            return [schema["const"]]
        for named in ("enum", "examples"):
            values = _list(schema.get(named))
            if values:
                return [values[self.variant % len(values)]]
        return [schema["default"]] if "default" in schema and self.variant < 2 else []

    def _object(self, schema: Schema, depth: int) -> dict[str, object]:
        properties = _table(schema.get("properties"))
        required = [each for each in _list(schema.get("required")) if isinstance(each, str)]
        needed = _whole(schema.get("minProperties"), 0)
        wanted = [*dict.fromkeys(required), *(name for name in properties if name not in required)]
        if self.variant % 2 == 0:
            wanted = wanted[: max(len(set(required)), needed)]
        spare = schema.get("additionalProperties")
        made: dict[str, object] = {}
        for name in wanted[:MOST_PARTS]:
            made[name] = self.value(properties.get(name, spare), depth + 1)
        for number in range(min(needed, MOST_ITEMS) - len(made)):
            made[f"key{number}"] = self.value(spare, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int) -> list[object]:
        first = _list(schema.get("prefixItems"))
        least, most = _whole(schema.get("minItems"), 0), _whole(schema.get("maxItems"), MOST_ITEMS)
        wanted = max(
            least, len(first), 1 if self.variant % 2 else 0, 1 if "contains" in schema else 0
        )
        inner = schema.get("items", schema.get("contains"))
        made: list[object] = []
        for number in range(min(wanted, most, MOST_ITEMS)):
            kind = first[number] if number < len(first) else inner
            made.append(self.value(kind, depth + 1))
        return _told_apart(made) if schema.get("uniqueItems") is True else made

    def _merged(self, schema: Schema) -> Schema:
        """A schema with what it refers to and is made of laid into it, as far as that is simple."""
        for _ in range(MOST_MERGED):
            parts = self._parts(schema)
            if not parts:
                return schema
            rest = {key: value for key, value in schema.items() if key not in _MADE_OF}
            for part in parts:
                rest = _laid_over(rest, part)
            schema = rest
        return schema

    def _parts(self, schema: Schema) -> list[Schema]:
        parts: list[Schema] = []
        if isinstance(schema.get("$ref"), str):
            parts.append(_pointed_at(self.root, schema["$ref"]))
        parts += [_table(part) for part in _list(schema.get("allOf"))[:MOST_MERGED]]
        for either in ("anyOf", "oneOf"):
            choices = [_table(part) for part in _list(schema.get(either))[:MOST_MERGED]]
            if choices:
                parts.append(choices[self.variant % len(choices)])
        return parts


_MADE_OF: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def _laid_over(lower: Schema, upper: Schema) -> dict[str, Any]:
    both = {**lower, **upper}
    both["properties"] = {**_table(lower.get("properties")), **_table(upper.get("properties"))}
    both["required"] = [*_list(lower.get("required")), *_list(upper.get("required"))]
    return {
        key: value for key, value in both.items() if value or key not in ("properties", "required")
    }


def _pointed_at(root: Schema, pointer: str) -> Schema:
    """What a reference within the same document leads to; nothing where it leads elsewhere."""
    if pointer != "#" and not pointer.startswith("#/"):
        return {}
    found: object = root
    for step in unquote(pointer).split("/")[1 : MOST_MERGED + 1]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            held = cast("list[object]", found)
            found = held[int(key)] if key.isdecimal() and int(key[:6]) < len(held) else None
        else:
            found = _table(found).get(key)
    return _table(found)


def _type_of(schema: Schema, variant: int) -> str:
    said = schema.get("type")
    if isinstance(said, str):
        return said
    kinds = [each for each in _list(said) if isinstance(each, str)]
    solid = [each for each in kinds if each != "null"] or kinds
    if solid:
        return solid[variant % len(solid)]
    return next((kind for kind, keys in _HINTS if any(key in schema for key in keys)), "string")


def _number(schema: Schema, variant: int, unit: float | None) -> float:
    """The lowest number that may be, or on some of the ways the highest."""
    step = _real(schema.get("multipleOf")) or 0
    step = step if step >= SMALLEST_STEP else unit
    apart = step or 0.5
    low = _limit(max, schema.get("minimum"), schema.get("exclusiveMinimum"), apart)
    high = _limit(min, schema.get("maximum"), schema.get("exclusiveMaximum"), -apart)
    if high is not None and (variant % 2 or (low is None and high < 1)):
        return _plain(high if step is None else math.floor(high / step) * step)
    value = 1 if low is None else low
    return _plain(value if step is None else math.ceil(value / step) * step)


def _limit(
    stricter: Callable[..., float], included: object, excluded: object, apart: float
) -> float | None:
    """A limit that may itself be taken, of one that may and one that may not."""
    plain, beside = _real(included), _real(excluded)
    found = ([] if plain is None else [plain]) + ([] if beside is None else [beside + apart])
    return stricter(found) if found else None


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


def _text(schema: Schema) -> str:
    least = min(_whole(schema.get("minLength"), 0), LONGEST_TEXT)
    most = _whole(schema.get("maxLength"), LONGEST_TEXT)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        fitting = (text for text in texts_like(pattern) if least <= len(text) <= most)
        return next(fitting, "")
    known = _FORMATS.get(str(schema.get("format")))
    if known is not None:
        return known
    words = _WORDS * (least // len(_WORDS) + 1)
    return words[: max(least, min(most, 4))]


def _told_apart(items: list[object]) -> list[object]:
    """Equal items made unlike, where a number or a text can be."""
    made: list[object] = []
    for number, item in enumerate(items):
        if item in made and isinstance(item, str):
            item = f"{item}{number}"  # noqa: PLW2901 - the same item, told apart
        elif item in made and isinstance(item, int | float):
            item = item + number  # noqa: PLW2901 - likewise
        made.append(item)
    return made


def _table(said: object) -> Schema:
    return cast("Schema", said) if isinstance(said, dict) else {}


def _list(said: object) -> list[Any]:
    return cast("list[Any]", said) if isinstance(said, list) else []


def _whole(said: object, otherwise: int) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or said < 0:
        return otherwise
    return min(said, 1_000_000)


def _real(said: object) -> float | None:
    """A number that can be counted with; neither a truth nor one beyond all bounds."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return said if abs(said) < 1e15 else None
