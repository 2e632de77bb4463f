"""Arguments against the input schema of their tool: in microseconds, or elsewhere. (attack 17)

A schema is weighed once by the examiner, in a process that may die of it. What is quick to compile
is compiled here; what could hold the event loop with the arguments at hand is checked over there.
"""

from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from comity.adapters.examining import Examiner
from comity.adapters.schema_check import Compiled, compiled, first_problem
from comity.rules.argument_problems import Problem
from comity.rules.schema_weight import TOO_HEAVY, Weight, is_plain, weigh
from comity.wire import jsonrpc

REMEMBERED: Final = 20_000
MOST_VALUES: Final = 100_000
PLAIN_BYTES: Final = 8 * 1024
FEW: Final = 16
_PLAIN: Final = frozenset({int, float, bool, type(None)})


class _Definition(msgspec.Struct):
    input_schema: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="inputSchema")


_definition: Final = msgspec.json.Decoder(_Definition)


@dataclass(frozen=True, slots=True)
class _Ready:
    """One definition's schema: compiled where that is quick, and as it was written."""

    written: bytes
    compiled: Compiled | None
    weight: Weight


_FREE: Final = _Ready(b"", None, Weight(0, 0))
_UNUSABLE: Final = _Ready(b"", None, TOO_HEAVY)


class ArgumentSchemas:
    """The schemas of the tools that were called, the last ones used."""

    def __init__(self, examiner: Examiner) -> None:
        self._examiner = examiner
        self._ready: OrderedDict[bytes, _Ready] = OrderedDict()

    def check(
        self, definition: bytes, arguments: object
    ) -> Problem | Awaitable[Problem | None] | None:
        """What does not fit; in a while, where it cannot be said at once."""
        ready = self._ready.get(definition)
        if ready is None:
            ready = self._at_once(definition)
        if isinstance(ready, dict):
            return self._first(definition, ready, arguments)
        if ready is _FREE:
            return None
        if ready is _UNUSABLE:
            return Problem("", "the tool's own schema cannot be used")
        if ready.compiled is not None and _is_small(arguments, ready.weight):
            return first_problem(ready.compiled, arguments)
        return self._examiner.check(ready.written, arguments)

    def _at_once(self, definition: bytes) -> "_Ready | dict[str, Any]":
        """What is plainly quick to compile, made ready; else the schema, to be weighed."""
        try:
            written = _definition.decode(definition).input_schema
            schema = jsonrpc.shaped(written, dict[str, Any]) if written else None
        except (msgspec.DecodeError, RecursionError):
            return self._keep(definition, _UNUSABLE)
        if schema is None:
            return self._keep(definition, _FREE)
        if len(written) > PLAIN_BYTES or not is_plain(schema):
            return schema
        made = compiled(schema)
        if made is None:
            return self._keep(definition, _UNUSABLE)
        ready = _Ready(msgspec.json.encode(schema), made[0], weigh(schema, made[1]))
        return self._keep(definition, ready)

    async def _first(
        self, definition: bytes, schema: dict[str, Any], arguments: object
    ) -> Problem | None:
        # Encoded again, so that it is one line and the same for every way of writing it.
        plain = msgspec.json.encode(schema)
        weighed = await self._examiner.weigh(plain)
        made = compiled(schema) if weighed.usable and weighed.quick else None
        weight = TOO_HEAVY if made is None else Weight(weighed.parts, weighed.states)
        ready = _Ready(plain, None if made is None else made[0], weight)
        self._keep(definition, ready if weighed.usable else _UNUSABLE)
        found = self.check(definition, arguments)
        return found if found is None or isinstance(found, Problem) else await found

    def _keep(self, definition: bytes, ready: _Ready) -> _Ready:
        self._ready[definition] = ready
        while len(self._ready) > REMEMBERED:
            self._ready.popitem(last=False)
        return ready


def _characters_of(arguments: object) -> int | None:
    """How many there are in a few plain members, as most calls have them; None for any other."""
    if not isinstance(arguments, dict):
        return None
    table = cast("dict[str, object]", arguments)
    if len(table) > FEW - 1:
        return None
    characters = 0
    for name, value in table.items():
        if type(value) is str:
            characters += len(value)
        elif type(value) not in _PLAIN:
            return None
        characters += len(name)
    return characters


def _is_small(arguments: object, weight: Weight) -> bool:
    """Whether the event loop can afford the check; counted no further than it can."""
    characters = _characters_of(arguments)
    if characters is not None:
        return weight.fits(FEW, characters)
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
        if values + len(waiting) > MOST_VALUES:
            return False
    return weight.fits(values, characters)
