"""The test's end of the lines that the tools of `servers/writer.py` open: what they do, when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

SECONDS = 60.0


class Signals:
    """What each tool has said so far, and a word for it."""

    def __init__(self) -> None:
        self.port = 0
        self._said: dict[str, dict[str, float]] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._news = asyncio.Condition()

    async def when(self, name: str, what: str) -> float:
        """The time by the tool's clock at which this has happened to it; waits until it has."""
        async with asyncio.timeout(SECONDS), self._news:
            await self._news.wait_for(lambda: what in self._said.get(name, {}))
        return self._said[name][what]

    def has(self, name: str, what: str) -> bool:
        return what in self._said.get(name, {})

    def go(self, name: str) -> None:
        self._writers[name].write(b"go\n")

    async def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
            await writer.wait_closed()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().split()[0]
        self._said[name], self._writers[name] = {}, writer
        async for line in reader:
            what, at = line.decode().split()
            async with self._news:
                self._said[name][what] = float(at)
                self._news.notify_all()


@asynccontextmanager
async def signals() -> AsyncGenerator[Signals]:
    made = Signals()
    listening = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        await made.close()
