"""A client of 2026-07-28 that knows tasks, by hand: it is given one, and asks after it."""

import asyncio
import io
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.interop.approving.stage import AGENT, SERVER, Gateway

MODERN = "2026-07-28"
SECONDS = 60.0
PREFIX = "io.modelcontextprotocol/"
META: dict[str, object] = {
    f"{PREFIX}protocolVersion": MODERN,
    f"{PREFIX}clientCapabilities": {"extensions": {f"{PREFIX}tasks": {}}},
    f"{PREFIX}clientInfo": {"name": "tasks", "version": "1"},
}

type Said = dict[str, Any]


@dataclass
class TaskCaller:
    party: str = AGENT
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    async def call(self, gateway: Gateway, tool: str) -> Said:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as http:
            try:
                return await self._call(http, gateway, f"{SERVER}__{tool}")
            except aiohttp.ClientError as error:
                return {"kind": "failed", "text": str(error)}

    async def leave(self) -> None:
        """Whoever asked has gone with its requests, which its story cancels."""

    async def _call(self, http: aiohttp.ClientSession, gateway: Gateway, tool: str) -> Said:
        said = await self._ask(http, gateway, "tools/call", {"name": tool, "arguments": {}}, tool)
        result = said.get("result", {})
        if result.get("resultType") != "task":
            return _worded(said, result)
        while result["status"] == "working":
            await asyncio.sleep(0.2)
            task = {"taskId": result["taskId"]}
            said = await self._ask(http, gateway, "tasks/get", task, result["taskId"])
            if "error" in said:
                return {"kind": "failed", "text": said["error"]["message"]}
            result = said["result"]
        return _worded(said, result.get("result", {}))

    async def _ask(
        self, http: aiohttp.ClientSession, gateway: Gateway, method: str, params: Said, name: str
    ) -> Said:
        headers = {
            "authorization": f"Bearer {gateway.keys[self.party]}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            "mcp-name": name,
        }
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        body = io.BytesIO(json.dumps({**request, "params": {**params, "_meta": META}}).encode())
        async with http.post(f"{gateway.origin}/mcp", data=body, headers=headers) as reply:
            if reply.content_type != "text/event-stream":
                return await reply.json()
            lines = [line.decode() async for line in reply.content]
        data = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
        return json.loads(data[-1])


def _worded(said: Said, result: Said) -> Said:
    refusal = result.get("_meta", {}).get("dev.comity/refusal")
    if refusal is not None:
        return {"kind": refusal["error_type"]}
    if "error" in said:
        kind = said["error"].get("data", {}).get("error_type", "failed")
        return {"kind": kind, "text": said["error"]["message"]}
    return {"kind": "ok" if result.get("content") else "failed", "text": str(said)}
