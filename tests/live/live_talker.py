"""A live server written by hand, on pipes or over HTTP, that says whatever its tools are told to.

`ask` sends requests to its host, all at once, and gives back what each was answered; `tell` sends
notices; `seen` gives back all that was received. Every other tool gives back the parameters of its
call. What it declares of MCPL is in MCPL as JSON, of MGP in MGP, its further tools in TOOLS and its
era in ERA; to who does not speak of MCPL or MGP it says nothing of that.

    python -m tests.live.live_talker [PORT]
"""

import asyncio
import itertools
import json
import os
from dataclasses import dataclass, field
from typing import Any

from tests.interop.servers.by_hand import Conversation, Frame, serve

DECLARED: Frame | None = json.loads(os.environ.get("MCPL", "null"))
MGP: Frame | None = json.loads(os.environ.get("MGP", "null"))
IS_MODERN = os.environ.get("ERA") == "modern"
SCHEMA: Frame = {"type": "object"}
OWN = ("ask", "tell", "seen")
TOOLS: list[Frame] = [
    *({"name": name, "inputSchema": SCHEMA} for name in OWN),
    *json.loads(os.environ.get("TOOLS", "[]")),
]
MODERN = "2026-07-28"
EXTENSION = "dev.comity/mcpl"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@dataclass
class Way:
    """How the host is reached: its conversation, and in the modern era what it holds open."""

    talk: Conversation
    held: object = None
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    waiting: dict[object, asyncio.Future[Frame]] = field(
        default_factory=dict[object, asyncio.Future[Frame]]
    )

    async def ask(self, method: str, params: object) -> Frame:
        if not IS_MODERN:
            answer = await self.talk.ask(method, params)
            return {name: answer[name] for name in ("result", "error") if name in answer}
        number = next(self.numbers)
        self.waiting[number] = asyncio.get_running_loop().create_future()
        self.tell("mcpl.request", {"id": number, "method": method, "params": params})
        return await self.waiting[number]

    def tell(self, method: str, params: object) -> None:
        if not IS_MODERN:
            self.talk.tell(method, params)
        else:
            self.talk.tell(method, params, self.held)


seen: list[Frame] = []
hosts: list[Way] = []
reached = asyncio.Event()


async def received(talk: Conversation, frame: Frame) -> None:
    seen.append(frame)
    method = frame["method"]
    if method in ("initialize", "server/discover"):
        _greet(talk, frame)
    elif method == "tools/list":
        _reply(talk, frame, {"tools": TOOLS})
    elif method == "tools/call":
        await _call(talk, frame)
    elif method == "mcpl/listen":
        hosts.append(Way(talk, frame["id"]))
        reached.set()
    elif method == "mcpl/respond":
        said = frame["params"]
        answer = {name: said[name] for name in ("result", "error") if name in said}
        hosts[-1].waiting[said["id"]].set_result(answer)
        _reply(talk, frame, {})
    elif "id" in frame:
        _reply(talk, frame, {})


def _greet(talk: Conversation, frame: Frame) -> None:
    is_modern = frame["method"] == "server/discover"
    if is_modern is not IS_MODERN:
        talk.fail(frame, {"code": -32601, "message": "Method not found"})
        return
    params = frame["params"]
    said: Frame = params["_meta"].get(CAPABILITIES, {}) if is_modern else params["capabilities"]
    place, key = ("extensions", EXTENSION) if is_modern else ("experimental", "mcpl")
    offered = said.get(place, {}).get(key)
    capabilities: Frame = {"tools": {}}
    if DECLARED is not None and offered is not None:
        capabilities[place] = {key: DECLARED}
    if MGP is not None and "mgp" in said:
        capabilities["mgp"] = MGP
    if offered is not None and offered.get("pushEvents") and not is_modern:
        hosts.append(Way(talk))
        reached.set()
    info = {"name": "live", "version": "1"}
    version: Frame = {"supportedVersions": [MODERN]}
    if not is_modern:
        version = {"protocolVersion": params["protocolVersion"]}
    _reply(talk, frame, {**version, "capabilities": capabilities, "serverInfo": info})


async def _call(talk: Conversation, frame: Frame) -> None:
    params = frame["params"]
    name, given = params["name"], params.get("arguments", {})
    told: Any = params
    if name == "ask":
        await reached.wait()
        asked = [hosts[-1].ask(each["method"], each.get("params", {})) for each in given["frames"]]
        told = await asyncio.gather(*asked)
    elif name == "tell":
        await reached.wait()
        for each in given["frames"]:
            _tell(each["method"], each.get("params", {}))
        told = []
    elif name == "seen":
        told = seen
    content = [{"type": "text", "text": json.dumps(told)}]
    unknown = {"unknownToAll": {"at": [1]}}
    _reply(talk, frame, {"content": content, "structuredContent": {"told": told}, **unknown})


def _tell(method: str, params: object) -> None:
    if IS_MODERN:
        hosts[-1].tell("mcpl.notification", {"method": method, "params": params})
    else:
        hosts[-1].tell(method, params)


def _reply(talk: Conversation, frame: Frame, result: Frame) -> None:
    talk.reply(frame, {**result, "resultType": "complete"} if IS_MODERN else result)


if __name__ == "__main__":
    serve(received)
