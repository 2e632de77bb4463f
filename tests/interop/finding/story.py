"""What each client does in discovery mode, told once: list, search, call, and read the ledger."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

type Said = dict[str, Any]
type Call = Callable[[str, Said], Awaitable[Said]]
type Listed = Callable[[], Awaitable[list[str]]]

SECONDS = 90.0


async def play(call: Call, listed: Listed, query: str) -> Said:
    """`call` gives structured content and text of a tool's answer, `listed` the names there are."""
    first = await listed()
    found = await call("search_tools", {"query": query, "max_results": 3})
    name = found["data"]["tools"][0]["name"]
    arguments = {"subject": "the weather in May", "limit": 3}
    called = await call("call_tool", {"name": name, "arguments": arguments})
    ledger = await call("session_tools", {})
    then = await listed()
    directly = await call(name, arguments)
    gone = await call("session_tools", {"evict": [name]})
    last = await listed()
    return {
        "first": first,
        "found": found["data"],
        "read": found["text"],
        "called": called["text"],
        "directly": directly["text"],
        "ledger": ledger["data"],
        "then": then,
        "gone": gone["data"],
        "last": last,
    }


def tell(work: Callable[[str, str, str], Awaitable[Said]]) -> None:
    """Play it as the command line says, and print what was seen: URL, mode, query."""

    async def bounded() -> Said:
        async with asyncio.timeout(SECONDS):
            return await work(*sys.argv[1:4])

    print(json.dumps(asyncio.run(bounded())))
