"""A tool server on its pipes or its port, until it is to close them by itself. (MGP §11.4)

The SDK reads standard input in a thread that nothing can call back, so that a server which has been
asked to go would stay until its client closes the pipe. So it gets lines that can be given up.
"""

import asyncio
import os
import threading
from typing import Any, Final, Self, cast

import uvicorn
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

CHUNK: Final = 64 * 1024
LONGEST_LINE: Final = 16 * 1024 * 1024
PARTING_SECONDS: Final = 1.0
_MOST_WAITING: Final = 64


class Lines:
    """The lines of a descriptor, read by a thread that ends with the process."""

    def __init__(self, descriptor: int = 0) -> None:
        # What tools and their children read from now on is empty, as the SDK has it too.
        self._own = os.dup(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        threading.Thread(target=self._read, daemon=True).start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = None if self._is_over else await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def end(self) -> None:
        """No more lines, as if the other side had closed the pipe."""
        self._is_over = True
        if self._lines.empty():
            self._lines.put_nowait(None)

    def _read(self) -> None:
        held = b""
        while chunk := self._chunk():
            *whole, held = (held + chunk).split(b"\n")
            for line in whole:
                self._give(line.decode(errors="replace"))
            if len(held) > LONGEST_LINE:
                break
        self._give(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._own, CHUNK)
        except OSError:
            return b""

    def _give(self, line: str | None) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
        except RuntimeError:
            # The loop is closed: there is nobody left to read.
            return


async def serve_pipes(server: Server[Any] | MCPServer[Any], closed: asyncio.Event) -> None:
    # The SDK's own server within has no public name.
    inner: Server[Any] = (
        server if isinstance(server, Server) else cast("Any", server)._lowlevel_server
    )
    lines = Lines()
    serving = asyncio.ensure_future(_serve(inner, lines))
    closing = asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({serving, closing}, return_when=asyncio.FIRST_COMPLETED)
        lines.end()
        # The SDK waits for calls that nobody waits for any more.
        await asyncio.wait({serving}, timeout=PARTING_SECONDS)
    finally:
        closing.cancel()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    if not serving.cancelled():
        serving.result()


async def _serve(server: Server[Any], lines: Lines) -> None:
    async with stdio_server(stdin=cast("Any", lines)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_port(
    server: Server[Any] | MCPServer[Any], closed: asyncio.Event, host: str, port: int
) -> None:
    app = server.streamable_http_app(host=host)
    shell = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))

    async def close() -> None:
        await closed.wait()
        shell.should_exit = True

    closing = asyncio.ensure_future(close())
    try:
        await shell.serve()
    finally:
        closing.cancel()
