"""A server that says everything a plain MCP server does not: MGP, MCPL and its own inventions.

Every value it sends is a constant here, so that a test can compare what arrived with what was
sent. What it received it gives back on `vendor/seen`.
"""

import asyncio
from collections.abc import Callable

from tests.interop.servers.by_hand import STANDALONE, Conversation, Frame, serve

ODD_VALUES: Frame = {
    "beyond 64 bits": 2**80,
    "below 64 bits": -(2**70),
    "float": 0.1,
    "whole float": 1.0,
    "tiny": 5e-324,
    "unicode": "Grüße, 世界, 𝄞, \u2028",
    "control": "\u0000\u001f",
    "empty": {"object": {}, "list": [], "text": ""},
    "null": None,
    "false": False,
    "": "no name",
}

MGP: Frame = {
    "version": "0.6.0",
    "extensions": ["permissions", "streaming", "vendor_extension"],
    "permissions_required": ["filesystem.read"],
    "server_id": "extended",
    "trust_level": "standard",
}
MCPL: Frame = {
    "version": "0.4",
    "pushEvents": True,
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": False}},
    "featureSets": [{"name": "memory.recall", "uses": ["contextHooks"], "rollback": True}],
}
CAPABILITIES: Frame = {
    "tools": {"listChanged": True, "vendorTools": ODD_VALUES},
    "resources": {},
    "prompts": {},
    "experimental": {"mcpl": MCPL, "vendor/experiment": {"on": True}},
    "extensions": {"io.modelcontextprotocol/tasks": {}, "vendor/extension": {"level": 3}},
    "vendorCapability": {"deep": {"deeper": [1, {"deepest": None}]}},
}
SECURITY: Frame = {
    "risk_level": "dangerous",
    "permissions_required": ["filesystem.write"],
    "side_effects": ["filesystem"],
    "validator": "none",
    "confirmation_required": True,
}
TOOL: Frame = {
    "name": "plain",
    "title": "Plain",
    "description": "Answers with every field there is.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"value": {"x-vendor": ODD_VALUES}},
        "x-vendor": True,
    },
    "outputSchema": {"type": "object", "x-vendor": [1]},
    "annotations": {"readOnlyHint": True, "vendorHint": "blue"},
    "icons": [{"src": "data:image/png;base64,AA==", "mimeType": "image/png", "sizes": ["1x1"]}],
    "execution": {"taskSupport": "optional"},
    "security": SECURITY,
    "scope": {"label": "tenant"},
    "uses": ["tools"],
    "vendorTool": ODD_VALUES,
    "_meta": {"vendor.example/tool": ODD_VALUES},
}
LIST_EXTRAS: Frame = {
    "_mgp": {"filtered": 2},
    "vendorList": ODD_VALUES,
    "_meta": {"vendor/list": 1},
}
RESULT: Frame = {
    "content": [
        {"type": "text", "text": "done", "vendorContent": ODD_VALUES, "_meta": {"v": 1}},
        {"type": "vendor_chart", "points": [[0, 1.5], [1, 2**65]]},
    ],
    "structuredContent": {"answer": ODD_VALUES},
    "isError": False,
    "_mgp": {"trace_id": "0af7651916cd43dd", "audit": {"policy": "ALWAYS"}},
    "state": {"checkpoint": "ckpt-7", "data": ODD_VALUES},
    "stateful": {"rollback": True},
    "vendorResult": ODD_VALUES,
    "_meta": {"vendor.example/result": ODD_VALUES},
}
ERROR: Frame = {
    "code": 1000,
    "message": "permission denied",
    "data": {
        "_mgp": {"error_category": "security", "retryable": False, "remediation": ["ask"]},
        "error_type": "permission_denied",
        "vendorData": ODD_VALUES,
    },
}
QUESTION: Frame = {
    "question": "which?",
    "options": ["a", "b"],
    "_mgp": {"ask": 1},
    "odd": ODD_VALUES,
}
NEWS: Frame = {"news": "in a call", "_meta": {"vendor/news": True}, "odd": ODD_VALUES}
PUSH_QUESTION: Frame = {"question": "out of the blue?", "odd": ODD_VALUES}
PUSH: Frame = {"eventId": "evt-1", "featureSet": "memory.recall", "odd": ODD_VALUES}
RESOURCE: Frame = {
    "uri": "vendor://one",
    "name": "one",
    "vendorResource": ODD_VALUES,
    "size": 2**60,
}
PROMPT: Frame = {
    "name": "one",
    "arguments": [{"name": "a", "vendorArgument": 1}],
    "vendorPrompt": [1],
}


async def received(talk: Conversation, frame: Frame) -> None:
    method = frame["method"]
    talk.memory.setdefault("seen", []).append(frame)
    if method == "tools/call":
        await _call(talk, frame)
    elif method == "notifications/vendor.poke":
        await _push(talk)
    elif method == "notifications/vendor.go":
        _set_off(talk, frame)
    elif "id" in frame:
        _answer(talk, frame)


def _answer(talk: Conversation, frame: Frame) -> None:
    answer = _ANSWERS.get(frame["method"])
    if answer is None:
        talk.fail(frame, {"code": -32601, "message": "Method not found"})
    else:
        talk.reply(frame, answer(talk, frame))


def _initialized(_: Conversation, frame: Frame) -> Frame:
    params = frame["params"]
    # As MGP 2.1 has it: `mgp` is said only to a client that said it first.
    mgp = {"mgp": MGP} if "mgp" in params["capabilities"] else {}
    return {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {**CAPABILITIES, **mgp},
        "serverInfo": {"name": "extended", "version": "1", "vendorInfo": ODD_VALUES},
        "instructions": "Say anything.",
        "vendorInitialize": ODD_VALUES,
        "_meta": {"vendor.example/initialize": ODD_VALUES},
    }


async def _call(talk: Conversation, frame: Frame) -> None:
    call = frame["id"]
    match frame["params"]["name"]:
        case "plain":
            talk.reply(frame, {**RESULT, "received": frame["params"]})
        case "failing":
            talk.fail(frame, ERROR)
        case "asks":
            answer = await talk.ask("vendor/ask", QUESTION, during=call)
            talk.reply(frame, {"content": [], "answer": _bare(answer)})
        case "tells":
            talk.tell("notifications/vendor.news", NEWS, during=call)
            talk.reply(frame, {"content": []})
        case "reports":
            token = frame["params"]["_meta"]["progressToken"]
            for progress in (1, 2.5):
                news = {"progressToken": token, "progress": progress, "vendorProgress": ODD_VALUES}
                talk.tell("notifications/progress", news, during=call)
            talk.reply(frame, {"content": []})
        case "waits":
            talk.memory["go"] = asyncio.get_running_loop().create_future()
            talk.tell("notifications/vendor.waiting", {}, during=call)
            talk.reply(frame, {"content": [], "went": await talk.memory["go"]})
        case name:
            talk.fail(frame, {"code": -32602, "message": f"Unknown tool: {name}"})


async def _push(talk: Conversation) -> None:
    talk.tell("notifications/vendor.push", PUSH, during=STANDALONE)
    answer = await talk.ask("vendor/push_ask", PUSH_QUESTION, during=STANDALONE)
    talk.memory.setdefault("answers", []).append(_bare(answer))


def _set_off(talk: Conversation, frame: Frame) -> None:
    if "go" in talk.memory:
        talk.memory["go"].set_result(_bare(frame))


def _released(talk: Conversation, frame: Frame) -> Frame:
    _set_off(talk, frame)
    return {"released": True}


def _computed(_: Conversation, frame: Frame) -> Frame:
    return {"given": frame.get("params"), "vendorResult": ODD_VALUES}


def _bare(frame: Frame) -> Frame:
    return {name: value for name, value in frame.items() if name not in ("jsonrpc", "id")}


_ANSWERS: dict[str, Callable[[Conversation, Frame], Frame]] = {
    "initialize": _initialized,
    "ping": lambda talk, frame: {},
    "tools/list": lambda talk, frame: {"tools": [TOOL], **LIST_EXTRAS},
    "resources/list": lambda talk, frame: {"resources": [RESOURCE], **LIST_EXTRAS},
    "prompts/list": lambda talk, frame: {"prompts": [PROMPT], **LIST_EXTRAS},
    "vendor/compute": _computed,
    "vendor/seen": lambda talk, frame: {"seen": talk.memory["seen"]},
    "vendor/answers": lambda talk, frame: {"answers": talk.memory.get("answers", [])},
    "vendor/release": _released,
}

if __name__ == "__main__":
    serve(received)
