"""Turns the HTTP response of an API into the result of a tool call."""

import base64
from http import HTTPStatus
from typing import Any, Final

import msgspec

from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import FrameLimits

MAX_ERROR_LENGTH: Final = 4_000
_ENVELOPE_LEVELS: Final = 8
_TEXT_TYPES: Final = ("text/", "application/xml", "application/yaml", "application/javascript")


def error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def read_response(
    status: int, content_type: str, body: bytes, limits: FrameLimits, *, needs_object: bool
) -> dict[str, Any]:
    """Return the result for a response. `needs_object` is set for a tool with an output schema."""
    if not 200 <= status < 300:
        return error_result(_describe_failure(status, content_type, body))
    plain = content_type.partition(";")[0].strip().lower()
    text = _decode_text(plain, body)
    if text is None:
        return {"content": [_media_content(plain, body)], "isError": False}
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": text or describe_status(status)}],
        "isError": False,
    }
    found = _decode_object(body, limits)
    if found is not None:
        result["structuredContent"] = found
    elif needs_object:
        # Clients refuse a result without the object that the output schema promises.
        result["content"].append(
            {
                "type": "text",
                "text": f"{describe_status(status)}: the call succeeded, but the answer is not "
                "the object that the document of the API promises.",
            }
        )
        result["isError"] = True
    return result


def describe_status(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _describe_failure(status: int, content_type: str, body: bytes) -> str:
    said = describe_status(status)
    if 300 <= status < 400:
        return f"{said}: the API redirects, which Comity does not follow"
    text = _decode_text(content_type.partition(";")[0].strip().lower(), body) or ""
    shown = text.strip()
    if len(shown) > MAX_ERROR_LENGTH:
        shown = f"{shown[:MAX_ERROR_LENGTH]}…"
    return f"{said}\n{shown}" if shown else said


def _decode_text(content_type: str, body: bytes) -> str | None:
    """Return the body as text, or None if it is something else."""
    is_json = "json" in content_type
    if not body or is_json or not content_type or content_type.startswith(_TEXT_TYPES):
        return body.decode("utf-8", "replace")
    return None


def _decode_object(body: bytes, limits: FrameLimits) -> dict[str, Any] | None:
    """Return the body as an object, if it is one within the limits of a message."""
    if body.lstrip()[:1] != b"{":
        return None
    # The object is inside a result, which has levels and values of its own.
    if jsonrpc.excess_reason(body, limits.depth - _ENVELOPE_LEVELS, limits.values // 2):
        return None
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None


def _media_content(content_type: str, body: bytes) -> dict[str, Any]:
    data = base64.b64encode(body).decode("ascii")
    kind = content_type.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": data, "mimeType": content_type[:100]}
    return {
        "type": "resource",
        "resource": {"uri": "response:///body", "mimeType": content_type[:100], "blob": data},
    }
