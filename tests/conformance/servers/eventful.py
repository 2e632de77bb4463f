"""A server of MGP with channels of its own, which tells whatever a call has it tell.

`emit` tells events to whoever subscribed to their channels; `seen` gives back all that the server
received; `die` ends it.
"""

import asyncio
import json
import os
from typing import Any

from tests.interop.servers.by_hand import STANDALONE, Conversation, Frame, serve

EXTENSIONS: list[str] = json.loads(os.environ.get("EXTENSIONS", '["bidirectional"]'))
CHANNELS: list[str] = json.loads(
    os.environ.get("CHANNELS", '["model.token_usage", "model.rate_limit", "tool.completed"]')
)
UNDERSTANDS_FAMILIES = os.environ.get("FAMILIES", "yes") == "yes"
EVENT = "notifications/mgp.event"
TOOLS: list[Frame] = [
    {
        "name": name,
        "inputSchema": {"type": "object"},
        "security": {"permissions_required": [], "risk_level": "safe"},
    }
    for name in ("emit", "seen", "die")
]
seen: list[Frame] = []
subscriptions: dict[str, tuple[Conversation, list[str]]] = {}


async def received(talk: Conversation, frame: Frame) -> None:
    seen.append(frame)
    method = frame["method"]
    if method == "initialize":
        talk.reply(frame, _hello(frame["params"]))
    elif method == "tools/list":
        talk.reply(frame, {"tools": TOOLS})
    elif method == "mgp/events/subscribe":
        talk.reply(frame, _subscribe(talk, frame["params"]))
    elif method == "mgp/events/unsubscribe":
        subscriptions.pop(frame["params"]["subscription_id"], None)
        talk.reply(frame, {})
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
    version, info = params["protocolVersion"], {"name": "eventful", "version": "1"}
    return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}


def _subscribe(talk: Conversation, params: Frame) -> Frame:
    found = [each for name in params["channels"] for each in CHANNELS if _is_one(name, each)]
    named = f"own-{len(seen)}"
    subscriptions[named] = (talk, found)
    missing = [
        name for name in params["channels"] if not any(_is_one(name, each) for each in CHANNELS)
    ]
    return {"subscribed": found, "unsupported": missing, "subscription_id": named}


def _is_one(name: str, channel: str) -> bool:
    if UNDERSTANDS_FAMILIES and (name == "*" or (name.endswith(".*"))):
        return name == "*" or channel.startswith(name[:-1])
    return name == channel


async def _call(talk: Conversation, frame: Frame) -> None:
    name: str = frame["params"]["name"]
    given: dict[str, Any] = frame["params"].get("arguments", {})
    said: Frame = {"frames": seen}
    if name == "emit":
        said = {"told": sum(_emit(given) for _ in range(given.get("times", 1)))}
    elif name == "die":
        asyncio.get_running_loop().call_later(0.05, os._exit, 1)
        said = {}
    content = [{"type": "text", "text": json.dumps(said)}]
    talk.reply(frame, {"content": content, "structuredContent": said})


def _emit(given: dict[str, Any]) -> int:
    told = 0
    for named, (talk, channels) in list(subscriptions.items()):
        for event in given["events"]:
            if event["channel"] in channels or given.get("unasked"):
                said = {"subscription_id": named, "timestamp": "2026-11-02T08:05:00.000Z", **event}
                talk.tell(EVENT, said, STANDALONE)
                told += 1
    return told


if __name__ == "__main__":
    serve(received)
