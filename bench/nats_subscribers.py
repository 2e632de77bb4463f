"""The yardstick between nodes: subscribers of NATS on nats-py, and nothing beside them.

`grow N` and `say N` come line by line over a loopback socket; each is answered once every
subscriber has what was said.
"""

import asyncio
import sys

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.crowd import LENGTH

_SUBJECT = "t"
_TEXT = b"x" * LENGTH


class Subscribers:
    """One connection each; the first of them publishes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[Client] = []
        self._left = 0
        self._heard = asyncio.Event()

    async def grow(self, members: int) -> None:
        while len(self._clients) < members:
            connected = nats.connect(self._url, allow_reconnect=False)  # pyright: ignore[reportUnknownMemberType]
            client = await connected
            await client.subscribe(_SUBJECT, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]
            await client.flush()
            self._clients.append(client)

    async def say(self, number: int) -> None:
        self._left = number * len(self._clients)
        self._heard.clear()
        for _ in range(number):
            await self._clients[0].publish(_SUBJECT, _TEXT)
        await self._heard.wait()

    async def _hear(self, message: Msg) -> None:
        self._left -= 1
        if not self._left:
            self._heard.set()


async def main(url: str) -> None:
    subscribers = Subscribers(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            verb, number = line.split()
            await (subscribers.grow if verb == b"grow" else subscribers.say)(int(number))
            writer.write(b"done\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"nats-py: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
