"""A server made with FastMCP 4: `with_fastmcp.py [PORT]`, over stdio without a port.

FastMCP has two ways to ask, one for each era, and says so in its documents; a tool that shall
serve clients of both has to take the one that the connection allows.
"""

import sys
from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.tools import Tool
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponse,
    SamplingMessage,
    TextContent,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

server = FastMCP("matrix-fastmcp", instructions="Has one tool for each feature.")
_interrupted = 0
_gone_on: dict[str, anyio.Event] = {}


class Total(BaseModel):
    total: int


class Name(BaseModel):
    name: str


@server.tool
def echo(text: str) -> str:
    """Say the same."""
    return f"Echo: {text}"


@server.tool
def add(a: int, b: int) -> Total:
    """Add two numbers."""
    return Total(total=a + b)


@server.tool
async def count(steps: int, until: str, ctx: Context) -> str:
    """Count up, reporting every step, and answer when somebody says `go_on` with the same word."""
    gone_on = _gone_on[until] = anyio.Event()
    for step in range(1, steps + 1):
        await ctx.report_progress(progress=step, total=steps, message=f"step {step}")
    await gone_on.wait()
    return f"counted to {steps}"


@server.tool
async def go_on(until: str) -> str:
    """Let a count come to its end."""
    _gone_on.pop(until).set()
    return "went on"


@server.tool
async def wait_long(ctx: Context) -> str:
    """Begin, say so, and wait for longer than anybody does."""
    global _interrupted  # noqa: PLW0603 - one process, one count
    await ctx.report_progress(progress=1, message="waiting")
    try:
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        _interrupted += 1
        raise
    return "waited"


@server.tool
def interrupted() -> str:
    """How many waits were called off."""
    return str(_interrupted)


@server.tool(output_schema=None)
async def ask(ctx: Context) -> str | InputRequiredResult:
    """Ask whoever is at the client for a name."""
    question = "Who is there?"
    if not _has_no_back_channel(ctx):
        pushed = await ctx.elicit(question, Name)
        return f"Hello, {pushed.data.name}!" if pushed.action == "accept" else "Nobody is there."
    answer = _answered(ctx, ElicitResult)
    if answer is None:
        form: dict[str, Any] = Name.model_json_schema()
        return _asking(
            ElicitRequest(params=ElicitRequestFormParams(message=question, requested_schema=form))
        )
    return f"Hello, {(answer.content or {})['name']}!"


@server.tool(output_schema=None)
async def sample(ctx: Context) -> str | InputRequiredResult:
    """Ask the client's model for a poem."""
    prompt = TextContent(type="text", text="A haiku, please.")
    messages = [SamplingMessage(role="user", content=prompt)]
    if not _has_no_back_channel(ctx):
        return _said(
            await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
                messages, max_tokens=17, related_request_id=ctx.request_id
            )
        )
    answer = _answered(ctx, CreateMessageResult)
    if answer is None:
        params = CreateMessageRequestParams(messages=messages, max_tokens=17)
        return _asking(CreateMessageRequest(params=params))
    return _said(answer)


@server.tool
async def grow(name: str, ctx: Context) -> str:
    """Offer one more tool, and tell the client."""
    server.add_tool(Tool.from_function(_say_again, name=name))
    await ctx.send_notification(ToolListChangedNotification())
    return f"grew {name}"


def _say_again(text: str) -> str:
    return f"Echo: {text}"


def _has_no_back_channel(ctx: Context) -> bool:
    assert ctx.request_context is not None
    return ctx.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _asking(question: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests={"question": question})


def _answered[Kind: InputResponse](ctx: Context, kind: type[Kind]) -> Kind | None:
    answer = (ctx.input_responses or {}).get("question")
    return answer if isinstance(answer, kind) else None


def _said(poem: CreateMessageResult) -> str:
    assert isinstance(poem.content, TextContent)
    return f"{poem.model} said: {poem.content.text}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run("stdio", show_banner=False)
    else:
        server.run("http", port=int(sys.argv[1]), show_banner=False)
