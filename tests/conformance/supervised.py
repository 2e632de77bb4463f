"""A gateway whose servers' lives are watched: its orders, its states, and what is told of them."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from comity.config.trust import content_digest, trust_file
from tests.conformance.realm import SPOKEN, offer
from tests.conformance.ways import COMITY, Entry, Frame, House, Talk, on_pipes
from tests.interop.hand_client import SECONDS
from tests.interop.processes import Program, answers, operator_headers, running

NOTICE = "notifications/mgp.lifecycle"
LIFECYCLE = offer("lifecycle", "discovery")

type Step = tuple[str, str]


def mortal(name: str, *, mgp: bool = False, diary: Path | None = None, **care: object) -> Entry:
    """A talking server, with what its table `mgp` says of its restarts."""
    env = {"TALKER_NAME": name, "TALKER_DIARY": str(diary or "")}
    if mgp:
        env["TALKER_MGP"] = json.dumps(SPOKEN)
    entry = on_pipes("talker", **env)
    return {**entry, "mgp": care} if care else entry


@dataclass(frozen=True)
class Gateway(House):
    """Comity as a program: ordered about over its operator API, and by its file."""

    program: Program

    def configure(self, servers: Mapping[str, Entry]) -> None:
        """Write and approve its servers anew, and have it look."""
        text = json.dumps({"mcpServers": servers})
        trust_file(self.config, content_digest(text.encode()))
        self.config.write_text(text)
        os.kill(self.program.pid, signal.SIGHUP)

    async def order(self, server: str, what: str) -> Frame:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession(self.origin, headers=operator_headers(self.origin)) as http,
            http.post(f"/api/servers/{server}/{what}", json={}) as reply,
        ):
            return await reply.json()

    async def look(self, server: str) -> Frame:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession(self.origin, headers=operator_headers(self.origin)) as http,
            http.get(f"/api/servers/{server}") as reply,
        ):
            return await reply.json()

    async def until(self, server: str, is_so: Callable[[Frame], bool]) -> Frame:
        """What is known of a server, once it is so."""
        async with asyncio.timeout(2 * SECONDS):
            while not is_so(found := await self.look(server)):
                await asyncio.sleep(0.02)
        return found

    async def until_state(self, server: str, state: str) -> Frame:
        return await self.until(server, lambda found: found["state"] == state)

    @asynccontextmanager
    async def watching(self, server: str) -> AsyncGenerator["Watch"]:
        """A client of MGP that is told of each step of one server's."""
        async with self.among_all(server).talk(LIFECYCLE) as talk:
            await talk.client.listen()
            yield Watch(talk, server)


@dataclass(frozen=True)
class Watch:
    """What one client is told of one server."""

    talk: Talk
    server: str

    async def until(self, state: str) -> list[Frame]:
        """The steps up to the first that leads to this state."""
        told: list[Frame] = []
        async with asyncio.timeout(2 * SECONDS):
            while not told or told[-1]["new_state"] != state:
                step = (await self.talk.told(NOTICE))["params"]
                if step["server_id"] == self.server:
                    told.append(step)
        return told


def steps(told: list[Frame]) -> list[Step]:
    return [(step["previous_state"], step["new_state"]) for step in told]


@contextmanager
def gateway(folder: Path, servers: Mapping[str, Entry]) -> Generator[Gateway]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(partial(answers, f"{origin}/ready"))
        yield Gateway(origin, config, program)


def refusal_in(answer: Frame) -> tuple[int | None, Any]:
    """The code and the body of a refusal in an error."""
    return answer["error"]["code"], answer["error"]["data"]
