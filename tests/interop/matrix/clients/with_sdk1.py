"""The Python SDK 1 as client; it knows the handshake era alone.

It runs in an environment of its own, so that here nothing is known of the SDK's types.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

from tests.interop.matrix.driving import NAME_GIVEN, POEM, POET, Answer, Stepped, Target, drive

sdk: Any = import_module("mcp")
wire: Any = import_module("mcp.types")
sse_client: Any = import_module("mcp.client.sse").sse_client
http_client: Any = import_module("mcp.client.streamable_http").streamable_http_client

CHANGES = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
}


class Sdk1:
    era = "handshake"

    def __init__(self, streams: tuple[Any, ...]) -> None:
        self._changed = {"tools": asyncio.Event(), "resources": asyncio.Event()}
        self._next_call = 0
        self.session = sdk.ClientSession(
            streams[0],
            streams[1],
            elicitation_callback=_give_a_name,
            sampling_callback=_write_a_poem,
            message_handler=self._hear,
        )

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in (await self.session.list_resources()).resources]

    async def call(
        self, tool: str, arguments: dict[str, Any], stepped: Stepped | None = None
    ) -> Answer:
        async def step(progress: float, total: float | None, message: str | None) -> None:
            if stepped is not None:
                stepped(progress)

        self._next_call = self.session._request_id
        result = await self.session.call_tool(tool, arguments, progress_callback=step)
        texts = [part.text for part in result.content if part.type == "text"]
        return Answer("\n".join(texts), result.structuredContent, bool(result.isError))

    async def call_off(self, call: asyncio.Task[Answer]) -> None:
        # The SDK forgets a call without a word to the server: that word is left to its users.
        params = wire.CancelledNotificationParams(requestId=self._next_call)
        gone = wire.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(wire.ClientNotification(gone))
        call.cancel()

    @asynccontextmanager
    async def hearing(self, of: str) -> AsyncGenerator[asyncio.Event]:
        self._changed[of].clear()
        yield self._changed[of]

    async def _hear(self, message: Any) -> None:
        method = getattr(getattr(message, "root", None), "method", "")
        if method in CHANGES:
            self._changed[CHANGES[method]].set()


def _reach(target: Target) -> Any:
    match target.over:
        case "stdio":
            program = {"command": target.command[0], "args": target.command[1:]}
            return sdk.stdio_client(sdk.StdioServerParameters(**program))
        case "sse":
            return sse_client(target.url)
        case _:
            return http_client(target.url)


async def _give_a_name(context: Any, params: Any) -> Any:
    return wire.ElicitResult(action="accept", content={**NAME_GIVEN})


async def _write_a_poem(context: Any, params: Any) -> Any:
    said = wire.TextContent(type="text", text=POEM)
    return wire.CreateMessageResult(role="assistant", content=said, model=POET)


@asynccontextmanager
async def connect(target: Target, mode: str) -> AsyncGenerator[Sdk1]:
    async with AsyncExitStack() as stack:
        peer = Sdk1(await stack.enter_async_context(_reach(target)))
        await stack.enter_async_context(peer.session)
        await peer.session.initialize()
        yield peer


if __name__ == "__main__":
    drive(connect)
