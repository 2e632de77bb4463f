"""A server of MGP that asks people amid its calls, well or badly, and tells what it was answered.

`back` sends the callbacks that it is given and waits for so many answers; `elicit` asks for a form,
`sample` for what a model says; `seen` gives back all that the server received.
"""

import asyncio
import json
import os
from typing import Any

from tests.interop.servers.by_hand import STANDALONE, Conversation, Frame, serve

WITHIN = 25.0
EXTENSIONS: list[str] = json.loads(os.environ.get("EXTENSIONS", '["security", "bidirectional"]'))
CALLBACK = "notifications/mgp.callback.request"
SCHEMA: Frame = {"type": "object"}
HARMLESS: Frame = {"permissions_required": []}
TOOLS: list[Frame] = [
    {"name": name, "inputSchema": SCHEMA, "security": HARMLESS}
    for name in ("back", "elicit", "sample", "seen", "wait")
]
ASKS = {"elicit": "elicitation/create", "sample": "sampling/createMessage"}
seen: list[Frame] = []
answers: list[Frame] = []
arrived = asyncio.Condition()


async def received(talk: Conversation, frame: Frame) -> None:
    seen.append(frame)
    method = frame["method"]
    if method == "initialize":
        talk.reply(frame, _hello(frame["params"]))
    elif method == "tools/list":
        talk.reply(frame, {"tools": TOOLS})
    elif method == "mgp/callback/respond":
        talk.reply(frame, {})
        async with arrived:
            answers.append(frame["params"])
            arrived.notify_all()
    elif method == "tools/call":
        await _call(talk, frame)
    elif method == "ping":
        talk.reply(frame, {})
    elif "id" in frame:
        talk.fail(frame, {"code": -32601, "message": f"Method not found: {method}"})


def _hello(params: Frame) -> Frame:
    capabilities: Frame = {"tools": {}}
    asked = params["capabilities"].get("mgp")
    if EXTENSIONS and asked is not None:
        both = [each for each in EXTENSIONS if each in asked["extensions"]]
        capabilities["mgp"] = {"version": "0.3.0", "extensions": both}
    version, info = params["protocolVersion"], {"name": "questioner", "version": "1"}
    return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}


async def _call(talk: Conversation, frame: Frame) -> None:
    name: str = frame["params"]["name"]
    given: dict[str, Any] = frame["params"].get("arguments", {})
    said: Frame = {"frames": seen}
    if name == "back":
        said = await _back(talk, frame, given)
    elif name in ASKS:
        answer = await talk.ask(ASKS[name], given["params"], during=frame["id"])
        said = {"answer": {key: answer[key] for key in answer if key in ("error", "result")}}
    elif name == "wait":
        await asyncio.sleep(given["seconds"])
        said = {"waited": True}
    content = [{"type": "text", "text": json.dumps(said)}]
    talk.reply(frame, {"content": content, "structuredContent": said})


async def _back(talk: Conversation, frame: Frame, given: dict[str, Any]) -> Frame:
    """Each callback names this call, unless it says otherwise; `again` sends all once more."""
    during = STANDALONE if given.get("apart") else frame["id"]
    asked = [{"request_id": frame["id"], **each} for each in given["callbacks"]]
    first = len(answers)
    for each in asked:
        talk.tell(CALLBACK, each, during)
    await _until(first + given.get("answers", len(asked)))
    for each in asked if given.get("again") else []:
        talk.tell(CALLBACK, each, during)
    await _until(first + given.get("answers", len(asked)) + given.get("again", 0))
    return {"answers": answers[first:]}


async def _until(number: int) -> None:
    async with asyncio.timeout(WITHIN), arrived:
        await arrived.wait_for(lambda: len(answers) >= number)


if __name__ == "__main__":
    serve(received)
