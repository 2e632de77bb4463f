"""What is asked of models, as servers write it, and what they are answered. (MCPL §11, §12)"""

import json
from typing import Any

import pytest
from msgspec import Raw

from comity.wire.contents import Block
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.inference import (
    MOST_MESSAGES,
    Finish,
    Message,
    ModelInfo,
    Sampled,
    Usage,
    Wanted,
    answered,
    chunk,
    sampled_in,
    sampling_answered,
    wanted_in,
)

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
SAID = Message("user", (Block("text", "Hello"),))


def raw(**members: Any) -> Raw:
    return Raw(json.dumps(members).encode())


def test_a_request_is_read_with_all_that_it_says() -> None:
    found = wanted_in(
        raw(
            featureSet="memory.x",
            conversationId="c1",
            stream=True,
            messages=[HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}],
            preferences={"maxTokens": 5, "temperature": 0, "model": "m", "costTier": 1, "odd": 2},
        )
    )
    assert found == Wanted(
        "memory.x",
        (SAID, Message("assistant", (Block("text", "Hi"),))),
        "c1",
        True,
        5,
        0,
        {"model": "m", "costTier": 1},
    )


def test_most_of_a_request_may_be_left_out() -> None:
    assert wanted_in(raw(featureSet="x", messages=[HELLO])) == Wanted("x", (SAID,))


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [HELLO]},
        {"featureSet": "x"},
        {"featureSet": 1, "messages": [HELLO]},
        {"featureSet": "x", "messages": []},
        {"featureSet": "x", "messages": [HELLO] * (MOST_MESSAGES + 1)},
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
        wanted_in(raw(**members))
    assert told.value.fault is INVALID_PARAMS


def test_a_repeated_key_is_refused_wherever_it_stands() -> None:
    twice = b'{"featureSet": "x", "messages": [{"role": "user", "content": "a", "content": "b"}]}'
    with pytest.raises(MalformedMessage):
        wanted_in(Raw(twice))


def test_an_answer_says_what_it_cost() -> None:
    assert answered("Hi", "m", Finish.TOO_LONG, Usage(1, 2) + Usage(3, 4)) == {
        "content": "Hi",
        "model": "m",
        "finishReason": "max_tokens",
        "usage": {"inputTokens": 4, "outputTokens": 6},
    }


@pytest.mark.parametrize("id", [1, "one", 0])
def test_a_chunk_names_its_request_as_the_server_did(id: int | str) -> None:
    assert chunk(id, 0, "Hel") == {"requestId": id, "index": 0, "delta": "Hel"}


def test_a_model_is_told_of_in_four_words() -> None:
    assert ModelInfo("m", "v", 5, ("tools",)).on_wire() == {
        "id": "m",
        "vendor": "v",
        "contextWindow": 5,
        "capabilities": ["tools"],
    }


def test_sampling_is_read_into_the_same_words() -> None:
    found = sampled_in(
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
    assert found == Sampled((SAID,), 9, "Be brief.", 1, ("END",), "big")
    assert sampled_in(raw(messages=[HELLO], maxTokens=9)) == Sampled((SAID,), 9)


@pytest.mark.parametrize(
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
        sampled_in(raw(**members))
    assert told.value.fault is INVALID_PARAMS


@pytest.mark.parametrize(
    ("finish", "word"),
    [(Finish.END, "endTurn"), (Finish.TOO_LONG, "maxTokens"), (Finish.STOPPED, "stopSequence")],
)
def test_sampling_is_answered_as_mcp_writes_it(finish: Finish, word: str) -> None:
    assert sampling_answered("Hi", "m", finish) == {
        "role": "assistant",
        "content": {"type": "text", "text": "Hi"},
        "model": "m",
        "stopReason": word,
    }
