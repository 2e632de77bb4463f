"""A handshake server whose calls become tasks: begun at once, done when told, kept for all.

A call's argument `says` holds what its task says of itself, one word each time it is asked after.
"""

import itertools

from tests.interop.servers.by_hand import Conversation, Frame, serve

RELATED = "io.modelcontextprotocol/related-task"
CAPABILITIES: Frame = {
    "tools": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
TOOL: Frame = {
    "name": "work",
    "inputSchema": {"type": "object"},
    "execution": {"taskSupport": "required"},
}

# Of the whole process: a task outlives the connection that began it.
tasks: dict[str, Frame] = {}
words: dict[str, list[str]] = {}
_numbers = itertools.count(1)


async def received(talk: Conversation, frame: Frame) -> None:
    if "id" not in frame:
        return
    method, params = frame["method"], frame.get("params", {})
    if method == "initialize":
        info = {"name": "taskmaster", "version": "1"}
        known = {"protocolVersion": params["protocolVersion"], "serverInfo": info}
        talk.reply(frame, {**known, "capabilities": CAPABILITIES})
    elif method == "tools/list":
        talk.reply(frame, {"tools": [TOOL]})
    elif method == "tools/call":
        _begin(talk, frame)
    elif method == "tasks/list":
        talk.reply(frame, {"tasks": list(tasks.values())})
    elif params.get("taskId") in tasks:
        _tend(talk, frame, tasks[params["taskId"]])
    else:
        talk.fail(frame, {"code": -32602, "message": "Unknown task"})


def _begin(talk: Conversation, frame: Frame) -> None:
    name = f"task {next(_numbers)}"
    moment = "2025-11-25T10:30:00Z"
    task: Frame = {"taskId": name, "status": "working", "createdAt": moment}
    tasks[name] = task | {"ttl": frame["params"]["task"]["ttl"], "lastUpdatedAt": moment}
    words[name] = list(frame["params"].get("arguments", {}).get("says", []))
    talk.tell("notifications/tasks/status", tasks[name], during=frame["id"])
    talk.reply(frame, {"task": tasks[name], "_meta": {"kept": True}})


def _tend(talk: Conversation, frame: Frame, task: Frame) -> None:
    match frame["method"]:
        case "tasks/get":
            if words[task["taskId"]]:
                task["statusMessage"] = words[task["taskId"]].pop(0)
            talk.reply(frame, task)
        case "tasks/cancel":
            task["status"] = "cancelled"
            talk.reply(frame, task)
        case "tasks/result":
            task["status"] = "completed"
            about = {RELATED: {"taskId": task["taskId"]}}
            said = task.get("statusMessage", "done")
            done = {"content": [{"type": "text", "text": said}], "_meta": about}
            talk.reply(frame, done)
        case method:
            talk.fail(frame, {"code": -32601, "message": method})


if __name__ == "__main__":
    serve(received)
