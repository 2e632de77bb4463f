"""Looks at what is slow or dangerous to look at, alone in a process that may die of it.

Three things are asked of it, by the first letter of a line: how heavy a schema is, whether
arguments fit a heavy one, and what is wrong with a piece of code. As in
`comity.adapters.schema_compiler`, a timer that nobody handles ends it.
"""

import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from comity.adapters.schema_check import Compiled, compiled, first_problem
from comity.adapters.side_process import Bounds, answer_lines
from comity.rules import code_safety
from comity.rules.code_safety import CodePolicy
from comity.rules.schema_weight import TOO_HEAVY, weigh

WEIGH: Final = b"w"
CHECK: Final = b"c"
CODE: Final = b"p"
MOST_BYTES: Final = 32 * 1024 * 1024
CPU_SECONDS: Final = 1.0
WALL_SECONDS: Final = 20.0
QUICK_SECONDS: Final = 0.005
"""A schema that takes longer to compile is never compiled on the event loop."""

_KEPT: Final = 256


class Weighed(msgspec.Struct):
    """What is to be known of a schema before it is compiled elsewhere."""

    usable: bool
    quick: bool
    parts: int
    states: int


class Judged(msgspec.Struct):
    """A piece of code, and how it is to be judged."""

    code: str
    policy: CodePolicy


_schema: Final = msgspec.json.Decoder(dict[str, Any])
_pair: Final = msgspec.json.Decoder(tuple[msgspec.Raw, Any])
_judged: Final = msgspec.json.Decoder(Judged)
_compiled: OrderedDict[bytes, Compiled | None] = OrderedDict()


def _weigh(data: bytes) -> Weighed:
    schema = _schema.decode(data)
    before = time.process_time()
    made = compiled(schema)
    spent = time.process_time() - before
    if made is None:
        return Weighed(False, False, 0, 0)
    weight = weigh(schema, made[1])
    return Weighed(True, spent < QUICK_SECONDS and weight is not TOO_HEAVY, *weight)


def _check(data: bytes) -> object:
    raw, arguments = _pair.decode(data)
    key = bytes(raw)
    if key not in _compiled:
        made = compiled(_schema.decode(key))
        _compiled[key] = None if made is None else made[0]
        while len(_compiled) > _KEPT:
            _compiled.popitem(last=False)
    schema = _compiled[key]
    return None if schema is None else first_problem(schema, arguments)


def answer(line: bytes) -> object:
    """The answer to one line without its end."""
    kind, data = line[:1], line[1:]
    if kind == WEIGH:
        return _weigh(data)
    if kind == CHECK:
        return _check(data)
    judged = _judged.decode(data)
    return code_safety.examine(judged.code, judged.policy)


def serve() -> None:
    """One line in, one line back, until there are no more."""
    answer_lines(
        lambda line: msgspec.json.encode(answer(line)),
        Bounds(MOST_BYTES, CPU_SECONDS, WALL_SECONDS),
    )


if __name__ == "__main__":
    serve()
