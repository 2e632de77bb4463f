"""Comity before servers that need permissions, and what an operator and a client see of them."""

import asyncio
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.conformance.conftest import standing
from tests.conformance.realm import OFFER
from tests.conformance.ways import Entry, Frame, House, Talk, on_pipes
from tests.interop.hand_client import SECONDS
from tests.interop.processes import operator_headers

ALL = (
    *("filesystem.read", "filesystem.write", "network.outbound", "network.listen"),
    *("shell.execute", "code_execution", "memory.read", "memory.write", "system.info"),
    *("camera", "notification"),
)
SHELL: Frame = {"name": "run", "security": {"permissions_required": ["shell.execute"]}}
PLAIN_TOOL: Frame = {"name": "look", "security": {"permissions_required": []}}


def guarded(*needs: str, tools: list[Frame] | None = None, **policy: object) -> Entry:
    """A server that needs these permissions, and what its operator decided of it."""
    mgp = {"version": "0.3.0", "extensions": ["security"], "permissions_required": list(needs)}
    said = {"mgp": mgp, "tools": [SHELL, PLAIN_TOOL] if tools is None else tools}
    entry = on_pipes("guarded", GUARDED=json.dumps(said))
    return {**entry, "policy": policy} if policy else entry


@contextmanager
def guarding(folder: Path, settings: str = "", **servers: Entry) -> Generator[House]:
    with standing(folder, servers, settings or "[policy]") as house:
        yield house


async def asked(house: House, *place: str, body: Frame | None = None, **query: str) -> Any:
    """What the operator's door answers."""
    url = f"{house.origin}/api/{'/'.join(place)}"
    async with aiohttp.ClientSession(headers=operator_headers(house.origin)) as http:
        if body is None:
            async with http.get(url, params=query) as reply:
                return await reply.json()
        async with http.post(url, json=body) as reply:
            return await reply.json()


async def decisions(house: House, server: str) -> dict[str, str]:
    found = (await asked(house, "permissions", server=server))["permissions"]
    return {each["permission"]: each["decision"] for each in found}


async def decide(house: House, deed: str, server: str, permission: str, **more: object) -> Any:
    body = {"server": server, "permission": permission, **more}
    return await asked(house, "permissions", deed, body=body)


async def listed(talk: Talk) -> set[str]:
    found = await talk.client.request("tools/list", {})
    return {tool["name"] for tool in found.result["tools"]}


async def answer_to(
    house: House, server: str, called: str, /, mgp: bool = True, **given: Any
) -> Frame:
    """The whole answer to one call at the door of all servers."""
    async with house.among_all(server).talk(OFFER if mgp else {}) as talk:
        return (await talk.call(called, given)).response


async def frames(house: House, server: str) -> list[Frame]:
    """All that the server has received, from whomever."""
    found = await answer_to(house, server, "seen")
    return found["result"]["structuredContent"]["frames"]


async def until_heard(house: House, server: str, method: str, times: int = 1) -> list[Frame]:
    """What the server received under this method, once it has so often."""
    async with asyncio.timeout(SECONDS):
        while True:
            heard = [each for each in await frames(house, server) if each["method"] == method]
            if len(heard) >= times:
                return heard
            await asyncio.sleep(0.05)


async def until_error(house: House, server: str, tool: str, code: int) -> Mapping[str, Any]:
    """The error that a call of this tool comes to be answered with."""
    async with asyncio.timeout(SECONDS):
        while True:
            error = (await answer_to(house, server, tool)).get("error", {})
            if error.get("code") == code:
                return error
            await asyncio.sleep(0.05)
