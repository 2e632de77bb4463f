"""JSON patches, which servers write, applied by the library that is kept for it. (RFC 6902)

Rule 1: all of a patch or nothing: it is applied to a copy of its own, which is given away whole.
Rule 2: what it costs is bounded before it is paid. Only a copy makes more than the patch itself
        brought, so what is copied is measured first, and counted.
Rule 3: why one fails is said without a word of what is in it: states hold what people wrote.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed
from jsonpointer import JsonPointer, JsonPointerException

from comity.wire import jsonrpc
from comity.wire.checkpoints import MOST_OPERATIONS
from comity.wire.errors import UPSTREAM_FAILED, MalformedMessage

DEEPEST: Final = 60
"""So deep that it still fits into a call that carries it."""

LONGEST_PATH: Final = 4_096
_COPY: Final = "copy"
_NAMED: Final = ("add", "remove", "replace", "move", _COPY, "test")
_FAILURES: Final = (
    *(JsonPatchException, JsonPointerException, ArithmeticError, LookupError),
    *(RecursionError, TypeError, ValueError),
)


class JsonPatches:
    """Applies them, whoever they are from."""

    def apply(self, data: bytes, patches: Sequence[bytes], most: int) -> bytes:
        found = jsonrpc.value(data)
        left = most
        for patch in patches:
            found, left = _applied(found, patch, left)
        try:
            made = jsonrpc.to_json(found)
        except (RecursionError, ValueError):
            raise _failed("what it makes cannot be written") from None
        if len(made) > most:
            raise _failed(f"what it makes is longer than {most} bytes")
        if because := jsonrpc.excess(made, DEEPEST):
            raise _failed(f"what it makes is too much: {because}")
        return made


def _applied(found: object, patch: bytes, left: int) -> tuple[object, int]:
    """What one patch makes, and how much may still be copied."""
    for number, each in enumerate(_operations(patch)):
        operation = _read(each, number)
        try:
            if operation["op"] == _COPY:
                left -= _weight(found, operation.get("from"))
            if left >= 0:
                found = JsonPatch([operation]).apply(found, in_place=True)
        except JsonPatchTestFailed:
            raise _failed(f"operation {number} tests for what is not there") from None
        except _FAILURES:
            raise _failed(f"operation {number}, {operation['op']}, does not fit") from None
        if left < 0:
            raise _failed(f"operation {number} copies too much")
    return found, left


def _operations(patch: bytes) -> list[object]:
    operations = jsonrpc.value(patch)
    if not isinstance(operations, list):
        raise _failed("it is no list of operations")
    listed = cast("list[object]", operations)
    if len(listed) > MOST_OPERATIONS:
        raise _failed(f"it has more than {MOST_OPERATIONS} operations")
    return listed


def _read(said: object, number: int) -> dict[str, Any]:
    """One operation of those that there are; the library knows some more."""
    operation = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    if operation.get("op") not in _NAMED:
        raise _failed(f"operation {number} is none")
    for member in ("path", "from"):
        path = operation.get(member, "")
        if not isinstance(path, str) or len(path) > LONGEST_PATH or path.count("/") > DEEPEST:
            raise _failed(f"operation {number} points nowhere")
    return operation


def _weight(found: object, source: object) -> int:
    if not isinstance(source, str):
        raise TypeError(source)
    return len(jsonrpc.to_json(JsonPointer(source).resolve(found)))


def _failed(because: str) -> MalformedMessage:
    return MalformedMessage(f"the patch fails: {because}", UPSTREAM_FAILED)
