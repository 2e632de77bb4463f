"""Names and URIs as HTTP headers carry them: plain where that is safe, else wrapped in base64.

The modern era repeats a call's name in `Mcp-Name`; a value that would not survive an HTTP field is
sent as `=?base64?…?=`, and only the one canonical spelling of it is understood.
"""

import base64
import re
from typing import Final

_SAFE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_WRAPPED: Final = re.compile(r"=\?base64\?(.*)\?=")


def wrap(value: str) -> bytes:
    """The value as a header may carry it."""
    if (value == "" or _SAFE.fullmatch(value)) and not _WRAPPED.fullmatch(value):
        return value.encode()
    return b"=?base64?%b?=" % base64.b64encode(value.encode())


def unwrap(header: bytes) -> str | None:
    """What a header says; None where it is not said properly."""
    value = header.strip(b" \t").decode("latin-1")
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return value
    try:
        plain = base64.b64decode(wrapped[1], validate=True)
        return plain.decode() if base64.b64encode(plain).decode() == wrapped[1] else None
    except ValueError:
        return None
