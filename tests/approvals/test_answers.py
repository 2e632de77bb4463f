"""Answers to approval requests, forms and callbacks: what fits, and what a server is told."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.approvals.answers import (
    MAX_CALLBACK_BYTES,
    MAX_CHOICES,
    MAX_FIELDS,
    MAX_MESSAGE_LENGTH,
    CallbackRequest,
    CallbackType,
    callback_digest,
    callback_frame,
    callback_id_in,
    callback_options,
    content_fingerprint,
    decision_of_response,
    decode_callback,
    decode_callback_response,
    form_problem,
    is_callback,
    parse_form,
    quote_text,
    response_to,
    with_request_id,
)
from comity.approvals.kinds import answer_problem
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET
from comity.mcp.mgp import CALLBACK_REQUEST
from tests.support.cases import loop_over

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = (NOW + timedelta(days=1)).isoformat()
FORM = parse_form({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def ask(
    kind: ApprovalKind, *options: str, schema: dict[str, object] | None = None
) -> ApprovalRequest:
    named, at = ("agent:a", "srv", "t", "d", "m"), (NOW, NOW + timedelta(hours=1))
    return ApprovalRequest("1", kind, *named, {}, *at, options=options, schema=schema)


FITS: list[tuple[ApprovalRequest, dict[str, Any]]] = [
    (ask(ApprovalKind.CONFIRM), {}),
    (ask(ApprovalKind.CONFIRM), {"remember": True}),
    (ask(ApprovalKind.CONFIRM, "confirm", "cancel"), {}),
    (ask(ApprovalKind.CONFIRM, "confirm", "cancel"), {"choice": "cancel"}),
    (ask(ApprovalKind.CONFIRM, "go", "stay"), {"choice": "go"}),
    (ask(ApprovalKind.SELECT, "a", "b"), {"choice": "b"}),
    (ask(ApprovalKind.INPUT), {"text": "blue"}),
    (ask(ApprovalKind.INPUT, schema=FORM), {"n": 3}),
    (ask(ApprovalKind.PERMISSION), {}),
    (ask(ApprovalKind.PERMISSION), {"expires_at": LATER}),
]
UNFIT: list[tuple[ApprovalRequest, dict[str, Any]]] = [
    (ask(ApprovalKind.CONFIRM, "confirm", "cancel"), {"choice": "Confirm"}),
    (ask(ApprovalKind.CONFIRM, "confirm"), {"choice": "confirm", "more": 1}),
    (ask(ApprovalKind.CONFIRM, "delete everything", "cancel"), {}),
    (ask(ApprovalKind.SELECT, "a", "b"), {}),
    (ask(ApprovalKind.SELECT, "a", "b"), {"choice": "c"}),
    (ask(ApprovalKind.SELECT, "a", "b"), {"choice": ["a"]}),
    (ask(ApprovalKind.SELECT, "a", "b"), {"choice": {}}),
    (ask(ApprovalKind.INPUT), {}),
    (ask(ApprovalKind.INPUT), {"text": ""}),
    (ask(ApprovalKind.SIGN_IN), {}),
    (ask(ApprovalKind.SIGN_IN), {"account": "mine"}),
    (ask(ApprovalKind.INPUT), {"text": "x" * 20_000}),
    (ask(ApprovalKind.INPUT), {"text": 1}),
    (ask(ApprovalKind.INPUT), {"text": "a", "more": "b"}),
    (ask(ApprovalKind.INPUT, schema=FORM), {"n": "three"}),
    (ask(ApprovalKind.INPUT, schema=FORM), {}),
    (ask(ApprovalKind.PERMISSION), {"expires_at": NOW.isoformat()}),
    (ask(ApprovalKind.PERMISSION), {"expires_at": "2027-01-01T00:00:00"}),
    (ask(ApprovalKind.PERMISSION), {"expires_at": "soon"}),
    (ask(ApprovalKind.PERMISSION), {"expires_at": 1}),
    (ask(ApprovalKind.PERMISSION), {"permission": "camera"}),
]


@loop_over(("asked", "content"), FITS)
def test_an_answer_that_fits_is_taken(asked: ApprovalRequest, content: dict[str, Any]) -> None:
    assert answer_problem(asked, ApprovalDecision.ACCEPT, content, NOW) is None


@loop_over(("asked", "content"), UNFIT)
def test_an_answer_that_does_not_fit_is_refused(
    asked: ApprovalRequest, content: dict[str, Any]
) -> None:
    assert answer_problem(asked, ApprovalDecision.ACCEPT, content, NOW)


@pytest.mark.parametrize(
    "verdict", [ApprovalDecision.DECLINE, ApprovalDecision.CANCEL, ApprovalDecision.DEFER]
)
def test_who_does_not_accept_fills_in_nothing(verdict: ApprovalDecision) -> None:
    for kind in (ApprovalKind.SELECT, ApprovalKind.INPUT, ApprovalKind.PERMISSION):
        assert answer_problem(ask(kind, "a"), verdict, {}, NOW) is None
        assert answer_problem(ask(kind, "a"), verdict, {"choice": "a"}, NOW)


def test_no_reason_repeats_what_was_filled_in() -> None:
    for asked in (
        ask(ApprovalKind.INPUT),
        ask(ApprovalKind.INPUT, schema=FORM),
        ask(ApprovalKind.SELECT, "a"),
    ):
        reason = answer_problem(
            asked, ApprovalDecision.ACCEPT, {"n": "hunter2", "choice": "hunter2"}, NOW
        )
        assert reason is not None
        assert "hunter2" not in reason


def test_a_notice_is_never_answered() -> None:
    assert {
        answer_problem(ask(ApprovalKind.NOTICE), each, {}, NOW) for each in ApprovalDecision
    } == {"a notification needs no answer"}


def test_a_mark_is_equal_for_equal_and_tells_nothing() -> None:
    one = content_fingerprint(b"key", {"text": "hunter2", "name": "ana"})
    assert one == content_fingerprint(b"key", {"name": "ana", "text": "hunter2"})
    assert one != content_fingerprint(b"key", {"text": "hunter3", "name": "ana"})
    assert one != content_fingerprint(b"other", {"text": "hunter2", "name": "ana"})
    assert one.startswith("hmac-sha256:")
    assert "hunter2" not in one


# Forms.


FIELDS: dict[str, Any] = {
    "database": {"type": "string", "enum": ["staging", "production"]},
    "name": {"type": "string", "minLength": 1, "maxLength": 9, "description": "Yours"},
    "mail": {"type": "string", "format": "email"},
    "page": {"type": "string", "format": "uri"},
    "day": {"type": "string", "format": "date"},
    "moment": {"type": "string", "format": "date-time"},
    "share": {"type": "number", "minimum": 0, "maximum": 0.5},
    "count": {"type": "integer", "minimum": 1, "maximum": 10},
    "sure": {"type": "boolean", "default": False},
    "tone": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}]},
    "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 1},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": ["database"]}
FORM_FORMS = parse_form(SCHEMA)
NOTHING: dict[str, object] = {}


def of(**field: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": field}}


@loop_over(
    ("name", "value"),
    [
        ("database", "staging"),
        ("name", "ana"),
        ("mail", "a@example.org"),
        ("page", "https://example.org/"),
        ("day", "2026-02-28"),
        ("moment", "2026-02-28T12:00:00Z"),
        ("share", 0.25),
        ("share", 0),
        ("count", 10),
        ("sure", True),
        ("tone", "#f00"),
        ("some", ["a"]),
        ("some", []),
    ],
)
def test_what_fits_is_taken(name: str, value: object) -> None:
    assert form_problem(FORM_FORMS, {"database": "production", name: value}) is None


@loop_over(
    ("name", "value"),
    [
        ("database", "elsewhere"),
        ("database", ["staging"]),
        ("name", ""),
        ("name", "0123456789"),
        ("name", None),
        ("mail", "nobody"),
        ("page", "nowhere"),
        ("page", "http://["),
        ("day", "28.2.2026"),
        ("moment", "2026-02-28T12:00:00"),
        ("moment", "noon"),
        ("share", 0.6),
        ("share", "0.1"),
        ("share", True),
        ("count", 0),
        ("count", 1.5),
        ("sure", "yes"),
        ("tone", "Red"),
        ("some", "a"),
        ("some", ["c"]),
        ("some", ["a", "b"]),
        ("some", [NOTHING]),
        ("more", 1),
    ],
)
def test_what_does_not_fit_is_refused_without_repeating_it(name: str, value: object) -> None:
    because = form_problem(FORM_FORMS, {"database": "production", name: value})
    assert because is not None
    assert "elsewhere" not in because


def test_what_is_required_has_to_be_filled_in() -> None:
    assert form_problem(FORM_FORMS, {}) == "the field 'database' has to be filled in"


@loop_over(
    "schema",
    [
        None,
        [1],
        NOTHING,
        {"type": "array", "properties": FIELDS},
        {"type": "object", "properties": NOTHING},
        {"type": "object", "properties": [1]},
        {"type": "object", "properties": {"x": 1}},
        of(type="object", properties={}),
        of(type=["string", "null"]),
        of(),
        of(type="array", items={"type": "string"}),
        of(type="array", items={"type": "integer", "enum": ["a"]}),
        of(type="array"),
        of(type="string", enum=[]),
        of(type="string", enum=[1]),
        of(type="string", enum=["a\x1b"]),
        of(type="string", oneOf=[{"title": "x"}]),
        of(type="string", enum=[str(number) for number in range(MAX_CHOICES + 1)]),
        {**SCHEMA, "required": ["other"]},
        {**SCHEMA, "required": [NOTHING]},
        {**SCHEMA, "required": "database"},
        {"type": "object", "properties": {"a\nb": {"type": "string"}}},
        {"type": "object", "properties": {"": {"type": "string"}}},
        {
            "type": "object",
            "properties": {str(n): {"type": "string"} for n in range(MAX_FIELDS + 1)},
        },
    ],
)
def test_what_is_no_flat_form_is_refused(schema: object) -> None:
    with pytest.raises(ValueError, match=r"form|field"):
        parse_form(schema)


def test_only_what_is_understood_is_kept_and_words_are_made_safe() -> None:
    kept = parse_form(of(type="string", pattern="(a+)+$", title="A\x1b[2J", description="b" * 9000))
    field: Any = kept["properties"]
    assert field["x"].keys() == {"type", "title", "description"}
    assert "\x1b" not in field["x"]["title"]
    assert len(field["x"]["description"]) == 2000


# Callbacks of servers.


ASKED: dict[str, Any] = {
    "callback_id": "ask-7",
    "request_id": 20,
    "type": "confirmation",
    "message": "Three drafts would be lost. Go on?",
    "options": ["go on", "stop"],
    "timeout_ms": 60000,
}


def asked(**other: object) -> Raw:
    said = {key: value for key, value in {**ASKED, **other}.items() if value is not ...}
    return jsonrpc.to_raw(said)


def test_a_whole_question_is_read() -> None:
    assert decode_callback(asked()) == CallbackRequest(
        "ask-7",
        20,
        CallbackType.CONFIRMATION,
        ASKED["message"],
        ("go on", "stop"),
        timedelta(minutes=1),
    )


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(..., 60), (None, 60), (0, 1), (-5, 1), (999, 1), (30_000, 30), (10**12, 3600)],
)
def test_a_timeout_is_bounded(said: object, seconds: int) -> None:
    assert decode_callback(asked(timeout_ms=said)).timeout == timedelta(seconds=seconds)


def test_what_is_optional_may_be_left_out_and_the_unknown_is_passed_over() -> None:
    found = decode_callback(
        asked(options=..., timeout_ms=..., more={"deep": [1]}, request_id="r-1")
    )
    assert (found.options, found.request) == ((), "r-1")


@loop_over(
    "other",
    [
        {"callback_id": ...},
        {"callback_id": 7},
        {"callback_id": ""},
        {"callback_id": "x" * 129},
        {"callback_id": "a\x00b"},
        {"callback_id": "a\nb"},
        {"request_id": ...},
        {"request_id": True},
        {"request_id": 1.5},
        {"request_id": None},
        {"type": ...},
        {"type": "approval"},
        {"type": "Confirmation"},
        {"message": ""},
        {"message": 1},
        {"message": "x" * (MAX_MESSAGE_LENGTH + 1)},
        {"options": "confirm"},
        {"options": [1]},
        {"options": ["x"] * 33},
        {"options": ["x" * 201]},
        {"options": [""]},
        {"options": ["yes", "no\x1b[2J"]},
        {"options": ["yes\u202eon", "no"]},
        {"options": ["yes", " yes"]},
        {"options": ["Confirm", "confirm"]},
        {"options": ["confirm", "\uff43onfirm"]},
        {"timeout_ms": "60000"},
        {"timeout_ms": True},
        {"timeout_ms": 1.5},
        {"type": "selection", "options": []},
        {"type": "selection", "options": ...},
        {"more": "x" * MAX_CALLBACK_BYTES},
    ],
)
def test_what_is_not_a_callback_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        decode_callback(asked(**other))


@pytest.mark.parametrize("raw", [UNSET, Raw(b"[]"), Raw(b"null"), Raw(b"{"), Raw(b'{"a":"\xff"}')])
def test_neither_is_anything_that_is_no_object(raw: Any) -> None:
    with pytest.raises(MalformedMessage):
        decode_callback(raw)
    assert callback_id_in(raw) is None


def test_what_cannot_be_put_may_still_have_a_name_to_be_answered_by() -> None:
    assert callback_id_in(asked(type="odd", options=7)) == "ask-7"
    assert callback_id_in(asked(callback_id="a\x00b")) is None
    assert callback_id_in(asked(more="x" * MAX_CALLBACK_BYTES)) is None


def test_a_question_can_be_amid_a_call_by_another_name() -> None:
    renamed = jsonrpc.decode_value(with_request_id(asked(more=1), "own-7"))
    assert renamed == {**ASKED, "more": 1, "request_id": "own-7"}


def test_a_client_is_asked_by_an_id_and_amid_a_call_that_it_knows() -> None:
    question = decode_callback(asked())
    said = callback_frame(question, "ask-1", "mine", ("yes", "no"))
    assert said.method == CALLBACK_REQUEST
    assert jsonrpc.decode_value(jsonrpc.to_raw(said.params)) == {
        "callback_id": "ask-1",
        "request_id": "mine",
        "type": "confirmation",
        "message": question.message,
        "options": ["yes", "no"],
        "timeout_ms": 60_000,
    }


def test_a_notice_to_a_client_has_neither_options_nor_a_time() -> None:
    question = decode_callback(asked(type="notification"))
    params = callback_frame(question, "ask-1", 7, ()).parameters
    assert params.keys() == {"callback_id", "request_id", "type", "message"}


def test_a_response_is_a_text_or_nothing() -> None:
    for words in ("confirm", None):
        said = {"callback_id": "c", "response": words}
        assert decode_callback_response(jsonrpc.to_raw(said)) == ("c", words)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"callback_id": "c"},
        {"response": "x"},
        {"callback_id": 7, "response": "x"},
        {"callback_id": "c", "response": {"a": 1}},
        {"callback_id": "c", "response": 7},
        {"callback_id": "c", "response": "x" * 70_000},
    ],
)
def test_what_is_no_response_is_refused(said: object) -> None:
    with pytest.raises(MalformedMessage):
        decode_callback_response(jsonrpc.to_raw(said))
    with pytest.raises(MalformedMessage):
        decode_callback_response(UNSET)


def callback(of: CallbackType = CallbackType.CONFIRMATION, *options: str) -> CallbackRequest:
    return CallbackRequest("cb", 7, of, "Continue?", options)


def ended(
    state: ApprovalState, verdict: ApprovalDecision = ApprovalDecision.ACCEPT, **content: object
) -> ApprovalRequest:
    answer = ApprovalAnswer("person:ana", verdict, NOW, "", content)
    ask = ApprovalRequest(
        "1", ApprovalKind.CONFIRM, "agent:a", "srv", "t", "d", "m", {}, NOW, NOW + timedelta(1)
    )
    return replace(ask, state=state, answers=(answer,))


def test_a_confirmation_has_the_usual_options_where_it_names_none() -> None:
    assert callback_options(callback()) == ("confirm", "cancel")
    assert callback_options(callback(CallbackType.CONFIRMATION, "go", "stay")) == ("go", "stay")
    assert callback_options(callback(CallbackType.SELECTION, "a", "b")) == ("a", "b")
    assert callback_options(callback(CallbackType.INPUT, "a")) == ()
    assert callback_options(callback(CallbackType.NOTIFICATION, "a")) == ()


@pytest.mark.parametrize(
    "state", [each for each in ApprovalState if each is not ApprovalState.CONSUMED]
)
def test_what_was_not_accepted_and_taken_up_is_no_answer(state: ApprovalState) -> None:
    assert response_to(callback(), ended(state)) == "cancel"
    assert response_to(callback(CallbackType.INPUT), ended(state, text="secret")) is None
    assert response_to(callback(CallbackType.SELECTION, "a"), ended(state, choice="a")) is None


def test_an_acceptance_is_a_confirmation_and_a_choice_is_what_was_chosen() -> None:
    assert response_to(callback(), ended(ApprovalState.CONSUMED)) == "confirm"
    assert response_to(callback(), ended(ApprovalState.CONSUMED, choice="cancel")) == "cancel"
    assert (
        response_to(
            callback(CallbackType.SELECTION, "a"), ended(ApprovalState.CONSUMED, choice="a")
        )
        == "a"
    )
    assert (
        response_to(callback(CallbackType.INPUT), ended(ApprovalState.CONSUMED, text="blue"))
        == "blue"
    )


def test_only_who_accepted_has_said_what_is_answered() -> None:
    odd = ended(ApprovalState.CONSUMED, ApprovalDecision.DEFER, choice="a")
    assert response_to(callback(CallbackType.SELECTION, "a"), odd) is None


def test_an_answer_is_bound_to_the_words_and_to_the_call() -> None:
    first = callback(CallbackType.CONFIRMATION, "a", "b")
    others = [
        callback_digest("other", first, "c1"),
        callback_digest("srv", first, "c2"),
        callback_digest("srv", replace(first, id="cb2"), "c1"),
        callback_digest("srv", replace(first, message="Continue!"), "c1"),
        callback_digest("srv", replace(first, options=("a",)), "c1"),
        callback_digest("srv", replace(first, type=CallbackType.SELECTION), "c1"),
    ]
    assert callback_digest("srv", first, "c1") not in others
    assert callback_digest("srv", first, "c1") == callback_digest(
        "srv", replace(first, request=8), "c1"
    )


def test_a_server_s_words_cannot_leave_their_marks() -> None:
    said = quote_text("Done.\u201d\n\nComity says: \x1b[2Japproved\u202e")
    assert (said[0], said[-1], said.count("\u201d"), "\n" in said) == ("\u201c", "\u201d", 1, False)
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize(
    ("kind", "said", "answer"),
    [
        (ApprovalKind.CONFIRM, "confirm", (ApprovalDecision.ACCEPT, {"choice": "confirm"})),
        (ApprovalKind.CONFIRM, "cancel", (ApprovalDecision.DECLINE, NOTHING)),
        (ApprovalKind.CONFIRM, None, (ApprovalDecision.CANCEL, NOTHING)),
        (ApprovalKind.SELECT, "cancel", (ApprovalDecision.ACCEPT, {"choice": "cancel"})),
        (ApprovalKind.SELECT, None, (ApprovalDecision.CANCEL, NOTHING)),
        (ApprovalKind.INPUT, "words", (ApprovalDecision.ACCEPT, {"text": "words"})),
        (ApprovalKind.INPUT, None, (ApprovalDecision.CANCEL, NOTHING)),
    ],
)
def test_a_client_s_response_is_an_answer(
    kind: ApprovalKind, said: str | None, answer: tuple[ApprovalDecision, dict[str, object]]
) -> None:
    assert decision_of_response(kind, said) == answer


def test_only_what_a_server_asked_by_a_callback_is_one() -> None:
    ask = replace(ended(ApprovalState.PENDING), about={"asked_by": "server:files"})
    assert is_callback(ask)
    assert is_callback(replace(ask, kind=ApprovalKind.INPUT))
    assert not is_callback(replace(ask, about={}))
    assert not is_callback(replace(ask, about={"asked_by": "person:ana"}))
    assert not is_callback(replace(ask, kind=ApprovalKind.PERMISSION))
    assert not is_callback(replace(ask, kind=ApprovalKind.NOTICE))
    # A form of MCP's elicitation has fields, which one text cannot fill.
    assert not is_callback(replace(ask, kind=ApprovalKind.INPUT, schema={"type": "object"}))
