"""A tool server whose every effect is a line in a file: what really ran, whoever says otherwise.

It lives on while gateways die in front of it. `python -m tests.cluster.effects_server PORT FILE`
"""

import asyncio
import os
import sys
from typing import Any

from aiohttp import web

TOOLS = [
    {
        "name": name,
        "inputSchema": {"type": "object", "properties": {"n": {"type": "string"}}},
    }
    for name in ("write", "wipe", "look")
]


def make(effects: int) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        said: dict[str, Any] = await request.json()
        if "id" not in said:
            return web.Response(status=202)
        result: dict[str, Any] = {}
        if said["method"] == "initialize":
            about = {"name": "effects", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            result["serverInfo"] = about
        elif said["method"] == "tools/list":
            result = {"tools": TOOLS}
        elif said["method"] == "tools/call":
            name, n = said["params"]["name"], said["params"].get("arguments", {}).get("n", "")
            os.write(effects, f"{name} {n}\n".encode())
            # Long enough that some are under way whenever somebody dies.
            await asyncio.sleep(0.02)
            result = {"content": [{"type": "text", "text": f"did {n}"}], "isError": False}
        return web.json_response({"jsonrpc": "2.0", "id": said["id"], "result": result})

    async def no_stream(request: web.Request) -> web.StreamResponse:
        return web.Response(status=405)

    app = web.Application()
    app.router.add_post("/mcp", answer)
    app.router.add_get("/mcp", no_stream)
    app.router.add_delete("/mcp", no_stream)
    return app


if __name__ == "__main__":
    port, path = int(sys.argv[1]), sys.argv[2]
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    web.run_app(make(opened), host="127.0.0.1", port=port, print=None)
