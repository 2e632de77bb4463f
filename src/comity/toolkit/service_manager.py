"""Messages to the service manager: systemd's protocol of `sd_notify`, without its library."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Final

log = logging.getLogger(__name__)

READY_STATE: Final = "READY=1"
STOPPING_STATE: Final = "STOPPING=1"
WATCHDOG_STATE: Final = "WATCHDOG=1"


class ServiceManager:
    """Sends the state of this process to the socket in NOTIFY_SOCKET, or nowhere without one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the null byte of a socket without a file.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self.watchdog_seconds = _watchdog_seconds(environ) if name else 0.0

    def notify(self, *lines: str) -> None:
        """Send these lines. A manager that does not listen stops no gateway."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.setblocking(False)
                sending.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("cannot notify the service manager: %s", error)

    @contextlib.asynccontextmanager
    async def feed_watchdog(self) -> AsyncGenerator[None]:
        """Report that the event loop runs, at half the interval that the manager allows."""
        if not self.watchdog_seconds:
            yield
            return
        feeding = asyncio.ensure_future(self._feed())
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self) -> None:
        while True:
            self.notify(WATCHDOG_STATE)
            await asyncio.sleep(self.watchdog_seconds / 2)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """Return the interval of the watchdog of this process, or 0 without one."""
    interval, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_ours = not pid or pid == str(os.getpid())
    return int(interval) / 1e6 if is_ours and interval.isdecimal() else 0.0
