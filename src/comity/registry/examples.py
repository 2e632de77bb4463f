"""Example arguments that are generated from a JSON Schema."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

MAX_PATTERN_LENGTH: Final = 1024
MAX_TEXT_LENGTH: Final = 512
MAX_DEPTH: Final = 16

_CLASSES: Final = {
    "d": "0123456789",
    "w": "abcdefghijklmnopqrstuvwxyz0123456789_",
    "s": " ",
    "D": "ab",
    "W": "-.",
    "S": "ab",
}
_LITERALS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_NOWHERE: Final = frozenset("bBAZz")
_ANYTHING: Final = "abcdefghijklmnopqrstuvwxyz"
_CANDIDATES: Final = "a0A_-. bcdxyz129BXZ@/:é"
_PLAIN_REPEATS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def texts_like(pattern: str) -> Iterator[str]:
    """Yield texts that may match a pattern, the simplest first.

    A pattern that is too long yields none.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        return
    seen: set[str] = set()
    for extra in (1, 0, 2, 4, 8, 16, 32, 64, 128, 256):
        text = _PatternGenerator(pattern, extra).text()
        if text is not None and text not in seen:
            seen.add(text)
            yield text


@dataclass(slots=True)
class _PatternGenerator:
    """Reads a pattern once and writes a text. It repeats optional parts about `extra` times."""

    pattern: str
    extra: int
    position: int = 0
    written: int = 0

    def text(self) -> str | None:
        made = self._choice(0)
        return made if self.position >= len(self.pattern) and len(made) <= MAX_TEXT_LENGTH else None

    def _choice(self, depth: int) -> str:
        """Return the text of the first alternative, and skip the others."""
        made = self._row(depth)
        while self._take("|"):
            self._row(depth)
        return made

    def _row(self, depth: int) -> str:
        made = ""
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            piece = self._piece(depth)
            least, most = self._repeats()
            times = max(least, min(self.extra, least + self.extra if most is None else most))
            free = MAX_TEXT_LENGTH + 1 - len(made)
            for _ in range(min(times, free) if piece else 0):
                made += piece[:free]
            made = made[: MAX_TEXT_LENGTH + 1]
        return made

    def _piece(self, depth: int) -> str:
        found = self.pattern[self.position]
        self.position += 1
        if found == "(":
            return self._group(depth + 1)
        if found == "[":
            return self._character_of_class()
        if found == "\\":
            return self._escape()[:1]
        if found in "^$":
            return ""
        return "a" if found == "." else found

    def _group(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            self.position = len(self.pattern) + 1
            return ""
        emits = True
        if self._take("?"):
            emits = self._skip_group_mark()
        made = self._choice(depth)
        if not self._take(")"):
            self.position = len(self.pattern) + 1
        return made if emits else ""

    def _skip_group_mark(self) -> bool:
        """Skip the mark of a group, and return whether the group matches text.

        A lookaround matches none.
        """
        rest = self.pattern[self.position : self.position + 2]
        if rest[:1] in ("=", "!") or rest in ("<=", "<!"):
            self.position += 1 if rest[0] in "=!" else 2
            return False
        end = ">" if rest[:1] in ("<", "P") else ":"
        found = self.pattern.find(end, self.position)
        self.position = len(self.pattern) + 1 if found < 0 else found + 1
        return True

    def _character_of_class(self) -> str:
        """Return a character of a class, or for a negated class one that it does not contain."""
        negated = self._take("^")
        named = ""
        first = True
        while self.position < len(self.pattern) and (first or self.pattern[self.position] != "]"):
            named += self._member()
            first = False
        self._take("]")
        if not negated:
            return named[:1]
        return next((each for each in _CANDIDATES if each not in named), "")

    def _member(self) -> str:
        low = self._character()
        if self.pattern[self.position : self.position + 1] != "-" or self.pattern[
            self.position + 1 : self.position + 2
        ] in ("]", ""):
            return low
        self.position += 1
        high = self._character()
        if len(low) != 1 or len(high) != 1 or not ord(low) <= ord(high):
            return low + high
        return "".join(chr(code) for code in range(ord(low), min(ord(high), ord(low) + 255) + 1))

    def _character(self) -> str:
        found = self.pattern[self.position]
        self.position += 1
        return self._escape() if found == "\\" else found

    def _escape(self) -> str:
        if self.position >= len(self.pattern):
            return ""
        found = self.pattern[self.position]
        self.position += 1
        if found in "ux":
            return self._escaped_character(4 if found == "u" else 2)
        if found in "pP" and self._take("{"):
            self.position = (self.pattern.find("}", self.position) + 1) or len(self.pattern) + 1
            return _ANYTHING
        if found in _NOWHERE:
            return ""
        return _CLASSES.get(found) or _LITERALS.get(found, found)

    def _escaped_character(self, digits: int) -> str:
        said = self.pattern[self.position : self.position + digits]
        self.position += len(said)
        try:
            code = int(said, 16)
        except ValueError:
            return ""
        return "" if 0xD800 <= code <= 0xDFFF else chr(code)

    def _repeats(self) -> tuple[int, int | None]:
        mark = self.pattern[self.position : self.position + 1]
        counted: tuple[int, int | None] | None = _PLAIN_REPEATS.get(mark)
        if counted is not None:
            self.position += 1
        elif mark == "{":
            counted = self._repetitions()
        if counted is None:
            return 1, 1
        # Lazy and possessive quantifiers yield the same text.
        _ = self._take("?") or self._take("+")
        return counted

    def _repetitions(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.position)
        least, comma, most = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not (least.isdecimal() and len(least) <= 6 and len(most) <= 6):
            return None
        if most and not most.isdecimal():
            return None
        self.position = end + 1
        low = int(least)
        return low, (low if not comma else int(most) if most else None)

    def _take(self, expected: str) -> bool:
        if self.pattern[self.position : self.position + 1] != expected:
            return False
        self.position += 1
        return True


type Schema = Mapping[str, Any]

MAX_EXAMPLE_DEPTH: Final = 12
MAX_PARTS: Final = 500
MAX_ITEMS: Final = 32
MAX_MERGED: Final = 32
SMALLEST_STEP: Final = 1e-6
VARIANTS: Final = 4
"""The minimal and the complete candidate, and two more with other alternatives."""

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


def generate_candidates(schema: object) -> Iterator[object]:
    """Yield distinct candidates in a stable order, the schema's own examples first."""
    root = _table(schema)
    bare = {key: value for key, value in root.items() if key != "examples"}
    seen: list[object] = []
    made = (_ExampleBuilder(root, variant).value(bare, 0) for variant in range(VARIANTS))
    for candidate in (*_list(root.get("examples"))[:VARIANTS], *made):
        if isinstance(candidate, dict) and candidate not in seen:
            seen.append(cast("object", candidate))
            yield seen[-1]


@dataclass(slots=True)
class _ExampleBuilder:
    """Builds one candidate. Beyond the size limit it adds nothing more."""

    root: Schema
    variant: int
    parts: int = 0

    def value(self, value: object, depth: int) -> object:
        self.parts += 1
        if self.parts > MAX_PARTS or depth > MAX_EXAMPLE_DEPTH:
            return None
        schema = self._merged(_table(value))
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
        """Return the value that the schema itself names, as a list of one, or an empty list."""
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
        for name in wanted[:MAX_PARTS]:
            made[name] = self.value(properties.get(name, spare), depth + 1)
        for number in range(min(needed, MAX_ITEMS) - len(made)):
            made[f"key{number}"] = self.value(spare, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int) -> list[object]:
        first = _list(schema.get("prefixItems"))
        least, most = _whole(schema.get("minItems"), 0), _whole(schema.get("maxItems"), MAX_ITEMS)
        wanted = max(
            least, len(first), 1 if self.variant % 2 else 0, 1 if "contains" in schema else 0
        )
        inner = schema.get("items", schema.get("contains"))
        made: list[object] = []
        for number in range(min(wanted, most, MAX_ITEMS)):
            kind = first[number] if number < len(first) else inner
            made.append(self.value(kind, depth + 1))
        return _told_apart(made) if schema.get("uniqueItems") is True else made

    def _merged(self, schema: Schema) -> Schema:
        """Merge references and combined schemas into one schema, as far as that is simple."""
        for _ in range(MAX_MERGED):
            parts = self._parts(schema)
            if not parts:
                return schema
            rest = {key: value for key, value in schema.items() if key not in _COMBINING_KEYWORDS}
            for part in parts:
                rest = _merge_schemas(rest, part)
            schema = rest
        return schema

    def _parts(self, schema: Schema) -> list[Schema]:
        parts: list[Schema] = []
        if isinstance(schema.get("$ref"), str):
            parts.append(_resolve_reference(self.root, schema["$ref"]))
        parts += [_table(part) for part in _list(schema.get("allOf"))[:MAX_MERGED]]
        for either in ("anyOf", "oneOf"):
            choices = [_table(part) for part in _list(schema.get(either))[:MAX_MERGED]]
            if choices:
                parts.append(choices[self.variant % len(choices)])
        return parts


_COMBINING_KEYWORDS: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def _merge_schemas(lower: Schema, upper: Schema) -> dict[str, Any]:
    both = {**lower, **upper}
    both["properties"] = {**_table(lower.get("properties")), **_table(upper.get("properties"))}
    both["required"] = [*_list(lower.get("required")), *_list(upper.get("required"))]
    return {
        key: value for key, value in both.items() if value or key not in ("properties", "required")
    }


def _resolve_reference(root: Schema, pointer: str) -> Schema:
    """Return the target of a reference within the document, or an empty schema."""
    if pointer != "#" and not pointer.startswith("#/"):
        return {}
    found: object = root
    for step in unquote(pointer).split("/")[1 : MAX_MERGED + 1]:
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
    """Return the lowest valid number, or in some variants the highest."""
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
    """Return the stricter of an inclusive and an exclusive limit, as an inclusive one."""
    plain, beside = _real(included), _real(excluded)
    found = ([] if plain is None else [plain]) + ([] if beside is None else [beside + apart])
    return stricter(found) if found else None


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


def _text(schema: Schema) -> str:
    least = min(_whole(schema.get("minLength"), 0), MAX_TEXT_LENGTH)
    most = _whole(schema.get("maxLength"), MAX_TEXT_LENGTH)
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
    """Make equal texts and numbers distinct."""
    made: list[object] = []
    for number, item in enumerate(items):
        if item in made and isinstance(item, str):
            item = f"{item}{number}"  # noqa: PLW2901 - the same item, told apart
        elif item in made and isinstance(item, int | float):
            item = item + number  # noqa: PLW2901 - likewise
        made.append(item)
    return made


def _table(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _whole(value: object, otherwise: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return otherwise
    return min(value, 1_000_000)


def _real(value: object) -> float | None:
    """Return a finite number of moderate size, or None. Booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None
