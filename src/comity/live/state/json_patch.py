"""Applies the JSON patches of servers with the `jsonpatch` library. (RFC 6902)

Rule 1: A patch applies completely or not at all. It works on a copy, which is returned whole.
Rule 2: The cost is bounded in advance. Only `copy` can grow a document beyond the size of the
        patch, so the size of each copy is measured and counted first.
Rule 3: An error message quotes nothing from the patch or the state, because states hold what people
        wrote.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed
from jsonpointer import JsonPointer, JsonPointerException

from comity.errors import UPSTREAM_FAILED, MalformedMessage
from comity.live.state.model import MAX_OPERATIONS
from comity.mcp import jsonrpc

MAX_DEPTH: Final = 60
"""The greatest depth of a state that still fits into a call."""

MAX_PATH_LENGTH: Final = 4_096
_COPY: Final = "copy"
_OPERATIONS: Final = ("add", "remove", "replace", "move", _COPY, "test")
_FAILURES: Final = (
    *(JsonPatchException, JsonPointerException, ArithmeticError, LookupError),
    *(RecursionError, TypeError, ValueError),
)


class JsonPatches:
    """Applies untrusted JSON patches (`comity.live.state.model.JsonPatcher`)."""

    def apply(self, data: bytes, patches: Sequence[bytes], maximum: int) -> bytes:
        found = jsonrpc.decode_value(data)
        left = maximum
        for patch in patches:
            found, left = _apply_patch(found, patch, left)
        try:
            made = jsonrpc.to_json(found)
        except (RecursionError, ValueError):
            raise _patch_error("the result cannot be encoded") from None
        if len(made) > maximum:
            raise _patch_error(f"the result is longer than {maximum} bytes")
        if reason := jsonrpc.excess_reason(made, MAX_DEPTH):
            raise _patch_error(f"the result is too large: {reason}")
        return made


def _apply_patch(value: object, patch: bytes, left: int) -> tuple[object, int]:
    """Apply one patch. Return the result and the number of bytes that may still be copied."""
    for number, each in enumerate(_operations(patch)):
        operation = _read(each, number)
        try:
            if operation["op"] == _COPY:
                left -= _copied_size(value, operation.get("from"))
            if left >= 0:
                value = JsonPatch([operation]).apply(value, in_place=True)
        except JsonPatchTestFailed:
            raise _patch_error(f"operation {number} is a failed test") from None
        except _FAILURES:
            raise _patch_error(f"operation {number}, {operation['op']}, does not fit") from None
        if left < 0:
            raise _patch_error(f"operation {number} copies too much")
    return value, left


def _operations(patch: bytes) -> list[object]:
    operations = jsonrpc.decode_value(patch)
    if not isinstance(operations, list):
        raise _patch_error("it is no list of operations")
    listed = cast("list[object]", operations)
    if len(listed) > MAX_OPERATIONS:
        raise _patch_error(f"it has more than {MAX_OPERATIONS} operations")
    return listed


def _read(value: object, number: int) -> dict[str, Any]:
    """Return one valid operation of RFC 6902. The library accepts some others."""
    operation = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if operation.get("op") not in _OPERATIONS:
        raise _patch_error(f"operation {number} is invalid")
    for member in ("path", "from"):
        path = operation.get(member, "")
        if not isinstance(path, str) or len(path) > MAX_PATH_LENGTH or path.count("/") > MAX_DEPTH:
            raise _patch_error(f"operation {number} points nowhere")
    return operation


def _copied_size(value: object, source: object) -> int:
    if not isinstance(source, str):
        raise TypeError(source)
    return len(jsonrpc.to_json(JsonPointer(source).resolve(value)))


def _patch_error(reason: str) -> MalformedMessage:
    return MalformedMessage(f"the patch fails: {reason}", UPSTREAM_FAILED)
