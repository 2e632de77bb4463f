"""A small JSON document fetched from an address that an operator wrote down, within bounds.

No redirection is followed. Whoever answers in another way than with a document of modest size, in
time, has not answered. (attack 9)
"""

import http.client
import json
import time
from contextlib import closing
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.adapters.requesting import NO_PROXIES, HttpRequest
from comity.rules.proxies import Proxies
from comity.wire.errors import UPSTREAM_DOWN, Unavailable

SECONDS: Final = 5.0
MOST_BYTES: Final = 256 * 1024
_PIECE: Final = 16 * 1024


def fetch(url: str, seconds: float = SECONDS, proxies: Proxies = NO_PROXIES) -> dict[str, Any]:
    """The members of the document there; raises Unavailable. Blocks: call it in a thread."""
    try:
        found: object = json.loads(_body(url, time.monotonic() + seconds, proxies))
    except (OSError, http.client.HTTPException) as problem:
        raise _unavailable(url, str(problem) or type(problem).__name__) from None
    except (ValueError, RecursionError):
        raise _unavailable(url, "what is there is no JSON") from None
    if not isinstance(found, dict):
        raise _unavailable(url, "what is there is no JSON object")
    return cast("dict[str, Any]", found)


def _body(url: str, until: float, proxies: Proxies) -> bytes:
    request = HttpRequest(url, proxies, _left(until))
    with (
        closing(request.connection),
        request.send("GET", {"Accept": "application/json"}) as reply,
    ):
        if reply.status != 200:
            raise http.client.HTTPException(f"status {reply.status}")
        return _gathered(reply, until)


def _gathered(reply: http.client.HTTPResponse, until: float) -> bytes:
    body = bytearray()
    while piece := reply.read1(_PIECE):
        body += piece
        if len(body) > MOST_BYTES:
            raise http.client.HTTPException(f"more than {MOST_BYTES} bytes")
        _left(until)
    return bytes(body)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _unavailable(url: str, because: str) -> Unavailable:
    host = urlsplit(url).netloc
    return Unavailable(f"{host} did not give what was asked of it: {because:.200}", UPSTREAM_DOWN)
