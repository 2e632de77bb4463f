"""Callers that call and call, and note when each call began and how it ended."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from comity.mcp.refusals import REFUSAL_KEY

VERSION = "2026-07-28"
SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """One call: when it began, on which gateway, and by what `error_type` it was refused, if so."""

    began: float
    origin: str
    error_type: str
    is_retryable: bool = False
    status: int = 200
    retry_after: str | None = None
    retry_after_ms: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.error_type == ""


@dataclass
class Calls:
    """All calls that ended so far."""

    ended: list[Ended] = field(default_factory=list[Ended])

    async def until(self, is_so: Callable[[list[Ended]], bool], seconds: float = SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not is_so(self.ended):
                await asyncio.sleep(0.02)

    async def everywhere(self, origins: list[str], is_so: Callable[[Ended], bool]) -> None:
        """Until a call that begins from now on has ended so at each of the gateways."""
        now = time.monotonic()
        await self.until(
            lambda ended: (
                {call.origin for call in ended if call.began > now and is_so(call)} == set(origins)
            )
        )


@asynccontextmanager
async def calling(
    origins: list[str], key: str, tool: str, arguments: dict[str, Any], callers: int
) -> AsyncGenerator[Calls]:
    """Have so many callers at work, shared out among the gateways."""
    calls = Calls()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        work = [
            asyncio.ensure_future(
                _call_on(session, origins[number % len(origins)], key, (tool, arguments), calls)
            )
            for number in range(callers)
        ]
        try:
            yield calls
        finally:
            for each in work:
                each.cancel()
            ends = await asyncio.gather(*work, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []


async def _call_on(
    session: aiohttp.ClientSession,
    origin: str,
    key: str,
    what: tuple[str, dict[str, Any]],
    calls: Calls,
) -> None:
    while True:
        began = time.monotonic()
        status, headers, body = await call(session, origin, key, *what)
        calls.ended.append(_ended(began, origin, status, headers, body))
        # Not as fast as can be: the machine belongs to the gateways.
        await asyncio.sleep(0.05)


async def call(
    session: aiohttp.ClientSession, origin: str, key: str, tool: str, arguments: dict[str, Any]
) -> tuple[int, dict[str, str], dict[str, Any]]:
    """One call of the modern era, which needs no session."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "callers", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "authorization": f"Bearer {key}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    async with (
        asyncio.timeout(SECONDS),
        session.post(f"{origin}/mcp", json=frame, headers=headers) as reply,
    ):
        told = {name.lower(): value for name, value in reply.headers.items()}
        if reply.content_type == "text/event-stream":
            return reply.status, told, json.loads((await reply.text()).rpartition("data: ")[2])
        return reply.status, told, await reply.json()


def _ended(
    began: float, origin: str, status: int, headers: dict[str, str], body: dict[str, Any]
) -> Ended:
    result: dict[str, Any] = body.get("result", {})
    if status == 200 and "result" in body and not result.get("isError"):
        return Ended(began, origin, "")
    told: dict[str, Any] = result.get("_meta", {}).get(REFUSAL_KEY) or body["error"]["data"]
    return Ended(
        began,
        origin,
        str(told["error_type"]),
        bool(told.get("retryable")),
        status,
        headers.get("retry-after"),
        told.get("retry_after_ms"),
    )
