"""The talking server over HTTP, with a record of every request's method, path and headers.

`GET /record` gives the record. A response can be written over many lines (`PRETTY=1`), as JSON may.
"""

import json
import os
import sys
from typing import Any

import uvicorn

from tests.conformance.servers.talker import received
from tests.interop.servers.by_hand import HttpDoor, Message, Receive, Reply

record: list[dict[str, Any]] = []


class Recorder:
    """Stands before the server's own door."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    async def __call__(self, scope: Message, receive: Receive, send: Reply) -> None:
        if scope["path"] == "/record":
            await self._tell(send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        record.append({"method": scope["method"], "path": scope["path"], "headers": headers})
        await self._door(scope, receive, self._pretty(send) if "PRETTY" in os.environ else send)

    def _pretty(self, send: Reply) -> Reply:
        """Spread JSON bodies over lines; one start has to wait for its body's new length."""
        waiting: list[Message] = []

        async def send_prettily(message: Message) -> None:
            if message["type"] == "http.response.start":
                waiting.append(message)
                return
            body = message["body"]
            start = waiting.pop() if waiting else None
            if body[:1] == b"{":
                body = json.dumps(json.loads(body), indent=2).replace("\n", "\r\n").encode()
            if start is not None:
                kept = [pair for pair in start["headers"] if pair[0] != b"content-length"]
                await send({**start, "headers": kept})
            await send({**message, "body": body})

        return send_prettily

    async def _tell(self, send: Reply) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(record).encode()})


if __name__ == "__main__":
    app = Recorder(HttpDoor(received, plain_json="PRETTY" in os.environ))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", log_level="warning")
