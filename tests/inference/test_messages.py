"""Content, inference and sampling, as servers write them and are answered. (MCPL §11, §12)"""

import json
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.inference.messages import (
    MAX_MESSAGES,
    ChatMessage,
    ContentBlock,
    FinishReason,
    InferenceParams,
    SamplingParams,
    build_sampling_result,
    content_in,
    inference_params_in,
    sampling_params_in,
    text_of,
    to_text_content,
    to_wire,
)
from comity.mcp import jsonrpc
from tests.support.cases import loop_over

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@loop_over(
    ("written", "read"),
    [
        ("hi", (ContentBlock("text", "hi"),)),
        ({"type": "text", "text": "hi"}, (ContentBlock("text", "hi"),)),
        ([{"type": "text", "text": ""}], (ContentBlock("text", ""),)),
        ([IMAGE], (ContentBlock("image", data="aGk=", mime="image/png"),)),
        ([{"type": "audio", "uri": "https://x"}], (ContentBlock("audio", uri="https://x"),)),
        ([{"type": "resource", "uri": "file:///x"}], (ContentBlock("resource", uri="file:///x"),)),
        ([], ()),
    ],
)
def test_content_is_always_blocks_inside(written: object, read: tuple[ContentBlock, ...]) -> None:
    assert content_in(jsonrpc.to_raw(written)) == read


@loop_over(
    "written",
    [
        7,
        None,
        ["hi"],
        [{"type": "text"}],
        [{"type": "hologram"}],
        [{"type": "image"}],
        [{"type": "image", "data": "aGk="}],
        [{**IMAGE, "uri": "https://x"}],
        [{"type": "resource"}],
        [{"type": "text", "text": 7}],
        [{"type": "text", "text": "x"}] * 257,
    ],
)
def test_what_is_no_content_is_refused(written: object) -> None:
    with pytest.raises(MalformedMessage):
        content_in(jsonrpc.to_raw(written))


def test_content_that_is_missing_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="the answer"):
        content_in(None, "the answer")


def test_what_is_no_text_is_named() -> None:
    blocks = content_in(jsonrpc.to_raw([{"type": "text", "text": "see"}, IMAGE]))
    assert text_of(blocks) == "see\n[image: image/png]"
    assert [each.size for each in blocks] == [3, 4]


def test_it_is_written_as_it_was_read() -> None:
    assert to_wire(content_in(jsonrpc.to_raw([IMAGE]))) == [IMAGE]
    assert to_wire(to_text_content("hi")) == [{"type": "text", "text": "hi"}]
    assert to_text_content("") == ()


HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
SAID = ChatMessage("user", (ContentBlock("text", "Hello"),))


def raw(**members: Any) -> Raw:
    return Raw(json.dumps(members).encode())


def test_a_request_is_read_with_all_that_it_says() -> None:
    found = inference_params_in(
        raw(
            featureSet="memory.x",
            conversationId="c1",
            stream=True,
            messages=[HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}],
            preferences={"maxTokens": 5, "temperature": 0, "model": "m", "costTier": 1, "odd": 2},
        )
    )
    assert found == InferenceParams(
        "memory.x",
        (SAID, ChatMessage("assistant", (ContentBlock("text", "Hi"),))),
        "c1",
        True,
        5,
        0,
        {"model": "m", "costTier": 1},
    )


def test_most_of_a_request_may_be_left_out() -> None:
    assert inference_params_in(raw(featureSet="x", messages=[HELLO])) == InferenceParams(
        "x", (SAID,)
    )


@loop_over(
    "members",
    [
        {"messages": [HELLO]},
        {"featureSet": "x"},
        {"featureSet": 1, "messages": [HELLO]},
        {"featureSet": "x", "messages": []},
        {"featureSet": "x", "messages": [HELLO] * (MAX_MESSAGES + 1)},
        {"featureSet": "x", "messages": [{"role": "system", "content": "x"}]},
        {"featureSet": "x", "messages": [{"role": "user"}]},
        {"featureSet": "x", "messages": [HELLO], "preferences": {"maxTokens": 0}},
        {"featureSet": "x", "messages": [HELLO], "preferences": {"maxTokens": 10**9}},
        {"featureSet": "x", "messages": [HELLO], "preferences": {"temperature": -0.1}},
        {"featureSet": "x", "messages": [HELLO], "preferences": {"temperature": 2.1}},
        {"featureSet": "x", "messages": [HELLO], "preferences": []},
        {"featureSet": "x", "messages": [HELLO], "stream": 1},
    ],
)
def test_what_is_no_request_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as told:
        inference_params_in(raw(**members))
    assert told.value.fault is INVALID_PARAMS


def test_a_repeated_key_is_refused_wherever_it_stands() -> None:
    twice = b'{"featureSet": "x", "messages": [{"role": "user", "content": "a", "content": "b"}]}'
    with pytest.raises(MalformedMessage):
        inference_params_in(Raw(twice))


def test_sampling_is_read_into_the_same_words() -> None:
    found = sampling_params_in(
        raw(
            messages=[{"role": "user", "content": {"type": "text", "text": "Hello"}}],
            maxTokens=9,
            systemPrompt="Be brief.",
            temperature=1,
            stopSequences=["END"],
            modelPreferences={"hints": [{"name": "big"}, {"name": "small"}], "costPriority": 1},
            includeContext="none",
        )
    )
    assert found == SamplingParams((SAID,), 9, "Be brief.", 1, ("END",), "big")
    assert sampling_params_in(raw(messages=[HELLO], maxTokens=9)) == SamplingParams((SAID,), 9)


@loop_over(
    "members",
    [
        {"messages": [HELLO]},
        {"messages": [], "maxTokens": 9},
        {"messages": [HELLO], "maxTokens": 0},
        {"messages": [HELLO], "maxTokens": 9, "tools": [{"name": "x"}]},
        {"messages": [HELLO], "maxTokens": 9, "stopSequences": ["x"] * 17},
        {"messages": [HELLO], "maxTokens": 9, "temperature": 3},
        {"messages": [HELLO], "maxTokens": 9, "modelPreferences": {"hints": "big"}},
    ],
)
def test_what_cannot_be_sampled_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as told:
        sampling_params_in(raw(**members))
    assert told.value.fault is INVALID_PARAMS


@loop_over(
    ("finish", "word"),
    [
        (FinishReason.END, "endTurn"),
        (FinishReason.TOO_LONG, "maxTokens"),
        (FinishReason.STOPPED, "stopSequence"),
    ],
)
def test_sampling_is_answered_as_mcp_writes_it(finish: FinishReason, word: str) -> None:
    assert build_sampling_result("Hi", "m", finish) == {
        "role": "assistant",
        "content": {"type": "text", "text": "Hi"},
        "model": "m",
        "stopReason": word,
    }
