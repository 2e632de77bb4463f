"""An agent whose call needs a person's word, and one that may give it, at a real gateway."""

import asyncio
import json
import sys
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from comity.sdk.agent import Agent
from comity.sdk.agent_inbox import Ask
from comity.sdk.agent_words import Called, Refused
from tests.cli.program import COMITY
from tests.interop.processes import comity, operator_token
from tests.pace import here

CONFIG = """
[asks]
hold = "1s"
[[servers]]
id = "ex"
command = {command}
args = ["example"]
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


async def ask_about(agent: Agent, message: str) -> Ask:
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
        assert isinstance(approved, Ask)
        called = await calling
        assert isinstance(called, Called)
        assert called.text == "a greeting"


async def test_a_call_that_is_denied_ends_with_the_reason(door: str) -> None:
    async with Agent(door) as caller, operator(door) as approver:
        calling = asyncio.ensure_future(
            caller.call("ex__echo", {"message": "a bad idea"}, patience=LONG)
        )
        ask = await ask_about(approver, "a bad idea")
        await approver.inbox.deny(ask.id, "not today")
        refused = await calling
    assert isinstance(refused, Refused)
    assert not refused.awaits_approval
    assert "not today" in refused.reason


async def test_who_has_no_patience_is_told_what_it_waits_for(door: str) -> None:
    async with operator(door) as caller:
        refused = await caller.call("ex__echo", {"message": "soon"}, fallback=False)
        assert isinstance(refused, Refused)
        assert refused.awaits_approval
        assert refused.retryable
        asks = [each.id async for each in caller.inbox]
        assert refused.details["ask_id"] in asks


async def test_an_answer_to_nothing_is_refused(door: str) -> None:
    async with operator(door) as agent:
        for id in ("nope", "../../x", "a b"):
            refused = await agent.inbox.approve(id)
            assert isinstance(refused, Refused)
            assert not refused
