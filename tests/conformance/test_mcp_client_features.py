"""Sampling, roots and elicitation, also where people answer for a client. (MCP §5.4 to §5.6)"""

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
from tests.conformance.ways import Frame, House, Talk, Way
from tests.interop.hand_client import SECONDS, Exchange
from tests.support.visitor import ENVELOPE

SAMPLING: Frame = {"sampling": {"tools": {}, "context": {}}}
ROOTS: Frame = {"roots": {"listChanged": True}}
ELICITATION: Frame = {"elicitation": {"form": {}, "url": {}}}

QUESTION: Frame = {
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "What went wrong last night?"}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "x"}]},
    ],
    "systemPrompt": "You read logs.",
    "maxTokens": 200,
    "includeContext": "thisServer",
    "modelPreferences": {
        "hints": [{"name": "large-model"}],
        "costPriority": 0.1,
        "speedPriority": 0.7,
        "intelligencePriority": 0.4,
    },
    "tools": [{"name": "x", "inputSchema": {"type": "object"}}],
    "toolChoice": {"mode": "auto"},
}
COMPLETION: Frame = {
    "role": "assistant",
    "content": {"type": "text", "text": "There were no connections left."},
    "model": "a-model-of-the-client-s-own-choice",
    "stopReason": "endTurn",
}
FORM: Frame = {
    "mode": "form",
    "message": "Where should it go?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "place": {"type": "string", "enum": ["test", "live"]},
            "name": {"type": "string", "minLength": 1, "maxLength": 9, "description": "Yours"},
            "mail": {"type": "string", "format": "email"},
            "page": {"type": "string", "format": "uri"},
            "day": {"type": "string", "format": "date"},
            "moment": {"type": "string", "format": "date-time"},
            "share": {"type": "number", "minimum": 0, "maximum": 0.5},
            "count": {"type": "integer", "minimum": 1, "maximum": 10},
            "sure": {"type": "boolean", "default": False},
            "tone": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}]},
        },
        "required": ["place", "sure"],
    },
}
LINK: Frame = {
    "mode": "url",
    "elicitationId": "e-1",
    "url": "https://example.com/consent?of=e-1",
    "message": "Please allow access.",
}

METHODS = {
    "sampling": "sampling/createMessage",
    "roots": "roots/list",
    "elicitation": "elicitation/create",
}


async def exchanged(
    way: Way, capabilities: Frame, method: str, params: Frame, answer: Frame
) -> tuple[Frame, Frame]:
    """What the client was asked in the call, and what the server heard as its answer."""
    async with way.talk(capabilities) as talk:
        talk.client.answer = lambda frame: answer
        exchange = await talk.ask(method, **params)
    (question,) = exchange.said(method)
    return question["params"], exchange.result["structuredContent"]


@pytest.mark.requirement(
    "MCP-5.4-create",
    "MCP-5.4-messages",
    "MCP-5.4-systemPrompt",
    "MCP-5.4-maxTokens",
    "MCP-5.4-includeContext",
    "MCP-5.4-modelPreferences",
)
@pytest.mark.requirement("MCP-5.4-result", "MCP-5.4-choice")
async def test_a_server_has_the_client_s_model_complete_something(any_way: Way) -> None:
    """The model named in the answer is the client's own choice, whatever the hints were."""
    method = METHODS["sampling"]
    asked, heard = await exchanged(any_way, SAMPLING, method, QUESTION, {"result": COMPLETION})
    assert asked == QUESTION
    assert heard == {"result": COMPLETION}


@pytest.mark.requirement("MCP-5.4-create", "MCP-5.6-decline", "MCP-5.6-cancel")
@pytest.mark.parametrize(
    ("capability", "answer"),
    [
        ("sampling", {"error": {"code": -1, "message": "rejected", "data": {"by": "person"}}}),
        ("elicitation", {"result": {"action": "decline"}}),
        ("elicitation", {"result": {"action": "cancel"}}),
    ],
)
async def test_what_a_client_refuses_is_what_the_server_hears(
    way: Way, capability: str, answer: Frame
) -> None:
    params = QUESTION if capability == "sampling" else FORM
    declared = SAMPLING | ELICITATION
    _, heard = await exchanged(way, declared, METHODS[capability], params, answer)
    assert heard == answer


@pytest.mark.requirement(
    "MCP-5.4-capability", "MCP-5.5-capability", "MCP-5.6-capability", "MCP-4.1-contract"
)
@pytest.mark.parametrize("capability", METHODS)
async def test_a_client_is_never_asked_what_it_did_not_declare(way: Way, capability: str) -> None:
    every = SAMPLING | ROOTS | ELICITATION
    declared = {name: terms for name, terms in every.items() if name != capability}
    async with way.talk(declared) as talk:
        talk.client.answer = lambda frame: {"result": {"asked": "all the same"}}
        exchange = await talk.ask(METHODS[capability], **QUESTION)
    assert not exchange.said(METHODS[capability])
    error = exchange.result["structuredContent"]["error"]
    assert error["code"] == -32601


@pytest.mark.requirement("MCP-5.5-list")
async def test_a_server_learns_the_client_s_roots(any_way: Way) -> None:
    roots = {
        "roots": [
            {"uri": "file:///srv/site", "name": "Site"},
            {"uri": "file:///srv/fonts", "name": "Fonts"},
        ]
    }
    _, heard = await exchanged(any_way, ROOTS, "roots/list", {}, {"result": roots})
    assert heard == {"result": roots}


@pytest.mark.requirement("MCP-5.5-changed")
async def test_a_server_hears_that_the_roots_changed_and_asks_again(way: Way) -> None:
    async with way.talk(ROOTS) as talk:
        talk.client.answer = lambda frame: {"result": {"roots": [{"uri": "file:///old"}]}}
        await talk.ask("roots/list")
        before = _roots_changed(await talk.seen())
        await talk.client.notify("notifications/roots/list_changed")
        async with asyncio.timeout(SECONDS):
            # Over HTTP a notification and a call travel apart, and either may come first.
            while _roots_changed(await talk.seen()) == before:
                await asyncio.sleep(0.02)
        talk.client.answer = lambda frame: {"result": {"roots": [{"uri": "file:///new"}]}}
        heard = await talk.ask("roots/list")
    assert heard.result["structuredContent"]["result"]["roots"] == [{"uri": "file:///new"}]


@pytest.mark.requirement("MCP-5.5-advisory", "MCP-9.3-roots")
async def test_roots_are_communicated_and_bind_nobody(way: Way) -> None:
    async with way.talk(ROOTS) as talk:
        talk.client.answer = lambda frame: {"result": {"roots": [{"uri": "file:///inside"}]}}
        await talk.ask("roots/list")
        called = await talk.call("echo", {"path": "file:///outside/secret"})
        read = await talk.client.request("resources/read", {"uri": way.uri("text")})
    assert called.result["structuredContent"]["given"] == {"path": "file:///outside/secret"}
    assert read.result["contents"]


@pytest.mark.requirement(
    "MCP-5.6-elicitation",
    "MCP-5.6-string",
    "MCP-5.6-number",
    "MCP-5.6-boolean",
    "MCP-5.6-titles",
)
@pytest.mark.requirement("MCP-5.6-accept")
async def test_a_person_fills_the_form_of_a_server(any_way: Way) -> None:
    filled = {"place": "test", "share": 0.25, "count": 3, "sure": True, "tone": "#f00"}
    answer = {"result": {"action": "accept", "content": filled}}
    asked, heard = await exchanged(any_way, ELICITATION, METHODS["elicitation"], FORM, answer)
    assert asked == FORM
    assert heard == answer


@pytest.mark.requirement("MCP-5.6-url")
async def test_a_person_is_sent_to_a_page_and_the_server_tells_of_its_end(way: Way) -> None:
    async with way.talk(ELICITATION) as talk:
        talk.client.answer = lambda frame: {"result": {"action": "accept"}}
        asked = await talk.ask(METHODS["elicitation"], **LINK)
        done: Frame = {
            "method": "notifications/elicitation/complete",
            "params": {"elicitationId": "e-1"},
        }
        told = await talk.call("tell", {"notices": [done]})
    assert asked.said(METHODS["elicitation"])[0]["params"] == LINK
    assert [note["params"] for note in told.said(done["method"])] == [done["params"]]


@pytest.mark.requirement("MCP-5.6-url", "MCP-2.2-32042")
async def test_a_page_that_has_to_be_seen_first_is_an_error_with_its_address(way: Way) -> None:
    error = {
        "code": -32042,
        "message": "This request requires more information.",
        "data": {"elicitations": [LINK]},
    }
    async with way.talk(ELICITATION) as talk:
        refused = await talk.call("answer", {"members": {"error": error}})
        retried = await talk.call("echo", {"after": "consent"})
    assert refused.response["error"] == error
    assert retried.result["structuredContent"]["given"] == {"after": "consent"}


@pytest.mark.requirement("MCP-5.4-create", "MCP-3.2-get")
@pytest.mark.parametrize("label", ["own near", "own far", "merged near", "merged far"])
async def test_a_question_out_of_any_call_comes_on_the_standing_stream(
    house: House, label: str
) -> None:
    way = house.way(label)
    completion = {**COMPLETION, "stopReason": label}
    async with way.talk(SAMPLING) as talk:
        talk.client.answer = lambda frame: {"result": completion}
        await talk.listen()
        await talk.call("ask_later", {"method": METHODS["sampling"], "params": QUESTION})
        async with asyncio.timeout(SECONDS):
            asked = await talk.told(METHODS["sampling"])
            while completion not in await _answers(talk):
                pass
    assert asked["params"] == QUESTION


async def _answers(talk: Talk) -> list[Frame]:
    frames = await talk.seen()
    later = [frame for frame in frames if frame["method"] == "an answer out of any call"]
    return [frame["params"].get("result") for frame in later]


def _roots_changed(seen: list[Frame]) -> int:
    return sum(frame["method"] == "notifications/roots/list_changed" for frame in seen)


ACCOUNT_FORM: Frame = {
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
def inbox_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with questioned(tmp_path_factory.mktemp("elicited"), "people") as inbox_house:
        yield inbox_house


def heard(exchange: Exchange) -> Frame:
    """What the server was answered."""
    return exchange.result["structuredContent"]["answer"]


@pytest.mark.requirement("MCP-5.6-elicitation", "MCP-5.6-accept")
@pytest.mark.parametrize("server", ["near", "plain", "far"])
async def test_a_person_fills_in_what_a_client_cannot_be_asked(
    inbox_house: House, server: str
) -> None:
    async with inbox_house.among_all(server).talk(PLAIN) as talk:
        calls = calling(talk, "elicit", params=ACCOUNT_FORM)
        (ask,) = await until_asked(inbox_house, "input")
        assert ask["schema"]["required"] == ["account", "token"]
        assert f"Server {server} asks" in ask["summary"]
        for wrong in ({}, {"account": "staging"}, {**FILLED, "days": 31}, {**FILLED, "more": 1}):
            status, refused = await answer(inbox_house, ask["id"], "accept", content=wrong)
            assert (status, SECRET in json.dumps(refused)) == (400, False)
        _, answered = await answer(inbox_house, ask["id"], "accept", content=FILLED)
        exchange = await calls
    assert heard(exchange) == {"result": {"action": "accept", "content": FILLED}}
    assert not exchange.said("elicitation/create")
    left = [
        answered,
        await until_state(inbox_house, ask["id"], "consumed"),
        await journaled(inbox_house, ask["id"]),
    ]
    assert SECRET not in json.dumps(left)


@pytest.mark.requirement("MCP-5.6-decline", "MCP-5.6-cancel")
@pytest.mark.parametrize("verdict", ["decline", "cancel"])
async def test_who_does_not_want_to_says_so(inbox_house: House, verdict: str) -> None:
    async with inbox_house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, "elicit", params=ACCOUNT_FORM)
        (ask,) = await until_asked(inbox_house, "input")
        assert (await answer(inbox_house, ask["id"], verdict))[0] == 200
        assert heard(await calls) == {"result": {"action": verdict}}


@pytest.mark.requirement("MCP-5.6-capability")
async def test_a_client_that_can_be_asked_is_asked_itself(inbox_house: House) -> None:
    async with inbox_house.among_all("near").talk(CAN_BE_ASKED) as talk:
        talk.client.answer = lambda frame: {"result": {"action": "accept", "content": FILLED}}
        exchange = await talk.call("elicit", {"params": ACCOUNT_FORM})
    assert exchange.said("elicitation/create")
    assert heard(exchange) == {"result": {"action": "accept", "content": FILLED}}
    assert not [each for each in await asks(inbox_house) if each["kind"] == "input"]


REST: tuple[str, dict[str, str], Frame] = ("/tools/near__elicit", {}, {"params": ACCOUNT_FORM})
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
        "params": {
            "name": "near__elicit",
            "arguments": {"params": ACCOUNT_FORM},
            "_meta": ENVELOPE,
        },
    },
)


@pytest.mark.requirement("MCP-5.6-accept")
@pytest.mark.parametrize("way", [REST, MODERN], ids=["rest", "modern"])
async def test_whoever_calls_without_a_session_is_waited_for_too(
    inbox_house: House, way: tuple[str, dict[str, str], Frame]
) -> None:
    path, headers, body = way
    async with aiohttp.ClientSession(headers=headers) as http:

        async def post() -> tuple[int, str]:
            async with http.post(inbox_house.origin + path, json=body) as reply:
                return reply.status, await reply.text()

        calls = asyncio.ensure_future(post())
        (ask,) = await until_asked(inbox_house, "input")
        await answer(inbox_house, ask["id"], "accept", content=FILLED)
        status, said = await calls
    assert (status, SECRET in said) == (200, True)


@pytest.mark.requirement("MCP-5.6-flat", "MCP-5.6-capability")
async def test_a_page_and_what_is_no_flat_form_open_no_request(inbox_house: House) -> None:
    schema = ACCOUNT_FORM["requestedSchema"]
    nested: list[Frame] = [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]
    bad: list[Frame] = [
        {"message": "?"},
        {"message": "", "requestedSchema": schema},
        {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
        *(
            {"message": "?", "requestedSchema": {"type": "object", "properties": {"a": each}}}
            for each in nested
        ),
        {"message": "x" * 10_000, "requestedSchema": schema},
        {"message": "?", "requestedSchema": schema, "more": "x" * 100_000},
    ]
    page = {"mode": "url", "message": "Visit", "url": "https://example.org", "elicitationId": "e"}
    before = len(await asks(inbox_house, state="all"))
    async with inbox_house.among_all("near").talk(PLAIN) as talk:
        for params, code in [*((each, -32602) for each in bad), (page, -32601)]:
            refused = heard(await talk.call("elicit", {"params": params}))
            assert refused["error"]["code"] == code, params
    assert len(await asks(inbox_house, state="all")) == before


@pytest.mark.requirement("MCP-5.6-capability")
async def test_by_default_nobody_is_asked_in_a_client_s_place(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with questioned(tmp_path_factory.mktemp("usual")) as inbox_house:
        async with inbox_house.among_all("near").talk(PLAIN) as talk:
            refused = heard(await talk.call("elicit", {"params": ACCOUNT_FORM}))
        assert refused["error"]["code"] == -32601
        assert await asks(inbox_house, state="all") == []
