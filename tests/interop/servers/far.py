"""A small HTTP server of one era or both, quick to start: `... -m ...servers.far PORT NAME ERAS`.

ERAS is `handshake`, `modern` or `both`. Its tools: `say` gives back its arguments, `slow` does so
after some progress on a stream. `POST /change` adds a tool or takes it away again, and tells who
listens. It forgets its sessions when it is started again, as servers do.
"""

import asyncio
import itertools
import json
import sys
from typing import Any

type Frame = dict[str, Any]

PORT, NAME, ERAS = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HANDSHAKE, MODERN = ERAS != "modern", ERAS != "handshake"
CHANGED = "notifications/tools/list_changed"
CAPABILITIES = {"tools": {"listChanged": True}}
ABOUT = {"name": NAME, "version": "1"}


class State:
    """What the server knows while it runs."""

    def __init__(self) -> None:
        self.extended = False
        self.sessions: set[str] = set()
        self.names = itertools.count(1)
        # Who listens, with what each of its messages has to bear.
        self.listeners: dict[asyncio.StreamWriter, Frame] = {}

    def tools(self) -> list[Frame]:
        names = ["say", "slow", *(["extra"] if self.extended else [])]
        return [{"name": name, "inputSchema": {"type": "object"}} for name in names]

    def change(self) -> None:
        self.extended = not self.extended
        for writer, params in list(self.listeners.items()):
            _event(writer, {"method": CHANGED, "params": params})


STATE = State()


async def answer(frame: Frame, writer: asyncio.StreamWriter) -> None:
    """Answer one request on its connection."""
    method, params = frame["method"], frame.get("params", {})
    if method == "initialize" and HANDSHAKE:
        session = f"{NAME}-{next(STATE.names)}"
        STATE.sessions.add(session)
        hello = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": ABOUT}
        _respond(writer, 200, {"id": frame["id"], "result": hello}, f"mcp-session-id: {session}")
    elif method == "server/discover" and MODERN:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES}
        _respond(writer, 200, {"id": frame["id"], "result": _whole(found)})
    elif method == "tools/list":
        _respond(writer, 200, {"id": frame["id"], "result": _whole({"tools": STATE.tools()})})
    elif method == "tools/call":
        await _call(frame, params, writer)
    elif method == "subscriptions/listen" and MODERN:
        _begin_stream(writer)
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": frame["id"]}}
        told = {"notifications": params["notifications"], **meta}
        _event(writer, {"method": "notifications/subscriptions/acknowledged", "params": told})
        STATE.listeners[writer] = meta
    elif method == "ping":
        _respond(writer, 200, {"id": frame["id"], "result": {}})
    else:
        unknown = {"code": -32601, "message": f"no {method} here"}
        _respond(writer, 404 if MODERN else 200, {"id": frame["id"], "error": unknown})


async def _call(frame: Frame, params: Frame, writer: asyncio.StreamWriter) -> None:
    heard = {"by": NAME, "heard": params.get("arguments", {})}
    text = [{"type": "text", "text": "said"}]
    said = {"id": frame["id"], "result": _whole({"content": text, "structuredContent": heard})}
    if params["name"] != "slow":
        _respond(writer, 200, said)
        return
    _begin_stream(writer)
    token = params.get("_meta", {}).get("progressToken")
    for step in range(3 if token is not None else 0):
        progress = {"progressToken": token, "progress": step, "total": 3}
        _event(writer, {"method": "notifications/progress", "params": progress})
        await asyncio.sleep(0.02)
    _event(writer, said)
    writer.write(b"0\r\n\r\n")


def _whole(result: Frame) -> Frame:
    return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}


def _respond(writer: asyncio.StreamWriter, status: int, frame: Frame | None, *more: str) -> None:
    body = b"" if frame is None else json.dumps({"jsonrpc": "2.0", **frame}).encode()
    lines = [f"HTTP/1.1 {status} x", "content-type: application/json", *more]
    head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
    writer.write(head.encode() + body)


def _begin_stream(writer: asyncio.StreamWriter) -> None:
    head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())


def _event(writer: asyncio.StreamWriter, frame: Frame) -> None:
    data = b"data: " + json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            verb, path, _ = head.split(" ", 2)
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            await _take(verb, path, headers, body, writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        STATE.listeners.pop(writer, None)
        writer.close()


async def _take(
    verb: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
) -> None:
    session = headers.get("mcp-session-id")
    if path == "/change":
        STATE.change()
        _respond(writer, 204, None)
    elif session is not None and session not in {each.lower() for each in STATE.sessions}:
        _respond(writer, 404, None)
    elif verb == "get" and HANDSHAKE:
        _begin_stream(writer)
        STATE.listeners[writer] = {}
    elif verb != "post":
        _respond(writer, 200 if verb == "delete" else 405, None)
    elif "id" in (frame := json.loads(body)):
        await answer(frame, writer)
    else:
        _respond(writer, 202, None)


async def main() -> None:
    server = await asyncio.start_server(converse, "127.0.0.1", PORT, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
