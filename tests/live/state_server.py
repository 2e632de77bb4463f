"""A live server with state: notes that its host keeps, and commits that it keeps itself.

Its tools tell what they were given beside their arguments. `say` and `say_git` leave whatever state
they are told to, however wrong. `python -m tests.live.state_server`
"""

import json
import sys
from typing import Any

SETS: dict[str, Any] = {
    "notes.edit": {"description": "What is written down", "uses": ["tools"], "rollback": True},
    "git.commit": {"description": "Commits", "uses": ["tools"], "rollback": True},
    "fixed": {"description": "State without a way back", "uses": ["tools"]},
    "off": {"description": "Not enabled", "uses": ["tools"], "rollback": True},
}
NOTES = {"add_note": "notes.edit", "say": "notes.edit", "look": "notes.edit"}
OTHERS = {
    "git_commit": "git.commit",
    "say_git": "git.commit",
    "say_fixed": "fixed",
    "say_off": "off",
}
SET_OF = {**NOTES, **OTHERS}
WHOLE = ("say_whole", "forget", "refuse")
TOOLS: list[dict[str, Any]] = [
    *(
        {"name": name, "inputSchema": {"type": "object"}, "_meta": {"featureSet": feature}}
        for name, feature in SET_OF.items()
    ),
    *({"name": name, "inputSchema": {"type": "object"}} for name in WHOLE),
]
KNOWN: dict[str, set[str]] = {}
MADE: dict[str, int] = {}
REFUSES: dict[str, Any] = {}
STATE, CHECKPOINT = "dev.comity/state", "dev.comity/checkpoint"


def say(frame: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def named(feature: str, params: dict[str, Any]) -> tuple[str, str | None]:
    """The next checkpoint, and the one that it follows: that of the call."""
    parent = params.get("_meta", {}).get(CHECKPOINT)
    taken = KNOWN.setdefault(feature, set())
    if parent is not None:
        taken.add(parent)
    number = MADE.get(feature, 0) + 1
    while f"chk_{number}" in taken:
        number += 1
    MADE[feature] = number
    taken.add(f"chk_{number}")
    return f"chk_{number}", parent


def add_note(params: dict[str, Any]) -> dict[str, Any]:
    name, parent = named("notes.edit", params)
    text = params["arguments"]["text"]
    if "state" not in params:
        return {"checkpoint": name, "parent": None, "data": {"notes": [text]}}
    patch = [{"op": "add", "path": "/notes/-", "value": text}]
    return {"checkpoint": name, "parent": parent, "patch": patch}


def git_commit(params: dict[str, Any]) -> dict[str, Any]:
    name, _ = named("git.commit", params)
    return {"checkpoint": name, "parent": params.get("checkpoint")}


def told(params: dict[str, Any]) -> str:
    """What came beside the arguments."""
    beside = {key: params[key] for key in ("state", "checkpoint") if key in params}
    mirrored = {
        key: params["_meta"][key] for key in (STATE, CHECKPOINT) if key in params.get("_meta", {})
    }
    return json.dumps({"beside": beside, "mirrored": mirrored})


def left(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """What a call leaves behind, as members of its result."""
    arguments: dict[str, Any] = params.get("arguments") or {}
    if name == "add_note":
        return {"state": add_note(params)}
    if name == "git_commit":
        return {"state": git_commit(params)}
    if name == "forget":
        KNOWN.clear()
    if name == "refuse":
        REFUSES.update(arguments)
    if name.startswith("say"):
        for known in arguments.get("knows", ()):
            KNOWN.setdefault(SET_OF.get(name, ""), set()).add(known)
        found: dict[str, Any] = {"state": arguments["state"]} if "state" in arguments else {}
        if "mirror" in arguments:
            found["_meta"] = {STATE: arguments["mirror"]}
        return found
    return {}


def roll_back(number: Any, params: dict[str, Any]) -> None:
    feature, name = params["featureSet"], params["checkpoint"]
    if REFUSES.get("silent"):
        return
    if name not in KNOWN.get(feature, ()):
        error = {"code": -32005, "message": "Checkpoint not found", "data": {"checkpoint": name}}
        say({"id": number, "error": error})
    elif "reason" in REFUSES:
        result = {"checkpoint": name, "success": False, "reason": REFUSES["reason"]}
        say({"id": number, "result": result})
    else:
        say({"id": number, "result": {"checkpoint": REFUSES.get("as", name), "success": True}})


def hear(frame: dict[str, Any]) -> None:
    number, method, params = frame.get("id"), frame.get("method"), frame.get("params", {})
    if method == "initialize":
        mcpl = {"version": "0.4", "featureSets": SETS}
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25"}
        hello["capabilities"] = {"tools": {}, "experimental": {"mcpl": mcpl}}
        say({"id": number, "result": {**hello, "serverInfo": {"name": "state", "version": "1"}}})
    elif method == "tools/list":
        say({"id": number, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        text = {"type": "text", "text": told(params)}
        say(
            {
                "id": number,
                "result": {"content": [text], "other": 1, **left(params["name"], params)},
            }
        )
    elif method == "state/rollback":
        roll_back(number, params)
    elif method == "ping":
        say({"id": number, "result": {}})
    elif number is not None:
        say({"id": number, "error": {"code": -32601, "message": "no"}})


if __name__ == "__main__":
    for line in sys.stdin:
        hear(json.loads(line))
