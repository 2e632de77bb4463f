"""A server with the habits that traps are made of: floods, reused ids, deaths, results askew.

It speaks the handshake era over stdio and HTTP, and 2026-07-28 over HTTP.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable

from tests.interop.servers.by_hand import Conversation, Frame, serve

ASKEW_INFO: Frame = {"name": "odd"}
ASKEW_TOOL: Frame = {
    "name": "askew",
    "description": None,
    "title": 5,
    "inputSchema": {"type": "object"},
    "annotations": None,
}
ASKEW_RESULTS: Frame = {
    "no content": {"isError": "no"},
    "a foreign content type": {"content": [{"type": "hologram", "depth": 3}]},
    "content that is not a list": {"content": {"type": "text", "text": "one"}},
    "text without a text": {"content": [{"type": "text"}]},
    "a list as structured content": {"content": [], "structuredContent": [1, 2]},
    "nothing": {},
    "a null": None,
    "a word": "done",
}
ASKEW_ERROR: Frame = {"code": 0, "message": "", "data": ["askew"]}
PUSHED = "notifications/vendor.initialized"
LOUD = 50_000
LOUD_EVENTS = 400

# Of the whole process, whatever the number of sessions: how often each method was asked for.
asked: Counter[str] = Counter()


async def received(talk: Conversation, frame: Frame) -> None:
    method = frame["method"]
    asked[method] += 1
    if method == "tools/call":
        await _call(talk, frame)
    elif method in ("notifications/initialized", "notifications/vendor.poke"):
        talk.tell(PUSHED, {"after": method})
    elif method in _ANSWERS:
        talk.memory.setdefault("names", []).append(frame["id"])
        talk.reply(frame, _ANSWERS[method](frame))
    elif "id" in frame:
        talk.fail(frame, {"code": -32601, "message": "Method not found"})


def _initialized(frame: Frame) -> Frame:
    version = frame["params"]["protocolVersion"]
    capabilities = {"tools": {}, "extensions": {"vendor/odd": {"on": True}}}
    return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": ASKEW_INFO}


def _discovered(_: Frame) -> Frame:
    known: Frame = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    return {**known, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def _listed(frame: Frame) -> Frame:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS if name != "askew"]
    if "_meta" in frame.get("params", {}):
        return {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return {"tools": [*tools, ASKEW_TOOL]}


async def _call(talk: Conversation, frame: Frame) -> None:
    talk.memory.setdefault("names", []).append(frame["id"])
    tool = TOOLS.get(frame["params"]["name"])
    if tool is None:
        talk.fail(frame, {"code": -32602, "message": "Unknown tool"})
    else:
        await tool(talk, frame, frame["params"].get("arguments", {}))


async def _echo(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    if "group" in arguments:
        await _wait_for_the_others(arguments["group"], arguments["together"])
    talk.reply(frame, _text(arguments.get("text")))


async def _tell_what_was_asked(talk: Conversation, frame: Frame, _: Frame) -> None:
    known = {"asked": dict(asked), "names": talk.memory["names"]}
    talk.reply(frame, _text(json.dumps(known)))


async def _show_environment(talk: Conversation, frame: Frame, _: Frame) -> None:
    talk.reply(frame, _text(json.dumps(dict(os.environ))))


async def _flood(talk: Conversation, frame: Frame, _: Frame) -> None:
    for number in range(LOUD_EVENTS):
        note = {"level": "info", "data": f"{number}" + "x" * LOUD}
        talk.tell("notifications/message", note, during=frame["id"])
        await asyncio.sleep(0)
    talk.reply(frame, _text("flooded"))


async def _reuse_id(talk: Conversation, frame: Frame, _: Frame) -> None:
    name = frame["id"]
    answer = await talk.ask("vendor/ask", {"reuses": True}, during=name, asked_as=name)
    talk.reply(frame, _text(json.dumps(answer.get("result"))))


async def _be_big(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    talk.reply(frame, _text("b" * arguments["size"]))


async def _die(talk: Conversation, frame: Frame, _: Frame) -> None:
    os._exit(3)


async def _be_askew(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    talk.reply(frame, ASKEW_RESULTS[arguments["result"]])


async def _fail_askew(talk: Conversation, frame: Frame, _: Frame) -> None:
    talk.fail(frame, ASKEW_ERROR)


async def _wait_for_the_others(group: str, together: int) -> None:
    """Answer only when so many calls of the group are open at the same time."""
    present = _groups.setdefault(group, asyncio.Condition())
    async with present:
        _present[group] += 1
        present.notify_all()
        await present.wait_for(lambda: _present[group] >= together)


def _text(text: object) -> Frame:
    return {"content": [{"type": "text", "text": text}], "resultType": "complete"}


TOOLS = {
    "echo": _echo,
    "asked": _tell_what_was_asked,
    "environment": _show_environment,
    "flood": _flood,
    "reuse_id": _reuse_id,
    "big": _be_big,
    "die": _die,
    "askew": _be_askew,
    "askew_error": _fail_askew,
}
_ANSWERS: dict[str, Callable[[Frame], Frame]] = {
    "initialize": _initialized,
    "server/discover": _discovered,
    "tools/list": _listed,
    "ping": lambda frame: {},
}
_groups: dict[str, asyncio.Condition] = {}
_present: Counter[str] = Counter()

if __name__ == "__main__":
    serve(received)
