"""Bodies and queries of the operator API: their types, and how they are decoded."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, cast

import msgspec
from msgspec import Meta, inspect

from comity.errors import INVALID_PARAMS, MalformedMessage

MAX_QUOTED_NAME: Final = 80

AUTHOR_FIELDS: Final = frozenset(
    (
        *("accepted_by", "answered_by", "approved_by", "created_by", "disabled_by", "granted_by"),
        *("registered_by", "revoked_by"),
    )
)
"""Fields in which a body would name the acting principal. The credentials name it instead."""

type NonEmptyText = Annotated[str, Meta(min_length=1)]
type ShortText = Annotated[str, Meta(max_length=1000)]
type ZonedTime = Annotated[datetime, Meta(tz=True)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of a POST. An unknown field is refused, not ignored."""


class RequestQuery(msgspec.Struct, frozen=True):
    """The query string of a GET."""


class EmptyBody(RequestBody, frozen=True):
    """The body of a POST that takes none."""


class EmptyQuery(RequestQuery, frozen=True):
    """The query string of a GET that takes none."""


class CursorQuery(RequestQuery, frozen=True):
    """The position in a list: the `next` value of the previous page."""

    cursor: str = ""


class ServerQuery(RequestQuery, frozen=True):
    """The server that a list is about. All servers if it is empty."""

    server: str | None = None


def decode_query[Query: RequestQuery](kind: type[Query], query: Mapping[str, object]) -> Query:
    """Return the query as its declared type. Raise MalformedMessage naming a bad field."""
    return _convert(kind, query, is_strict=False)


def decode_body[Body: RequestBody](
    kind: type[Body], body: Mapping[str, object], party: str
) -> Body:
    """Return the body as its declared type. Raise MalformedMessage with the name of a bad field.

    `party` is the principal that sent it. A body that names another author is refused.
    """
    for name in sorted(AUTHOR_FIELDS & body.keys()):
        if body[name] not in (None, "", party):
            raise MalformedMessage(
                f"{name} is always the sender, {party}; leave it out", INVALID_PARAMS
            )
    own = {name: value for name, value in body.items() if name not in AUTHOR_FIELDS}
    return _convert(kind, own, is_strict=True)


def _convert[Input: RequestBody | RequestQuery](
    kind: type[Input], given: Mapping[str, object], *, is_strict: bool
) -> Input:
    known = kind.__struct_fields__
    unknown = sorted(given.keys() - set(known))
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        expected = f"is not one of: {', '.join(sorted(known))}" if known else "is not expected here"
        raise MalformedMessage(f"{unknown[0]!r:.{MAX_QUOTED_NAME}} {expected}", INVALID_PARAMS)
    try:
        return msgspec.convert(given, kind, strict=is_strict)
    except msgspec.ValidationError as error:
        raise MalformedMessage(_describe_error(kind, str(error)), INVALID_PARAMS) from None


def _describe_error(kind: type[msgspec.Struct], error: str) -> str:
    """Return what a field must be. The value may be a secret, so it is left out."""
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", error):
        return f"{missing[1]} is missing: it must be {_describe_field(kind, missing[1])}"
    if wrong := re.search(r" - at `\$\.(\w+)[^`]*`$", error):
        return f"{wrong[1]} must be {_describe_field(kind, wrong[1])}"
    return "the request cannot be read"


def _describe_field(kind: type[msgspec.Struct], name: str) -> str:
    declared = cast("inspect.StructType", inspect.type_info(kind))
    return _describe_type(next(each.type for each in declared.fields if each.name == name))


def _describe_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType():
            named = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return " or ".join(_describe_type(each) for each in named)
        case inspect.EnumType() | inspect.LiteralType():
            is_enum = isinstance(kind, inspect.EnumType)
            choices = (each.value for each in kind.cls) if is_enum else kind.values
            return f"one of: {', '.join(map(str, choices))}"
        case inspect.StrType():
            return f"a text{_describe_bounds(kind.min_length, kind.max_length, ' characters')}"
        case inspect.IntType():
            return f"a whole number{_describe_bounds(kind.ge, kind.le)}"
        case inspect.VarTupleType():
            length = _describe_bounds(kind.min_length, kind.max_length, " values")
            return f"a list{length}, each {_describe_type(kind.item_type)}"
        case _:
            return _PLAIN_TYPES.get(type(kind), "another value")


_PLAIN_TYPES: Final[Mapping[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.DateTimeType: "a time with its zone, as 2026-12-31T18:00:00Z",
    inspect.DictType: "an object",
}


def _describe_bounds(least: int | None, maximum: int | None, unit: str = "") -> str:
    if maximum is None:
        return f" of at least {least}{unit}" if least else ""
    return (
        f" of {least} to {maximum}{unit}" if least is not None else f" of at most {maximum}{unit}"
    )
