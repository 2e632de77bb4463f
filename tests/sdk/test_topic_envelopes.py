"""Envelopes of a participant: what is read, what is dropped, and what is sent."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import MalformedMessage
from comity.mcp.actors import GATEWAY
from comity.sdk.topics import envelopes
from comity.sdk.topics.envelopes import (
    MOST_CAPABILITIES,
    MOST_SENDERS,
    EnvelopeDraft,
    ParticipantEnvelopeReader,
    PendingMemberRequest,
    from_gateway,
)
from comity.sdk.topics.events import (
    Chat,
    EnvelopeRefusal,
    Event,
    MemberFulfilment,
    MemberMisbehaviour,
    MissedEnvelopes,
    Notice,
    Presence,
    Proposal,
    Rejection,
    Request,
    Response,
    UnknownKindMessage,
    Welcome,
    Withdrawal,
)
from comity.sdk.topics.state import (
    MAX_STEPS_OF_ONE_MEMBER,
    MOST_CHARACTERS,
    EnvelopeSummary,
    MemberProposalTracker,
)
from comity.topics import envelope as wire
from comity.topics.envelope import decode_envelope, mismatch_reason, parse_kind
from comity.topics.rules import PROPOSE, RESPOND, ProposalState, TopicCapabilities
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
from tests.support.cases import loop_over


def make_reader(*, has_later_kinds: bool = False) -> ParticipantEnvelopeReader:
    made = ParticipantEnvelopeReader(
        MemberProposalTracker(lambda: datetime.now(UTC)), has_later_kinds=has_later_kinds
    )
    (greeting,) = made.read(welcome())
    assert isinstance(greeting, Welcome)
    made.me = greeting.id
    return made


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


def blamed(events: list[Event]) -> str:
    event = only(events)
    assert isinstance(event, MemberMisbehaviour), event
    return event.because


def test_a_chat_is_told_as_it_was_meant() -> None:
    event = only(make_reader().read(frame("chat", {"text": "hello"}, ANA, to=[ME])))
    assert isinstance(event, Chat)
    assert (event.sender, event.to, event.text, event.format) == (ANA, (ME,), "hello", "plain")


@loop_over(
    "payload",
    [{}, {"text": 1}, {"text": None}, {"text": "a", "format": "html"}, {"text": "a", "format": 1}],
)
def test_a_chat_without_a_text_or_in_another_format_is_dropped(payload: dict[str, Any]) -> None:
    assert "chat" in blamed(make_reader().read(frame("chat", payload)))


@loop_over("kind", ["mcp/request:tools/list", "mcp/request:resources/read:write"])
def test_a_kind_with_another_method_is_dropped(kind: str) -> None:
    payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}
    assert "the kind is for" in blamed(make_reader().read(frame(kind, payload)))


@loop_over("name", ["dangerous", "Write", "write ", "", None, ["write"]])
def test_a_kind_with_another_context_is_dropped(name: object) -> None:
    payload = {"params": {"name": name}}
    assert "the kind is for 'write'" in blamed(make_reader().read(request(payload=payload)))
    assert "the kind is for 'write'" in blamed(make_reader().read(proposal(payload=payload)))


def test_of_a_name_that_stands_twice_the_one_that_was_judged_is_acted_on() -> None:
    payload = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad","name":"write"}}'
    )
    sent = frame(CALL, {"x": 1}).replace(b'{"x":1}', payload)
    event = only(make_reader().read(sent))
    assert isinstance(event, Request)
    assert event.params == {"name": "write"}


@loop_over(
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
    assert blamed(make_reader().read(request(payload=wrong)))


@loop_over("kind", ["system/welcome", "system/error", "System/presence", "presence"])
def test_a_member_that_speaks_for_the_gateway_is_dropped(kind: str) -> None:
    made = make_reader()
    payload = {"you": {"id": "agent:other", "capabilities": ["*"]}}
    assert blamed(made.read(frame(kind, payload, BOT, to=[ME]))) == (
        "only the gateway may send this kind"
    )
    assert made.me == ME


@loop_over("kind", ["chat", "mcp/request:ping", "system/reboot", "system"])
def test_the_gateway_says_nothing_but_what_is_its_own(kind: str) -> None:
    assert blamed(make_reader().read(frame(kind, {"text": "hi"}, GATEWAY)))


def test_what_we_said_ourselves_is_no_news() -> None:
    mine, said = make_reader(), frame("chat", {"text": "hello"}, ME)
    mine.said(decode_envelope(said))
    assert mine.read(said) == []


def test_what_we_said_before_we_came_is_told_as_history_is() -> None:
    """So that nobody who sits down again has done twice what was done already."""
    (told,) = make_reader().read(frame("chat", {"text": "hello"}, ME))
    assert isinstance(told, Chat)


def test_before_the_welcome_nobody_is_heard() -> None:
    made = ParticipantEnvelopeReader(MemberProposalTracker(lambda: datetime.now(UTC)))
    assert made.read(frame("chat", {"text": "hello"})) == []
    assert "before its welcome" in blamed(made.read(frame("system/error", {"error": "x"}, GATEWAY)))


def test_what_is_given_again_is_no_news_and_an_id_is_whose_it_was_first() -> None:
    made = make_reader()
    sent = frame("chat", {"text": "hello"}, ANA, id="mine")
    assert len(made.read(sent)) == 1
    assert made.read(sent) == []
    assert "another sender" in blamed(made.read(frame("chat", {"text": "no"}, BOT, id="mine")))


@loop_over(
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
    made = make_reader()
    assert blamed(made.read(data))
    assert isinstance(only(made.read(frame("chat", {"text": "still here"}))), Chat)


def ask(
    made: ParticipantEnvelopeReader, to: tuple[str, ...] = (WORKER,), id: str = "asked"
) -> None:
    made.asked[id] = PendingMemberRequest(EnvelopeSummary(ME, to, parse_kind(CALL), ""), 7)


def test_an_answer_from_whoever_was_asked_is_one() -> None:
    made = make_reader()
    ask(made)
    event = only(made.read(response("asked")))
    assert isinstance(event, Response)
    assert (event.result, event.is_orphan) == ({"content": []}, False)


@loop_over(
    ("wrong", "because"),
    [
        ({"sender": BOT}, "not addressed to it"),
        ({"kind": "mcp/response:tools/list"}, "its kind is for"),
        ({"kind": "mcp/response:tools/call:other"}, "its kind is for"),
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
    made = make_reader()
    ask(made)
    assert because in blamed(made.read(response("asked", **wrong)))
    # And whoever was asked can still answer.
    assert isinstance(only(made.read(response("asked"))), Response)


@loop_over("error", [{}, {"code": "1", "message": "x"}, {"code": True}, "x", None])
def test_an_error_without_code_and_message_is_dropped(error: object) -> None:
    made = make_reader()
    ask(made)
    payload = {"jsonrpc": "2.0", "id": 7, "error": error}
    sent = frame("mcp/response:tools/call:write", payload, WORKER, correlation_id="asked")
    assert blamed(made.read(sent))


def test_a_response_that_answers_no_request_is_dropped() -> None:
    made = make_reader()
    made.read(frame("chat", {"text": "hello"}, ANA, id="a-chat"))
    assert "no request" in blamed(made.read(response("a-chat")))
    assert "correlation_id" in blamed(made.read(response("")))


def test_an_answer_to_what_nobody_saw_is_shown_as_the_orphan_it_is() -> None:
    event = only(make_reader().read(response("never-seen")))
    assert isinstance(event, Response)
    assert event.is_orphan


def test_a_kind_that_is_not_known_is_shown() -> None:
    event = only(make_reader().read(frame("x/y", {"a": 1})))
    assert isinstance(event, UnknownKindMessage)
    assert isinstance(only(make_reader().read(frame("mcp/reject", {}))), UnknownKindMessage)


def test_a_proposal_is_followed_from_its_first_word() -> None:
    made = make_reader()
    proposed = only(made.read(proposal(to=[WORKER])))
    assert isinstance(proposed, Proposal)
    asked, told = made.read(request(correlation_id=proposed.id, to=[WORKER], sender=ANA))
    assert isinstance(asked, Request)
    assert isinstance(told, MemberFulfilment)
    assert (told.is_first, told.is_as_proposed) == (True, True)
    made.read(response(asked.id))
    known = made.following.get(proposed.id)
    assert known is not None
    assert (known.status, known.fulfilled_by) == (ProposalState.ANSWERED, ANA)


def test_only_the_proposer_withdraws_and_only_another_rejects() -> None:
    made = make_reader(has_later_kinds=True)
    for id in ("one", "two"):
        made.read(proposal(id=id))
    end = {"correlation_id": "one"}
    assert "may not end this proposal" in blamed(made.read(frame("mcp/reject", {}, BOT, **end)))
    assert "may not end this proposal" in blamed(made.read(frame("mcp/withdraw", {}, ANA, **end)))
    assert "reason" in blamed(made.read(frame("mcp/reject", {"reason": 1}, ANA, **end)))
    rejected = only(made.read(frame("mcp/reject", {"reason": "no"}, ANA, **end)))
    assert isinstance(rejected, Rejection)
    withdrawn = only(made.read(frame("mcp/withdraw", {}, BOT, correlation_id="two")))
    assert isinstance(withdrawn, Withdrawal)
    orphan = only(made.read(frame("mcp/withdraw", {}, BOT, correlation_id="never")))
    assert isinstance(orphan, UnknownKindMessage)


def test_who_misbehaves_is_counted_and_the_count_is_bounded() -> None:
    made = make_reader()
    for _ in range(3):
        made.read(frame("chat", {}, BOT))
    made.read(frame("chat", {}, ANA))
    assert made.reputation == {BOT: 3, ANA: 1}
    for number in range(MOST_SENDERS + 10):
        made.read(frame("chat", {}, f"agent:{number}"))
    assert len(made.reputation) == MOST_SENDERS


def test_what_a_flooder_sends_is_forgotten_before_what_others_said() -> None:
    made = make_reader()
    made.read(request(id="precious", sender=ANA, to=[WORKER]))
    crowd = [f"{'x' * 250}{number}" for number in range(1_000)]
    for number in range(MAX_STEPS_OF_ONE_MEMBER + 200):
        made.read(frame("chat", {"text": ""}, BOT, id=f"junk-{number}", to=crowd[: number % 40]))
    assert made.seen.get("precious") is not None
    assert len(made.seen) <= MAX_STEPS_OF_ONE_MEMBER + 1
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
    made = make_reader(has_later_kinds=True)
    ask(made)
    made.read(frame(kind, payload, sender, correlation_id=about))
    made.read(frame(kind, {"you": payload, "participant": payload, "params": payload}, sender))


def test_a_proposal_is_open_for_its_time_and_no_longer() -> None:
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    made = ParticipantEnvelopeReader(MemberProposalTracker(lambda: moment[0], timedelta(minutes=5)))
    made.me = ME
    proposed = only(made.read(proposal()))
    assert isinstance(proposed, Proposal)
    assert [each.id for each in made.following.open()] == [proposed.id]
    moment[0] += timedelta(minutes=5)
    assert made.following.open() == ()


def test_an_envelope_is_sealed_with_an_id_and_a_moment_of_its_own() -> None:
    one, data = envelopes.seal_envelope(envelopes.draft_chat("hello", [ANA, ANA]), ME)
    other, _ = envelopes.seal_envelope(envelopes.draft_chat("hello"), ME)
    assert one.id != other.id
    assert UUID(one.id).version == 4
    assert one.ts.endswith("Z")
    assert (one.sender, one.to, other.to) == (ME, (ANA,), ())
    assert wire.decode_envelope(data) == one


@loop_over(
    ("method", "params", "context"),
    [
        ("tools/call", {"name": "write"}, ":write"),
        ("resources/read", {"uri": "file:///srv/a:b"}, ":file:///srv/a:b"),
        ("prompts/get", {"name": "greet"}, ":greet"),
        ("tools/list", {"name": "write"}, ""),
        ("tools/call", {"name": "wríte"}, ""),
        ("tools/call", {"name": "two words"}, ""),
        ("tools/call", {"name": "line\nbreak"}, ""),
        ("tools/call", {"name": "x" * 2_000}, ""),
    ],
)
def test_a_kind_says_what_its_payload_says(
    method: str, params: dict[str, object], context: str
) -> None:
    for draft in (
        envelopes.draft_request(method, params, 1, ANA),
        envelopes.draft_proposal(method, params, ANA),
    ):
        assert draft.kind.partition(":")[2] == method + context
        assert mismatch_reason(parse_kind(draft.kind), draft.payload) == ""
        envelopes.seal_envelope(draft, ME)


def test_a_proposal_refers_to_nothing_and_is_no_json_rpc() -> None:
    made = envelopes.draft_proposal("tools/call", PARAMS, None)
    assert made.correlation_id == ""
    assert made.payload.keys() == {"method", "params"}


def test_a_response_refers_to_its_request_and_goes_to_the_proposer_too() -> None:
    envelope = wire.decode_envelope(request(to=[ME], sender=ANA))
    asked = Request(envelope, "tools/call", PARAMS, 7)
    made = envelopes.draft_response(asked, {"result": {}}, BOT)
    assert (made.kind, made.correlation_id) == ("mcp/response:tools/call:write", asked.id)
    assert made.to == (ANA, BOT)
    assert made.payload == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert envelopes.draft_response(asked, {"result": {}}, ANA).to == (ANA,)


@loop_over("method", ["", "a:b", "tools/call:write"])
def test_a_method_that_no_kind_can_hold_is_refused(method: str) -> None:
    with pytest.raises(MalformedMessage, match="is no method"):
        envelopes.draft_request(method, {}, 1, ANA)


@loop_over(
    "draft",
    [
        EnvelopeDraft("chat", {"text": object()}),
        EnvelopeDraft("chat", {"text": "\ud800"}),
        EnvelopeDraft("chat", {"text": "x" * 2_000_000}),
        EnvelopeDraft("chat", {"text": "x"}, ("",)),
        EnvelopeDraft("chat", {"text": "x"}, ("line\nbreak",)),
        EnvelopeDraft("chat", {"text": "x"}, tuple(map(str, range(2_000)))),
        EnvelopeDraft("chat", {"text": "x"}, (), "x" * 300),
        EnvelopeDraft("two words", {}),
        EnvelopeDraft("", {}),
    ],
)
def test_what_a_gateway_would_not_take_is_not_sent(draft: EnvelopeDraft) -> None:
    with pytest.raises(MalformedMessage):
        envelopes.seal_envelope(draft, ME)


def test_what_is_not_allowed_is_refused_with_what_to_do() -> None:
    may = TopicCapabilities(PROPOSE)
    refused = envelopes.why_not("mcp/request:tools/call:write", may, has_later_kinds=False)
    assert isinstance(refused, PermissionError)
    assert "propose it instead" in str(refused)
    neither = envelopes.why_not(
        "mcp/request:ping", TopicCapabilities(RESPOND), has_later_kinds=False
    )
    assert "ask an operator" in str(neither)
    assert envelopes.why_not("mcp/proposal:ping", may, has_later_kinds=False) is None


def test_nothing_lets_us_speak_for_the_gateway() -> None:
    may = TopicCapabilities(("*", "system/*"))
    for kind in ("system/error", "presence", "System"):
        refused = envelopes.why_not(kind, may, has_later_kinds=True)
        assert isinstance(refused, MalformedMessage)


def test_later_kinds_need_to_be_asked_for() -> None:
    may = TopicCapabilities(("mcp/*",))
    assert isinstance(envelopes.why_not(wire.REJECT, may, has_later_kinds=False), PermissionError)
    assert envelopes.why_not(wire.REJECT, may, has_later_kinds=True) is None


def said(kind: str, payload: dict[str, Any], me: str = ME, **more: Any) -> object:
    return from_gateway(wire.decode_envelope(frame(kind, payload, GATEWAY, **more)), payload, me)


def test_a_welcome_says_who_we_are_and_who_else_is_there() -> None:
    others = [{"id": ANA, "capabilities": ["mcp/*"]}, {"id": BOT}, {"id": ME}, {"x": 1}, 3]
    payload = {"you": {"id": ME, "capabilities": ["chat", 5, "two words"]}, "participants": others}
    assert said("system/welcome", payload, to=[ME]) == Welcome(
        ME, ("chat",), {ANA: ("mcp/*",), BOT: ()}
    )


def test_a_welcome_that_is_for_another_is_not_ours() -> None:
    payload = {"you": {"id": BOT, "capabilities": ["mcp/*"]}}
    assert said("system/welcome", payload, to=[BOT]) is None
    assert (
        said("system/welcome", payload, me="", to=[ANA]) == "the welcome is for another participant"
    )


@loop_over(
    ("kind", "payload"),
    [
        ("system/welcome", {}),
        ("system/welcome", {"you": {"id": ""}}),
        ("system/welcome", {"you": {"id": ME, "capabilities": "chat"}}),
        ("system/welcome", {"you": {"id": ME}, "participants": {}}),
        ("system/presence", {"event": "came", "participant": {"id": ANA}}),
        ("system/presence", {"event": "join"}),
        ("system/error", {"error": 3}),
        ("system/error", {"error": "x", "message": 3}),
        ("system/missed", {"count": "3"}),
        ("system/missed", {"count": True}),
        ("system/missed", {"count": -1}),
        ("system/else", {}),
        ("chat", {"text": "hello"}),
    ],
)
def test_what_cannot_be_is_told_as_that(kind: str, payload: dict[str, Any]) -> None:
    assert isinstance(said(kind, payload), str)


def test_presence_errors_and_losses_are_told() -> None:
    came = {"event": "join", "participant": {"id": ANA, "capabilities": ["chat"]}}
    assert said("system/presence", came) == Presence("join", ANA, ("chat",))
    error = {"error": "rate_limited", "message": "m" * 5_000, "attempted_kind": "chat"}
    refused = said("system/error", error, correlation_id="mine")
    assert refused == EnvelopeRefusal("mine", "rate_limited", "m" * 1_000, "chat")
    lost = {"count": 3, "first": "a", "last": None, "reason": "slow"}
    assert said("system/missed", lost) == MissedEnvelopes(3, "a", "", "slow")


def test_no_list_of_capabilities_is_endless() -> None:
    many = [f"x/{number}" for number in range(MOST_CAPABILITIES + 5)]
    welcome = said("system/welcome", {"you": {"id": ME, "capabilities": many}})
    assert isinstance(welcome, Welcome)
    assert len(welcome.capabilities) == MOST_CAPABILITIES


def test_a_notice_says_what_became_of_what_we_said() -> None:
    payload = {"notice": "pending", "message": "people are asked", "approval": "06gt"}
    told = said("system/notice", payload, to=[ME], correlation_id="p-1")
    assert told == Notice("p-1", "pending", "people are asked", "06gt")
    assert isinstance(told, Notice)
    assert not told.is_over
    over = said("system/notice", {"notice": "declined"}, to=[ME], correlation_id="p-1")
    assert isinstance(over, Notice)
    assert over.is_over
    assert said("system/notice", {"notice": 1}, to=[ME]) == "a notice has a name and a message"
    assert said("system/notice", payload, to=[ANA]) is None


def test_request_without_an_id_is_a_notification() -> None:
    envelope = wire.decode_envelope(request())
    assert Request(envelope, "tools/call", PARAMS).is_notification
    assert not Request(envelope, "tools/call", PARAMS, 0).is_notification
    assert not Request(envelope, "tools/call", PARAMS, "").is_notification
