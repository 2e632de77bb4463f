"""The same tools twice: with everything that the kit adds, or on the official server alone.

python -m tests.sdk.live_twin live|plain PORT
"""

import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer

from comity.sdk.server import ChannelDescriptor, FeatureUse, Security, Server, Turn

notes: list[str] = []


async def say(text: str) -> str:
    """Say it back."""
    return text


async def add_note(text: str) -> int:
    """Keep a note."""
    notes.append(text)
    return len(notes)


def live() -> Server:
    server = Server("twin", version="1", instructions="Ask.")
    memory = server.feature(
        "twin.memory", "Remembers", uses=[FeatureUse.PUSH, FeatureUse.INFERENCE]
    )
    edit = server.feature("twin.edit", "Keeps notes", scoped=True, rollback=True)
    server.feature("twin.chat", "Chats", uses=[FeatureUse.PUBLISH, FeatureUse.OBSERVE])
    server.tool(Security("safe"))(say)
    edit.tool(Security("moderate"))(add_note)
    _add_poem(server.mcp)

    @memory.before_inference
    async def recall(turn: Turn) -> str:
        return "remembered"

    @server.background
    async def begin() -> None:
        await server.channels.register(ChannelDescriptor("twin:#a", "twin"))
        await memory.push("begun", "It has begun")

    return server


def plain() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("twin", version="1", instructions="Ask.")
    server.tool()(say)
    server.tool()(add_note)
    _add_poem(server)
    return server


def _add_poem(server: MCPServer[Any]) -> None:
    @server.resource("poem://pond", name="pond")
    def pond() -> str:
        """A poem."""
        return "An old silent pond."

    @server.prompt()
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Greet {name}."


if __name__ == "__main__":
    if sys.argv[1] == "live":
        live().run(int(sys.argv[2]))
    else:
        app = plain().streamable_http_app(host="127.0.0.1")
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
