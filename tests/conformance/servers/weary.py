"""The talking server over HTTP, some of whose tools answer with a status of HTTP and nothing else.

`status_503` answers 503, as a proxy does whose server is away; any other number likewise.
"""

import json
import sys

import uvicorn

from tests.conformance.servers import talker_words
from tests.conformance.servers.talker import received, tools
from tests.interop.servers.by_hand import HttpDoor, Message, Receive, Reply

STATUSES = (500, 503, 504)


class Weary:
    """Stands before the server's own door."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    async def __call__(self, scope: Message, receive: Receive, send: Reply) -> None:
        if scope["method"] != "POST":
            await self._door(scope, receive, send)
            return
        message = await receive()
        while message.get("more_body"):
            more = await receive()
            message = {**more, "body": message["body"] + more["body"]}
        name = json.loads(message["body"]).get("params", {}).get("name", "")
        if name.startswith("status_"):
            status = int(name.removeprefix("status_"))
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        waiting = [message]

        async def received_before() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._door(scope, received_before, send)


if __name__ == "__main__":
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for status in STATUSES:
        tools.append({**talker_words.plain_tool(f"status_{status}"), "outputSchema": schema})
    app = Weary(HttpDoor(received, plain_json=False))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", log_level="warning")
