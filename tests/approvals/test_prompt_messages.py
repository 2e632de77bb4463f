"""Messages that ask a client for an approval: their words, their answers, and `requestState`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.approvals import prompt_messages
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.prompt_messages import ApprovalInstructions, PromptMode, PromptReply
from comity.errors import DECLINED, MalformedMessage
from comity.mcp import jsonrpc, protocol

KEY = b"k" * 32
_NO_WAY: set[PromptMode] = set()
WAY = ApprovalInstructions("a person", "https://x/approvals/1", "`comity approve 1`")
NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ASK = ApprovalRequest(
    *("06gtask", ApprovalKind.CONFIRM, "agent:ci", "files", "delete", "digest"),
    "agent:ci wants to call files__delete",
    {"risk": "dangerous", "arguments": {"path": "/tmp/\u202ex"}},
    NOW,
    NOW + timedelta(minutes=15),
)


def _request(**members: object) -> jsonrpc.Frame:
    return jsonrpc.make_request(
        1, protocol.CALL_TOOL, {"name": "delete", "arguments": {}, **members}
    )


@pytest.mark.requirement("MCP-5.6-capability")
@pytest.mark.parametrize(
    ("declared", "modes"),
    [
        (None, _NO_WAY),
        ({}, {PromptMode.FORM}),
        ({"form": {}}, {PromptMode.FORM}),
        ({"url": {}}, {PromptMode.URL}),
        ({"form": {}, "url": {}}, {PromptMode.FORM, PromptMode.URL}),
        ({"voice": {}}, _NO_WAY),
        ([], _NO_WAY),
        ("form", _NO_WAY),
    ],
)
def test_a_client_is_asked_only_as_it_declared(declared: object, modes: set[PromptMode]) -> None:
    said = {} if declared is None else {"elicitation": jsonrpc.to_raw(declared)}
    assert prompt_messages.declared_modes(said) == modes


def test_what_is_read_says_all_that_would_run_and_hides_nothing() -> None:
    message = prompt_messages.prompt_text(ASK)
    assert "files__delete" in message
    assert "dangerous" in message
    assert "\u202e" not in message
    assert "202e" in message


@pytest.mark.requirement("MCP-5.6-flat")
def test_the_form_that_comity_sends_is_flat() -> None:
    schema = cast("dict[str, Any]", prompt_messages.form_elicitation(ASK)["requestedSchema"])
    assert schema["type"] == "object"
    assert [each["type"] for each in schema["properties"].values()] == ["string"]


@pytest.mark.parametrize("responses", [None, {}, {"other": {"action": "accept"}}], ids=str)
def test_a_state_alone_answers_nothing(responses: object) -> None:
    state = prompt_messages.seal_state(KEY, ASK, "person:bea", PromptMode.FORM)
    frame = _request(requestState=state, inputResponses=responses)
    _, brought = prompt_messages.extract_reply(KEY, "person:bea", frame)
    assert brought == PromptReply(ASK.id, PromptMode.FORM, None)


@given(st.text(max_size=200))
def test_a_state_that_is_not_ours_is_left_to_its_server(state: str) -> None:
    frame = _request(requestState=state, inputResponses={"a": {"action": "accept"}})
    assert prompt_messages.extract_reply(KEY, "person:bea", frame) == (frame, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_nothing_but_the_very_word_approves(said: object) -> None:
    try:
        verdict = prompt_messages.decision_in(PromptMode.FORM, jsonrpc.to_raw(said))
    except MalformedMessage:
        return
    assert verdict is not ApprovalDecision.ACCEPT


@pytest.mark.parametrize("why_not_you", ["", "it is your own request"])
def test_news_of_a_call_that_waits_says_who_can_approve_it_and_how(why_not_you: str) -> None:
    news = prompt_messages.waiting_progress("t", 1, ASK, WAY._replace(refusal_reason=why_not_you))
    params = news.parameters
    assert jsonrpc.decode_value(params["_meta"]) == {"dev.comity/approval": {"id": ASK.id}}
    message = jsonrpc.decode_text(params["message"]) or ""
    assert "A person can approve it at https://x/approvals/1 or by `comity approve 1`." in message
    assert message.endswith("." if not why_not_you else "You cannot: it is your own request.")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (ApprovalState.DENIED, "person:ana declined this call: no"),
        (ApprovalState.CANCELLED, "person:ana declined this call: no"),
        (ApprovalState.EXPIRED, "in time"),
        (ApprovalState.WITHDRAWN, "no longer possible"),
    ],
)
def test_why_a_call_does_not_run_is_said(state: ApprovalState, says: str) -> None:
    answer = ApprovalAnswer("person:ana", ApprovalDecision.DECLINE, NOW, "no")
    refusal = prompt_messages.ended_refusal(replace(ASK, state=state, answers=(answer,)))
    assert refusal.fault is DECLINED
    assert says in refusal.reason


def test_progress_is_told_only_to_whoever_gave_a_token() -> None:
    assert prompt_messages.progress_token_in(_request()) is None
    assert prompt_messages.progress_token_in(_request(_meta={"progressToken": 7})) == 7
    assert prompt_messages.progress_token_in(_request(_meta=[])) is None
    first, second = (prompt_messages.waiting_progress(7, step, ASK, WAY) for step in (1, 2))
    steps = [jsonrpc.decode_value(each.parameters["progress"]) for each in (first, second)]
    assert 0 < cast("float", steps[0]) < cast("float", steps[1]) < 1
    assert isinstance(first.params, Raw)
