"""A gateway before one live server written by hand, in each era and over each transport."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.cluster.nodes import modern
from tests.interop.hand_client import HandClient, initialize, over_http
from tests.interop.peers import ROOT
from tests.interop.processes import comity, http_server, operator_headers
from tests.pace import here

SECONDS: Final = 120.0
WAYS: Final = ("handshake pipes", "handshake http", "modern pipes", "modern http")
SETS: Final = {
    "talk.push": {"description": "Pushes", "uses": ["pushEvents"]},
    "talk.hook": {"description": "Adds words", "uses": ["contextHooks.beforeInference"]},
    "files.edit": {"description": "Edits files", "uses": ["tools"], "scoped": True},
    "files.read": {"description": "Reads files", "uses": ["tools"]},
    "loud": {"description": "Not for everybody", "uses": ["pushEvents"]},
}
DECLARED: Final = {"version": "0.4", "pushEvents": True, "modelInfo": True, "featureSets": SETS}
_SCHEMA: Final = {"type": "object"}
TOOLS: Final = [
    {"name": "edit_file", "inputSchema": _SCHEMA, "_meta": {"featureSet": "files.edit"}},
    {"name": "move_files", "inputSchema": _SCHEMA, "_meta": {"featureSet": "files.edit"}},
    {"name": "edit_unsaid", "inputSchema": _SCHEMA, "_meta": {"featureSet": "files.edit"}},
    {"name": "read_file", "inputSchema": _SCHEMA, "_meta": {"featureSet": "files.read"}},
    {"name": "plain", "inputSchema": _SCHEMA},
]
BOUNDS: Final = """
[servers.live.scopes."files.edit"]
whitelist = ["/project/**"]
blacklist = ["**/.env", "**/secrets/**"]
[servers.live.scope_of]
edit_file = "/path"
move_files = "/paths"
"""

LIVE_TABLE: Final = "[servers.live]\n"

type Frame = dict[str, Any]
type Composed = Callable[[str], str]
"""The whole configuration, with this decided of each server."""


@dataclass
class Scene:
    """The gateway, its configuration, and a client."""

    origin: str
    config: Path
    composed: Composed
    http: aiohttp.ClientSession
    server: str = "live"

    # The server, as it was told to say and saw.

    async def ask(self, *frames: Frame) -> list[Frame]:
        """What the host answered to each request of the server's."""
        return await self.call("ask", {"frames": list(frames)})

    async def elevate(self, label: str, feature: str = "files.edit", **payload: Any) -> Frame:
        scope = {"label": label, "payload": payload}
        asked = {"method": "scope/elevate", "params": {"featureSet": feature, "scope": scope}}
        return (await self.ask(asked))[0]

    async def tell(self, *frames: Frame) -> None:
        await self.call("tell", {"frames": list(frames)})

    async def seen(self, method: str = "") -> list[Frame]:
        """All that the server received, of one method or at all."""
        found: list[Frame] = await self.call("seen")
        return [each for each in found if method in ("", each.get("method"))]

    async def updates(self) -> list[Frame]:
        return [each["params"] for each in await self.seen("featureSets/update")]

    # A modern client, at the door of all servers.

    async def call(self, tool: str, given: Frame | None = None, **params: Any) -> Any:
        answer = await self.answer(tool, given, **params)
        assert not answer.get("isError"), answer
        return answer["structuredContent"]["told"]

    async def answer(self, tool: str, given: Frame | None = None, **params: Any) -> Frame:
        asked = {"name": f"{self.server}__{tool}", "arguments": given or {}, **params}
        said = await modern(self.http, self.origin, "tools/call", asked)
        assert "result" in said.body, said.body
        return said.body["result"]

    @asynccontextmanager
    async def session(
        self, capabilities: Frame | None = None, door: str = ""
    ) -> AsyncGenerator[HandClient]:
        """A client that shook hands, at the server's own door unless another is named."""
        path = door or f"/servers/{self.server}/mcp"
        async with over_http(self.origin + path) as client:
            await initialize(client, capabilities or {})
            yield client

    # Its operator.

    async def api(self, *place: str, body: Frame | None = None, **query: str) -> Any:
        url = "/".join((self.origin, "api", *place))
        method = "GET" if body is None else "POST"
        shown = operator_headers(self.origin)
        asking = self.http.request(method, url, json=body, params=query, headers=shown)
        async with asking as reply:
            said = await reply.json()
            assert reply.status == 200, said
            return said

    async def entries(self, type: str) -> list[Frame]:
        """What the journal has of this type, the oldest first."""
        wanted = f"dev.comity.{type}"
        found = await self.api("audit", limit="1000", type=wanted, order="oldest")
        return found["entries"]

    async def open_ask(self, kind: str = "scope") -> Frame:
        async def found() -> Frame | None:
            asks = (await self.api("approvals"))["approvals"]
            return next((each for each in asks if each["kind"] == kind), None)

        return await until(found)

    async def say(self, ask: Frame, verdict: str, **more: Any) -> None:
        await self.api("approvals", ask["id"], "answer", body={"verdict": verdict, **more})

    def write(self, live: str) -> None:
        """Put other decisions into the configuration, which is being watched."""
        self.config.write_text(self.composed(live))

    def at(self, server: str) -> "Scene":
        """The same before another server."""
        return replace(self, server=server)


async def until[T](look: Callable[[], Awaitable[T | None]]) -> T:
    """What is found, once something is."""
    async with asyncio.timeout(here(SECONDS)):
        while (found := await look()) is None or found is False:
            await asyncio.sleep(0.02)
    return found


@contextmanager
def talking(
    folder: Path,
    ways: Sequence[str] = ("handshake pipes",),
    live: str = LIVE_TABLE,
    settings: str = "",
    declared: Mapping[str, Any] | None = DECLARED,
    mgp: Mapping[str, Any] | None = None,
) -> Generator[tuple[str, Path, Composed]]:
    """A gateway before one live server for each way; `live` is what is decided of each."""
    with ExitStack() as stack:
        env = {"MCPL": json.dumps(declared), "MGP": json.dumps(mgp), "TOOLS": json.dumps(TOOLS)}
        servers = [stack.enter_context(_server(way, env)) for way in ways]

        def composed(live: str) -> str:
            return "\n".join([settings, *(each + live for each in servers)])

        config = folder / "comity.toml"
        config.write_text(composed(live))
        yield stack.enter_context(comity(config)), config, composed


@contextmanager
def _server(way: str, declared: Mapping[str, str]) -> Generator[str]:
    """A server's part of the configuration, up to what is decided of it."""
    era, over = way.split()
    env = {"ERA": era, **declared}
    command = [sys.executable, "-m", "tests.live.live_talker"]
    lines = ["[[servers]]", f'id = "{name_of(way)}"']
    with ExitStack() as stack:
        if over == "http":
            url = stack.enter_context(http_server(lambda port: [*command, str(port)], env))
            lines += ['transport = "http"', f'url = "{url}/mcp"']
        else:
            told = ", ".join(f"{name} = {json.dumps(each)}" for name, each in env.items())
            lines += [f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
            lines += [f"env = {{ {told}, PYTHONPATH = {json.dumps(str(ROOT))} }}"]
        yield "\n".join([*lines, '[servers.tools."*"]', 'risk = "safe"', ""])


def name_of(way: str) -> str:
    """What the server is called that is reached so."""
    return "live" if way == "handshake pipes" else way.replace(" ", "-")


@asynccontextmanager
async def scene(
    folder: Path,
    live: str = LIVE_TABLE,
    ways: Sequence[str] = ("handshake pipes",),
    **more: Any,
) -> AsyncGenerator[Scene]:
    with talking(folder, ways, live, **more) as (origin, config, composed):
        async with aiohttp.ClientSession() as http:
            yield Scene(origin, config, composed, http, name_of(ways[0]))


def push(feature: str) -> Frame:
    """A push by this feature set."""
    params = {
        "featureSet": feature,
        "eventId": f"evt-{feature}",
        "timestamp": "2026-01-23T10:30:00Z",
        "payload": {"content": [{"type": "text", "text": "hello"}]},
    }
    return {"method": "push/event", "params": params}


def code_of(answer: Frame) -> int | None:
    """With which error a request of the server's was answered."""
    return answer["error"]["code"] if "error" in answer else None


def text_of(answer: Frame) -> str:
    return "".join(each.get("text", "") for each in answer["content"])


@asynccontextmanager
async def meanwhile(work: Awaitable[Any]) -> AsyncGenerator["asyncio.Task[Any]"]:
    """Something that goes on while others are done; ended on the way out."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
