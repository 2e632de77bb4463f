"""How asks are put to clients: what is said, what counts as an answer, and what a state holds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules import ask_forms
from comity.rules.ask_forms import Brought, Mode, Way
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.errors import DECLINED, PENDING_APPROVAL, MalformedMessage

KEY = b"k" * 32
_NO_WAY: set[Mode] = set()
WAY = Way("a person", "https://x/asks/1", "`comity approve 1`")
NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ASK = Ask(
    *("06gtask", Kind.CONFIRM, "agent:ci", "files", "delete", "digest"),
    "agent:ci wants to call files__delete",
    {"risk": "dangerous", "arguments": {"path": "/tmp/\u202ex"}},
    NOW,
    NOW + timedelta(minutes=15),
)


def _request(**members: object) -> jsonrpc.Frame:
    return jsonrpc.request(1, mcp.CALL_TOOL, {"name": "delete", "arguments": {}, **members})


@pytest.mark.parametrize(
    ("declared", "modes"),
    [
        (None, _NO_WAY),
        ({}, {Mode.FORM}),
        ({"form": {}}, {Mode.FORM}),
        ({"url": {}}, {Mode.URL}),
        ({"form": {}, "url": {}}, {Mode.FORM, Mode.URL}),
        ({"voice": {}}, _NO_WAY),
        ([], _NO_WAY),
        ("form", _NO_WAY),
    ],
)
def test_a_client_is_asked_only_as_it_declared(declared: object, modes: set[Mode]) -> None:
    said = {} if declared is None else {"elicitation": jsonrpc.to_raw(declared)}
    assert ask_forms.modes_in(said) == modes


def test_what_is_read_says_all_that_would_run_and_hides_nothing() -> None:
    message = ask_forms.message_of(ASK)
    assert "files__delete" in message
    assert "dangerous" in message
    assert "\u202e" not in message
    assert "202e" in message


@pytest.mark.requirement("MCP-5.6-flat")
def test_the_form_that_comity_sends_is_flat() -> None:
    schema = cast("dict[str, Any]", ask_forms.form_of(ASK)["requestedSchema"])
    assert schema["type"] == "object"
    assert [each["type"] for each in schema["properties"].values()] == ["string"]


def test_a_round_asks_one_thing_and_carries_the_state() -> None:
    params = ask_forms.page_of(ASK, "https://x/asks/1", "a person")
    asked = ask_forms.round_with(params, "sealed")
    (question,) = cast("dict[str, Any]", asked["inputRequests"]).values()
    assert question["params"]["url"] == "https://x/asks/1"
    assert question["params"]["message"].startswith("Comity holds this call. A person can approve")
    assert (asked["resultType"], asked["requestState"]) == ("input_required", "sealed")


def test_a_state_brings_the_answer_to_its_own_party_and_is_taken_out() -> None:
    state = ask_forms.state_of(KEY, ASK, "person:bea", Mode.FORM)
    said = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
    frame = _request(requestState=state, inputResponses=said, _meta={"a": 1})
    plain, brought = ask_forms.taken_out(KEY, "person:bea", frame)
    assert brought == Brought(ASK.id, Mode.FORM, Verdict.ACCEPT)
    assert set(jsonrpc.params_of(plain)) == {"name", "arguments", "_meta"}
    with pytest.raises(MalformedMessage, match="somebody else"):
        ask_forms.taken_out(KEY, "person:ana", frame)


@pytest.mark.parametrize("responses", [None, {}, {"other": {"action": "accept"}}], ids=str)
def test_a_state_alone_answers_nothing(responses: object) -> None:
    state = ask_forms.state_of(KEY, ASK, "person:bea", Mode.FORM)
    frame = _request(requestState=state, inputResponses=responses)
    _, brought = ask_forms.taken_out(KEY, "person:bea", frame)
    assert brought == Brought(ASK.id, Mode.FORM, None)


@given(st.text(max_size=200))
def test_a_state_that_is_not_ours_is_left_to_its_server(state: str) -> None:
    frame = _request(requestState=state, inputResponses={"a": {"action": "accept"}})
    assert ask_forms.taken_out(KEY, "person:bea", frame) == (frame, None)


def test_a_seal_of_another_key_or_for_another_purpose_is_not_ours() -> None:
    for other in (
        ask_forms.state_of(b"x" * 32, ASK, "person:bea", Mode.FORM),
        ask_forms.seal(KEY, "answer an ask", ASK.id, "person:bea", "form"),
        ask_forms.seal(KEY, "ask", ASK.id),
    ):
        frame = _request(requestState=other)
        assert ask_forms.taken_out(KEY, "person:bea", frame) == (frame, None)


def test_to_visit_a_page_answers_nothing_of_what_a_form_would() -> None:
    said = jsonrpc.to_raw({"action": "accept", "content": {"decision": "decline"}})
    assert ask_forms.verdict_in(Mode.URL, said) is Verdict.ACCEPT
    assert ask_forms.verdict_in(Mode.FORM, said) is Verdict.DECLINE


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_nothing_but_the_very_word_approves(said: object) -> None:
    try:
        verdict = ask_forms.verdict_in(Mode.FORM, jsonrpc.to_raw(said))
    except MalformedMessage:
        return
    assert verdict is not Verdict.ACCEPT


def test_whoever_cannot_wait_is_told_how_to_come_back() -> None:
    refusal = ask_forms.pending(ASK, WAY, timedelta(seconds=45))
    assert refusal.fault is PENDING_APPROVAL
    assert refusal.details["ask_id"] == ASK.id
    assert refusal.details["url"] == WAY.page
    assert refusal.retry_after == timedelta(seconds=45)
    assert str(WAY) in refusal.suggestions


@pytest.mark.parametrize("why_not_you", ["", "it is your own request"])
def test_news_of_a_call_that_waits_says_who_can_approve_it_and_how(why_not_you: str) -> None:
    news = ask_forms.progress("t", 1, ASK, WAY._replace(why_not_you=why_not_you))
    params = jsonrpc.params_of(news)
    assert jsonrpc.value(params["_meta"]) == {"dev.comity/ask": {"id": ASK.id}}
    message = jsonrpc.text(params["message"]) or ""
    assert "A person can approve it at https://x/asks/1 or by `comity approve 1`." in message
    assert message.endswith("." if not why_not_you else "You cannot: it is your own request.")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State.DECLINED, "person:ana declined this call: no"),
        (State.CANCELLED, "person:ana declined this call: no"),
        (State.EXPIRED, "in time"),
        (State.WITHDRAWN, "no longer to be had"),
    ],
)
def test_why_a_call_does_not_run_is_said(state: State, says: str) -> None:
    answer = Answer("person:ana", Verdict.DECLINE, NOW, "no")
    refusal = ask_forms.ended(replace(ASK, state=state, answers=(answer,)))
    assert refusal.fault is DECLINED
    assert says in refusal.because


def test_progress_is_told_only_to_whoever_gave_a_token() -> None:
    assert ask_forms.token_in(_request()) is None
    assert ask_forms.token_in(_request(_meta={"progressToken": 7})) == 7
    assert ask_forms.token_in(_request(_meta=[])) is None
    first, second = (ask_forms.progress(7, step, ASK, WAY) for step in (1, 2))
    steps = [jsonrpc.value(jsonrpc.params_of(each)["progress"]) for each in (first, second)]
    assert 0 < cast("float", steps[0]) < cast("float", steps[1]) < 1
    assert isinstance(first.params, Raw)
