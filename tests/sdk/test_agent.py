"""An agent: retries, approvals, and an installation without extras."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from comity.errors import UNAUTHENTICATED, MalformedMessage, Misconfigured, Unavailable
from comity.sdk.agent import MOST_RETRIES, Agent, AgentApprovalRequest
from comity.sdk.agent_results import AgentCallResult, AgentRefusal
from comity.sdk.mcp_client import LARGEST
from tests.interop.processes import comity, operator_token
from tests.pace import here
from tests.support.cases import loop_over
from tests.support.fork_server import COMITY

type Frame = dict[str, Any]


DONE: Frame = {"result": {"content": [{"type": "text", "text": "done"}]}}


def error(code: int, **recovery: object) -> Frame:
    return {"error": {"code": code, "message": "no", "data": {"_mgp": recovery}}}


@dataclass
class Scripted:
    """A gateway that answers tool calls with these, one after the other, the last for ever."""

    answers: list[Frame] = field(default_factory=list[Frame])
    calls: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    frames: list[Frame] = field(default_factory=list[Frame])
    status: int = 200
    body: bytes = b""

    async def post(self, request: web.Request) -> web.Response:
        frame = json.loads(await request.read())
        self.frames.append(frame)
        if self.status != 200:
            return web.Response(status=self.status)
        if "id" not in frame:
            return web.Response(status=202)
        answer: Frame = {"result": {"capabilities": {}}}
        if frame["method"] == "tools/call":
            if self.body:
                return web.Response(body=self.body, content_type="application/json")
            self.calls.append((frame["params"]["name"], time.monotonic()))
            answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        whole = {"jsonrpc": "2.0", "id": frame["id"], **answer}
        return web.json_response(whole, headers={"mcp-session-id": "s"})

    async def none(self, _: web.Request) -> web.Response:
        return web.Response(status=405)


@asynccontextmanager
async def standing(gateway: Scripted) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_post("/mcp", gateway.post)
    app.router.add_get("/mcp", gateway.none)
    app.router.add_delete("/mcp", gateway.none)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/mcp"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def agent(gateway: Scripted, token: str = "") -> AsyncGenerator[Agent]:
    async with asyncio.timeout(30), standing(gateway) as url, Agent(url, token) as found:
        yield found


@pytest.mark.requirement("MGP-14.6-wait", "MGP-14.6-strategy", "MGP-6.5-send")
async def test_what_may_be_tried_again_is_after_the_wait_that_was_asked_for() -> None:
    again = error(3000, retryable=True, retry_after_ms=120, retry_strategy="fixed_delay")
    gateway = Scripted([again, again, DONE])
    async with agent(gateway) as found:
        said = await found.call("t")
    assert isinstance(said, AgentCallResult)
    assert (said.text, said.attempts) == ("done", 3)
    moments = [at for _, at in gateway.calls]
    waits = [later - sooner for sooner, later in pairwise(moments)]
    assert all(wait >= 0.12 for wait in waits)
    assert all(frame["trace_id"] for frame in gateway.frames if "id" in frame)


@pytest.mark.requirement("MGP-14.6-stop")
async def test_no_more_is_tried_than_was_said() -> None:
    gateway = Scripted([error(3000, retryable=True, retry_strategy="immediate", max_retries=2)])
    async with agent(gateway) as found:
        refused = await found.call("t")
    assert isinstance(refused, AgentRefusal)
    assert (refused.attempts, len(gateway.calls)) == (3, 3)


async def test_a_gateway_that_asks_for_ever_is_not_obeyed_for_ever() -> None:
    gateway = Scripted([error(3000, retryable=True, retry_strategy="immediate", max_retries=10**9)])
    async with agent(gateway) as found:
        await found.call("t")
    assert len(gateway.calls) == MOST_RETRIES + 1


@pytest.mark.requirement("MGP-14.6-noretry")
@loop_over(
    "answer",
    [
        error(1001, retryable=False, retry_after_ms=1, fallback_tool="other"),
        error(3000, retryable="yes"),
        error(-32603, retryable=True),
        {"error": {"code": 3000, "message": "no", "data": [7]}},
    ],
)
async def test_what_is_not_said_to_be_worth_it_is_never_tried_again(answer: Frame) -> None:
    gateway = Scripted([answer])
    async with agent(gateway) as found:
        refused = await found.call("t", fallback=answer["error"]["code"] != -32603)
    assert isinstance(refused, AgentRefusal)
    assert [name for name, _ in gateway.calls] == ["t"]


@pytest.mark.requirement("MGP-14.6-fallback", "MGP-14.5-fallback_tool")
async def test_after_the_last_try_the_fallback_is_called_once() -> None:
    gone = error(
        5002, retryable=True, retry_strategy="immediate", max_retries=1, fallback_tool="other"
    )
    gateway = Scripted([gone, gone, DONE])
    async with agent(gateway) as found:
        said = await found.call("t")
    assert isinstance(said, AgentCallResult)
    assert said.tool == "other"
    assert [name for name, _ in gateway.calls] == ["t", "t", "other"]


async def test_whoever_is_not_let_in_is_told_so_and_shows_no_token() -> None:
    with pytest.raises(Unavailable) as problem:
        async with agent(Scripted(status=401), "a-secret"):
            pass
    assert problem.value.fault is UNAUTHENTICATED
    assert "a-secret" not in f"{problem.value}{problem.value.__cause__}"


@loop_over("body", [b"{", b"[]", b'{"a":1,"a":2}', b" " * (LARGEST + 2)])
async def test_what_is_no_answer_is_not_taken_for_one(body: bytes) -> None:
    async with agent(Scripted([DONE], body=body)) as found:
        with pytest.raises((MalformedMessage, Unavailable)):
            await found.call("t")


@loop_over("url", ["", "ftp://x", "localhost:1"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured):
        Agent(url)


CONFIG = """
[approvals]
client_wait = "1s"
[[servers]]
id = "ex"
command = {command}
args = ["dev", "example-server"]
[[grants]]
subject = "*"
verb = "tools/call"
target = "ex/echo"
effect = "ask"
"""

LONG = timedelta(seconds=here(60))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    config = Path(tmp_path_factory.mktemp("asks")) / "comity.toml"
    config.write_text(CONFIG.format(command=json.dumps(COMITY)))
    with comity(config, {"PYTHONEXECUTABLE": sys.executable}) as origin:
        yield f"{origin}/mcp"


def operator(door: str) -> Agent:
    """An agent that shows the operator token of the gateway."""
    return Agent(door, operator_token(door), name="operator")


async def ask_about(agent: Agent, message: str) -> AgentApprovalRequest:
    async with asyncio.timeout(LONG.total_seconds()):
        while True:
            async for ask in agent.inbox:
                if message in json.dumps(ask.whole):
                    return ask
            await asyncio.sleep(0.05)


async def test_a_call_waits_for_a_person_as_long_as_its_agent_does(door: str) -> None:
    async with Agent(door, name="caller") as caller, operator(door) as approver:
        calling = asyncio.ensure_future(
            caller.call("ex__echo", {"message": "a greeting"}, patience=LONG)
        )
        ask = await ask_about(approver, "a greeting")
        assert (ask.server, ask.tool, ask.state) == ("ex", "echo", "pending")
        approved = await approver.inbox.approve(ask.id, "it is harmless")
        assert isinstance(approved, AgentApprovalRequest)
        called = await calling
        assert isinstance(called, AgentCallResult)
        assert called.text == "a greeting"


async def test_a_call_that_is_denied_ends_with_the_reason(door: str) -> None:
    async with Agent(door) as caller, operator(door) as approver:
        calling = asyncio.ensure_future(
            caller.call("ex__echo", {"message": "a bad idea"}, patience=LONG)
        )
        ask = await ask_about(approver, "a bad idea")
        await approver.inbox.deny(ask.id, "not today")
        refused = await calling
    assert isinstance(refused, AgentRefusal)
    assert not refused.awaits_approval
    assert "not today" in refused.reason


async def test_who_has_no_patience_is_told_what_it_waits_for(door: str) -> None:
    async with operator(door) as caller:
        refused = await caller.call("ex__echo", {"message": "soon"}, fallback=False)
        assert isinstance(refused, AgentRefusal)
        assert refused.awaits_approval
        assert refused.retryable
        asks = [each.id async for each in caller.inbox]
        assert refused.details["approval_id"] in asks


async def test_an_answer_to_nothing_is_refused(door: str) -> None:
    async with operator(door) as agent:
        for id in ("nope", "../../x", "a b"):
            refused = await agent.inbox.approve(id)
            assert isinstance(refused, AgentRefusal)
            assert not refused


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiohttp", "yarl", "mcp"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import asyncio
from comity.sdk.agent import Agent
from comity.errors import Unavailable

async def main():
    try:
        async with Agent("http://127.0.0.1:9/mcp"):
            pass
    except Unavailable as error:
        print(error)

asyncio.run(main())
"""


def test_an_agent_needs_no_extras() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "http://127.0.0.1:9 cannot be reached" in ran.stdout
