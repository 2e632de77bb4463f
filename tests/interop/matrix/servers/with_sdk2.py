"""A server made with the Python SDK 2: `with_sdk2.py [PORT]`, over stdio without a port.

What it asks of the client it asks by dependencies of the tool, which is how the SDK's documents
have it: the same tool then asks by a request in the handshake era, by a result in 2026-07-28.
"""

import sys
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("matrix-sdk2", instructions="Has one tool for each feature.", log_level="ERROR")
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
async def count(steps: int, until: str, ctx: Context) -> str:
    """Count up, reporting every step, and answer when somebody says `go_on` with the same word."""
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


@server.tool()
def interrupted() -> str:
    """How many waits were called off."""
    return str(_interrupted)


def _for_a_name() -> Elicit[Name]:
    return Elicit("Who is there?", Name)


@server.tool()
def ask(answer: Annotated[Name, Resolve(_for_a_name)]) -> str:
    """Ask whoever is at the client for a name."""
    return f"Hello, {answer.name}!"


def _for_a_poem() -> Sample:
    prompt = TextContent(type="text", text="A haiku, please.")
    return Sample([SamplingMessage(role="user", content=prompt)], max_tokens=17)


@server.tool()
def sample(poem: Annotated[CreateMessageResult, Resolve(_for_a_poem)]) -> str:
    """Ask the client's model for a poem."""
    assert isinstance(poem.content, TextContent)
    return f"{poem.model} said: {poem.content.text}"


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Offer one more tool, and tell the clients of either era."""
    server.add_tool(echo, name=name)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return f"grew {name}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
