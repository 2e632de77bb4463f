"""Arguments held against one compiled schema, and the first thing that does not fit."""

from itertools import chain, islice
from typing import Any, Final, NoReturn, Protocol

import jsonschema_rs

from comity.rules.argument_problems import Problem, problem

MOST_FOUND: Final = 8
_BACKTRACKS: Final = 10_000
_FAILURES: Final = (ValueError, OverflowError, RecursionError, jsonschema_rs.ReferencingError)


class Compiled(Protocol):
    """A schema that is ready to check."""

    def is_valid(self, instance: Any) -> bool: ...
    def iter_errors(self, instance: Any) -> Any: ...


def compiled(schema: dict[str, Any]) -> tuple[Compiled, bool] | None:
    """The schema made ready, and whether its patterns are matched in linear time.

    Look-around has no linear form; it is matched by backtracking, given up after so many steps.
    """
    for options in (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions(_BACKTRACKS)):
        linear = isinstance(options, jsonschema_rs.RegexOptions)
        made = _made(jsonschema_rs.validator_for, schema, options)
        # As the schema compiler judges: an older draft excuses a keyword, but no reference.
        if getattr(made, "instance_path", ()) and "$schema" not in schema:
            made = _made(jsonschema_rs.Draft7Validator, schema, options)
        if not isinstance(made, Exception):
            return made, linear
    return None


def _made(make: Any, schema: dict[str, Any], options: object) -> Compiled | Exception:
    try:
        return make(schema, pattern_options=options, retriever=_refuse, mask="the value")
    except _FAILURES as failure:
        return failure


def _refuse(uri: str) -> NoReturn:
    raise ValueError("other documents are not fetched")


def first_problem(schema: Compiled, arguments: object) -> Problem | None:
    """What does not fit first, with what would help against all else about the same argument."""
    try:
        if schema.is_valid(arguments):
            return None
        found = [_told(error) for error in islice(schema.iter_errors(arguments), MOST_FOUND)]
    except _FAILURES:
        return Problem("", "they cannot be checked against the tool's schema")
    if not found:
        return Problem("", "they do not fit the tool's schema")
    first = found[0]
    alike = [each.suggestions for each in found if each.field == first.field]
    return first._replace(suggestions=tuple(dict.fromkeys(chain.from_iterable(alike))))


def _told(error: Any) -> Problem:
    demanded: dict[str, object] = error.kind.as_dict()
    return problem(error.instance_path, error.message, error.kind.name, demanded)
