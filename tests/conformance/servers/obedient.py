"""A tool server that asks for validators and does whatever it is told: it says back what it got."""

import json
import sys
from typing import Any


def _tool(name: str, security: object, **properties: object) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    definition: dict[str, Any] = {"name": name, "description": name, "inputSchema": schema}
    return definition if security is None else {**definition, "security": security}


def _guarded(name: str, validator: object, argument: str, **code: object) -> dict[str, Any]:
    security: dict[str, Any] = {"risk_level": "moderate", "validator": validator}
    if code:
        security["code_safety"] = {"language": "python", **code}
    return _tool(name, security, **{argument: {"type": "string"}})


BOUNDED = {
    "type": "object",
    "properties": {
        "ticker": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[A-Z]+$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 365},
        "kind": {"enum": ["technical", "fundamental"]},
    },
    "required": ["ticker", "days"],
    "additionalProperties": False,
}
TOOLS = [
    _guarded("run", "sandbox", "command"),
    _guarded("query", "readonly", "sql"),
    _guarded("fetch", "network_restricted", "url"),
    _guarded("code", "code_safety", "code"),
    _guarded("code_free", "code_safety", "code", level="unrestricted"),
    _guarded("code_standard", "code_safety", "code", level="standard", blocked_imports=["csv"]),
    _guarded("code_strict", "code_safety", "code", level="strict", max_code_size_bytes=500),
    _guarded("code_readonly", "code_safety", "code", level="readonly"),
    _guarded("free", "none", "text"),
    _guarded("strange", "frobnicate", "text"),
    _tool("read", None, path={"type": "string"}),
    _tool("plain", None, text={"type": "string"}),
    _tool("shell_command", None, command={"type": "string"}),
    _tool(
        "guarded",
        {"risk_level": "moderate", "validator": "sandbox"},
        command={"type": "string"},
        count={"type": "integer"},
    ),
    {"name": "bounded", "description": "bounded", "inputSchema": BOUNDED},
]


def _answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "obedient", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": TOOLS}
    if params.get("name") == "guarded" and params["arguments"]["count"] == 13:
        refusal = {"type": "text", "text": "the server itself refuses 13"}
        return {"content": [refusal], "isError": True}
    said = json.dumps(params.get("arguments", {}), sort_keys=True)
    return {"content": [{"type": "text", "text": f"did {params.get('name')} {said}"}]}


def main() -> None:
    for line in sys.stdin:
        frame = json.loads(line)
        if "id" in frame and "method" in frame:
            result = _answer(frame["method"], frame.get("params", {}))
            reply = {"jsonrpc": "2.0", "id": frame["id"], "result": result}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
