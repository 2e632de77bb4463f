"""A gateway that was started for a client on pipes ends when nobody has needed it for a while.

Each client on pipes holds a shared lock on the gateway's record as long as it is there, and loses
it with its process. Clients over HTTP are seen by their requests.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LOOKS = 4
"""How often it is looked in each length of time after which the gateway would end."""


class Idling:
    """The application as it is served, with how many requests are open and when the last was."""

    def __init__(self, app: Any, is_needed: Callable[[], bool]) -> None:
        self._app = app
        self._is_needed = is_needed
        self._open = 0
        self._last = 0.0
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
            self._last = asyncio.get_running_loop().time()

    def serve(self, request: Any) -> bool:
        """A call that has come as a whole."""
        self._last = asyncio.get_running_loop().time()
        return self._app.serve(request)

    def watch(self, record: Path, idle: timedelta, end: Callable[[], None]) -> None:
        """End this process once there was nobody for so long."""
        self._watching = asyncio.ensure_future(self._watch(record, idle.total_seconds(), end))

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, record: Path, idle: float, end: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            await asyncio.sleep(max(idle / LOOKS, 0.05))
            if self._open or self._is_needed() or is_joined(record):
                since = loop.time()
            elif loop.time() - max(since, self._last) >= idle and leave(record):
                log.info("nobody has needed this gateway for %g s; it ends", idle)
                end()
                return


def join(record: Path) -> int | None:
    """Have the gateway of this record stay; None where it is about to end, or has."""
    return _lock(record, fcntl.LOCK_SH)


def is_joined(record: Path) -> bool:
    """Whether a client on pipes is there."""
    handle = _lock(record, fcntl.LOCK_EX)
    if handle is not None:
        os.close(handle)
    return handle is None


def leave(record: Path) -> bool:
    """Take leave for good, unless a client on pipes has come: none can come from now on.

    The lock is held to the end of this process.
    """
    return _lock(record, fcntl.LOCK_EX) is not None


def _lock(record: Path, kind: int) -> int | None:
    """The record, locked; None where it is not there, or another process holds it otherwise."""
    try:
        handle = os.open(record, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
