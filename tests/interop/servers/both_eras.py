"""A small server made with the official SDK; over HTTP it speaks both eras at once."""

import sys

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

greeter = MCPServer("greeter", instructions="Greets.")


class Greeting(BaseModel):
    text: str
    letters: int


@greeter.tool()
def greet(name: str) -> Greeting:
    """Greet somebody by name."""
    text = f"Hello, {name}!"
    return Greeting(text=text, letters=len(text))


@greeter.tool()
async def count(steps: int, ctx: Context) -> str:
    """Count up, reporting every step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(progress=step, total=steps, message=f"step {step}")
    return f"counted to {steps}"


@greeter.resource("greeter://card")
def card() -> str:
    """The card with all greetings."""
    return "Hello. Good morning. Good night."


@greeter.prompt()
def welcome(guest: str) -> str:
    """Ask a model to welcome a guest."""
    return f"Please welcome {guest}."


if __name__ == "__main__":
    greeter.run("streamable-http", port=int(sys.argv[1]))
