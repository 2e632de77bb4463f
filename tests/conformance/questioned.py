"""Comity before servers that ask people, and a person who answers at the operator's door."""

import asyncio
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.conformance.conftest import standing
from tests.conformance.guarding import asked
from tests.conformance.ways import Entry, Frame, House, Talk, on_pipes, on_port
from tests.interop.hand_client import SECONDS, Exchange
from tests.interop.processes import http_server, operator_headers

MGP: Frame = {"mgp": {"version": "0.3.0", "extensions": ["security", "bidirectional"]}}
PLAIN: Frame = {}
SETTINGS = """
[policy]
[approvals]
elicitations = "ELICITATIONS"
request_ttl = "20s"
"""


@contextmanager
def questioned(folder: Path, elicitations: str = "client", limits: str = "") -> Generator[House]:
    """A gateway before one such server on pipes and one over HTTP."""
    with http_server(on_port("questioner"), {}) as far:
        servers: dict[str, Entry] = {
            "near": on_pipes("questioner"),
            "plain": on_pipes("questioner", EXTENSIONS="[]"),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        settings = SETTINGS.replace("ELICITATIONS", elicitations) + limits
        with standing(folder, servers, settings) as house:
            yield house


def callback(of: str, id: str = "cb-1", /, **other: object) -> Frame:
    return {"callback_id": id, "type": of, "message": "Delete 15 files?", **other}


async def asks(house: House, **query: str) -> list[Frame]:
    return (await asked(house, "approvals", body=None, **query))["approvals"]


async def until_asked(house: House, kind: str, number: int = 1, **query: str) -> list[Frame]:
    """The asks of that kind, once there are so many."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [each for each in await asks(house, **query) if each["kind"] == kind]
            if len(found) >= number:
                return found
            await asyncio.sleep(0.05)


async def until_state(house: House, id: str, *states: str) -> Frame:
    """An ask once it is in one of these states."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await asked(house, "approvals", id)
            if found["state"] in states:
                return found
            await asyncio.sleep(0.05)


async def answer(house: House, id: str, verdict: str, **more: object) -> tuple[int, Frame]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{house.origin}/api/approvals/{id}/answer",
            json={"verdict": verdict, **more},
            headers=operator_headers(house.origin),
        ) as reply,
    ):
        return reply.status, await reply.json()


def calling(talk: Talk, tool: str = "back", **given: Any) -> "asyncio.Task[Exchange]":
    return asyncio.ensure_future(talk.call(tool, given))


def told(exchange: Exchange) -> list[tuple[str, object]]:
    """What the server was answered, in its order."""
    found: list[Mapping[str, Any]] = exchange.result["structuredContent"]["answers"]
    return [(each["callback_id"], each["response"]) for each in found]


async def journaled(house: House, ask: str) -> list[Frame]:
    """All that the journal has of an ask."""
    found = await asked(house, "audit", limit="1000")
    return [each for each in found["entries"] if ask in json.dumps(each)]
