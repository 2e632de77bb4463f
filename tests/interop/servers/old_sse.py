"""A small server made with the official SDK: the old SSE transport, streamable HTTP or stdio."""

import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

keeper = MCPServer("keeper", instructions="Keeps an old house.")
_interrupted = 0


class Name(BaseModel):
    name: str


@keeper.tool()
async def count(steps: int, ctx: Context) -> str:
    """Count up, reporting every step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(progress=step, total=steps, message=f"step {step}")
    return f"counted to {steps}"


@keeper.tool()
async def ask_name(ctx: Context) -> str:
    """Ask whoever is at the client for a name."""
    answer = await ctx.elicit("Who is there?", Name)
    return f"Hello, {answer.data.name}!" if answer.action == "accept" else "Nobody is there."


@keeper.tool()
async def wait_long(ctx: Context) -> str:
    """Begin, say so, and wait for longer than anybody does."""
    global _interrupted  # noqa: PLW0603 - one process, one count
    await ctx.report_progress(progress=0, message="waiting")
    try:
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        _interrupted += 1
        raise
    return "waited"


@keeper.tool()
def interrupted() -> int:
    """How many waits were called off."""
    return _interrupted


if __name__ == "__main__":
    if len(sys.argv) == 1:
        keeper.run("stdio")
    elif "--http" in sys.argv:
        keeper.run("streamable-http", port=int(sys.argv[1]))
    else:
        keeper.run("sse", port=int(sys.argv[1]))
