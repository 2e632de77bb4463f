"""Providers of models: both SDK adapters against a real server on loopback, and plugins."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from comity.errors import (
    MODEL_REFUSED,
    RATE_LIMITED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    Misconfigured,
    Unavailable,
)
from comity.inference.messages import (
    ContentBlock,
    FinishReason,
    ModelInfo,
    TokenUsage,
    text_of,
    to_text_content,
)
from comity.inference.model import (
    ConversationStep,
    Model,
    ModelCompletion,
    ModelPrompt,
    ModelSpec,
    ModelTool,
    OnPiece,
    Price,
    ReplyChunk,
    ToolResult,
    ToolUse,
)
from comity.inference.providers.base import MAX_USES, MAX_WAIT, parse_retry_after
from comity.inference.providers.registry import make_model, price_of
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said
from tests.pace import here
from tests.support.cases import loop_over

KEY = "sk-not-to-be-seen-anywhere"
HELLO = ModelPrompt((ConversationStep("user", to_text_content("Hello")),), max_tokens=50)


class Stage:
    """A model server, and the model that asks it."""

    def __init__(self, api: str, server: ModelServer) -> None:
        self.api = api
        self.server = server
        self.spec = self.specified()
        self.model: Model = make_model(self.spec)

    def specified(self, **more: Any) -> ModelSpec:
        url = self.server.url + ("/v1" if self.api == "openai" else "")
        return ModelSpec("m", self.api, "some-model", url, KEY, **more)

    async def says(
        self, reply: Said, prompt: ModelPrompt = HELLO, *, stream: bool = False
    ) -> ModelCompletion:
        self.server.add(reply)
        heard: list[ReplyChunk] = []
        async with asyncio.timeout(here(20)):
            return await self.model.complete(prompt, heard.append if stream else None)

    async def fails(self, reply: Said, *, stream: bool = False) -> Unavailable:
        with pytest.raises(Unavailable) as told:
            await self.says(reply, stream=stream)
        assert KEY not in str(told.value)
        assert "Hello" not in str(told.value)
        assert told.value.__cause__ is None
        return told.value

    @property
    def asked(self) -> dict[str, Any]:
        return dict(self.server.requests[-1].body)


@pytest.fixture(params=["openai", "anthropic"])
async def stage(request: pytest.FixtureRequest) -> AsyncGenerator[Stage]:
    async with serving() as server:
        made = Stage(request.param, server)
        yield made
        await made.model.close()


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


async def test_a_reply_has_its_words_its_usage_and_why_it_ended(stage: Stage, stream: bool) -> None:
    reply = await stage.says(Said("Good day to you", usage=(7, 4)), stream=stream)
    assert text_of(reply.content) == "Good day to you"
    assert reply.usage == TokenUsage(7, 4)
    assert (reply.finish, reply.model, reply.uses) == (FinishReason.END, "some-model", ())


async def test_words_are_told_while_they_come(stage: Stage) -> None:
    heard: list[str] = []
    stage.server.add(Said(pieces=("one ", "two ", "three"), thinking="hm"))
    reply = await stage.model.complete(HELLO, lambda piece: heard.append(repr(piece)))
    assert text_of(reply.content) == "one two three"
    assert reply.thinking == "hm"
    assert heard == [
        repr(ReplyChunk("hm", is_thinking=True)),
        *(repr(ReplyChunk(each)) for each in ("one ", "two ", "three")),
    ]


async def test_what_was_thought_is_kept_apart(stage: Stage, stream: bool) -> None:
    reply = await stage.says(Said("Yes.", thinking="Is it so?"), stream=stream)
    assert (text_of(reply.content), reply.thinking) == ("Yes.", "Is it so?")


async def test_a_reply_that_was_too_long_says_so(stage: Stage, stream: bool) -> None:
    reply = await stage.says(Said("And then", finish="length"), stream=stream)
    assert reply.finish is FinishReason.TOO_LONG


async def test_tools_are_used_with_their_arguments(stage: Stage, stream: bool) -> None:
    uses = ({"name": "look", "arguments": {"at": [1, "two"]}, "id": "u1"}, {"name": "wait"})
    reply = await stage.says(Said("Let me see.", uses=uses), stream=stream)
    assert [(each.id, each.name, each.arguments, each.broken) for each in reply.uses] == [
        ("u1", "look", {"at": [1, "two"]}, ""),
        ("use_1", "wait", {}, ""),
    ]
    assert reply.finish is FinishReason.END


@pytest.mark.parametrize(
    "written", ['{"a": ', "[1]", '"text"', "[" * 200, '{"a":' * 100 + "1" + "}" * 100]
)
async def test_arguments_that_are_no_object_are_kept_as_broken(
    stage: Stage, stream: bool, written: str
) -> None:
    reply = await stage.says(Said(uses=({"name": "look", "arguments": written},)), stream=stream)
    (use,) = reply.uses
    assert use.arguments == {}
    # Whole, the one dialect has arguments as values: their spelling is lost, not their nature.
    assert use.broken != "" or (stage.api == "anthropic" and not stream)


async def test_everything_that_is_given_arrives(stage: Stage) -> None:
    prompt = ModelPrompt(
        (
            ConversationStep("user", to_text_content("What is on it?")),
            ConversationStep(
                "assistant", to_text_content("I look."), (ToolUse("u1", "look", {"at": "it"}),)
            ),
            ConversationStep("user", (), results=(ToolResult("u1", to_text_content("a cat")),)),
        ),
        to_text_content("Be brief."),
        (ModelTool("look", "Looks.", {"type": "object"}),),
        max_tokens=11,
        temperature=0.5,
        stop=("END",),
    )
    await stage.says(Said("A cat."), prompt)
    asked = stage.asked
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("some-model", 11, 0.5)
    text = json.dumps(asked)
    for part in ("What is on it?", "I look.", "a cat", "Be brief.", "Looks.", "END"):
        assert part in text
    if stage.api == "openai":
        assert [each["role"] for each in asked["messages"]] == [
            *("system", "user", "assistant", "tool"),
        ]
        assert asked["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"at":"it"}'
    else:
        assert [each["role"] for each in asked["messages"]] == ["user", "assistant", "user"]
        assert asked["messages"][1]["content"][1]["input"] == {"at": "it"}
        assert asked["messages"][2]["content"][0]["tool_use_id"] == "u1"


async def test_pictures_go_to_models_that_can_see(stage: Stage) -> None:
    picture = ContentBlock("image", data="aGk=", mime="image/png")
    prompt = ModelPrompt((ConversationStep("user", (ContentBlock("text", "This:"), picture)),))
    await stage.says(Said("A picture."), prompt)
    assert "aGk=" not in json.dumps(stage.asked)
    assert "[image: image/png]" in json.dumps(stage.asked)
    seeing = make_model(stage.specified(capabilities=("vision",)))
    await seeing.complete(prompt)
    await seeing.close()
    assert "aGk=" in json.dumps(stage.asked)


async def test_no_more_is_asked_for_than_the_model_can_say(stage: Stage) -> None:
    small = make_model(stage.specified(max_output=5))
    await small.complete(HELLO)
    await small.close()
    assert stage.asked["max_tokens"] == 5


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        *((429, RATE_LIMITED), (529, RATE_LIMITED), (500, UPSTREAM_FAILED), (503, UPSTREAM_FAILED)),
        *((400, MODEL_REFUSED), (401, MODEL_REFUSED), (404, MODEL_REFUSED)),
    ],
)
async def test_an_error_says_whose_fault_it_is_and_nothing_else(
    stage: Stage, stream: bool, status: int, fault: object
) -> None:
    words = f"Hello is not for {KEY}"
    error = await stage.fails(Said(words, status=status), stream=stream)
    assert error.fault is fault
    assert str(error) == f"model 'm' answered {status}"
    assert len(stage.server.requests) == 1


async def test_a_server_says_when_to_come_again(stage: Stage, stream: bool) -> None:
    busy = Said(status=429, headers={"Retry-After": "7"})
    assert (await stage.fails(busy, stream=stream)).retry_after == timedelta(seconds=7)


async def test_a_redirect_is_not_followed(stage: Stage, stream: bool) -> None:
    async with serving() as elsewhere:
        headers = {"Location": f"{elsewhere.url}/v1/messages"}
        await stage.fails(Said(status=307, headers=headers), stream=stream)
        assert elsewhere.requests == []


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"choices": "x"}', "<html>", "7"])
async def test_what_is_no_reply_is_refused(stage: Stage, stream: bool, body: str) -> None:
    await stage.fails(Said(body=body), stream=stream)


async def test_a_stream_that_is_cut_is_no_reply(stage: Stage) -> None:
    error = await stage.fails(Said("one two three four", cut_after=1), stream=True)
    assert error.fault is UPSTREAM_FAILED


async def test_a_server_that_is_not_there_is_down(stage: Stage, stream: bool) -> None:
    nowhere = make_model(ModelSpec("m", stage.api, "x", "http://127.0.0.1:9", KEY))
    with pytest.raises(Unavailable) as told:
        await nowhere.complete(HELLO, (lambda _: None) if stream else None)
    await nowhere.close()
    assert told.value.fault is UPSTREAM_DOWN


async def test_a_reply_without_end_is_not_read_to_the_end(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.inference.providers.base.MOST_BYTES", 100_000)
    error = await stage.fails(Said("x" * 1_000_000), stream=stream)
    assert error.fault is MODEL_REFUSED


async def test_words_without_end_are_not_gathered(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.inference.providers.base.MOST_CHARACTERS", 1_000)
    error = await stage.fails(Said("x" * 5_000), stream=stream)
    assert error.fault is MODEL_REFUSED


async def test_a_packed_reply_is_not_unpacked(stage: Stage, stream: bool) -> None:
    packed = Said(body="x", headers={"Content-Encoding": "gzip"})
    error = await stage.fails(packed, stream=stream)
    assert error.fault is MODEL_REFUSED


async def test_a_crowd_of_tools_is_refused(stage: Stage, stream: bool) -> None:
    uses = tuple({"name": "look"} for _ in range(MAX_USES + 1))
    error = await stage.fails(Said(uses=uses), stream=stream)
    assert error.fault is MODEL_REFUSED


async def test_whoever_is_cancelled_hangs_up(stage: Stage, stream: bool) -> None:
    stage.server.add(Said("slowly", hold=True))
    asking = asyncio.create_task(stage.model.complete(HELLO, (lambda _: None) if stream else None))
    async with asyncio.timeout(here(20)):
        await stage.server.came.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await stage.server.left.wait()
    assert stage.server.abandoned == 1


async def test_a_key_is_in_no_word_that_is_written_down(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await stage.says(Said("Hi"), stream=True)
    assert KEY in str(stage.server.requests[0].headers)
    assert KEY not in caplog.text
    assert "Hello" not in caplog.text
    assert KEY not in repr(stage.spec)
    assert KEY not in repr(stage.model)


async def test_a_server_that_counts_nothing_is_counted_by_length(stage: Stage) -> None:
    whole: dict[str, Any] = {"id": "1", "model": "m", "usage": None}
    if stage.api == "openai":
        message = {"role": "assistant", "content": "Good day"}
        whole["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    else:
        whole |= {"type": "message", "role": "assistant", "stop_reason": "end_turn"}
        whole["content"] = [{"type": "text", "text": "Good day"}]
    reply = await stage.says(Said(body=json.dumps(whole)))
    assert reply.usage == TokenUsage(1, 1)


SPEC = ModelSpec("m", "mine", "m-1")


class Mine:
    """A model of another kind."""

    def __init__(self, spec: ModelSpec) -> None:
        self.info: ModelInfo = spec.info

    async def complete(
        self, prompt: ModelPrompt, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        return ModelCompletion((), FinishReason.END, TokenUsage(), self.info.id)

    async def close(self) -> None:
        """Nothing is open."""


def nothing(spec: ModelSpec) -> object:
    return object()


NUMBER = 7


def loaded(point: EntryPoint) -> object:
    return globals()[point.value.partition(":")[2]]


def point(what: str) -> EntryPoint:
    return EntryPoint("mine", f"{__name__}:{what}", "comity.models")


def test_a_plugin_makes_models_of_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", loaded)
    assert make_model(SPEC, [point("Mine")]).info == ModelInfo("m-1", "mine", 128_000)
    with pytest.raises(Misconfigured, match="has no info"):
        make_model(SPEC, [point("nothing")])
    with pytest.raises(Misconfigured, match="cannot be called"):
        make_model(SPEC, [point("NUMBER")])


def test_a_plugin_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(Misconfigured, match="api 'mine' cannot be loaded: ModuleNotFoundError"):
        make_model(SPEC, [EntryPoint("mine", "no_such_package:make", "comity.models")])


def test_an_api_that_nobody_speaks_is_named() -> None:
    with pytest.raises(Misconfigured, match="known: anthropic, demo, openai"):
        make_model(SPEC)


@loop_over(
    ("vendor", "model", "given", "price"),
    [
        ("openai", "gpt-4o-mini", Price(), Price(0.15, 0.6)),
        ("", "gpt-4o-mini", Price(), Price(0.15, 0.6)),
        ("openai", "gpt-4o-mini", Price(1.0, None), Price(1.0, 0.6)),
        ("openai", "gpt-4o-mini", Price(0.0, 0.0), Price(0.0, 0.0)),
        ("openai", "nobody-knows-it", Price(), Price()),
    ],
)
def test_what_the_operator_said_stands_before_the_table(
    vendor: str, model: str, given: Price, price: Price
) -> None:
    assert price_of(ModelSpec("m", "openai", model, vendor=vendor), given) == price


@loop_over(
    ("said", "seconds"),
    [("7", 7), ("0.5", 0.5), ("-3", 0), ("1e99", None), ("nan", None), ("soon", None), ("", None)],
)
def test_when_to_come_again_is_read_with_care(said: str, seconds: float | None) -> None:
    found = parse_retry_after(said)
    assert (None if found is None else found.total_seconds()) == seconds


def test_a_date_in_the_past_is_now_and_one_far_away_is_not_waited_for() -> None:
    past, future = parse_retry_after("Thu, 01 Jan 1998 00:00:00 GMT"), parse_retry_after("999999")
    assert (past is not None, future) == (True, MAX_WAIT)
    assert past is not None
    assert past.total_seconds() == 0
