"""The client of FastMCP 4, in the mode that it is told: "legacy" or "auto"."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.messages import MessageHandler
from fastmcp.client.transports import (
    ClientTransport,
    SSETransport,
    StdioTransport,
    StreamableHttpTransport,
)
from mcp.client import session
from mcp.client.subscriptions import listen
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.interop.matrix.driving import NAME_GIVEN, POEM, POET, Answer, Stepped, Target, drive

# A program that starts on a busy machine may need longer than the SDK's ten seconds to answer
# `server/discover`; the client would then fall back to the handshake, and the cell would differ.
session.DISCOVER_TIMEOUT_SECONDS = 60.0


class Ears(MessageHandler):
    """Named by FastMCP: whoever hears what a server tells."""

    def __init__(self) -> None:
        self.changed = {"tools": asyncio.Event(), "resources": asyncio.Event()}

    async def on_tool_list_changed(self, message: mcp_types.ToolListChangedNotification) -> None:
        self.changed["tools"].set()

    async def on_resource_list_changed(
        self, message: mcp_types.ResourceListChangedNotification
    ) -> None:
        self.changed["resources"].set()


class FastMCPClient:
    def __init__(self, target: Target, mode: str) -> None:
        self._ears = Ears()
        self.client = Client(
            _where(target),
            mode=mode,
            elicitation_handler=_give_a_name,
            sampling_handler=_write_a_poem,
            message_handler=self._ears,
        )

    @property
    def era(self) -> str:
        version = self.client.session.protocol_version
        return "modern" if version in MODERN_PROTOCOL_VERSIONS else "handshake"

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in await self.client.list_resources()]

    async def call(
        self, tool: str, arguments: dict[str, Any], stepped: Stepped | None = None
    ) -> Answer:
        async def step(progress: float, total: float | None, message: str | None) -> None:
            if stepped is not None:
                stepped(progress)

        result = await self.client.call_tool(
            tool, arguments, progress_handler=step, raise_on_error=False
        )
        texts = [part.text for part in result.content if isinstance(part, mcp_types.TextContent)]
        return Answer("\n".join(texts), result.structured_content, result.is_error)

    async def call_off(self, call: asyncio.Task[Answer]) -> None:
        call.cancel()

    @asynccontextmanager
    async def hearing(self, of: str) -> AsyncGenerator[asyncio.Event]:
        changed = self._ears.changed[of]
        changed.clear()
        if self.era == "handshake":
            yield changed
            return
        # FastMCP has no word of its own for this, and hands out the SDK's session.
        wanted = {f"{of}_list_changed": True}
        async with listen(self.client.session, **wanted):  # pyright: ignore[reportArgumentType]
            yield changed


def _where(target: Target) -> ClientTransport:
    match target.over:
        case "stdio":
            return StdioTransport(target.command[0], target.command[1:], keep_alive=False)
        case "sse":
            return SSETransport(target.url)
        case _:
            return StreamableHttpTransport(target.url)


async def _give_a_name(
    message: str, response_type: Any, params: mcp_types.ElicitRequestParams, context: Any
) -> ElicitResult[dict[str, str]]:
    return ElicitResult(action="accept", content={**NAME_GIVEN})


async def _write_a_poem(
    messages: list[mcp_types.SamplingMessage],
    params: mcp_types.CreateMessageRequestParams,
    context: Any,
) -> mcp_types.CreateMessageResult:
    said = mcp_types.TextContent(type="text", text=POEM)
    return mcp_types.CreateMessageResult(role="assistant", content=said, model=POET)


@asynccontextmanager
async def connect(target: Target, mode: str) -> AsyncGenerator[FastMCPClient]:
    peer = FastMCPClient(target, mode)
    async with peer.client:
        yield peer


if __name__ == "__main__":
    drive(connect)
