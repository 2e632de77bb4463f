"""Shutdown of a gateway that was started for a stdio client, once no client is left."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


CHECKS_PER_PERIOD = 4
"""How many checks happen in one idle period."""


class IdleShutdownApp:
    """Wraps the ASGI application and records the open requests and the time of the last one."""

    def __init__(self, app: Any, is_needed: Callable[[], bool]) -> None:
        self._app = app
        self._is_needed = is_needed
        self._open_requests = 0
        self._last_request_at = 0.0
        self._watch_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._open_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open_requests -= 1
            self._last_request_at = asyncio.get_running_loop().time()

    def serve(self, request: Any) -> bool:
        """Record and serve a call on the fast path."""
        self._last_request_at = asyncio.get_running_loop().time()
        return self._app.serve(request)

    def watch(self, record: Path, idle: timedelta, end: Callable[[], None]) -> None:
        """Call `end` after the gateway had no client and no work for the `idle` period."""
        self._watch_task = asyncio.ensure_future(self._watch(record, idle.total_seconds(), end))

    def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def _watch(self, record: Path, idle: float, end: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            await asyncio.sleep(max(idle / CHECKS_PER_PERIOD, 0.05))
            if self._open_requests or self._is_needed() or is_gateway_in_use(record):
                since = loop.time()
            elif loop.time() - max(since, self._last_request_at) >= idle and retire_gateway(record):
                log.info("No client used this gateway for %g s. It stops.", idle)
                end()
                return


def acquire_gateway(record: Path) -> int | None:
    """Take a shared lock on the record, which keeps its gateway running.

    Returns the file descriptor, or None if the gateway has ended or is about to end.
    """
    return _lock(record, fcntl.LOCK_SH)


def is_gateway_in_use(record: Path) -> bool:
    """Return whether a stdio client holds the gateway. Without its record, none can find it."""
    handle = _lock(record, fcntl.LOCK_EX)
    if handle is not None:
        os.close(handle)
    return handle is None and record.exists()


def retire_gateway(record: Path) -> bool:
    """Take the exclusive lock, so that no stdio client can join. Returns False if one has joined.

    The process keeps the lock until it exits.
    """
    return _lock(record, fcntl.LOCK_EX) is not None or not record.exists()


def _lock(record: Path, kind: int) -> int | None:
    """Return a descriptor of the locked record, or None if it is missing or the lock is taken."""
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
