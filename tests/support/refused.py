"""What a client is told that its request was not done: in an error, or in a result for a model."""

import json
from typing import Any

from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, ErrorBody, Frame
from comity.mcp.refusals import REFUSAL_KEY

NO_CODE = 0
"""A refusal in a result has no number."""


def refusal_in(frame: Frame) -> ErrorBody | None:
    """The refusal an answer carries, in either form, or None."""
    if frame.result is UNSET:
        return jsonrpc.error_of(frame)
    if REFUSAL_KEY.encode() not in bytes(frame.result):
        return None
    body: dict[str, Any] = json.loads(bytes(frame.result))["_meta"][REFUSAL_KEY]
    return ErrorBody(NO_CODE, str(body["reason"]), body)


def kind_of(error: ErrorBody | None) -> str:
    """Which fault it is, by its name on the wire."""
    assert error is not None
    assert isinstance(error.data, dict)
    return str(error.data["error_type"])  # type: ignore[index]
