"""A client of MGP by hand, in either era: what it asks, what it hears, and how it cancels."""

import io
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp

from tests.interop.hand_client import Exchange, Frame, HttpClient, initialize

MGP: Frame = {"mgp": {"version": "0.3.0", "extensions": ["streaming"]}}
CHUNK = "notifications/mgp.stream.chunk"
SHARE = "notifications/mgp.stream.progress"
PROGRESS = "notifications/progress"
CANCEL = "mgp/stream/cancel"
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"


class Talk(HttpClient):
    """The handshake era: a call is cancelled by the id of its request."""

    async def call(self, tool: str, arguments: Frame, **more: Any) -> Exchange:
        said = {key: more.pop(key) for key in ("named", "meanwhile") if key in more}
        return await self.request(
            "tools/call", {"name": tool, "arguments": arguments, **more}, **said
        )

    async def cancel(self, named: object) -> Frame:
        return (await self.request(CANCEL, {"request_id": named, "reason": "enough"})).result


class ModernTalk(Talk):
    """2026-07-28: every request says what its client can do, and a call gives itself a name."""

    capabilities: Frame = MGP

    async def call(self, tool: str, arguments: Frame, **more: Any) -> Exchange:
        if "_mgp" in more:
            more["_mgp"] = {**more["_mgp"], "stream_id": f"name of {more.get('named')}"}
        return await super().call(tool, arguments, **more)

    async def cancel(self, named: object) -> Frame:
        return await super().cancel(f"name of {named}")

    def post(self, frame: Frame) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        params: Frame = frame.get("params", {})
        envelope = {
            f"{_META}protocolVersion": MODERN,
            f"{_META}clientCapabilities": self.capabilities,
            f"{_META}clientInfo": {"name": "hand", "version": "1"},
        }
        said = {**frame, "params": {**params, "_meta": {**params.get("_meta", {}), **envelope}}}
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": MODERN,
            "mcp-method": frame["method"],
        }
        if "name" in params:
            headers["mcp-name"] = params["name"]
        return self._http.post(
            self._url, data=io.BytesIO(json.dumps(said).encode()), headers=headers
        )


@asynccontextmanager
async def talk(url: str, era: str, capabilities: Frame = MGP) -> AsyncGenerator[Talk]:
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=forever) as http:
        if era == "modern":
            made = ModernTalk(http, url)
            made.capabilities = capabilities
            yield made
        else:
            plain = Talk(http, url)
            await initialize(plain, capabilities)
            yield plain
            await plain.close()
