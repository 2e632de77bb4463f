"""Every envelope is doubted: what is not what it says is dropped, counted and told."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.kinds import parse
from comity.rules.proposals import State
from comity.sdk.events import (
    Chat,
    Event,
    Fulfilment,
    Misbehaviour,
    Other,
    Proposal,
    Rejection,
    Request,
    Response,
    Welcome,
    Withdrawal,
)
from comity.sdk.following import Following
from comity.sdk.reading import MOST_SENDERS, Asked, Reading
from comity.sdk.seen import MOST_CHARACTERS, MOST_OF_ONE, Step
from comity.wire.envelope import decode
from comity.wire.parties import GATEWAY
from tests.sdk.made import (
    ANA,
    BOT,
    CALL,
    ME,
    PARAMS,
    WORKER,
    frame,
    proposal,
    request,
    response,
    welcome,
)


def reading(*, has_later_kinds: bool = False) -> Reading:
    made = Reading(Following(lambda: datetime.now(UTC)), has_later_kinds=has_later_kinds)
    (greeting,) = made.read(welcome())
    assert isinstance(greeting, Welcome)
    made.me = greeting.id
    return made


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


def blamed(events: list[Event]) -> str:
    event = only(events)
    assert isinstance(event, Misbehaviour), event
    return event.because


def test_a_chat_is_told_as_it_was_meant() -> None:
    event = only(reading().read(frame("chat", {"text": "hello"}, ANA, to=[ME])))
    assert isinstance(event, Chat)
    assert (event.sender, event.to, event.text, event.format) == (ANA, (ME,), "hello", "plain")


@pytest.mark.parametrize(
    "payload",
    [{}, {"text": 1}, {"text": None}, {"text": "a", "format": "html"}, {"text": "a", "format": 1}],
)
def test_a_chat_without_a_text_or_in_another_format_is_dropped(payload: dict[str, Any]) -> None:
    assert "chat" in blamed(reading().read(frame("chat", payload)))


@pytest.mark.parametrize("kind", ["mcp/request:tools/list", "mcp/request:resources/read:write"])
def test_a_kind_with_another_method_is_dropped(kind: str) -> None:
    payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}
    assert "the kind says" in blamed(reading().read(frame(kind, payload)))


@pytest.mark.parametrize("name", ["dangerous", "Write", "write ", "", None, ["write"]])
def test_a_kind_with_another_context_is_dropped(name: object) -> None:
    payload = {"params": {"name": name}}
    assert "the kind says 'write'" in blamed(reading().read(request(payload=payload)))
    assert "the kind says 'write'" in blamed(reading().read(proposal(payload=payload)))


def test_of_a_name_that_stands_twice_the_one_that_was_judged_is_acted_on() -> None:
    payload = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad","name":"write"}}'
    )
    sent = frame(CALL, {"x": 1}).replace(b'{"x":1}', payload)
    event = only(reading().read(sent))
    assert isinstance(event, Request)
    assert event.params == {"name": "write"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"jsonrpc": "1.0"},
        {"jsonrpc": None},
        {"id": None},
        {"id": True},
        {"id": 1.5},
        {"id": 2**60},
        {"id": "x" * 300},
        {"id": [1]},
        {"params": [1]},
        {"params": None},
        {"method": 3},
        {"method": None},
    ],
)
def test_a_request_that_is_no_json_rpc_is_dropped(wrong: dict[str, Any]) -> None:
    assert blamed(reading().read(request(payload=wrong)))


@pytest.mark.parametrize("kind", ["system/welcome", "system/error", "System/presence", "presence"])
def test_a_member_that_speaks_for_the_gateway_is_dropped(kind: str) -> None:
    made = reading()
    payload = {"you": {"id": "agent:other", "capabilities": ["*"]}}
    assert blamed(made.read(frame(kind, payload, BOT, to=[ME]))) == (
        "only the gateway may send this kind"
    )
    assert made.me == ME


@pytest.mark.parametrize("kind", ["chat", "mcp/request:ping", "system/reboot", "system"])
def test_the_gateway_says_nothing_but_what_is_its_own(kind: str) -> None:
    assert blamed(reading().read(frame(kind, {"text": "hi"}, GATEWAY)))


def test_what_we_said_ourselves_is_no_news() -> None:
    mine, said = reading(), frame("chat", {"text": "hello"}, ME)
    mine.said(decode(said))
    assert mine.read(said) == []


def test_what_we_said_before_we_came_is_told_as_history_is() -> None:
    """So that nobody who sits down again has done twice what was done already."""
    (told,) = reading().read(frame("chat", {"text": "hello"}, ME))
    assert isinstance(told, Chat)


def test_before_the_welcome_nobody_is_heard() -> None:
    made = Reading(Following(lambda: datetime.now(UTC)))
    assert made.read(frame("chat", {"text": "hello"})) == []
    assert "before its welcome" in blamed(made.read(frame("system/error", {"error": "x"}, GATEWAY)))


def test_what_is_given_again_is_no_news_and_an_id_is_whose_it_was_first() -> None:
    made = reading()
    sent = frame("chat", {"text": "hello"}, ANA, id="mine")
    assert len(made.read(sent)) == 1
    assert made.read(sent) == []
    assert "another's" in blamed(made.read(frame("chat", {"text": "no"}, BOT, id="mine")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"protocol":"mcpx/v0.0","id":"1","from":"a","kind":"chat","payload":{}}',
        b'{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"chat","payload":[]}',
        b'{"protocol":"mcpx/v0.1","id":"1","from":"a","from":"b","kind":"chat","payload":{}}',
        frame("chat", {"text": "x" * 5_000_000}),
        frame("chat\n", {"text": "x"}),
        frame("chat", {}).replace(
            b'"payload":{}', b'"payload":' + b'{"a":' * 90 + b"1" + b"}" * 90
        ),
        frame("chat", {"text": 1}).replace(b'"text":1', b'"text":' + b"9" * 10_000),
    ],
)
def test_what_is_no_envelope_is_dropped_and_breaks_nothing(data: bytes) -> None:
    made = reading()
    assert blamed(made.read(data))
    assert isinstance(only(made.read(frame("chat", {"text": "still here"}))), Chat)


def ask(made: Reading, to: tuple[str, ...] = (WORKER,), id: str = "asked") -> None:
    made.asked[id] = Asked(Step(ME, to, parse(CALL), ""), 7)


def test_an_answer_from_whoever_was_asked_is_one() -> None:
    made = reading()
    ask(made)
    event = only(made.read(response("asked")))
    assert isinstance(event, Response)
    assert (event.result, event.is_orphan) == ({"content": []}, False)


@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        ({"sender": BOT}, "not addressed to it"),
        ({"kind": "mcp/response:tools/list"}, "says that it answers"),
        ({"kind": "mcp/response:tools/call:other"}, "says that it answers"),
        ({"payload": {"id": 8}}, "another id"),
        ({"payload": {"id": "7"}}, "another id"),
        ({"payload": {"id": True}}, "another id"),
        ({"payload": {"jsonrpc": "1.0"}}, "no JSON-RPC"),
        ({"payload": {"error": {"code": 1, "message": "x"}}}, "either a result or an error"),
        ({"payload": {"result": [1]}}, "objects"),
        ({"payload": {"result": None}}, "objects"),
    ],
)
def test_what_only_looks_like_an_answer_is_dropped(wrong: dict[str, Any], because: str) -> None:
    made = reading()
    ask(made)
    assert because in blamed(made.read(response("asked", **wrong)))
    # And whoever was asked can still answer.
    assert isinstance(only(made.read(response("asked"))), Response)


@pytest.mark.parametrize("error", [{}, {"code": "1", "message": "x"}, {"code": True}, "x", None])
def test_an_error_without_code_and_message_is_dropped(error: object) -> None:
    made = reading()
    ask(made)
    payload = {"jsonrpc": "2.0", "id": 7, "error": error}
    sent = frame("mcp/response:tools/call:write", payload, WORKER, correlation_id="asked")
    assert blamed(made.read(sent))


def test_a_response_that_answers_no_request_is_dropped() -> None:
    made = reading()
    made.read(frame("chat", {"text": "hello"}, ANA, id="a-chat"))
    assert "no request" in blamed(made.read(response("a-chat")))
    assert "correlation_id" in blamed(made.read(response("")))


def test_an_answer_to_what_nobody_saw_is_shown_as_the_orphan_it_is() -> None:
    event = only(reading().read(response("never-seen")))
    assert isinstance(event, Response)
    assert event.is_orphan


def test_a_kind_that_is_not_known_is_shown() -> None:
    event = only(reading().read(frame("x/y", {"a": 1})))
    assert isinstance(event, Other)
    assert isinstance(only(reading().read(frame("mcp/reject", {}))), Other)


def test_a_proposal_is_followed_from_its_first_word() -> None:
    made = reading()
    proposed = only(made.read(proposal(to=[WORKER])))
    assert isinstance(proposed, Proposal)
    asked, told = made.read(request(correlation_id=proposed.id, to=[WORKER], sender=ANA))
    assert isinstance(asked, Request)
    assert isinstance(told, Fulfilment)
    assert (told.is_first, told.is_as_proposed) == (True, True)
    made.read(response(asked.id))
    known = made.following.get(proposed.id)
    assert known is not None
    assert (known.status, known.fulfilled_by) == (State.ANSWERED, ANA)


def test_only_the_proposer_withdraws_and_only_another_rejects() -> None:
    made = reading(has_later_kinds=True)
    for id in ("one", "two"):
        made.read(proposal(id=id))
    end = {"correlation_id": "one"}
    assert "not its to end" in blamed(made.read(frame("mcp/reject", {}, BOT, **end)))
    assert "not its to end" in blamed(made.read(frame("mcp/withdraw", {}, ANA, **end)))
    assert "reason" in blamed(made.read(frame("mcp/reject", {"reason": 1}, ANA, **end)))
    rejected = only(made.read(frame("mcp/reject", {"reason": "no"}, ANA, **end)))
    assert isinstance(rejected, Rejection)
    withdrawn = only(made.read(frame("mcp/withdraw", {}, BOT, correlation_id="two")))
    assert isinstance(withdrawn, Withdrawal)
    orphan = only(made.read(frame("mcp/withdraw", {}, BOT, correlation_id="never")))
    assert isinstance(orphan, Other)


def test_who_misbehaves_is_counted_and_the_count_is_bounded() -> None:
    made = reading()
    for _ in range(3):
        made.read(frame("chat", {}, BOT))
    made.read(frame("chat", {}, ANA))
    assert made.reputation == {BOT: 3, ANA: 1}
    for number in range(MOST_SENDERS + 10):
        made.read(frame("chat", {}, f"agent:{number}"))
    assert len(made.reputation) == MOST_SENDERS


def test_what_a_flooder_sends_is_forgotten_before_what_others_said() -> None:
    made = reading()
    made.read(request(id="precious", sender=ANA, to=[WORKER]))
    crowd = [f"{'x' * 250}{number}" for number in range(1_000)]
    for number in range(MOST_OF_ONE + 200):
        made.read(frame("chat", {"text": ""}, BOT, id=f"junk-{number}", to=crowd[: number % 40]))
    assert made.seen.get("precious") is not None
    assert len(made.seen) <= MOST_OF_ONE + 1
    for number in range(30):
        made.read(frame("chat", {"text": ""}, f"agent:{number}", to=crowd))
    assert made.seen.weight <= MOST_CHARACTERS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
kinds = st.sampled_from(
    [
        *("chat", CALL, "mcp/response:tools/call:write", "mcp/proposal:tools/call", "mcp/reject"),
        *("system/welcome", "system/presence", "system/error", "system/missed", "x"),
    ]
)


@given(
    kinds,
    json_values,
    st.sampled_from([BOT, GATEWAY, ME, ""]),
    st.sampled_from(["", "asked", "never"]),
)
def test_nothing_that_is_sent_raises(kind: str, payload: Any, sender: str, about: str) -> None:
    made = reading(has_later_kinds=True)
    ask(made)
    made.read(frame(kind, payload, sender, correlation_id=about))
    made.read(frame(kind, {"you": payload, "participant": payload, "params": payload}, sender))


def test_a_proposal_is_open_for_its_time_and_no_longer() -> None:
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    made = Reading(Following(lambda: moment[0], timedelta(minutes=5)))
    made.me = ME
    proposed = only(made.read(proposal()))
    assert isinstance(proposed, Proposal)
    assert [each.id for each in made.following.open()] == [proposed.id]
    moment[0] += timedelta(minutes=5)
    assert made.following.open() == ()
