"""The worker process for slow or dangerous checks, which may die of one.

The first letter of a line selects the request. There are three: the cost of a schema, a check of
arguments against a costly schema, and a check of code. As in `comity.validation.schema_compiler`, a
timer without a signal handler ends the process.
"""

import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from comity.toolkit.worker_process import WorkerLimits, answer_lines
from comity.validation import python_code
from comity.validation.json_schema import CompiledSchema, compile_schema, first_problem
from comity.validation.python_code import CodePolicy
from comity.validation.schema_cost import TOO_HEAVY, weigh_schema

WEIGH: Final = b"w"
CHECK: Final = b"c"
CODE: Final = b"p"
MOST_BYTES: Final = 32 * 1024 * 1024
CPU_SECONDS: Final = 1.0
WALL_SECONDS: Final = 20.0
QUICK_SECONDS: Final = 0.005
"""A schema that takes longer to compile is never compiled on the event loop."""

_MAX_CACHED_SCHEMAS: Final = 256


class SchemaWeight(msgspec.Struct):
    """The properties of a schema that decide where it is compiled."""

    usable: bool
    quick: bool
    parts: int
    states: int


class CodeSafetyRequest(msgspec.Struct):
    """A piece of code, and the policy for it."""

    code: str
    policy: CodePolicy


_schema: Final = msgspec.json.Decoder(dict[str, Any])
_pair: Final = msgspec.json.Decoder(tuple[msgspec.Raw, Any])
_judged: Final = msgspec.json.Decoder(CodeSafetyRequest)
_compiled: OrderedDict[bytes, CompiledSchema | None] = OrderedDict()


def _weigh(data: bytes) -> SchemaWeight:
    schema = _schema.decode(data)
    before = time.process_time()
    made = compile_schema(schema)
    spent = time.process_time() - before
    if made is None:
        return SchemaWeight(False, False, 0, 0)
    weight = weigh_schema(schema, made[1])
    return SchemaWeight(True, spent < QUICK_SECONDS and weight is not TOO_HEAVY, *weight)


def _check(data: bytes) -> object:
    raw, arguments = _pair.decode(data)
    key = bytes(raw)
    if key not in _compiled:
        made = compile_schema(_schema.decode(key))
        _compiled[key] = None if made is None else made[0]
        while len(_compiled) > _MAX_CACHED_SCHEMAS:
            _compiled.popitem(last=False)
    schema = _compiled[key]
    return None if schema is None else first_problem(schema, arguments)


def answer_line(line: bytes) -> object:
    """Return the answer to one line without its end."""
    kind, data = line[:1], line[1:]
    if kind == WEIGH:
        return _weigh(data)
    if kind == CHECK:
        return _check(data)
    judged = _judged.decode(data)
    return python_code.examine_code(judged.code, judged.policy)


def serve_requests() -> None:
    """Answer lines until the input ends."""
    answer_lines(
        lambda line: msgspec.json.encode(answer_line(line)),
        WorkerLimits(MOST_BYTES, CPU_SECONDS, WALL_SECONDS),
    )


if __name__ == "__main__":
    serve_requests()
