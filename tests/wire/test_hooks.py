"""What servers say before and after a model, as it is read; and what they are told."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.wire.contents import Block
from comity.wire.errors import MalformedMessage
from comity.wire.hooks import Moment, Position, injected_in, rewritten_in
from comity.wire.inference import ModelInfo, Usage

MOMENT = Moment("inf_1", "c", 0, None, ModelInfo("m", "v", 100, ("tools",)))

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "system"])
NAMES = st.sampled_from(
    ["featureSet", "contextInjections", "namespace", "position", "content", "modifiedResponse"]
)
JSON = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=4),
    max_leaves=12,
)


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def injection(**other: Any) -> dict[str, Any]:
    return {"namespace": "n", "position": "system", "content": "words", **other}


def test_an_answer_before_is_read_whole() -> None:
    more = injection(position="afterUser", content=[{"type": "resource", "uri": "m:1"}])
    said = {"featureSet": "a.b", "contextInjections": [injection(metadata={"x": [1]}), more]}
    found = injected_in(raw(said))
    assert found.feature == "a.b"
    assert [each.position for each in found.injections] == [Position.SYSTEM, Position.AFTER_USER]
    assert found.injections[0].content == (Block("text", "words"),)
    assert found.injections[0].metadata == {"x": [1]}
    assert found.injections[1].content == (Block("resource", uri="m:1"),)
    assert injected_in(raw({"featureSet": "a"})).injections == ()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "x",
        {},
        {"featureSet": 1},
        {"featureSet": "a", "contextInjections": {}},
        {"featureSet": "a", "contextInjections": [injection()] * 65},
        *(
            {"featureSet": "a", "contextInjections": [injection(**{name: value})]}
            for name, value in (
                ("namespace", ""),
                ("namespace", "n" * 129),
                ("position", "above"),
                ("content", 7),
                ("content", [{"type": "text"}]),
                ("metadata", []),
            )
        ),
    ],
)
def test_what_is_no_answer_before_is_refused(wrong: object) -> None:
    with pytest.raises(MalformedMessage):
        injected_in(raw(wrong))


def test_an_answer_after_says_something_else_or_lets_it_stand() -> None:
    assert rewritten_in(raw({"featureSet": "a", "modifiedResponse": ""})).response == ""
    assert rewritten_in(raw({"featureSet": "a", "modifiedResponse": None})).response is None
    assert rewritten_in(raw({"featureSet": "a", "metadata": None})).response is None
    every: tuple[Any, ...] = (None, [], {}, {"featureSet": "a", "modifiedResponse": 1})
    for wrong in every:
        with pytest.raises(MalformedMessage):
            rewritten_in(raw(wrong))


@given(JSON)
def test_any_answer_is_read_or_refused(value: object) -> None:
    for read in (injected_in, rewritten_in):
        try:
            read(raw(value))
        except MalformedMessage:
            continue


def test_servers_are_told_of_a_turn_and_never_of_a_feature_set() -> None:
    before = MOMENT.before()
    assert before == {
        "inferenceId": "inf_1",
        "conversationId": "c",
        "turnIndex": 0,
        "userMessage": None,
        "model": {"id": "m", "vendor": "v", "contextWindow": 100, "capabilities": ["tools"]},
    }
    after = MOMENT.after("words", Usage(3, 2))
    usage = {"inputTokens": 3, "outputTokens": 2}
    assert after == {**before, "assistantMessage": "words", "usage": usage}
