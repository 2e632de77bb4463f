"""When files count as changed: looked at as often as the test wants."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from comity.config.watch import file_changes

SECONDS = 60.0
EVERY = 0.01


class Watch:
    """A watch over one file, and how often it was heard of."""

    def __init__(self, changes: AsyncGenerator[None]) -> None:
        self.heard = 0
        self._changes = changes
        self._task = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        async with aclosing(self._changes):
            async for _ in self._changes:
                self.heard += 1

    async def hears(self, times: int) -> None:
        async with asyncio.timeout(SECONDS):
            while self.heard < times:
                await asyncio.sleep(EVERY)
        assert self.heard == times

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _rewrite(path: Path) -> None:
    path.write_text("longer than before")


def _touch(path: Path) -> None:
    os.utime(path, (1, 1))


def _replace(path: Path) -> None:
    stat = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [_rewrite, _touch, _replace, Path.unlink])
async def test_a_file_that_is_another_is_noticed_once(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("before")
    watch = Watch(file_changes([file], asyncio.Event(), EVERY))
    try:
        await watch.hears(1)
        change(file)
        await watch.hears(2)
        file.write_text("and again")
        await watch.hears(3)
    finally:
        await watch.stop()


async def test_a_file_that_comes_is_noticed(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    watch = Watch(file_changes(files, asyncio.Event(), EVERY))
    try:
        await watch.hears(1)
        files[1].write_text("new")
        await watch.hears(2)
    finally:
        await watch.stop()


async def test_it_is_looked_at_once_when_asked(tmp_path: Path) -> None:
    asked = asyncio.Event()
    watch = Watch(file_changes([tmp_path / "a"], asked, SECONDS * 10))
    try:
        asked.set()
        await watch.hears(1)
        assert not asked.is_set()
        asked.set()
        await watch.hears(2)
    finally:
        await watch.stop()


async def test_a_file_is_not_read_while_it_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    sizes = iter([1, 1, 1, 2, 3, 4, 4])

    async def look(paths: object) -> tuple[tuple[int, int, int]]:
        looks.append(next(sizes))
        return ((0, looks[-1], 0),)

    monkeypatch.setattr("comity.config.watch._look", look)
    async with aclosing(file_changes([tmp_path / "a"], asyncio.Event(), EVERY)) as heard:
        await anext(heard)
        assert looks == [1, 1]
        await anext(heard)
        assert looks == [1, 1, 1, 2, 3, 4, 4]
