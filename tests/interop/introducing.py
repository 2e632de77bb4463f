"""A proxy that shows a key for clients that can show none: it adds one header to each request.

What comes back passes as it is. The head of a request is all that is read of it, and how long its
body is.
"""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

HEAD_BYTES = 64 * 1024


@contextmanager
def introducing(port: int, credential: str) -> Generator[int]:
    """The port of a proxy that introduces whoever comes, for as long as the context lasts."""
    loop = asyncio.new_event_loop()
    header = b"Authorization: Bearer %b\r\n" % credential.encode()
    server = loop.run_until_complete(_serve(port, header))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _serve(port: int, header: bytes) -> asyncio.Server:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        passing = [
            asyncio.ensure_future(_pass_requests(reader, onward, header)),
            asyncio.ensure_future(_pass(onward_reader, writer)),
        ]
        try:
            # A connection is over for both as soon as one of them ends it.
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in passing:
                each.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            for each in (onward, writer):
                # At once: the loop may end before a peer that does not read has read the rest.
                each.transport.abort()
            await asyncio.sleep(0)

    return await asyncio.start_server(meet, "127.0.0.1", 0, limit=HEAD_BYTES)


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _pass_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, header: bytes
) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, _, rest = head.partition(b"\r\n")
            writer.write(first + b"\r\n" + header + rest)
            await _pass_body(reader, writer, head.lower())


async def _pass_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes
) -> None:
    if b"\r\ntransfer-encoding:" in head:
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            writer.write(line + await reader.readexactly(size + 2))
    elif b"\r\ncontent-length:" in head:
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        writer.write(await reader.readexactly(length))
    await writer.drain()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(HEAD_BYTES):
            writer.write(data)
            await writer.drain()
