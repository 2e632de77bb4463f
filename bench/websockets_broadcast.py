"""The yardstick for topics: the `websockets` library's own broadcast(), and nothing beside it."""

import asyncio
import sys

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve


async def main() -> None:
    members: set[ServerConnection] = set()

    async def hear(member: ServerConnection) -> None:
        members.add(member)
        try:
            async for message in member:
                broadcast(members, message)
        finally:
            members.discard(member)

    async with serve(hear, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"bare: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main())
