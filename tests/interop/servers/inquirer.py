"""A server on the official SDK that asks, tells and changes, each in the way of the era it is met.

Its first argument is a port, or nothing for stdio. In the handshake era it asks amid a call by
requests of its own; in the modern one by results that say what input is required.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

type Context = ServerRequestContext[Any, Any]
type Reply = types.CallToolResult | types.InputRequiredResult

NOTE = os.environ.get("INQUIRER_NOTE", "inquirer://note")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
LETTERS: dict[str, Any] = {"type": "object", "properties": {"letters": {"type": "integer"}}}

bus = InMemorySubscriptionBus()
# The SDK makes one for each request; any of a connection's leads to that connection.
sessions: deque[ServerSession] = deque(maxlen=16)
subscribers: set[tuple[ServerSession, str]] = set()
names = ["greet", "count", "ask", "sample", "roots", "wait", "cancelled", "log", "grow", "touch"]
cancelled: list[str] = []

FORM = types.ElicitRequest(
    params=types.ElicitRequestFormParams(message="Who are you?", requested_schema=SCHEMA)
)
SAMPLE = types.CreateMessageRequest(
    params=types.CreateMessageRequestParams(
        messages=[
            types.SamplingMessage(
                role="user", content=types.TextContent(type="text", text="A haiku, please.")
            )
        ],
        max_tokens=17,
    )
)


def text(said: str, **structured: Any) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=said)]
    return types.CallToolResult(content=content, structured_content=structured or None)


def is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


async def ask(
    ctx: Context,
    params: types.CallToolRequestParams,
    request: types.InputRequest,
    push: Callable[[], Awaitable[Any]],
) -> Any:
    """The client's answer; or what the modern era gives instead of one, the first time."""
    if not is_modern(ctx):
        return await push()
    if params.input_responses is None:
        return types.InputRequiredResult(input_requests={"it": request}, request_state="waiting")
    assert params.request_state == "waiting"
    return params.input_responses["it"]


async def greet(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    name = str((params.arguments or {})["name"])
    return text(f"Hello, {name}!", letters=len(name))


async def count(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    for step in (1, 2, 3):
        await ctx.session.report_progress(step, 3, f"step {step}")
    return text("counted")


async def elicit(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    answer = await ask(
        ctx,
        params,
        FORM,
        lambda: ctx.session.elicit_form("Who are you?", SCHEMA, ctx.request_id),
    )
    if isinstance(answer, types.InputRequiredResult):
        return answer
    said: Mapping[str, Any] = answer.content or {}
    return text(f"{answer.action} {said.get('name', '')}".strip())


async def sample(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    answer = await ask(
        ctx,
        params,
        SAMPLE,
        lambda: ctx.session.create_message(  # pyright: ignore[reportDeprecated]
            SAMPLE.params.messages, max_tokens=17, related_request_id=ctx.request_id
        ),
    )
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return text(f"{answer.model}: {answer.content.text}")


async def roots(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    push = ctx.session.list_roots  # pyright: ignore[reportDeprecated]
    answer = await ask(ctx, params, types.ListRootsRequest(), push)
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return text(" ".join(str(root.uri) for root in answer.roots))


async def wait(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    name = str((params.arguments or {})["name"])
    try:
        await ctx.session.report_progress(1, 2, "waiting")
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        cancelled.append(name)
        raise
    return text("nobody called it off")


async def tell_cancelled(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    return text(" ".join(cancelled))


async def log(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    levels: tuple[types.LoggingLevel, ...] = ("debug", "warning")
    for level in levels:
        say = ctx.session.send_log_message  # pyright: ignore[reportDeprecated]
        await say(level, f"a {level}", related_request_id=ctx.request_id)
    return text("logged")


async def grow(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    names.append(str((params.arguments or {})["name"]))
    for session in list(sessions):
        await session.send_tool_list_changed()
    await bus.publish(ToolsListChanged())
    return text("grown")


async def touch(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    for session, uri in list(subscribers):
        await session.send_resource_updated(uri)
    await bus.publish(ResourceUpdated(NOTE))
    return text("touched")


TOOLS: dict[str, Callable[[Context, types.CallToolRequestParams], Awaitable[Reply]]] = {
    "greet": greet,
    "count": count,
    "ask": elicit,
    "sample": sample,
    "roots": roots,
    "wait": wait,
    "cancelled": tell_cancelled,
    "log": log,
    "grow": grow,
    "touch": touch,
}


async def list_tools(ctx: Context, params: object) -> types.ListToolsResult:
    if not is_modern(ctx):
        sessions.append(ctx.session)
    schema: dict[str, Any] = {"type": "object"}
    tools = [
        types.Tool(
            name=name, input_schema=schema, output_schema=LETTERS if name == "greet" else None
        )
        for name in names
    ]
    return types.ListToolsResult(tools=tools)


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Reply:
    return await TOOLS[params.name](ctx, params)


async def list_resources(ctx: Context, params: object) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri=NOTE, name="note")])


async def read_resource(
    ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    found = types.TextResourceContents(uri=str(params.uri), text="a note")
    return types.ReadResourceResult(contents=[found])


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    subscribers.add((ctx.session, str(params.uri)))
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    subscribers.discard((ctx.session, str(params.uri)))
    return types.EmptyResult()


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


def server() -> Server[Any]:
    return Server(  # pyright: ignore[reportDeprecated]
        "inquirer",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
        on_set_logging_level=set_level,
    )


async def serve_stdio() -> None:
    made = server()
    async with stdio_server() as (reader, writer):
        await made.run(reader, writer, made.create_initialization_options())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvicorn.run(server().streamable_http_app(), port=int(sys.argv[1]), log_level="warning")
    else:
        asyncio.run(serve_stdio())
