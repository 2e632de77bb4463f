"""A server made with the official SDK; over HTTP it speaks both eras, and its lists can grow."""

import os
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp_types import Completion, CompletionArgument, PromptReference, ResourceTemplateReference
from pydantic import BaseModel

NAME = os.environ.get("OFFICIAL_NAME", "official")
official = MCPServer(NAME, version="3.1", instructions="Made with the official SDK.")


class Sum(BaseModel):
    total: int


class Colour(BaseModel):
    colour: str


@official.tool(title="Add up")
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@official.tool()
async def count(steps: int, ctx: Context) -> str:
    """Count up, reporting every step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(progress=step, total=steps, message=f"step {step}")
    return f"counted to {steps}"


@official.tool()
async def grow(name: str, ctx: Context) -> str:
    """Offer one more tool, and tell the listeners of both eras."""
    official.add_tool(lambda: f"{NAME}: {name}", name=name, description="Grown.")
    await ctx.notify_tools_changed()
    return "grown"


@official.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Say that a resource has changed."""
    await ctx.notify_resource_updated(uri)
    return "touched"


def _ask_colour() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


@official.tool()
def paint(answer: Annotated[ElicitationResult[Colour], Resolve(_ask_colour)]) -> str:
    """Needs a person's answer: asked amid the call, or as a result that asks for input."""
    return f"{answer.action} {answer.model_dump().get('data')}"


@official.resource(f"{NAME}://card")
def card() -> str:
    """The card."""
    return "Hello."


@official.resource(f"{NAME}://cards/{{name}}")
def named_card(name: str) -> str:
    """A card with a name on it."""
    return f"Hello, {name}."


@official.prompt()
def welcome(guest: str) -> str:
    """Ask a model to welcome a guest."""
    return f"Please welcome {guest}."


@official.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, _: object
) -> Completion:
    named = ref.name if isinstance(ref, PromptReference) else ref.uri
    return Completion(values=[f"{named} {argument.value}…"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        official.run("streamable-http", port=int(sys.argv[1]))
    else:
        official.run("stdio")
