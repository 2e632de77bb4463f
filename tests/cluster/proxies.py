"""What stands between a node and NATS in tests, and can swallow all that it is given."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class Proxy:
    """Forwards to one port; once it swallows, connections stay and nothing comes through."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._busy: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0

    def swallow(self) -> None:
        self._is_open.clear()

    def forward(self) -> None:
        self._is_open.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            with contextlib.suppress(OSError):
                await self._is_open.wait()
                back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._to)
                both = [
                    asyncio.ensure_future(self._pass_on(reader, back_writer)),
                    asyncio.ensure_future(self._pass_on(back_reader, writer)),
                ]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    back_writer.transport.abort()
                    for each in both:
                        each.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
        finally:
            writer.transport.abort()
            self._busy.discard(task)

    async def end(self) -> None:
        for task in [*self._busy]:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def a_proxy(port: int) -> AsyncGenerator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
