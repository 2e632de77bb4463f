"""Checks of arguments against one compiled schema, which report the first error."""

from itertools import chain, islice
from typing import Any, Final, NoReturn, Protocol

import jsonschema_rs

from comity.validation.arguments import ArgumentError, to_argument_error

MAX_FOUND: Final = 8
_BACKTRACKS: Final = 10_000
_FAILURES: Final = (ValueError, OverflowError, RecursionError, jsonschema_rs.ReferencingError)


class CompiledSchema(Protocol):
    """A compiled schema."""

    def is_valid(self, instance: Any) -> bool: ...
    def iter_errors(self, instance: Any) -> Any: ...


def compile_schema(schema: dict[str, Any]) -> tuple[CompiledSchema, bool] | None:
    """Return the compiled schema, and whether its patterns match in linear time.

    Look-around has no linear form. It is matched by backtracking with a limit of steps.
    """
    for options in (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions(_BACKTRACKS)):
        linear = isinstance(options, jsonschema_rs.RegexOptions)
        made = _make_validator(jsonschema_rs.validator_for, schema, options)
        # The same rule as in the schema compiler: an older draft excuses a keyword, but no
        # reference.
        if getattr(made, "instance_path", ()) and "$schema" not in schema:
            made = _make_validator(jsonschema_rs.Draft7Validator, schema, options)
        if not isinstance(made, Exception):
            return made, linear
    return None


def _make_validator(
    make: Any, schema: dict[str, Any], options: object
) -> CompiledSchema | Exception:
    try:
        return make(schema, pattern_options=options, retriever=_refuse, mask="the value")
    except _FAILURES as failure:
        return failure


def _refuse(uri: str) -> NoReturn:
    raise ValueError("other documents are not fetched")


def first_problem(schema: CompiledSchema, arguments: object) -> ArgumentError | None:
    """Return the first error, with hints that cover all errors of the same argument."""
    try:
        if schema.is_valid(arguments):
            return None
        found = [
            _to_argument_error(error) for error in islice(schema.iter_errors(arguments), MAX_FOUND)
        ]
    except _FAILURES:
        return ArgumentError("", "they cannot be checked against the tool's schema")
    if not found:
        return ArgumentError("", "they do not fit the tool's schema")
    first = found[0]
    alike = [each.suggestions for each in found if each.field == first.field]
    return first._replace(suggestions=tuple(dict.fromkeys(chain.from_iterable(alike))))


def _to_argument_error(error: Any) -> ArgumentError:
    demanded: dict[str, object] = error.kind.as_dict()
    return to_argument_error(error.instance_path, error.message, error.kind.name, demanded)
