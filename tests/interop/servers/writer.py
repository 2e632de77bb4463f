"""A server of the authoring kit whose tools stream: it tells the test what it does, and obeys it.

Each tool opens a connection to the test, says what has happened there with the time by its own
clock (which the processes of a machine share), and waits for its word. No clock decides anything.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator

from mcp.server.mcpserver import MCPServer

from comity.sdk.streaming import StreamingTools, report_progress, send_chunk

server = MCPServer("writer", log_level="WARNING")
tools = StreamingTools(server)


class Line:
    """The way to the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, name: str) -> "Line":
        line = cls(*await asyncio.open_connection("127.0.0.1", port))
        line.say(name)
        return line

    def say(self, what: str) -> None:
        self._writer.write(f"{what} {time.monotonic()}\n".encode())

    async def word(self) -> None:
        await self._reader.readline()


@tools.tool()
async def speaks(name: str, port: int) -> AsyncIterator[str]:
    """Says its first words, then waits for the test before it says the rest."""
    line = await Line.open(port, name)
    try:
        yield "The first words, "
        line.say("waits")
        await line.word()
        yield "and the rest."
        line.say("done")
    except asyncio.CancelledError:
        line.say("cancelled")
        raise


@tools.tool()
async def counts(name: str, many: int) -> AsyncIterator[str]:
    """Says its numbers one by one."""
    for number in range(many):
        yield f"{name}:{number} "
        await asyncio.sleep(0)


@server.tool()
async def floods(name: str, port: int, many: int, size: int) -> str:
    """Says a great deal, and gives a short answer."""
    line = await Line.open(port, name)
    for number in range(many):
        await send_chunk(f"{number:08d}".ljust(size, "x"))
    line.say("done")
    return "a great deal"


@server.tool()
async def works(name: str, port: int) -> str:
    """Says how far it is, then waits for the test."""
    line = await Line.open(port, name)
    await report_progress(0.25, "a quarter", 300)
    line.say("waits")
    await line.word()
    return "done"


@server.tool()
async def echo(text: str) -> str:
    """Says it again."""
    return text


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
