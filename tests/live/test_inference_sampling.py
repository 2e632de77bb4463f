"""A server samples where its client has no model: the gateway's answers, where people agree."""

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.conftest import standing
from tests.conformance.questioned import answer, asks, calling, until_asked, until_state
from tests.conformance.ways import Frame, House, on_pipes, on_port
from tests.interop.hand_client import SECONDS, Exchange
from tests.interop.processes import http_server
from tests.live.end_to_end import Models, models

WISH: Frame = {
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "Summarise these logs."}},
    ],
    "systemPrompt": "Be brief.",
    "maxTokens": 200,
    "stopSequences": ["END"],
    "modelPreferences": {"hints": [{"name": "large-model"}], "costPriority": 0.8},
}
SETTINGS = """
[asks]
expires = "60s"
[inference]
sampling = "SAMPLING"
[[models]]
id = "fast"
api = "openai"
url = "URL/v1"
model = "fast-1"
"""
ANSWER: Frame = {
    "role": "assistant",
    "content": {"type": "text", "text": "The pool was exhausted."},
    "model": "fast-1",
    "stopReason": "endTurn",
}
REPLY: Frame = {"text": "The pool was exhausted.", "when": "logs"}


@contextmanager
def gateway(folder: Path, sampling: str) -> Generator[tuple[House, Models]]:
    """A whole gateway before a server on pipes and one over HTTP, and a model."""
    with models(REPLY) as model, http_server(on_port("questioner"), {}) as far:
        servers = {
            "near": on_pipes("questioner", EXTENSIONS="[]"),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        text = SETTINGS.replace("SAMPLING", sampling).replace("URL", model.url)
        with standing(folder, servers, text) as house:
            yield house, model


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[House, Models]]:
    with gateway(tmp_path_factory.mktemp("sampled"), "ask") as found:
        yield found


def heard(exchange: Exchange) -> Frame:
    """What the server was answered."""
    return exchange.result["structuredContent"]["answer"]


@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_person_lets_the_gateway_answer_for_a_client_without_a_model(
    asking: tuple[House, Models], server: str
) -> None:
    house, model = asking
    before = len(model.asked())
    async with house.among_all(server).talk({}) as talk:
        calls = calling(talk, "sample", params=WISH)
        (ask,) = await until_asked(house, "sampling")
        assert f"Server {server} wants to ask a model" in ask["what"]
        assert "Summarise these logs." in json.dumps(ask)
        assert len(model.asked()) == before
        status, _ = await answer(house, ask["id"], "accept")
        assert status == 200
        assert heard(await calls) == {"result": ANSWER}
    asked = model.asked()[-1]
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Summarise these logs."},
    ]
    assert (asked["max_tokens"], asked["stop"]) == (200, ["END"])
    assert (await until_state(house, ask["id"], "used"))["state"] == "used"


async def test_a_person_who_says_no_is_heard(asking: tuple[House, Models]) -> None:
    house, model = asking
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        calls = calling(talk, "sample", params=WISH)
        (ask,) = await until_asked(house, "sampling")
        await answer(house, ask["id"], "decline", reason="not these logs")
        error = heard(await calls)["error"]
    assert error["code"] == -32600
    assert "not these logs" in error["message"]
    assert len(model.asked()) == before


async def test_who_hangs_up_leaves_no_question_behind(asking: tuple[House, Models]) -> None:
    house, model = asking
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        calls = calling(talk, "sample", params=WISH)
        (ask,) = await until_asked(house, "sampling")
        calls.cancel()
        await asyncio.gather(calls, return_exceptions=True)
    assert (await until_state(house, ask["id"], "withdrawn"))["state"] == "withdrawn"
    assert len(model.asked()) == before


async def test_a_client_that_has_a_model_is_asked_itself(asking: tuple[House, Models]) -> None:
    house, model = asking
    before = len(model.asked())
    own: Frame = {**ANSWER, "model": "its-own"}
    async with house.among_all("near").talk({"sampling": {}}) as talk:
        talk.client.answer = lambda frame: {"result": own}
        exchange = await talk.call("sample", {"params": WISH})
    assert heard(exchange)["result"]["model"] == "its-own"
    assert await asks(house) == []
    assert len(model.asked()) == before


WRONG: list[Frame] = [
    {"messages": []},
    {"messages": [{"role": "user", "content": {"type": "tool_use", "id": "1"}}]},
    {"maxTokens": -1},
    {"maxTokens": "x"},
    {"tools": [{"name": "x", "inputSchema": {}}]},
    {"stopSequences": ["x"] * 100},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_cannot_be_sampled_is_asked_of_nobody(
    asking: tuple[House, Models], wrong: Frame
) -> None:
    house, model = asking
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        exchange = await talk.call("sample", {"params": {**WISH, **wrong}})
    assert heard(exchange)["error"]["code"] == -32602
    assert await asks(house) == []
    assert len(model.asked()) == before


@pytest.mark.parametrize(("choice", "asked"), [("allow", 1), ("deny", 0)])
async def test_an_operator_may_decide_for_all_times(
    tmp_path: Path, choice: str, asked: int
) -> None:
    with gateway(tmp_path, choice) as (house, model):
        async with house.among_all("near").talk({}) as talk:
            async with asyncio.timeout(SECONDS):
                said = heard(await talk.call("sample", {"params": WISH}))
        assert said.get("result") == (ANSWER if asked else None)
        assert len(model.asked()) == asked
        assert await asks(house) == []
