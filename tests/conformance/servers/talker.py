"""A handshake server that offers all of MCP and does on the wire whatever a call tells it to.

Its tools are verbs of the protocol (`ask`, `tell`, `answer`), so each test says in its own words
what the server sends. What the server received it gives back by its tool `seen`.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.conformance.servers import talker_words as words
from tests.interop.servers.by_hand import STANDALONE, Conversation, Frame, serve

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

talks: list[Conversation] = []
tools: list[Frame] = list(words.TOOLS)


async def received(talk: Conversation, frame: Frame) -> None:
    if talk not in talks:
        talks.append(talk)
    talk.memory.setdefault("seen", []).append(frame)
    method = frame["method"]
    if method in words.SILENT:
        return
    if method == "tools/call":
        await _call(talk, frame)
    elif method in (words.GO, "notifications/cancelled"):
        # A call that was cancelled is answered all the same, and too late.
        talk.memory.setdefault("go", asyncio.Event()).set()
    elif method in _ANSWERS:
        await _ANSWERS[method](talk, frame)
    elif "id" in frame:
        talk.fail(frame, {"code": -32601, "message": f"Method not found: {method}"})


async def _initialize(talk: Conversation, frame: Frame) -> None:
    wanted = frame["params"]["protocolVersion"]
    known = wanted if wanted in words.VERSIONS else words.VERSIONS[-1]
    answer = {**words.INITIALIZED, "protocolVersion": os.environ.get("TALKER_VERSION", known)}
    asked = frame["params"].get("capabilities", {}).get("mgp")
    if words.MGP is not None and asked is not None:
        both = [name for name in words.MGP["extensions"] if name in asked["extensions"]]
        talk.memory["mgp"] = {**words.MGP, "extensions": both}
        answer["capabilities"] = {**words.DECLARED, "mgp": talk.memory["mgp"]}
    talk.reply(frame, answer)


async def _ping(talk: Conversation, frame: Frame) -> None:
    talk.reply(frame, {})


async def _health(talk: Conversation, frame: Frame) -> None:
    """Say how it is, if that was negotiated: to others there is no such method. (MGP §11.3)"""
    if "lifecycle" in talk.memory.get("mgp", {}).get("extensions", ()):
        well = {"status": "healthy", "timestamp": frame["params"].get("timestamp")}
        talk.reply(frame, {**well, "uptime_secs": 1, "server_id": words.NAME, **words.HEALTH})
    else:
        talk.fail(frame, {"code": -32601, "message": "Method not found: mgp/health/ping"})


async def _shut_down(talk: Conversation, frame: Frame) -> None:
    """Write down why, and go, if that was negotiated and there is a diary. (MGP §11.4)"""
    if "lifecycle" not in talk.memory.get("mgp", {}).get("extensions", ()) or not words.DIARY:
        talk.fail(frame, {"code": -32601, "message": "Method not found: mgp/lifecycle/shutdown"})
        return
    _note_down({"server": words.NAME, **frame["params"]})
    talk.reply(frame, {"accepted": True, "pending_requests": 0, "estimated_drain_ms": 0})
    os._exit(0)


def _note_down(entry: Frame) -> None:
    with Path(words.DIARY).open("a") as diary:
        diary.write(json.dumps(entry) + "\n")


async def _set_level(talk: Conversation, frame: Frame) -> None:
    talk.memory["level"] = frame["params"]["level"]
    talk.reply(frame, {})


async def _list_tools(talk: Conversation, frame: Frame) -> None:
    """Seven a page, so that whoever reads them all has to turn pages."""
    start = int(frame.get("params", {}).get("cursor", "0"))
    page: Frame = {"tools": tools[start : start + words.PAGE]}
    if start + words.PAGE < len(tools):
        page["nextCursor"] = str(start + words.PAGE)
    talk.reply(frame, page)


async def _list_resources(talk: Conversation, frame: Frame) -> None:
    talk.reply(frame, {"resources": words.RESOURCES})


async def _list_templates(talk: Conversation, frame: Frame) -> None:
    talk.reply(frame, {"resourceTemplates": words.TEMPLATES})


async def _read(talk: Conversation, frame: Frame) -> None:
    uri = frame["params"]["uri"]
    if uri in words.CONTENTS:
        talk.reply(frame, {"contents": words.CONTENTS[uri]})
    elif uri.startswith(words.NOTES):
        talk.reply(frame, {"contents": [{"uri": uri, "text": f"the note at {uri}"}]})
    else:
        error = {"code": -32002, "message": "Resource not found", "data": {"uri": uri}}
        talk.fail(frame, error)


async def _subscribe(talk: Conversation, frame: Frame) -> None:
    talk.memory.setdefault("followed", set()).add(frame["params"]["uri"])
    talk.reply(frame, {})


async def _unsubscribe(talk: Conversation, frame: Frame) -> None:
    talk.memory.setdefault("followed", set()).discard(frame["params"]["uri"])
    talk.reply(frame, {})


async def _list_prompts(talk: Conversation, frame: Frame) -> None:
    talk.reply(frame, {"prompts": words.PROMPTS})


async def _get_prompt(talk: Conversation, frame: Frame) -> None:
    params = frame["params"]
    if params["name"] != "review":
        talk.fail(frame, {"code": -32602, "message": "Unknown prompt"})
        return
    filled = f"Review this {params['arguments']['language']} code."
    first = {"role": "user", "content": {"type": "text", "text": filled}}
    shown = [{"role": "assistant", "content": one} for one in words.EVERY_CONTENT]
    talk.reply(frame, {"description": "A review.", "messages": [first, *shown]})


async def _complete(talk: Conversation, frame: Frame) -> None:
    reference, argument = frame["params"]["ref"], frame["params"]["argument"]
    named = reference.get("name") or reference.get("uri")
    values = [f"{named} {argument['name']} {argument['value']}…"]
    talk.reply(frame, {"completion": {"values": values, "total": 1, "hasMore": False}})


async def _call(talk: Conversation, frame: Frame) -> None:
    tool = _VERBS.get(frame["params"]["name"])
    if tool is not None:
        await tool(talk, frame, frame["params"].get("arguments", {}))
    elif any(frame["params"]["name"] == one["name"] for one in tools):
        talk.reply(frame, words.text(f"{words.NAME}: {frame['params']['name']}"))
    else:
        talk.fail(frame, {"code": -32602, "message": "Unknown tool"})


async def _echo(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    talk.reply(frame, words.structured({"from": words.NAME, "given": arguments}))


async def _seen(talk: Conversation, frame: Frame, _: Frame) -> None:
    talk.reply(frame, words.structured({"frames": talk.memory["seen"], "process": os.getpid()}))


async def _answer(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Answer this very call with whatever members are given."""
    talk.send({"id": frame["id"], **arguments["members"]}, frame["id"])


async def _ask(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Ask the client, and give back what it answered."""
    where = STANDALONE if arguments.get("standalone") else frame["id"]
    answer = await talk.ask(arguments["method"], arguments.get("params", {}), during=where)
    given = {name: value for name, value in answer.items() if name not in ("jsonrpc", "id")}
    talk.reply(frame, words.structured(given))


async def _ask_later(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Answer the call first, and ask when nothing is open; `seen` shows the answer."""
    talk.reply(frame, words.text("soon"))
    answer = await talk.ask(arguments["method"], arguments.get("params", {}))
    talk.memory["seen"].append({"method": "an answer out of any call", "params": answer})


async def _ask_in_vain(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Ask, and take the question back before it can be answered."""
    during = frame["id"]
    talk.send({"id": "in vain", "method": "sampling/createMessage", "params": arguments}, during)
    taken_back = {"requestId": "in vain", "reason": "no longer needed"}
    talk.tell("notifications/cancelled", taken_back, during)
    talk.reply(frame, words.text("never mind"))


async def _tell(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    where = STANDALONE if arguments.get("standalone") else frame["id"]
    for notice in arguments["notices"]:
        talk.tell(notice["method"], notice.get("params", {}), during=where)
    talk.reply(frame, words.text("told"))


async def _report(talk: Conversation, frame: Frame, _: Frame) -> None:
    """Three steps of progress, if the caller gave a token for them."""
    token = frame["params"].get("_meta", {}).get("progressToken")
    for step in (1, 2.5, 3) if token is not None else ():
        progress = {"progressToken": token, "progress": step, "total": 3, "message": f"at {step}"}
        talk.tell("notifications/progress", progress, during=frame["id"])
    talk.reply(frame, words.text("reported"))


async def _log(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Say something on every level that was not silenced."""
    lowest = LEVELS.index(talk.memory.get("level", "warning"))
    for level in LEVELS[lowest:]:
        note = {"level": level, "logger": "talker", "data": {"said": level}}
        where = STANDALONE if arguments.get("standalone") else frame["id"]
        talk.tell("notifications/message", note, during=where)
    talk.reply(frame, words.text("logged"))


async def _wait(talk: Conversation, frame: Frame, _: Frame) -> None:
    """Say that the call has begun, and answer it after the notification GO."""
    opened = talk.memory["go"] = asyncio.Event()
    talk.tell("notifications/talker.waiting", {}, during=frame["id"])
    await opened.wait()
    talk.reply(frame, words.text("went"))


async def _touch(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Change a resource: whoever follows it is told."""
    for other in talks:
        if arguments["uri"] in other.memory.get("followed", ()):
            other.tell("notifications/resources/updated", {"uri": arguments["uri"]})
    talk.reply(frame, words.text("touched"))


async def _grow(talk: Conversation, frame: Frame, arguments: Frame) -> None:
    """Offer one more tool from now on, and tell everybody."""
    tools.append(words.plain_tool(arguments["name"]))
    for other in talks:
        other.send({"method": "notifications/tools/list_changed"})
    talk.reply(frame, words.text("grown"))


async def _die(talk: Conversation, frame: Frame, _: Frame) -> None:
    os._exit(3)


async def _leave(talk: Conversation, frame: Frame, _: Frame) -> None:
    """Go as one does whose work is done."""
    talk.reply(frame, words.text("goodbye"))
    os._exit(0)


_ANSWERS: dict[str, Callable[[Conversation, Frame], Awaitable[None]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "mgp/health/ping": _health,
    "mgp/lifecycle/shutdown": _shut_down,
    "logging/setLevel": _set_level,
    "tools/list": _list_tools,
    "resources/list": _list_resources,
    "resources/templates/list": _list_templates,
    "resources/read": _read,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
    "prompts/list": _list_prompts,
    "prompts/get": _get_prompt,
    "completion/complete": _complete,
}
_VERBS: dict[str, Callable[[Conversation, Frame, Frame], Awaitable[None]]] = {
    "echo": _echo,
    "seen": _seen,
    "answer": _answer,
    "ask": _ask,
    "ask_later": _ask_later,
    "ask_in_vain": _ask_in_vain,
    "tell": _tell,
    "report": _report,
    "log": _log,
    "wait": _wait,
    "touch": _touch,
    "grow": _grow,
    "die": _die,
    "leave": _leave,
}

if __name__ == "__main__":
    tools += json.loads(os.environ.get("TALKER_DEFINITIONS", "[]"))
    tools += [words.plain_tool(name) for name in json.loads(os.environ.get("TALKER_TOOLS", "[]"))]
    tools += [words.plain_tool(f"n{n:05}") for n in range(int(os.environ.get("TALKER_MANY", "0")))]
    serve(received)
