"""What the official SDKs are asked to do as clients, one plan for all of them.

A plan names its steps; a peer carries them out in order and gives an answer for each, in wire form.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult
from pydantic import BaseModel

from tests.interop.peers import ROOT, javascript, node

type Step = dict[str, Any]
type Answers = dict[str, Any]
type Where = str | Transport | StdioServerParameters

_SECONDS = 120.0


async def with_python(where: Where, mode: str, plan: dict[str, Step]) -> Answers:
    """`mode` is "legacy" for the handshake, or the version to speak without one."""
    answers: Answers = {}
    async with asyncio.timeout(_SECONDS), Client(where, mode=mode) as client:
        for name, step in plan.items():
            try:
                answers[name] = await _STEPS[step["do"]](client, step)
            except MCPError as error:
                answers[name] = {"failed": error.error.message, "code": error.error.code}
    return answers


async def with_typescript(url: str, sdk: str, plan: dict[str, Step]) -> Answers:
    """`sdk` is one of "v1", "v2" and "v2-modern"."""
    script = str(ROOT / "tests" / "interop" / "js" / "peer.mjs")
    process = await asyncio.create_subprocess_exec(
        *(node(), script, str(javascript()), sdk, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            said, complaints = await process.communicate(json.dumps(plan).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the TypeScript peer failed:\n{complaints.decode()}")
    return json.loads(said)


async def _call(client: Client, step: Step) -> Step:
    steps: list[Step] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        news = {"progress": progress, "total": total, "message": message}
        steps.append({name: value for name, value in news.items() if value is not None})

    result = await client.call_tool(step["name"], step["arguments"], progress_callback=note)
    assert isinstance(result, CallToolResult)
    return {**_wire(result), "progress": steps}


async def _all(fetch: Callable[[str | None], Awaitable[Any]], key: str) -> list[Step]:
    found: list[Step] = []
    cursor = None
    while True:
        page = _wire(await fetch(cursor))
        found.extend(page[key])
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


def _wire(model: BaseModel) -> Step:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def _tools(client: Client, _: Step) -> list[Step]:
    return await _all(lambda cursor: client.list_tools(cursor=cursor), "tools")


async def _resources(client: Client, _: Step) -> list[Step]:
    return await _all(lambda cursor: client.list_resources(cursor=cursor), "resources")


async def _templates(client: Client, _: Step) -> list[Step]:
    listed = "resourceTemplates"
    return await _all(lambda cursor: client.list_resource_templates(cursor=cursor), listed)


async def _prompts(client: Client, _: Step) -> list[Step]:
    return await _all(lambda cursor: client.list_prompts(cursor=cursor), "prompts")


async def _read(client: Client, step: Step) -> Step:
    return _wire(await client.read_resource(step["uri"]))


async def _prompt(client: Client, step: Step) -> Step:
    return _wire(await client.get_prompt(step["name"], step["arguments"]))


_STEPS: dict[str, Callable[[Client, Step], Awaitable[Any]]] = {
    "tools": _tools,
    "resources": _resources,
    "templates": _templates,
    "prompts": _prompts,
    "call": _call,
    "read": _read,
    "prompt": _prompt,
}
