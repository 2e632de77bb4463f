"""A server made with the Python SDK 1: `with_sdk1.py [PORT [sse]]`, over stdio without a port.

It runs in an environment of its own, so that here nothing is known of the SDK's types.
"""

import sys
from importlib import import_module
from typing import Any

import anyio
from pydantic import BaseModel

FastMCP: Any = import_module("mcp.server.fastmcp").FastMCP
wire: Any = import_module("mcp.types")

port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
instructions = "Has one tool for each feature."
server = FastMCP("matrix-sdk1", instructions=instructions, port=port, log_level="ERROR")
_interrupted = 0
_gone_on: dict[str, anyio.Event] = {}


class Total(BaseModel):
    total: int


class Name(BaseModel):
    name: str


@server.tool()
def echo(text: str) -> str:
    """Say the same."""
    return f"Echo: {text}"


@server.tool()
def add(a: int, b: int) -> Total:
    """Add two numbers."""
    return Total(total=a + b)


@server.tool()
async def count(steps: int, until: str) -> str:
    """Count up, reporting every step, and answer when somebody says `go_on` with the same word."""
    ctx = server.get_context()
    gone_on = _gone_on[until] = anyio.Event()
    for step in range(1, steps + 1):
        await ctx.report_progress(progress=step, total=steps, message=f"step {step}")
    await gone_on.wait()
    return f"counted to {steps}"


@server.tool()
async def go_on(until: str) -> str:
    """Let a count come to its end."""
    _gone_on.pop(until).set()
    return "went on"


@server.tool()
async def wait_long() -> str:
    """Begin, say so, and wait for longer than anybody does."""
    global _interrupted  # noqa: PLW0603 - one process, one count
    await server.get_context().report_progress(progress=1, message="waiting")
    try:
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        _interrupted += 1
        raise
    return "waited"


@server.tool()
def interrupted() -> str:
    """How many waits were called off."""
    return str(_interrupted)


@server.tool()
async def ask() -> str:
    """Ask whoever is at the client for a name."""
    answer = await server.get_context().elicit("Who is there?", Name)
    return f"Hello, {answer.data.name}!" if answer.action == "accept" else "Nobody is there."


@server.tool()
async def sample() -> str:
    """Ask the client's model for a poem."""
    prompt = wire.TextContent(type="text", text="A haiku, please.")
    ctx = server.get_context()
    poem = await ctx.session.create_message(
        [wire.SamplingMessage(role="user", content=prompt)],
        max_tokens=17,
        related_request_id=ctx.request_id,
    )
    return f"{poem.model} said: {poem.content.text}"


@server.tool()
async def grow(name: str) -> str:
    """Offer one more tool, and tell the client."""
    server.add_tool(echo, name=name)
    await server.get_context().session.send_tool_list_changed()
    return f"grew {name}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run("stdio")
    else:
        server.run("sse" if "sse" in sys.argv else "streamable-http")
