"""A callback is read to the letter, and what could mislead whoever reads it is none."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.wire import jsonrpc
from comity.wire.callbacks import (
    LONGEST_MESSAGE,
    MOST_BYTES,
    REQUEST,
    Callback,
    Type,
    callback_in,
    named_in,
    request_of,
    responded,
    response,
    with_request,
)
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET

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
    assert callback_in(asked()) == Callback(
        "ask-7",
        20,
        Type.CONFIRMATION,
        ASKED["message"],
        ("go on", "stop"),
        timedelta(minutes=1),
    )


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(..., 60), (None, 60), (0, 1), (-5, 1), (999, 1), (30_000, 30), (10**12, 3600)],
)
def test_a_timeout_is_bounded(said: object, seconds: int) -> None:
    assert callback_in(asked(timeout_ms=said)).within == timedelta(seconds=seconds)


def test_what_is_optional_may_be_left_out_and_the_unknown_is_passed_over() -> None:
    found = callback_in(asked(options=..., timeout_ms=..., more={"deep": [1]}, request_id="r-1"))
    assert (found.options, found.request) == ((), "r-1")


@pytest.mark.parametrize(
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
        {"message": "x" * (LONGEST_MESSAGE + 1)},
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
        {"more": "x" * MOST_BYTES},
    ],
)
def test_what_is_not_a_callback_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        callback_in(asked(**other))


@pytest.mark.parametrize("raw", [UNSET, Raw(b"[]"), Raw(b"null"), Raw(b"{"), Raw(b'{"a":"\xff"}')])
def test_neither_is_anything_that_is_no_object(raw: Any) -> None:
    with pytest.raises(MalformedMessage):
        callback_in(raw)
    assert named_in(raw) is None


def test_what_cannot_be_put_may_still_have_a_name_to_be_answered_by() -> None:
    assert named_in(asked(type="odd", options=7)) == "ask-7"
    assert named_in(asked(callback_id="a\x00b")) is None
    assert named_in(asked(more="x" * MOST_BYTES)) is None


def test_an_answer_names_its_question() -> None:
    assert response("ask-7", "confirm") == {"callback_id": "ask-7", "response": "confirm"}


def test_a_question_can_be_amid_a_call_by_another_name() -> None:
    renamed = jsonrpc.value(with_request(asked(more=1), "own-7"))
    assert renamed == {**ASKED, "more": 1, "request_id": "own-7"}


def test_a_client_is_asked_by_an_id_and_amid_a_call_that_it_knows() -> None:
    question = callback_in(asked())
    said = request_of(question, "ask-1", "mine", ("yes", "no"))
    assert said.method == REQUEST
    assert jsonrpc.value(jsonrpc.to_raw(said.params)) == {
        "callback_id": "ask-1",
        "request_id": "mine",
        "type": "confirmation",
        "message": question.message,
        "options": ["yes", "no"],
        "timeout_ms": 60_000,
    }


def test_a_notice_to_a_client_has_neither_options_nor_a_time() -> None:
    question = callback_in(asked(type="notification"))
    params = jsonrpc.params_of(request_of(question, "ask-1", 7, ()))
    assert params.keys() == {"callback_id", "request_id", "type", "message"}


def test_a_response_is_a_text_or_nothing() -> None:
    for words in ("confirm", None):
        said = {"callback_id": "c", "response": words}
        assert responded(jsonrpc.to_raw(said)) == ("c", words)


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
        responded(jsonrpc.to_raw(said))
    with pytest.raises(MalformedMessage):
        responded(UNSET)
