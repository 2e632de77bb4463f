"""Checks of arguments against the JSON Schema of their tool."""

from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from comity.mcp import jsonrpc
from comity.validation.arguments import ArgumentError
from comity.validation.json_schema import CompiledSchema, compile_schema, first_problem
from comity.validation.schema_cost import BUDGET, TOO_HEAVY, SchemaCost, is_plain, weigh_schema
from comity.validation.worker import ValidationWorker

REMEMBERED: Final = 20_000
MAX_VALUES: Final = 100_000
PLAIN_BYTES: Final = 8 * 1024
MAX_PLAIN_MEMBERS: Final = 16
_PLAIN: Final = frozenset({int, float, bool, type(None)})


class _InputSchemaBody(msgspec.Struct):
    input_schema: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="inputSchema")


_definition: Final = msgspec.json.Decoder(_InputSchemaBody)


@dataclass(frozen=True, slots=True)
class _PreparedSchema:
    """The schema of one definition, compiled if that is fast, and as written."""

    written: bytes
    compiled: CompiledSchema | None
    weight: SchemaCost


_FREE: Final = _PreparedSchema(b"", None, SchemaCost(0, 0))
_UNUSABLE: Final = _PreparedSchema(b"", None, TOO_HEAVY)


class ArgumentSchemas:
    """A cache of the schemas of the recently called tools."""

    def __init__(self, examiner: ValidationWorker) -> None:
        self._examiner = examiner
        self._prepared: OrderedDict[bytes, _PreparedSchema] = OrderedDict()

    def check(
        self, definition: bytes, arguments: object
    ) -> ArgumentError | Awaitable[ArgumentError | None] | None:
        """Return the error, or None. The result is awaitable if the check cannot run at once."""
        ready = self._prepared.get(definition)
        if ready is None:
            ready = self._compile_if_fast(definition)
        if isinstance(ready, dict):
            return self._first(definition, ready, arguments)
        if ready is _FREE:
            return None
        if ready is _UNUSABLE:
            return ArgumentError("", "the tool's own schema cannot be used")
        if ready.compiled is not None and _is_small(arguments, ready.weight):
            return first_problem(ready.compiled, arguments)
        return self._examiner.check(ready.written, arguments)

    def _compile_if_fast(self, definition: bytes) -> "_PreparedSchema | dict[str, Any]":
        """Return a schema that is fast to compile as compiled, else the schema for an estimate."""
        try:
            written = _definition.decode(definition).input_schema
            schema = jsonrpc.decode_shape(written, dict[str, Any]) if written else None
        except (msgspec.DecodeError, RecursionError):
            return self._cache(definition, _UNUSABLE)
        if schema is None:
            return self._cache(definition, _FREE)
        if len(written) > PLAIN_BYTES or not is_plain(schema):
            return schema
        made = compile_schema(schema)
        if made is None:
            return self._cache(definition, _UNUSABLE)
        ready = _PreparedSchema(msgspec.json.encode(schema), made[0], weigh_schema(schema, made[1]))
        return self._cache(definition, ready)

    async def _first(
        self, definition: bytes, schema: dict[str, Any], arguments: object
    ) -> ArgumentError | None:
        # Encoded again, so that it is one line and equal for every notation.
        plain = msgspec.json.encode(schema)
        weighed = await self._examiner.weigh(plain)
        made = compile_schema(schema) if weighed.usable and weighed.quick else None
        weight = TOO_HEAVY if made is None else SchemaCost(weighed.parts, weighed.states)
        ready = _PreparedSchema(plain, None if made is None else made[0], weight)
        self._cache(definition, ready if weighed.usable else _UNUSABLE)
        found = self.check(definition, arguments)
        return found if found is None or isinstance(found, ArgumentError) else await found

    def _cache(self, definition: bytes, prepared: _PreparedSchema) -> _PreparedSchema:
        self._prepared[definition] = prepared
        while len(self._prepared) > REMEMBERED:
            self._prepared.popitem(last=False)
        return prepared


def _is_small(arguments: object, weight: SchemaCost) -> bool:
    """Return whether the event loop can afford the check. It stops counting at the limit."""
    if not isinstance(arguments, dict):
        return _is_small_in_all(arguments, weight)
    table: dict[str, object] = arguments  # pyright: ignore[reportUnknownVariableType]  # JSON
    if len(table) >= MAX_PLAIN_MEMBERS:
        return _is_small_in_all(table, weight)
    characters = 0
    # The usual case is a few plain members, which need no walk.
    for name, value in table.items():
        if type(value) is str:
            characters += len(value)
        elif type(value) not in _PLAIN:
            return _is_small_in_all(table, weight)
        characters += len(name)
    return weight.parts * MAX_PLAIN_MEMBERS + weight.states * characters <= BUDGET


def _is_small_in_all(arguments: object, weight: SchemaCost) -> bool:
    values = characters = 0
    waiting: list[object] = [arguments]
    while waiting:
        value = waiting.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            table = cast("dict[str, object]", value)
            waiting += table.values()
            characters += sum(map(len, table))
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
        if values + len(waiting) > MAX_VALUES:
            return False
    return weight.fits(values, characters)
