"""Tells the loop when a child process has died, the same way under asyncio and uvloop."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress


def call_at_death(
    process: subprocess.Popen[bytes], died: Callable[[], None], loop: asyncio.AbstractEventLoop
) -> None:
    """`died` is called once, on the loop.

    Where the system has process descriptors, the process is then still a zombie, so that its id
    cannot have become somebody else's; `died` must collect it with `process.poll()`.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # Another system than Linux, an old kernel, a sandbox, or no descriptor left.
        threading.Thread(target=_wait, args=(process, died, loop), daemon=True).start()
        return

    def readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        died()

    loop.add_reader(descriptor, readable)


def _wait(
    process: subprocess.Popen[bytes], died: Callable[[], None], loop: asyncio.AbstractEventLoop
) -> None:
    process.wait()
    # The loop may be gone by then, and nobody left who would like to know.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(died)
