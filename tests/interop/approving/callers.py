"""The clients of the approval matrix: each makes one call of one tool, and says what came of it."""

import asyncio
import io
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Protocol

import aiohttp

from tests.interop.approving.stage import AGENT, OWNER, SERVER, Gateway
from tests.interop.approving.with_tasks import TaskCaller
from tests.interop.peers import ROOT, javascript, node, python_sdk_1

MODERN = "2026-07-28"
VERSION = "2025-11-25"
SECONDS = 120.0
IMPATIENT_SECONDS = 2.0

type Said = dict[str, Any]


class Caller(Protocol):
    """A client; `party` is who it is at the gateway."""

    party: str

    async def call(self, gateway: Gateway, tool: str) -> Said: ...
    async def leave(self) -> None:
        """End without a word, amid whatever is under way."""
        ...


@dataclass
class Kind:
    """A row of the matrix.

    `waits` is whether it stays until there is an answer; whoever does not is let go, or goes, and
    calls again. `answers` is whether it is asked itself, and says yes or no in its own client;
    `visits` whether it is shown a page, and says that it will go there.
    """

    id: str
    make: "Callable[[Drivers], Caller]"
    waits: bool = True
    answers: bool = False
    visits: bool = False


class Driver:
    """A program that is told to call, and says what came of it."""

    def __init__(self, command: Callable[[], list[str]], *, forks: bool) -> None:
        self.forks = forks
        self._command = command
        self._ids = itertools.count(1)
        self._said: dict[int, asyncio.Future[Said]] = {}
        self._asked: dict[int, asyncio.Event] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def order(self, said: Said) -> int:
        """Tell it to call; gives by what the call is known."""
        async with self._starting:
            if self._process is None:
                pipe = asyncio.subprocess.PIPE
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(), cwd=ROOT, stdin=pipe, stdout=pipe
                )
                self._reading = asyncio.create_task(self._read(self._process))
        id = next(self._ids)
        self._said[id] = asyncio.get_running_loop().create_future()
        self._asked[id] = asyncio.Event()
        self.write({"id": id, **said})
        return id

    async def came_of(self, id: int) -> Said:
        return await self._said[id]

    async def asked(self, id: int) -> None:
        await self._asked[id].wait()

    def hear(self, id: int, said: Said) -> None:
        if not self._said[id].done():
            self._said[id].set_result(said)

    def write(self, said: Said) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "asked" in said:
                self._asked[said["asked"]].set()
            else:
                self.hear(said["id"], said["said"])
        for id in self._said:
            self.hear(id, {"kind": "left"})


@dataclass
class SdkCaller:
    """A client of an official SDK, in a process of its own."""

    driver: Driver
    mode: str
    progress: bool = False
    elicits: bool = False
    party: str = AGENT
    patience: float = SECONDS
    who: str = field(default_factory=lambda: token_hex(4))
    _named: dict[str, int] = field(default_factory=dict[str, int])

    async def call(self, gateway: Gateway, tool: str) -> Said:
        id = await self.driver.order(
            {
                "url": f"{gateway.origin}/mcp",
                "key": gateway.keys[self.party],
                "mode": self.mode,
                "tool": f"{SERVER}__{tool}",
                "seconds": SECONDS,
                "progress": self.progress,
                "elicits": self.elicits,
                "patience": self.patience,
                "who": self.who,
            }
        )
        self._named[tool] = id
        return await self.driver.came_of(id)

    async def asked(self, tool: str) -> None:
        """Until the client is asked about its call of a tool."""
        async with asyncio.timeout(SECONDS):
            while tool not in self._named:
                await asyncio.sleep(0.05)
            await self.driver.asked(self._named[tool])

    def say(self, tool: str, result: Said) -> None:
        self.driver.write({"who": self.who, "answer": self._named[tool], "result": result})

    async def leave(self) -> None:
        if not self.driver.forks:
            await self.driver.kill()
        elif self._named:
            self.driver.write({"kill": self.who})
            for id in self._named.values():
                self.driver.hear(id, {"kind": "left"})
            self._named, self.who = {}, token_hex(4)


@dataclass
class RestCaller:
    """Plain HTTP at the registry's face."""

    party: str = AGENT

    async def call(self, gateway: Gateway, tool: str) -> Said:
        url = f"{gateway.origin}/tools/{SERVER}__{tool}"
        headers = {"authorization": f"Bearer {gateway.keys[self.party]}"}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as http:
            try:
                async with http.post(url, json={}, headers=headers) as reply:
                    said = await reply.json()
            except aiohttp.ClientError as error:
                return {"kind": "failed", "text": str(error)}
        if reply.status == 200:
            return {"kind": "ok"}
        details = said["error"]["data"].get("details", {})
        kind = details.get("status") or details.get("state") or "refused"
        if kind == "denied":
            # The state of the approval request; MCP clients get the reason of the refusal.
            kind = "declined"
        if kind == "pending_approval":
            assert reply.status == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert details["approval_id"]
        return {"kind": kind, "text": said["error"]["message"]}

    async def leave(self) -> None:
        """Whoever asked has gone with its request, which its story cancels."""


@dataclass
class ResumingCaller:
    """A handshake client that loses its connection amid a call and takes the stream up again."""

    party: str = AGENT

    async def call(self, gateway: Gateway, tool: str) -> Said:
        url = f"{gateway.origin}/mcp"
        headers = {"authorization": f"Bearer {gateway.keys[self.party]}"}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as http:
            try:
                return await self._call(http, url, headers, tool)
            except aiohttp.ClientError as error:
                return {"kind": "failed", "text": str(error)}

    async def _call(
        self, http: aiohttp.ClientSession, url: str, headers: dict[str, str], tool: str
    ) -> Said:
        accepted = {"accept": "application/json, text/event-stream"}
        kind = {"content-type": "application/json"}
        who = {"name": "resuming", "version": "1"}
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": who}
        first = _request(1, "initialize", hello)
        headers = {**headers, **accepted, **kind}
        async with http.post(url, data=first, headers=headers) as reply:
            if reply.status != 200:
                return {"kind": "policy_unknown", "text": await reply.text()}
            session = reply.headers["mcp-session-id"]
            await reply.read()
        headers |= {"mcp-session-id": session, "mcp-protocol-version": VERSION}
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        async with http.post(url, data=io.BytesIO(told.encode()), headers=headers):
            pass
        params = {"name": f"{SERVER}__{tool}", "_meta": {"progressToken": "p"}}
        async with http.post(url, data=_request(2, "tools/call", params), headers=headers) as reply:
            # The first event says where to take it up; then the connection is lost.
            event = await _event(reply)
        while "answer" not in event:
            again = {**headers, "last-event-id": event["id"]}
            del again["content-type"]
            async with http.get(url, headers=again) as reply:
                while "answer" not in event:
                    event = await _event(reply)
        result = event["answer"].get("result", {})
        refusal = result.get("_meta", {}).get("dev.comity/refusal")
        if refusal is not None:
            return {"kind": refusal["error_type"]}
        return {"kind": "ok" if result.get("content") else "failed", "text": str(event["answer"])}

    async def leave(self) -> None:
        """Its connections have gone with its call, which its story cancels."""


async def _event(reply: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next event of a stream that has an id; with the answer, where it holds that."""
    if reply.content_type != "text/event-stream":
        return {"id": "", "answer": await reply.json()}
    found: dict[str, Any] = {}
    while line := (await reply.content.readline()).decode():
        name, _, value = line.rstrip("\r\n").partition(":")
        if name in ("id", "data"):
            found[name] = value.removeprefix(" ")
        if not line.strip() and "id" in found:
            said: Said = json.loads(found["data"]) if found.get("data") else {}
            return {**found, "answer": said} if said.get("id") == 2 else found
    raise aiohttp.ClientPayloadError("the stream ended")


def _request(id: int, method: str, params: Said) -> io.BytesIO:
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return io.BytesIO(json.dumps(said).encode())


def _python2() -> list[str]:
    return [sys.executable, "-m", "tests.interop.approving.with_sdk2"]


def _python1() -> list[str]:
    return [python_sdk_1(), "-m", "tests.interop.approving.with_sdk1"]


def _typescript() -> list[str]:
    return [node(), str(ROOT / "tests" / "interop" / "js" / "approvals.mjs"), str(javascript())]


class Drivers:
    """The programs of one matrix; those of Python start a process for each of their clients."""

    def __init__(self) -> None:
        self.python2 = Driver(_python2, forks=True)
        self.python1 = Driver(_python1, forks=True)
        self._typescript: list[Driver] = []

    def typescript(self) -> Driver:
        made = Driver(_typescript, forks=False)
        self._typescript.append(made)
        return made

    async def kill(self) -> None:
        await asyncio.gather(
            *(driver.kill() for driver in (self.python2, self.python1, *self._typescript))
        )


KINDS = (
    Kind(
        "python2_modern_form",
        lambda by: SdkCaller(by.python2, MODERN, elicits=True, party=OWNER),
        answers=True,
    ),
    Kind("python2_modern", lambda by: SdkCaller(by.python2, MODERN, progress=True)),
    Kind("python2", lambda by: SdkCaller(by.python2, "legacy", progress=True)),
    Kind(
        "python2_modern_page",
        lambda by: SdkCaller(by.python2, MODERN, progress=True, elicits=True),
        visits=True,
    ),
    Kind(
        "python2_page",
        lambda by: SdkCaller(by.python2, "legacy", progress=True, elicits=True),
        visits=True,
    ),
    Kind("python1", lambda by: SdkCaller(by.python1, "legacy"), waits=False),
    Kind("typescript1", lambda by: SdkCaller(by.typescript(), "v1", progress=True)),
    Kind("typescript2", lambda by: SdkCaller(by.typescript(), "v2"), waits=False),
    Kind("typescript2_modern", lambda by: SdkCaller(by.typescript(), "v2-modern", progress=True)),
    Kind(
        "gives_up",
        lambda by: SdkCaller(by.python2, MODERN, progress=True, patience=IMPATIENT_SECONDS),
        waits=False,
    ),
    Kind("reconnects", lambda _: ResumingCaller()),
    Kind("tasks", lambda _: TaskCaller()),
    Kind("rest", lambda _: RestCaller(), waits=False),
)
