"""As many tool servers as are asked for, in one process: each at `/server-K/mcp`, with its tools.

Run as `python -m tests.scale.many_servers TOOLS`. It says on stderr where it listens. A definition
has some 400 bytes, as that of an ordinary tool has.
"""

import asyncio
import json
import sys
from typing import Any, cast

import msgspec
import uvloop

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "many", "version": "1"},
}
SAID = {"content": [{"type": "text", "text": "said"}]}


def definition(server: str, number: int) -> dict[str, Any]:
    """A tool as servers describe them, some 400 bytes of it."""
    subject = {"type": "string", "description": "What it is about, in the words of the user"}
    limit = {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    return {
        "name": f"tool-{number}",
        "title": f"Tool {number} of {server}",
        "description": f"Finds entry {number} in the records of {server} and tells what it says.",
        "inputSchema": {
            "type": "object",
            "properties": {"subject": subject, "limit": limit},
            "required": ["subject"],
        },
        "annotations": {"readOnlyHint": True},
    }


class ManyServers(asyncio.Protocol):
    """One keep-alive connection to any of the servers."""

    def __init__(self, tools: int) -> None:
        self._tools = tools
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1").lower()
            _, _, length = head.partition("content-length: ")
            whole = end + 4 + int(length.partition("\r\n")[0] or "0")
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            self._transport.write(self._respond(head, body))

    def _respond(self, head: str, body: bytes) -> bytes:
        verb, path, _ = head.split(" ", 2)
        if verb != "post":
            return _http("200 OK" if verb == "delete" else "405 Method Not Allowed")
        frame = _decode(body)
        if "id" not in frame:
            return _http("202 Accepted")
        if frame["method"] == "tools/list":
            server = path.split("/")[1]
            tools = [definition(server, number) for number in range(self._tools)]
            return _answer(frame, {"tools": tools})
        if frame["method"] == "initialize":
            return _answer(frame, HELLO, f"mcp-session-id: {id(frame):x}\r\n")
        return _answer(frame, SAID if frame["method"] == "tools/call" else None)


def _answer(frame: dict[str, Any], result: object, headers: str = "") -> bytes:
    told: dict[str, Any] = {"jsonrpc": "2.0", "id": frame["id"], "result": result}
    if result is None:
        told = {"jsonrpc": "2.0", "id": frame["id"], "error": {"code": -32601, "message": "no"}}
    return _http("200 OK", _encode(told), headers + "content-type: application/json\r\n")


def _http(status: str, body: bytes = b"", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def main() -> None:
    tools = int(sys.argv[1])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ManyServers(tools), "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    size = len(json.dumps(definition("server-50", 500)))
    print(
        f"listening on http://127.0.0.1:{port}, {size} bytes a tool",
        file=sys.stderr,
        flush=True,
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
