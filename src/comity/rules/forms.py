"""A flat form that a server wants filled in: whether it is one, and whether an answer fits it.

MCP's elicitation knows texts, numbers, yes or no, and choices among given texts. (MCP §5.6) Nothing
else is put before people; no pattern of a stranger's is ever run.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Final, cast
from urllib.parse import urlsplit

from comity.rules.safe_text import safe

MOST_FIELDS: Final = 64
LONGEST_NAME: Final = 128
LONGEST_WORDS: Final = 2_000
LONGEST_TEXT: Final = 16 * 1024
MOST_CHOICES: Final = 256

type Form = Mapping[str, object]
type Field = Mapping[str, object]

_MAIL: Final = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")


def form_in(schema: object) -> dict[str, object]:
    """The form that a schema describes, with words that can be shown. Raises ValueError."""
    said = _members(schema)
    properties = _members(said.get("properties", {}))
    if said.get("type", "object") != "object" or not 0 < len(properties) <= MOST_FIELDS:
        raise ValueError(f"a form has 1 to {MOST_FIELDS} fields")
    fields = {_name(name): _field(name, each) for name, each in properties.items()}
    required = said.get("required", [])
    if not isinstance(required, list) or any(
        not isinstance(each, str) or each not in fields for each in cast("list[object]", required)
    ):
        raise ValueError("a form requires only fields that it has")
    return {"type": "object", "properties": fields, "required": required}


def why_unfit(form: Form, content: Mapping[str, object]) -> str | None:
    """Why this cannot be what was filled in; None where it can."""
    fields = _members(form["properties"])
    strange = [name for name in content if name not in fields]
    if strange:
        return f"there is no field {strange[0]!r:.80}; there are {', '.join(fields):.400}"
    for name in cast("list[str]", form["required"]):
        if name not in content:
            return f"the field {name!r:.80} has to be filled in"
    for name, value in content.items():
        because = _fits(_members(fields[name]), value)
        if because is not None:
            return f"the field {name!r:.80} {because}"
    return None


def choices_of(field: Field) -> tuple[str, ...]:
    """Among which texts a field chooses; none where it is free."""
    listed = field.get("enum")
    if isinstance(listed, list):
        return tuple(each for each in cast("list[object]", listed) if isinstance(each, str))
    titled = field.get("oneOf", field.get("anyOf"))
    if isinstance(titled, list):
        found = (_members(each).get("const") for each in cast("list[object]", titled))
        return tuple(each for each in found if isinstance(each, str))
    return ()


def _members(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("a form is an object of objects")  # noqa: TRY004  # one kind for callers
    return cast("dict[str, object]", value)


def _name(name: str) -> str:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError("a field has a plain name")
    return name


def _field(name: str, said: object) -> dict[str, object]:
    """One field with what is known of it; whatever else is said of it is left out."""
    field = _members(said)
    if str(field.get("type")) not in _CHECKS:
        raise ValueError(f"the field {name!r:.80} is no text, number, yes or no, or choice")
    kept = {key: field[key] for key in _KEPT if key in field}
    kept |= {key: safe(str(field[key]))[:LONGEST_WORDS] for key in _WORDS if key in field}
    if field["type"] == "array":
        kept["items"] = _items(name, field.get("items"))
    choices = choices_of(field)
    if len(choices) > MOST_CHOICES or not all(map(str.isprintable, choices)):
        raise ValueError(f"the field {name!r:.80} has {MOST_CHOICES} plain choices at most")
    if choices:
        kept["enum"] = list(choices)
    elif not field.keys().isdisjoint(_CHOOSING):
        raise ValueError(f"the field {name!r:.80} chooses among nothing")
    return kept


def _items(name: str, said: object) -> dict[str, object]:
    item = _field(name, said)
    if item["type"] != "string" or "enum" not in item:
        raise ValueError(f"the field {name!r:.80} chooses among nothing")
    return item


_CHOOSING: Final = ("enum", "oneOf", "anyOf")
_WORDS: Final = ("title", "description")
_KEPT: Final = (
    *("type", "format", "default", "minLength", "maxLength"),
    *("minimum", "maximum", "minItems", "maxItems"),
)


def _fits(field: Field, value: object) -> str | None:
    return _CHECKS[str(field["type"])](field, value)


def _text(field: Field, value: object) -> str | None:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        return f"is a text of at most {LONGEST_TEXT} characters"
    choices = choices_of(field)
    if choices and value not in choices:
        return f"is one of {', '.join(choices):.400}"
    if not _limit(field, "minLength", 0) <= len(value) <= _limit(field, "maxLength", LONGEST_TEXT):
        return "is too long, or too short"
    kind = field.get("format")
    check = _FORMATS.get(kind) if isinstance(kind, str) else None
    return None if check is None or check(value) else f"is a text of the form {kind}"


def _number(field: Field, value: object) -> str | None:
    is_whole = field["type"] == "integer"
    if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
        return "is a whole number" if is_whole else "is a number"
    least = _limit(field, "minimum", float("-inf"))
    most = _limit(field, "maximum", float("inf"))
    return None if least <= value <= most else f"is a number from {least} to {most}"


def _yes_or_no(field: Field, value: object) -> str | None:
    return None if isinstance(value, bool) else "is true or false"


def _several(field: Field, value: object) -> str | None:
    choices = choices_of(_members(field["items"]))
    if not isinstance(value, list) or not all(
        each in choices for each in cast("list[object]", value)
    ):
        return f"is a list of some of {', '.join(choices):.400}"
    number = len(cast("list[object]", value))
    if not _limit(field, "minItems", 0) <= number <= _limit(field, "maxItems", MOST_CHOICES):
        return "has too many choices, or too few"
    return None


def _limit(field: Field, name: str, otherwise: float) -> float:
    value = field.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return cast("float", value) if is_number else otherwise


def _is_date(value: str) -> bool:
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_moment(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_uri(value: str) -> bool:
    try:
        return bool(urlsplit(value).scheme)
    except ValueError:
        return False


_CHECKS: Final[Mapping[object, Callable[[Field, object], str | None]]] = {
    "string": _text,
    "number": _number,
    "integer": _number,
    "boolean": _yes_or_no,
    "array": _several,
}
_FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "email": lambda value: _MAIL.fullmatch(value) is not None,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_moment,
}
