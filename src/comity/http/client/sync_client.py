"""Blocking HTTP requests, for commands.

All other code uses the connection pool. The pool needs asyncio and httptools, and a small command
that imports them starts in 0.22 s of CPU instead of 0.13 s.
"""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

SyncConnection = http.client.HTTPConnection
SYNC_ERRORS: Final = (OSError, http.client.HTTPException)
"""The exceptions of a request without a complete response."""

_CHUNK_BYTES: Final = 64 * 1024


def connect_sync(url: str, timeout: timedelta) -> SyncConnection:
    """Return a connection to the host of a URL. Proxy variables are ignored."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout.total_seconds())


def request_sync(
    connection: SyncConnection,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    max_bytes: int = _CHUNK_BYTES,
) -> tuple[int, bytes]:
    """Return the status and up to `max_bytes` of the body, then close the connection.

    Raises one of `SYNC_ERRORS`.
    """
    with closing(connection):
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return reply.status, reply.read(max_bytes)


def stream_sync(
    connection: SyncConnection, path: str, headers: Mapping[str, str]
) -> Iterator[tuple[int, bytes]]:
    """Yield the status with each piece of the body as it arrives. The first piece is empty.

    Raises one of `SYNC_ERRORS`. The connection is closed at the end.
    """
    with closing(connection):
        connection.request("GET", path, headers=dict(headers))
        reply = connection.getresponse()
        yield reply.status, b""
        while piece := reply.read1(_CHUNK_BYTES):
            yield reply.status, piece


def is_no_http(problem: Exception) -> bool:
    """Whether the peer sent an answer that is not HTTP. A peer that only hung up may speak HTTP."""
    is_left = isinstance(problem, http.client.RemoteDisconnected | http.client.IncompleteRead)
    return isinstance(problem, http.client.HTTPException) and not is_left
