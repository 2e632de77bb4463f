"""What servers say before and after a model, as it is read, and where it stands in a prompt."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import MalformedMessage
from comity.inference.messages import ContentBlock, ModelInfo, TokenUsage, text_of, to_text_content
from comity.live.hooks.model import (
    HookContext,
    HookInjection,
    InjectionPosition,
    InjectionRequest,
    fit_injections,
    injected_in,
    place_injections,
    rewritten_in,
    safe_label,
    split_by_position,
    tokens_of,
)
from comity.live.hooks.service import ActiveHooks
from tests.support.cases import loop_over

MOMENT = HookContext("inf_1", "c", 0, None, ModelInfo("m", "v", 100, ("tools",)))
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
    assert [each.position for each in found.injections] == [
        InjectionPosition.SYSTEM,
        InjectionPosition.AFTER_USER,
    ]
    assert found.injections[0].content == (ContentBlock("text", "words"),)
    assert found.injections[0].metadata == {"x": [1]}
    assert found.injections[1].content == (ContentBlock("resource", uri="m:1"),)
    assert injected_in(raw({"featureSet": "a"})).injections == ()


@loop_over(
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
    before = MOMENT.before_params()
    assert before == {
        "inferenceId": "inf_1",
        "conversationId": "c",
        "turnIndex": 0,
        "userMessage": None,
        "model": {"id": "m", "vendor": "v", "contextWindow": 100, "capabilities": ["tools"]},
    }
    after = MOMENT.after_params("words", TokenUsage(3, 2))
    usage = {"inputTokens": 3, "outputTokens": 2}
    assert after == {**before, "assistantMessage": "words", "usage": usage}


WORD = "0123456789abcdef"


def of(
    server: str, text: str, position: InjectionPosition = InjectionPosition.BEFORE_USER
) -> InjectionRequest:
    return InjectionRequest(server, HookInjection("n", position, to_text_content(text)))


def test_each_stands_at_its_place_in_its_order_between_its_marks() -> None:
    found = place_injections(
        [
            of("a", "one"),
            of("b", "two", InjectionPosition.SYSTEM),
            of("b", "three"),
            of("a", "four", InjectionPosition.AFTER_USER),
        ],
        WORD,
    )
    assert text_of(found.before) == (
        f'<context-{WORD} server="a" from="n">\none\n</context-{WORD}>\n'
        f'<context-{WORD} server="b" from="n">\nthree\n</context-{WORD}>'
    )
    assert "two" in text_of(found.system)
    assert text_of(found.system).startswith(f"The text between <context-{WORD} server=...>")
    assert "four" in text_of(found.after)


@given(st.text(st.sampled_from("</ \n>CcontextserverfineONTEXT-0189af=\"'_"), max_size=200))
def test_no_text_begins_or_ends_a_mark(text: str) -> None:
    found = text_of(place_injections([of("odd", text), of("fine", "x")], WORD).before)
    assert len(re.findall(r"<\s*/?\s*context", found, re.IGNORECASE)) == 4
    assert len(re.findall(r"</context", found)) == 2


@given(st.text(max_size=300))
def test_no_label_leaves_its_mark(text: str) -> None:
    label = safe_label(text)
    assert not set(label) & set("\"<>\n'=&")
    assert len(label) <= 128


def test_pictures_stay_and_addresses_are_only_named() -> None:
    content = (
        ContentBlock("image", data="QQ==", mime="image/png"),
        ContentBlock("image", uri="https://example.org/<context-1>"),
        ContentBlock("resource", uri="memory://1"),
    )
    found = place_injections(
        [InjectionRequest("a", HookInjection("n", InjectionPosition.BEFORE_USER, content))], WORD
    ).before
    assert found[1] == content[0]
    assert found[2].text == "[image: https://example.org/&lt;context-1>]"
    assert found[3].text == "[resource: memory://1]"


def test_what_stands_where_it_may_not_is_left_out_alone() -> None:
    every = [of("a", "x", each).injection for each in InjectionPosition]
    kept, elsewhere = split_by_position(every, {InjectionPosition.BEFORE_USER})
    assert [each.position for each in kept] == [InjectionPosition.BEFORE_USER]
    assert set(elsewhere) == {InjectionPosition.SYSTEM, InjectionPosition.AFTER_USER}


def test_what_is_too_much_is_left_out_whole() -> None:
    small, large = of("a", "x"), of("b", "x" * 10_000)
    kept, left_out = fit_injections([large, small], 100)
    assert (kept, left_out) == ([small], [large])
    assert tokens_of(small.injection.content) < 10 < tokens_of(large.injection.content)
    assert tokens_of([ContentBlock("image", data="QQ==", mime="i/p")]) > 1000


def test_a_hook_is_pending_for_its_server_and_conversation_alone() -> None:
    watch = ActiveHooks()
    with watch.pending("s", "c1"), watch.pending("s", "c1"):
        assert watch.is_pending("s", "c1")
        assert watch.is_pending("s")
        assert not watch.is_pending("s", "c2")
        assert not watch.is_pending("t")
    assert not watch.is_pending("s", "c1")
    assert not watch.is_pending("s")
