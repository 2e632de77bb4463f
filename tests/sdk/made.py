"""Envelopes as members and gateways send them, made for one test each."""

from itertools import count
from typing import Any

import msgspec

from comity.mcp.actors import GATEWAY

ME, ANA, BOT, WORKER = "agent:me", "person:ana@example.org", "agent:bot", "agent:wk"
CALL = "mcp/request:tools/call:write"
PARAMS = {"name": "write", "arguments": {"path": "/srv/a"}}
_ids = count(1)


def frame(kind: str, payload: Any, sender: str = BOT, **more: Any) -> bytes:
    """Whatever the test wants to be sent, true or not."""
    made = {"protocol": "mcpx/v0.1", "id": f"env-{next(_ids)}", "from": sender, "kind": kind}
    return msgspec.json.encode({**made, "payload": payload, **more})


def welcome(id: str = ME, *others: str) -> bytes:
    you = {"id": id, "capabilities": ["mcp/*", "chat"]}
    there = [{"id": other, "capabilities": ["chat"]} for other in others]
    payload = {"you": you, "participants": there}
    return frame("system/welcome", payload, GATEWAY, to=[id])


def request(**more: Any) -> bytes:
    payload = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": PARAMS}
    return frame(CALL, payload | more.pop("payload", {}), more.pop("sender", ANA), **more)


def response(about: str, sender: str = WORKER, **more: Any) -> bytes:
    payload = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}} | more.pop("payload", {})
    kind = more.pop("kind", "mcp/response:tools/call:write")
    return frame(kind, payload, sender, correlation_id=about, **more)


def proposal(**more: Any) -> bytes:
    payload = {"method": "tools/call", "params": PARAMS} | more.pop("payload", {})
    kind = more.pop("kind", "mcp/proposal:tools/call:write")
    return frame(kind, payload, more.pop("sender", BOT), **more)
