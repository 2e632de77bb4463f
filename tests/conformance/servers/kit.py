"""A tool server made with the authoring kit: on pipes, or on the port that it is given."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

from mcp.server.mcpserver import MCPServer

from comity.sdk.mgp_server import CodeSafety, MgpServer, Security
from comity.sdk.streaming import StreamingTools

kit = MgpServer(
    MCPServer("kit", version="1"),
    "kit.example",
    permissions=["network.outbound"],
    trust="sandboxed",
)
kit.permits.patience = timedelta(seconds=float(os.environ.get("PATIENCE", "10")))
kit.channels.add("model.token_usage", "system.error", "tool.finished", "security.alarm")
kit.resource("notes", lambda: 3)
gate = asyncio.Event()
mood = {"disk": True}


async def disk() -> bool:
    return mood["disk"]


kit.check("disk", disk)


@kit.tool(Security("safe", reversible=True))
async def say(text: str) -> str:
    """Say it back."""
    await kit.audit("com.example.said", length=len(text))
    return text


@kit.tool(Security("moderate", permissions=("camera",), side_effects=("network",)))
async def look() -> str:
    """Needs what nobody may have given."""
    return "seen"


@kit.tool(
    Security(
        "dangerous",
        permissions=("filesystem.write",),
        side_effects=("filesystem", "process"),
        validator="sandbox",
        reversible=False,
        confirmation=True,
    )
)
async def wipe() -> str:
    """Asks before it acts."""
    sure = await kit.asks.confirm("Wipe everything?", within=timedelta(seconds=20))
    return "wiped" if sure else "left alone"


CODE = CodeSafety(
    "standard",
    max_code_size_bytes=500,
    blocked_imports=("csv",),
    blocked_patterns=("eval(",),
    allowed_imports=("math",),
)


@kit.tool(Security("moderate", validator="code_safety", code=CODE))
async def calculate(code: str) -> str:
    """Takes code, and says so."""
    return code


@kit.tool(Security("safe"))
async def survey() -> dict[str, str | None]:
    """Asks for a word and a choice, and tells that it did."""
    word = await kit.asks.input("A word?", within=timedelta(seconds=20))
    colour = await kit.asks.select("A colour?", ["red", "blue"], within=timedelta(seconds=20))
    await kit.asks.notify("Thank you.")
    return {"word": word, "colour": colour}


@kit.tool(Security("safe"))
async def wait() -> str:
    """Runs until `go` is called."""
    gate.clear()
    await gate.wait()
    return "waited"


@kit.tool(Security("safe"))
async def go() -> str:
    """Let those who wait go on."""
    gate.set()
    return "gone"


@kit.tool(Security("safe"))
async def publish(channel: str, severity: str) -> int:
    """Tell something on a channel."""
    return await kit.channels.publish(channel, {"n": 1}, severity)


@kit.tool(Security("safe"))
async def feel(disk_is_well: bool, ailment: str = "") -> str:
    """Be well or not."""
    mood["disk"] = disk_is_well
    kit.set_unhealthy(ailment)
    return "felt"


streaming = StreamingTools(kit.server)
kit.secure("tale", Security("safe"))
kit.secure("endless", Security("safe"))


@streaming.tool()
async def tale(words: int) -> AsyncIterator[str]:
    """Tell a tale word by word; the last one waits for `go`."""
    gate.clear()
    for index in range(words):
        if index == words - 1:
            await gate.wait()
        yield f"word{index} "


@streaming.tool()
async def endless() -> AsyncIterator[str]:
    """Tell without an end."""
    yield "once "
    await asyncio.Event().wait()


if __name__ == "__main__":
    kit.run(int(sys.argv[1]) if len(sys.argv) > 1 else None)
