"""Detection of changed configuration files, once a second or on request.

Polling is cheap and needs no library. It works where change notifications do not: in containers, on
network disks, and for files that are replaced as a whole.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

from comity.toolkit.background import aligned_time

LOOK_EVERY_SECONDS: Final = 1.0

type Look = tuple[tuple[int, int, int] | None, ...]


async def file_changes(
    paths: Sequence[Path], asked: asyncio.Event, every: float = LOOK_EVERY_SECONDS
) -> AsyncGenerator[None]:
    """Yield each time the files have changed and are stable again, or when `asked` is set.

    The first yield is at the start, since the files may have changed after they were read.
    """
    taken: Look = ()
    latest = await _look(paths)
    while True:
        was_asked = await _asked_within(asked, every)
        before, latest = latest, await _look(paths)
        # A file that is still being written is not read before it is stable.
        if was_asked or (latest != taken and latest == before):
            taken = latest
            yield


async def _asked_within(asked: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout_at(aligned_time(seconds)):
            await asked.wait()
    except TimeoutError:
        return False
    asked.clear()
    return True


async def _look(paths: Sequence[Path]) -> Look:
    # Runs in a thread, because a network disk that does not answer would block the event loop.
    return await asyncio.to_thread(lambda: tuple(_file_stat(path) for path in paths))


def _file_stat(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
