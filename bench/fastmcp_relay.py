"""FastMCP's proxy, as shipped (a new upstream client for every request) or with one reused."""

import sys

import uvloop
from fastmcp import Client
from fastmcp.client.transports import ClientTransport, StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy

from bench import doorstep
from bench.eras import MODERN


async def relay(client_use: str, era: str, target: list[str]) -> None:
    is_http = "://" in target[0]
    upstream: ClientTransport = (
        StreamableHttpTransport(target[0]) if is_http else StdioTransport(target[0], target[1:])
    )
    if client_use == "shipped":
        await doorstep.serve(create_proxy(upstream).http_app, "fastmcp", lifespan=True)
        return
    async with Client(upstream, mode=MODERN if era == "modern" else "legacy") as client:
        await doorstep.serve(create_proxy(client).http_app, "fastmcp-reused", lifespan=True)


if __name__ == "__main__":
    uvloop.run(relay(sys.argv[1], sys.argv[2], sys.argv[3:]))
