"""The Python SDK 2 as client, in the mode that it is told: "legacy" or a version of MCP."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
from mcp import Client
from mcp.client import ClientRequestContext, Transport
from mcp.client.session import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.interop.matrix.driving import NAME_GIVEN, POEM, POET, Answer, Stepped, Target, drive

CHANGES: dict[type, str] = {
    mcp_types.ToolListChangedNotification: "tools",
    mcp_types.ResourceListChangedNotification: "resources",
}


class Sdk2:
    def __init__(self, target: Target, mode: str) -> None:
        self._changed = {"tools": asyncio.Event(), "resources": asyncio.Event()}
        self.client = Client(
            _where(target),
            mode=mode,
            elicitation_callback=_give_a_name,
            sampling_callback=_write_a_poem,
            message_handler=self._hear,
        )

    @property
    def era(self) -> str:
        return "modern" if self.client.protocol_version in MODERN_PROTOCOL_VERSIONS else "handshake"

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools]

    async def resources(self) -> list[str]:
        listed = await self.client.list_resources(cache_mode="refresh")
        return [str(resource.uri) for resource in listed.resources]

    async def call(
        self, tool: str, arguments: dict[str, Any], stepped: Stepped | None = None
    ) -> Answer:
        async def step(progress: float, total: float | None, message: str | None) -> None:
            if stepped is not None:
                stepped(progress)

        result = await self.client.call_tool(tool, arguments, progress_callback=step)
        texts = [part.text for part in result.content if isinstance(part, mcp_types.TextContent)]
        return Answer("\n".join(texts), result.structured_content, bool(result.is_error))

    async def call_off(self, call: asyncio.Task[Answer]) -> None:
        call.cancel()

    @asynccontextmanager
    async def hearing(self, of: str) -> AsyncGenerator[asyncio.Event]:
        changed = self._changed[of]
        changed.clear()
        if self.era == "handshake":
            yield changed
            return
        wanted = {f"{of}_list_changed": True}
        async with self.client.listen(**wanted):  # pyright: ignore[reportArgumentType]
            yield changed

    async def _hear(self, message: IncomingMessage) -> None:
        if (changed := CHANGES.get(type(message))) is not None:
            self._changed[changed].set()


def _where(target: Target) -> str | Transport | StdioServerParameters:
    match target.over:
        case "stdio":
            return StdioServerParameters(command=target.command[0], args=target.command[1:])
        case "sse":
            return sse_client(target.url)
        case _:
            return target.url


async def _give_a_name(
    context: ClientRequestContext, params: mcp_types.ElicitRequestParams
) -> mcp_types.ElicitResult:
    return mcp_types.ElicitResult(action="accept", content={**NAME_GIVEN})


async def _write_a_poem(
    context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
) -> mcp_types.CreateMessageResult:
    said = mcp_types.TextContent(type="text", text=POEM)
    return mcp_types.CreateMessageResult(role="assistant", content=said, model=POET)


@asynccontextmanager
async def connect(target: Target, mode: str) -> AsyncGenerator[Sdk2]:
    peer = Sdk2(target, mode)
    async with peer.client:
        yield peer


if __name__ == "__main__":
    drive(connect)
