"""What a server asks of a client, if that was declared: completions, roots, people's answers."""

import asyncio

import pytest

from tests.conformance.ways import Frame, House, Talk, Way
from tests.interop.hand_client import SECONDS

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


@pytest.mark.requirement("MCP-5.4-create")
async def test_a_client_s_refusal_to_complete_is_what_the_server_hears(way: Way) -> None:
    refusal = {"code": -1, "message": "User rejected sampling request", "data": {"by": "person"}}
    _, heard = await exchanged(way, SAMPLING, METHODS["sampling"], QUESTION, {"error": refusal})
    assert heard == {"error": refusal}


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


@pytest.mark.parametrize(
    "action",
    [
        pytest.param("decline", marks=pytest.mark.requirement("MCP-5.6-decline")),
        pytest.param("cancel", marks=pytest.mark.requirement("MCP-5.6-cancel")),
    ],
)
async def test_a_person_declines_or_turns_away(way: Way, action: str) -> None:
    answer = {"result": {"action": action}}
    _, heard = await exchanged(way, ELICITATION, METHODS["elicitation"], FORM, answer)
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
