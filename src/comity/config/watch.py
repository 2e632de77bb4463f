"""When the files of a configuration have changed: looked at once a second, or when asked.

Asking the system is cheap, needs no library, and works where notices of changes do not: in
containers, on network disks, for files that are replaced as a whole.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

LOOK_EVERY_SECONDS: Final = 1.0

type Look = tuple[tuple[int, int, int] | None, ...]


async def file_changes(
    paths: Sequence[Path], asked: asyncio.Event, every: float = LOOK_EVERY_SECONDS
) -> AsyncGenerator[None]:
    """Yields each time that the files are others and stand still again, or that `asked` is set.

    Once at the beginning too: they may have changed between being read and being watched.
    """
    taken: Look = ()
    latest = await _look(paths)
    while True:
        was_asked = await _asked_within(asked, every)
        before, latest = latest, await _look(paths)
        # A file that is being written is not read before its writer has come to an end.
        if was_asked or (latest != taken and latest == before):
            taken = latest
            yield


async def _asked_within(asked: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await asked.wait()
    except TimeoutError:
        return False
    asked.clear()
    return True


async def _look(paths: Sequence[Path]) -> Look:
    # In a thread: a network disk that has gone silent must hold up nobody.
    return await asyncio.to_thread(lambda: tuple(_seen(path) for path in paths))


def _seen(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
