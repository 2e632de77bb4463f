"""What MCP wants of who writes servers and clients, where Comity is what they write with."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from comity.sdk.agent import Agent
from comity.sdk.agent_words import Called
from comity.wire import features
from tests.conformance.conftest import standing
from tests.conformance.ways import House, on_pipes
from tests.interop.hand_client import SECONDS
from tests.interop.peers import ROOT

COMMAND = [sys.executable, "-m", "tests.conformance.servers.eager"]
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"experimental": {"mcpl": features.OFFERED}, "sampling": {}},
    "clientInfo": {"name": "t", "version": "1"},
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with standing(tmp_path_factory.mktemp("kits"), {"eager": on_pipes("eager")}) as house:
        yield house


@pytest.mark.requirement("MCP-5.1-structured", "MCP-5.1-structuredtext", "MCP-6.4-conform")
async def test_data_of_a_tool_is_told_as_text_as_well_and_is_what_the_tool_promised(
    house: House,
) -> None:
    async with house.own("eager").talk() as talk:
        listed = (await talk.client.request("tools/list")).result["tools"]
        (described,) = [each for each in listed if each["name"] == "measure"]
        answered = (await talk.call("measure", {"place": "here"})).result
    data = answered["structuredContent"]
    assert data == {"place": "here", "degrees": 21.5}
    (text,) = answered["content"]
    assert json.loads(text["text"]) == data
    jsonschema.validate(data, described["outputSchema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"place": 1}, described["outputSchema"])


@pytest.mark.requirement("MCP-10.4-result", "MCP-10.5-structured")
async def test_an_agent_works_with_data_where_there_is_some_and_knows_a_failure(
    house: House,
) -> None:
    async with asyncio.timeout(4 * SECONDS), Agent(house.merged) as agent:
        measured = await agent.call("eager__measure", {"place": "here"})
        failed = await agent.call("eager__fail", {})
        assert isinstance(measured, Called)
        assert isinstance(failed, Called)
        assert not measured.is_error
        assert measured.value == {"place": "here", "degrees": 21.5}
        assert failed.is_error
        assert failed.value == "Error executing tool fail"


@pytest.mark.requirement("MCP-4.1-pre-server")
async def test_a_server_asks_nothing_before_its_client_is_ready() -> None:
    """It tries all the time; what it may not say yet stays unsaid."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def send(**message: object) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def read() -> dict[str, Any]:
        assert process.stdout is not None
        return json.loads(await process.stdout.readline())

    try:
        async with asyncio.timeout(4 * SECONDS):
            send(id=1, method="initialize", params=HELLO)
            assert (await read())["id"] == 1
            for number in range(2, 30):
                # Each answer takes it a while in which it could have asked.
                send(id=number, method="ping")
                assert (await read())["id"] == number
            send(method="notifications/initialized")
            enabled = features.update(["eager.news"], [], {})
            send(method=features.UPDATE, params=enabled)
            assert (await read())["method"] == "push/event"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.requirement("MCP-6.2-descriptions")
async def test_what_an_author_says_of_arguments_stands_in_a_flat_schema(house: House) -> None:
    async with house.own("eager").talk() as talk:
        listed = (await talk.client.request("tools/list")).result["tools"]
    (schema,) = [each["inputSchema"] for each in listed if each["name"] == "measure"]
    told = {name: each["description"] for name, each in schema["properties"].items()}
    assert told == {"place": "where to measure, as a town", "depth": "metres below ground"}
    assert all(each["type"] in ("string", "number") for each in schema["properties"].values())
    assert schema["required"] == ["place"]
