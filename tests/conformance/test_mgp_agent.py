"""The agent of `comity.sdk`, at a real gateway before a server made with the authoring kit."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from comity.approvals.answers import CallbackRequest
from comity.errors import Unavailable
from comity.sdk.agent import Agent
from comity.sdk.agent_results import AgentCallResult, AgentRefusal, AgentStreamChunk
from tests.conformance.conftest import standing
from tests.conformance.ways import House, on_pipes
from tests.interop.hand_client import SECONDS
from tests.interop.processes import operator_token


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    entry = {**on_pipes("kit"), "policy": {"approval_policy": "auto_approve"}}
    settings = '[policy]\nrequire_approval = "never"\n'
    with standing(tmp_path_factory.mktemp("agent"), {"kit": entry}, settings) as house:
        yield house


@asynccontextmanager
async def agent(house: House, **more: Any) -> AsyncGenerator[Agent]:
    async with (
        asyncio.timeout(4 * SECONDS),
        Agent(house.merged, operator_token(house.origin), **more) as found,
    ):
        yield found


@pytest.mark.requirement("MGP-1.3-mgp-mgp", "MGP-2.1-piggyback")
async def test_an_agent_agrees_on_all_that_the_gateway_does(house: House) -> None:
    async with agent(house) as found:
        assert found.extensions == {
            *("security", "access_control", "audit", "code_safety", "lifecycle", "streaming"),
            *("bidirectional", "discovery", "tool_discovery"),
        }


@pytest.mark.requirement(
    *("MGP-16.5-discover", "MGP-16.6-request", "MGP-16.7-session", "MGP-16.7-evict")
)
async def test_it_finds_tools_takes_them_and_puts_them_back(house: House) -> None:
    async with agent(house) as found:
        listed = await found.discover("say a text back", max_results=3)
        assert not isinstance(listed, AgentRefusal)
        assert "kit__say" in [tool["name"] for tool in listed["tools"]]
        asked = await found.request_tools(["say a text back"])
        assert not isinstance(asked, AgentRefusal)
        assert asked["status"] == "fulfilled"
        kept = await found.session_tools()
        assert not isinstance(kept, AgentRefusal)
        assert "kit__say" in kept["cached"]
        assert 0 < kept["total_tokens"] <= kept["max_tokens"]
        await found.evict("kit__say", reason="done")
        left = await found.session_tools()
        assert not isinstance(left, AgentRefusal)
        assert "kit__say" not in left["cached"]


@pytest.mark.requirement("MGP-11.3-nodepend", "MGP-15.2-list")
async def test_it_asks_how_the_gateway_is_and_who_is_there(house: House) -> None:
    async with agent(house) as found:
        well = await found.ping()
        assert not isinstance(well, AgentRefusal)
        assert (well["status"], well["server_id"]) == ("healthy", "system:gateway")
        health = await found.health()
        assert not isinstance(health, AgentRefusal)
        assert health["checks"] == {"kit": True}
        servers = await found.servers(extensions=["streaming"])
        assert not isinstance(servers, AgentRefusal)
        assert [server["id"] for server in servers["servers"]] == ["kit"]


async def test_a_call_is_answered_and_a_refusal_says_what_may_help(house: House) -> None:
    async with agent(house) as found:
        said = await found.call("kit__say", {"text": "hello"})
        assert isinstance(said, AgentCallResult)
        assert (said.text, said.is_error, said.attempts) == ("hello", False, 1)
        refused = await found.call("kit__nothing")
        assert isinstance(refused, AgentRefusal)
        assert not refused
        assert (refused.code, refused.error_type) == (4001, "tool_not_found")
        assert (refused.category, refused.retryable) == ("validation", False)
        assert refused.trace_id


@pytest.mark.requirement("MGP-12.3-stream", "MGP-12.5-final")
async def test_pieces_come_before_the_end_and_the_whole_at_it(house: House) -> None:
    async with agent(house) as found:
        stream = found.stream("kit__tale", {"words": 3})
        first = await anext(stream)
        assert isinstance(first, AgentStreamChunk)
        assert (first.index, first.text) == (0, "word0 ")
        await found.call("kit__go")
        rest = [piece.text async for piece in stream if isinstance(piece, AgentStreamChunk)]
        assert rest == ["word1 ", "word2 "]
        whole = await stream.result()
        assert isinstance(whole, AgentCallResult)
        assert whole.text == "word0 word1 word2 "
        assert (whole.mgp["streamed"], whole.mgp["chunks_sent"]) == (True, 3)


@pytest.mark.requirement("MGP-12.7-cancel", "MGP-12.7-partial")
async def test_a_call_that_is_cancelled_gives_what_it_had(house: House) -> None:
    async with agent(house) as found, found.stream("kit__endless") as stream:
        assert isinstance(await anext(stream), AgentStreamChunk)
        partial = await stream.cancel()
        assert "".join(block["text"] for block in partial) == "once "


@pytest.mark.requirement("MGP-13.5-noassume")
async def test_it_hears_of_what_it_subscribed_to(house: House) -> None:
    async with agent(house) as found, await found.subscribe("tool.*", "no.such") as events:
        assert "tool.completed" in events.channels
        assert events.unsupported == ("no.such",)
        await found.call("kit__say", {"text": "x"})
        while (event := await anext(events)).channel != "tool.completed":
            pass
        assert event.data["tool_name"] == "say"
        assert event.timestamp.endswith("Z")


@pytest.mark.requirement("MGP-13.4-callback")
async def test_what_a_tool_asks_amid_a_call_is_answered_by_a_function(house: House) -> None:
    asked: list[tuple[str, str]] = []

    async def answer(question: CallbackRequest) -> object:
        asked.append((question.type, question.message))
        return "confirm"

    async with agent(house, answer=answer) as found:
        said = await found.call("kit__wipe")
        assert isinstance(said, AgentCallResult)
        assert said.text == "wiped"
    assert asked == [("confirmation", "Wipe everything?")]


async def test_a_function_that_fails_says_no(house: House) -> None:
    async def answer(question: CallbackRequest) -> object:
        raise ValueError("no idea")

    async with agent(house, answer=answer) as found:
        said = await found.call("kit__wipe")
        assert isinstance(said, AgentCallResult)
        assert said.text == "left alone"


@pytest.mark.requirement("MGP-15.4-register", "MGP-15.5-deregister")
async def test_registering_is_refused_where_it_is_not_switched_on(house: House) -> None:
    async with agent(house) as found:
        refused = await found.register("own", command="python", args=["x.py"])
        assert isinstance(refused, AgentRefusal)
        assert isinstance(await found.deregister("own"), AgentRefusal)


async def test_no_secret_shows_and_a_gateway_that_is_not_there_is_said_to_be(house: House) -> None:
    nowhere = Agent("http://127.0.0.1:9/mcp", "secret-token")
    assert "secret-token" not in repr(nowhere)
    with pytest.raises(Unavailable) as problem:
        await nowhere.__aenter__()
    assert "secret-token" not in str(problem.value)
