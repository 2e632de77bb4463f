"""The ways a client can take to a server: its own door, the merged one, and the pipe."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.interop.hand_client import (
    SECONDS,
    Dial,
    Exchange,
    HandClient,
    Meanwhile,
    initialize,
    over_http,
    over_stdio,
)
from tests.interop.peers import ROOT
from tests.interop.processes import operator_headers

type Frame = dict[str, Any]
type Entry = dict[str, Any]

COMITY = str(Path(sys.executable).with_name("comity"))
NOBODY: Frame = {}


@dataclass
class Talk:
    """A client that shook hands, and the server it talks about."""

    client: HandClient
    way: "Way"
    hello: Frame

    async def call(
        self,
        tool: str,
        arguments: Frame | None = None,
        *,
        named: object = None,
        meanwhile: Meanwhile | None = None,
        **params: object,
    ) -> Exchange:
        asked = {"name": self.way.name(tool), "arguments": arguments or {}, **params}
        return await self.client.request("tools/call", asked, named=named, meanwhile=meanwhile)

    async def ask(self, method: str, **params: object) -> Exchange:
        """Have the server ask this client in the call; the result tells what it heard."""
        return await self.call("ask", {"method": method, "params": params})

    async def listen(self) -> None:
        """Open the standing stream, and wait until the server's own stands behind it.

        Like many, the talking server loses what it says while nobody listens.
        """
        await self.client.listen()
        heard = {"method": "notifications/talker.heard"}
        async with asyncio.timeout(SECONDS):
            while self.client.standalone.empty():
                told = await self.call("tell", {"notices": [heard], "standalone": True})
                if told.said(heard["method"]):
                    # A server on pipes has one stream for all it says; it always stands.
                    return
                await asyncio.sleep(0.02)

    async def told(self, method: str) -> Frame:
        """The next message of that method on the standing stream; others are passed over."""
        async with asyncio.timeout(SECONDS):
            while (said := await self.client.standalone.get())["method"] != method:
                pass
        return said

    async def seen(self) -> list[Frame]:
        """What the server received in this conversation, oldest first."""
        return (await self.call("seen")).result["structuredContent"]["frames"]


@dataclass(frozen=True)
class Way:
    """How a client reaches one server, and what the server's names look like there."""

    server: str
    dial: Dial
    prefix: str = ""

    def name(self, own: str) -> str:
        return self.prefix + own

    def uri(self, path: str) -> str:
        return f"{self.server}://{path}"

    def words(self, said: Any) -> Any:
        """What the talking server would say, had it this server's name."""
        return json.loads(json.dumps(said).replace("talker://", f"{self.server}://"))

    @asynccontextmanager
    async def talk(self, capabilities: Frame = NOBODY, **hello: object) -> AsyncGenerator[Talk]:
        async with self.dial() as client:
            said = await initialize(client, capabilities, **hello)
            yield Talk(client, self, said)


@dataclass(frozen=True)
class House:
    """Comity before some servers, and its configuration."""

    origin: str
    config: Path

    @property
    def merged(self) -> str:
        return f"{self.origin}/mcp"

    def door(self, server: str) -> str:
        return f"{self.origin}/servers/{server}/mcp"

    def own(self, server: str) -> Way:
        return Way(server, partial(over_http, self.door(server)))

    def among_all(self, server: str) -> Way:
        return Way(server, partial(over_http, self.merged), f"{server}__")

    def operated(self, server: str) -> Way:
        """Among all, for a client that shows the operator token."""
        headers = operator_headers(self.origin)
        return Way(server, partial(over_http, self.merged, headers), f"{server}__")

    def by_pipe(self, server: str) -> Way:
        """The same Comity, for a client that starts a program and speaks on its pipes."""
        command = [COMITY, "serve", "-c", str(self.config), "--stdio"]
        return Way(server, partial(over_stdio, command), f"{server}__")

    def way(self, label: str) -> Way:
        door, server = label.split(" ")
        return {"own": self.own, "merged": self.among_all, "pipe": self.by_pipe}[door](server)


def on_pipes(module: str, **env: str) -> Entry:
    """How a configuration names a server of this folder that speaks stdio."""
    arguments = ["-m", f"tests.conformance.servers.{module}"]
    return {"command": sys.executable, "args": arguments, "cwd": str(ROOT), "env": env}


SHOWN: Entry = {"policy": {"on_suspicious_definition": "show"}}
"""For a server whose tools have names that would be refused, where it is not about that."""


def on_port(module: str) -> Callable[[int], list[str]]:
    """The command of a server of this folder that speaks HTTP."""
    return lambda port: [sys.executable, "-m", f"tests.conformance.servers.{module}", str(port)]
