"""A live server asks a model through the whole gateway: answers, chunks, routes, refusals. (§11)"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.inference_scene import KEY, asking, request
from tests.live.model_speech import Said
from tests.pace import here

TWO = """
[[models]]
id = "cheap"
api = "openai"
url = "URL/v1"
model = "cheap-1"
price_input = 1
price_output = 2
[[models]]
id = "wise"
api = "anthropic"
url = "URL"
model = "wise-1"
price_input = 10
price_output = 20
"""


@pytest.fixture(autouse=True)
def the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)


@pytest.mark.requirement("MCPL-4.1-inference", "MCPL-11.3-result", "MCPL-11.1-request")
async def test_a_server_is_answered_by_a_model(tmp_path: Path) -> None:
    async with asking(tmp_path, Said("Consolidated.", usage=(450, 120))) as it:
        wanted = request(
            conversationId="conv_123", preferences={"maxTokens": 500, "temperature": 0.7}
        )
        assert await it.server.asked("inference/request", wanted) == {
            "content": "Consolidated.",
            "model": "fast-1",
            "finishReason": "end_turn",
            "usage": {"inputTokens": 450, "outputTokens": 120},
        }
        (asked,) = it.models.requests
        assert (asked.body["max_tokens"], asked.body["temperature"]) == (500, 0.7)
        assert asked.body["messages"] == [{"role": "user", "content": "Hello"}]
        assert not asked.body.get("stream")
        assert it.server.said("inference/chunk") == []


@pytest.mark.requirement("MCPL-11.3-finish")
async def test_why_a_model_stopped_is_said_in_three_words(tmp_path: Path) -> None:
    replies = [Said("a", finish=each) for each in ("stop", "length", "sequence")]
    async with asking(tmp_path, *replies, rows=TWO, settings='[inference]\ndefault="wise"\n') as it:
        said = [await it.server.asked("inference/request", request()) for _ in replies]
        assert [each["finishReason"] for each in said] == [
            *("end_turn", "max_tokens", "stop_sequence"),
        ]


@pytest.mark.requirement("MCPL-4.1-chunk", "MCPL-11.4-chunk", "MCPL-11.2-stream")
async def test_words_are_told_in_order_before_the_whole(tmp_path: Path) -> None:
    pieces = tuple(f"word{number} " for number in range(200))
    async with asking(tmp_path, Said(pieces=pieces)) as it:
        answer = await it.server.ask("inference/request", request(stream=True))
        chunks = it.server.said("inference/chunk")
        assert answer["result"]["content"] == "".join(pieces)
        assert "".join(each["delta"] for each in chunks) == "".join(pieces)
        assert [each["index"] for each in chunks] == list(range(len(chunks)))
        assert {each["requestId"] for each in chunks} == {answer["id"]}
        assert it.models.requests[0].body["stream"] is True


async def test_words_are_told_while_the_model_still_speaks(tmp_path: Path) -> None:
    async with asking(tmp_path, Said(pieces=("one ", "two"), hold_after=1)) as it:
        answering = asyncio.ensure_future(it.server.ask("inference/request", request(stream=True)))
        (first, *_) = await it.server.until("inference/chunk")
        assert (first["index"], first["delta"]) == (0, "one ")
        assert not answering.done()
        it.models.release()
        assert (await answering)["result"]["content"] == "one two"


@pytest.mark.requirement("MCPL-11.5-scope", "MCPL-11.5-unknown")
async def test_only_sets_that_may_ask_are_answered(tmp_path: Path) -> None:
    refused = {"memory.hooks": -32001, "off": -32001, "unheard.of": -32003, "": -32003}
    async with asking(tmp_path) as it:
        for feature, code in refused.items():
            assert await it.server.code("inference/request", request(feature)) == code
        assert it.models.requests == []


@pytest.mark.requirement("MCPL-11.5-routing", "MCPL-11.5-unknown", "MCPL-11.5-size")
async def test_a_request_goes_where_its_feature_set_is_routed_to(tmp_path: Path) -> None:
    routes = """
[inference]
default = "cheap"
[[inference.routes]]
feature = "memory.*"
model = "cheap"
[[inference.routes]]
server = "memory"
feature = "memory.consolidation"
model = "wise"
[[inference.routes]]
feature = "compliance.*"
min_tokens = 2000
model = "wise"
[[inference.routes]]
conversation = "conv_9"
model = "wise"
"""
    async with asking(tmp_path, rows=TWO, settings=routes) as it:

        async def model(feature: str, text: str = "Hello", **more: Any) -> str:
            wanted = request(feature, text, **more)
            return (await it.server.asked("inference/request", wanted))["model"]

        assert await model("memory.consolidation") == "wise-1"
        assert await model("memory.light") == "cheap-1"
        assert await model("compliance.redaction") == "cheap-1"
        assert await model("compliance.redaction", "long " * 4000) == "wise-1"
        assert await model("memory.light", conversationId="conv_9") == "wise-1"
        noted = it.noted()
        assert [(each["routed"], each["reason"]) for each in noted] == [
            ("wise", "route: server memory, feature memory.consolidation"),
            ("cheap", "route: feature memory.*"),
            ("cheap", "default"),
            ("wise", "route: feature compliance.*, at_least_tokens 2000"),
            ("wise", "route: conversation conv_9"),
        ]
        assert [each.api for each in it.models.requests] == [
            *("anthropic", "openai", "openai", "anthropic", "anthropic"),
        ]


@pytest.mark.requirement("MCPL-11.5-routing")
async def test_a_conversation_keeps_its_model(tmp_path: Path) -> None:
    routes = """
[inference]
default = "cheap"
[[inference.routes]]
feature = "memory.*"
min_tokens = 2000
model = "wise"
"""
    async with asking(tmp_path, rows=TWO, settings=routes) as it:
        long = request("memory.light", "long " * 4000, conversationId="c1")
        short = request("memory.light", "short", conversationId="c1")
        other = request("memory.light", "short", conversationId="c2")
        models = [
            (await it.server.asked("inference/request", each))["model"]
            for each in (long, short, other)
        ]
        assert models == ["wise-1", "wise-1", "cheap-1"]


@pytest.mark.requirement("MCPL-11.2-hints")
async def test_a_hint_is_taken_only_where_the_operator_left_a_choice(tmp_path: Path) -> None:
    routes = """
[inference]
default = "cheap"
[[inference.routes]]
feature = "memory.light"
model = "cheap"
[[inference.routes]]
feature = "memory.light"
model = "wise"
"""
    hint: dict[str, Any] = {"preferences": {"model": "wise", "modelTier": "best", "costTier": 3}}
    async with asking(tmp_path, rows=TWO, settings=routes) as it:
        for feature, model in (("memory.light", "wise-1"), ("memory.consolidation", "cheap-1")):
            answer = await it.server.asked("inference/request", request(feature, **hint))
            assert answer["model"] == model
        answer = await it.server.asked("inference/request", request("memory.light"))
        assert answer["model"] == "cheap-1"


async def test_what_was_asked_is_written_down_without_its_words(tmp_path: Path) -> None:
    priced = TWO + '[inference]\ndefault = "wise"\n'
    async with asking(tmp_path, Said("A secret.", usage=(100, 10)), rows=priced) as it:
        wanted = request(text="Do not tell", conversationId="c7")
        await it.server.asked("inference/request", wanted)
        (event,) = [each for each in it.events if each.type == "dev.comity.model_called"]
        details = dict(event.details)
        assert str(details.pop("inference")).startswith("inf_")
        assert isinstance(details.pop("ms"), int)
        assert details == {
            "model": "wise-1",
            "routed": "wise",
            "reason": "default",
            "input_tokens": 100,
            "output_tokens": 10,
            "cost": 0.0012,
            "outcome": "end_turn",
            "attempts": 1,
            "feature": "memory.consolidation",
            "conversation": "c7",
        }
        assert (event.actor, event.server) == ("server:memory", "memory")
        journal = json.dumps([str(each) for each in it.events])
        assert "Do not tell" not in journal
        assert "A secret." not in journal
        assert KEY not in journal


@pytest.mark.requirement("MCPL-4.1-model", "MCPL-12.1-info", "MCPL-12.2-result")
async def test_which_model_there_is_can_be_known(tmp_path: Path) -> None:
    more = 'context_window = 200000\ncapabilities = ["vision", "tools"]\nvendor = "someone"\n'
    rows = '[[models]]\nid = "fast"\napi = "openai"\nmodel = "fast-1"\nurl = "URL/v1"\n' + more
    async with asking(tmp_path, rows=rows) as it:
        assert await it.server.asked("model/info", {}) == {
            "id": "fast-1",
            "vendor": "someone",
            "contextWindow": 200000,
            "capabilities": ["vision", "tools"],
        }


@pytest.mark.requirement("MCPL-12.1-info")
async def test_that_there_is_no_model_is_an_answer_too(tmp_path: Path) -> None:
    async with asking(tmp_path, rows="") as it:
        for method, params in (("model/info", {}), ("inference/request", request())):
            answer = await it.server.ask(method, params)
            assert answer["error"]["code"] == -32603
            assert answer["error"]["data"]["error_type"] == "no_model"


async def test_a_malformed_request_reaches_no_model(tmp_path: Path) -> None:
    malformed: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"preferences": {"maxTokens": "many"}},
        {"stream": "yes"},
        {"conversationId": 7},
    ]
    async with asking(tmp_path) as it:
        for wrong in malformed:
            assert await it.server.code("inference/request", {**request(), **wrong}) == -32602
        assert it.models.requests == []


async def test_a_model_that_fails_is_followed_by_another(tmp_path: Path) -> None:
    settings = '[inference]\ndefault = "cheap"\nfallbacks = ["wise"]\n'
    failing = Said(status=400)
    async with asking(tmp_path, failing, Said("Here."), rows=TWO, settings=settings) as it:
        answer = await it.server.asked("inference/request", request())
        assert (answer["content"], answer["model"]) == ("Here.", "wise-1")
        assert [(each["routed"], each["outcome"]) for each in it.noted()] == [
            ("cheap", "model_refused"),
            ("wise", "end_turn"),
        ]


async def test_a_busy_model_is_asked_again_when_it_said(tmp_path: Path) -> None:
    busy = Said(status=429, headers={"Retry-After": "0"})
    async with asking(tmp_path, busy, Said(status=500), Said("At last.")) as it:
        answer = await it.server.asked("inference/request", request())
        assert answer["content"] == "At last."
        assert [each["attempts"] for each in it.noted()] == [3]


async def test_a_model_that_wants_to_be_left_alone_is(tmp_path: Path) -> None:
    busy = Said(status=429, headers={"Retry-After": "1800"})
    async with asking(tmp_path, busy) as it:
        answer = await it.server.ask("inference/request", request())
        data = answer["error"]["data"]
        assert (data["error_type"], data["retry_after_ms"]) == ("rate_limited", 1_800_000)
        assert len(it.models.requests) == 1


async def test_words_that_were_heard_are_not_said_again(tmp_path: Path) -> None:
    cut = Said("one two three four", cut_after=1)
    async with asking(tmp_path, cut, Said("five")) as it:
        answer = await it.server.ask("inference/request", request(stream=True))
        assert answer["error"]["data"]["error_type"] == "upstream_failed"
        assert len(it.models.requests) == 1


async def test_a_server_that_takes_its_request_back_ends_it_at_the_model(tmp_path: Path) -> None:
    async with asking(tmp_path, Said("slow", hold=True)) as it:
        answering = asyncio.ensure_future(it.server.ask("inference/request", request()))
        async with asyncio.timeout(here(30)):
            await it.models.came.wait()
            it.server.tell("notifications/cancelled", {"requestId": "p0"})
            await it.models.left.wait()
        answering.cancel()
        async with asyncio.timeout(here(30)):
            while not it.noted():
                await asyncio.sleep(0.01)
        assert it.noted()[0]["outcome"] == "cancelled"


async def test_a_server_that_dies_ends_its_request_at_the_model(tmp_path: Path) -> None:
    async with asking(tmp_path, Said("slow", hold=True)) as it:
        answering = asyncio.ensure_future(it.server.ask("inference/request", request()))
        async with asyncio.timeout(here(30)):
            await it.models.came.wait()
            it.server.cut()
            await it.models.left.wait()
        answering.cancel()


async def test_one_server_has_so_many_requests_under_way_and_no_more(tmp_path: Path) -> None:
    async with asking(tmp_path, Said("x", hold=True, when="hold")) as it:
        asked = [
            asyncio.ensure_future(it.server.ask("inference/request", request(text="hold")))
            for _ in range(33)
        ]
        done, _ = await asyncio.wait(asked, timeout=here(30), return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [await each for each in done]
        assert refused["error"]["data"]["error_type"] == "exhausted"
        it.models.release()
        await asyncio.gather(*asked)
