"""Many clients share one stdio server: a parked call of one stops no question of another."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from comity.app.settings import ServerSettings
from comity.policy.grants import Effect, Grant
from tests.support.commands import ROOT
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import MODERN, Frame, Visitor, request, visiting

SERVER = ServerSettings(
    *("up", "up", "stdio"),
    command=sys.executable,
    args=("-m", "tests.security.asking_server"),
    cwd=str(ROOT),
)
GRANTS = tuple(Grant("*", "tools/call", f"up/{tool}", Effect.ALLOW) for tool in ("asks", "plain"))
ASKABLE: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


@dataclass
class Shared:
    """A gateway before one asking server, and those who call it."""

    visitor: Visitor
    given_out: GivenOut

    async def call(self, key: str, who: str, tool: str = "asks", **more: object) -> Frame:
        """A call of the modern era; its result, or the error that stands for it."""
        params: Frame = {"name": tool, "arguments": {"who": who}, "_meta": ASKABLE, **more}
        headers = {"mcp-name": tool, **bearer(key)}
        reply = await self.visitor.ask_modern("tools/call", params, **headers)
        (frame,) = await reply.frames()
        return frame.get("result") or frame["error"]

    async def parked(self, key: str, who: str) -> Frame:
        """A call that waits for its client now, which is asked the call's own question."""
        asked = await self.call(key, who)
        assert asked.get("resultType") == "input_required", asked
        (question,) = asked["inputRequests"].values()
        assert question["params"]["message"] == f"Who are you, {who}?"
        return asked

    async def resumed(self, key: str, who: str, asked: Frame) -> str:
        (named,) = asked["inputRequests"]
        answer = {named: {"action": "accept", "content": {"name": who}}}
        result = await self.call(
            key, who, requestState=asked["requestState"], inputResponses=answer
        )
        return result["content"][0]["text"]

    @property
    def processes(self) -> int:
        server = self.visitor.parts.servers.get("up")
        assert server is not None
        return len(server.activity.connections)


@pytest.fixture
async def shared() -> AsyncGenerator[Shared]:
    given_out = GivenOut()
    chosen: dict[str, Any] = {"identity_mode": "required", "grants": GRANTS}
    async with visiting(SERVER, register=given_out.register, **chosen) as visitor:
        yield Shared(visitor, given_out)


async def test_a_parked_call_stops_no_question_of_another_principal(shared: Shared) -> None:
    one, other = shared.given_out.give("agent:one"), shared.given_out.give("agent:other")
    first = await shared.parked(one, "one")
    second = await shared.parked(other, "other")
    assert await shared.resumed(other, "other", second) == (
        'other: {"action": "accept", "content": {"name": "other"}}'
    )
    assert await shared.resumed(one, "one", first) == (
        'one: {"action": "accept", "content": {"name": "one"}}'
    )


async def test_a_principal_may_leave_many_calls_parked(shared: Shared) -> None:
    key = shared.given_out.give("agent:one")
    left = [await shared.parked(key, f"call {number}") for number in range(6)]
    assert shared.processes == 1
    for number in (3, 0, 5):
        told = await shared.resumed(key, f"call {number}", left[number])
        assert told.startswith(f"call {number}: ")


async def test_a_parked_call_stops_no_question_to_a_session(shared: Shared) -> None:
    one, other = shared.given_out.give("agent:one"), shared.given_out.give("agent:other")
    await shared.parked(one, "one")
    visitor = shared.visitor.other("/servers/up/mcp")
    visitor.session = bearer(other)
    await visitor.greet(capabilities={"elicitation": {}})
    visitor.session |= bearer(other)
    params: Frame = {"name": "asks", "arguments": {"who": "session"}}
    stream = await visitor.post(request(1, "tools/call", params))
    frame: Frame = {}
    while frame.get("method") != "elicitation/create":
        event = await stream.event()
        frame = event.frame if event.data else {}
    assert frame["params"]["message"] == "Who are you, session?"
    answer = {"jsonrpc": "2.0", "id": frame["id"], "result": {"action": "decline"}}
    assert (await visitor.post(answer)).status == 202
    assert (await stream.event()).frame["result"]["content"][0]["text"] == (
        'session: {"action": "decline"}'
    )


async def test_processes_apart_are_bounded_and_end_when_they_are_idle(shared: Shared) -> None:
    keys = [shared.given_out.give(f"agent:{number}") for number in range(12)]
    left = {0: await shared.parked(keys[0], "0")}
    for number in range(1, 9):
        left[number] = await shared.parked(keys[number], str(number))
    assert shared.processes == 9
    # There is no process left for the next one: nobody is guessed at, and it is told why.
    refused = await shared.call(keys[10], "10")
    assert "calls of several clients are open" in str(refused)
    assert shared.processes == 9
    for number, asked in left.items():
        told = await shared.resumed(keys[number], str(number), asked)
        assert told.startswith(f"{number}: ")
    again = await shared.parked(keys[11], "11")
    assert (await shared.resumed(keys[11], "11", again)).startswith("11: ")
    async with asyncio.timeout(10):
        while shared.processes > 2:
            await asyncio.sleep(0)


async def test_other_tools_stay_on_the_process_that_all_share(shared: Shared) -> None:
    one, other = shared.given_out.give("agent:one"), shared.given_out.give("agent:other")

    async def served_by(key: str) -> str:
        return (await shared.call(key, "plain", "plain"))["content"][0]["text"]

    before = await served_by(other)
    await shared.parked(one, "one")
    assert {await served_by(key) for key in (one, other) for _ in range(3)} == {before}
    assert shared.processes == 1
