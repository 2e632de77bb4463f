"""A server's form whose client cannot be asked, filled in by a person through the inbox."""

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import pytest

from tests.conformance.questioned import (
    PLAIN,
    answer,
    asks,
    calling,
    journaled,
    questioned,
    until_asked,
    until_state,
)
from tests.conformance.ways import Frame, House
from tests.interop.hand_client import Exchange
from tests.surfaces.visitor import ENVELOPE

FORM: Frame = {
    "message": "Which account?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "account": {"type": "string", "enum": ["staging", "production"]},
            "token": {"type": "string", "minLength": 8},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
        },
        "required": ["account", "token"],
    },
}
SECRET = "wrong-horse-battery"
FILLED: Frame = {"account": "staging", "token": SECRET, "days": 3}
CAN_BE_ASKED: Frame = {"elicitation": {"form": {}}}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with questioned(tmp_path_factory.mktemp("elicited"), "inbox") as house:
        yield house


def heard(exchange: Exchange) -> Frame:
    """What the server was answered."""
    return exchange.result["structuredContent"]["answer"]


@pytest.mark.requirement("MCP-5.6-elicitation", "MCP-5.6-accept")
@pytest.mark.parametrize("server", ["near", "plain", "far"])
async def test_a_person_fills_in_what_a_client_cannot_be_asked(house: House, server: str) -> None:
    async with house.among_all(server).talk(PLAIN) as talk:
        calls = calling(talk, "elicit", params=FORM)
        (ask,) = await until_asked(house, "input")
        assert ask["schema"]["required"] == ["account", "token"]
        assert f"Server {server} asks" in ask["what"]
        for wrong in ({}, {"account": "staging"}, {**FILLED, "days": 31}, {**FILLED, "more": 1}):
            status, refused = await answer(house, ask["id"], "accept", content=wrong)
            assert (status, SECRET in json.dumps(refused)) == (400, False)
        _, answered = await answer(house, ask["id"], "accept", content=FILLED)
        exchange = await calls
    assert heard(exchange) == {"result": {"action": "accept", "content": FILLED}}
    assert not exchange.said("elicitation/create")
    left = [
        answered,
        await until_state(house, ask["id"], "used"),
        await journaled(house, ask["id"]),
    ]
    assert SECRET not in json.dumps(left)


@pytest.mark.requirement("MCP-5.6-decline", "MCP-5.6-cancel")
@pytest.mark.parametrize("verdict", ["decline", "cancel"])
async def test_who_does_not_want_to_says_so(house: House, verdict: str) -> None:
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, "elicit", params=FORM)
        (ask,) = await until_asked(house, "input")
        assert (await answer(house, ask["id"], verdict))[0] == 200
        assert heard(await calls) == {"result": {"action": verdict}}


@pytest.mark.requirement("MCP-5.6-capability")
async def test_a_client_that_can_be_asked_is_asked_itself(house: House) -> None:
    async with house.among_all("near").talk(CAN_BE_ASKED) as talk:
        talk.client.answer = lambda frame: {"result": {"action": "accept", "content": FILLED}}
        exchange = await talk.call("elicit", {"params": FORM})
    assert exchange.said("elicitation/create")
    assert heard(exchange) == {"result": {"action": "accept", "content": FILLED}}
    assert not [each for each in await asks(house) if each["kind"] == "input"]


REST: tuple[str, dict[str, str], Frame] = ("/tools/near__elicit", {}, {"params": FORM})
MODERN: tuple[str, dict[str, str], Frame] = (
    "/mcp",
    {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "near__elicit",
    },
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "near__elicit", "arguments": {"params": FORM}, "_meta": ENVELOPE},
    },
)


@pytest.mark.requirement("MCP-5.6-accept")
@pytest.mark.parametrize("way", [REST, MODERN], ids=["rest", "modern"])
async def test_whoever_calls_without_a_session_is_waited_for_too(
    house: House, way: tuple[str, dict[str, str], Frame]
) -> None:
    path, headers, body = way
    async with aiohttp.ClientSession(headers=headers) as http:

        async def post() -> tuple[int, str]:
            async with http.post(house.origin + path, json=body) as reply:
                return reply.status, await reply.text()

        calls = asyncio.ensure_future(post())
        (ask,) = await until_asked(house, "input")
        await answer(house, ask["id"], "accept", content=FILLED)
        status, said = await calls
    assert (status, SECRET in said) == (200, True)


@pytest.mark.requirement("MCP-5.6-flat")
@pytest.mark.parametrize(
    "bad",
    [
        {"message": "?"},
        {"message": "", "requestedSchema": FORM["requestedSchema"]},
        {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
        {
            "message": "?",
            "requestedSchema": {"type": "object", "properties": {"a": {"type": "object"}}},
        },
        {
            "message": "?",
            "requestedSchema": {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"type": "object"}}},
            },
        },
        {"message": "x" * 10_000, "requestedSchema": FORM["requestedSchema"]},
        {"message": "?", "requestedSchema": FORM["requestedSchema"], "more": "x" * 100_000},
    ],
)
async def test_what_is_no_flat_form_bothers_nobody(house: House, bad: Frame) -> None:
    before = len(await asks(house, state="all"))
    async with house.among_all("near").talk(PLAIN) as talk:
        refused = heard(await talk.call("elicit", {"params": bad}))
    assert refused["error"]["code"] == -32602
    assert len(await asks(house, state="all")) == before


@pytest.mark.requirement("MCP-5.6-capability")
async def test_a_page_is_never_put_into_the_inbox(house: House) -> None:
    page = {"mode": "url", "message": "Visit", "url": "https://example.org", "elicitationId": "e"}
    async with house.among_all("near").talk(PLAIN) as talk:
        refused = heard(await talk.call("elicit", {"params": page}))
    assert refused["error"]["code"] == -32601


@pytest.mark.requirement("MCP-5.6-capability")
async def test_by_default_nobody_is_asked_in_a_client_s_place(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with questioned(tmp_path_factory.mktemp("usual")) as house:
        async with house.among_all("near").talk(PLAIN) as talk:
            refused = heard(await talk.call("elicit", {"params": FORM}))
        assert refused["error"]["code"] == -32601
        assert await asks(house, state="all") == []
