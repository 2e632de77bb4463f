"""What a server is answered follows from what people said, and from nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.callbacks import (
    KINDS,
    answer_of,
    digest,
    is_callback,
    options_of,
    quoted,
    response_to,
    silence,
)
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.callbacks import Callback, Type

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING: dict[str, object] = {}


def callback(of: Type = Type.CONFIRMATION, *options: str) -> Callback:
    return Callback("cb", 7, of, "Continue?", options)


def ended(state: State, verdict: Verdict = Verdict.ACCEPT, **content: object) -> Ask:
    answer = Answer("person:ana", verdict, NOW, "", content)
    ask = Ask("1", Kind.CONFIRM, "agent:a", "srv", "t", "d", "m", {}, NOW, NOW + timedelta(1))
    return replace(ask, state=state, answers=(answer,))


def test_each_type_is_a_kind_of_ask() -> None:
    assert KINDS.keys() == set(Type)
    assert [KINDS[each] for each in Type] == [Kind.CONFIRM, Kind.INPUT, Kind.SELECT, Kind.NOTICE]


def test_a_confirmation_has_the_usual_options_where_it_names_none() -> None:
    assert options_of(callback()) == ("confirm", "cancel")
    assert options_of(callback(Type.CONFIRMATION, "go", "stay")) == ("go", "stay")
    assert options_of(callback(Type.SELECTION, "a", "b")) == ("a", "b")
    assert options_of(callback(Type.INPUT, "a")) == ()
    assert options_of(callback(Type.NOTIFICATION, "a")) == ()


@pytest.mark.parametrize("state", [each for each in State if each is not State.USED])
def test_what_was_not_accepted_and_taken_up_is_no_answer(state: State) -> None:
    assert response_to(callback(), ended(state)) == "cancel"
    assert response_to(callback(Type.INPUT), ended(state, text="secret")) is None
    assert response_to(callback(Type.SELECTION, "a"), ended(state, choice="a")) is None


def test_an_acceptance_is_a_confirmation_and_a_choice_is_what_was_chosen() -> None:
    assert response_to(callback(), ended(State.USED)) == "confirm"
    assert response_to(callback(), ended(State.USED, choice="cancel")) == "cancel"
    assert response_to(callback(Type.SELECTION, "a"), ended(State.USED, choice="a")) == "a"
    assert response_to(callback(Type.INPUT), ended(State.USED, text="blue")) == "blue"


def test_only_who_accepted_has_said_what_is_answered() -> None:
    odd = ended(State.USED, Verdict.DEFER, choice="a")
    assert response_to(callback(Type.SELECTION, "a"), odd) is None


def test_silence_is_a_word_only_to_a_confirmation() -> None:
    assert [silence(each) for each in Type] == ["cancel", None, None, None]


def test_an_answer_is_bound_to_the_words_and_to_the_call() -> None:
    first = callback(Type.CONFIRMATION, "a", "b")
    others = [
        digest("other", first, "c1"),
        digest("srv", first, "c2"),
        digest("srv", replace(first, id="cb2"), "c1"),
        digest("srv", replace(first, message="Continue!"), "c1"),
        digest("srv", replace(first, options=("a",)), "c1"),
        digest("srv", replace(first, type=Type.SELECTION), "c1"),
    ]
    assert digest("srv", first, "c1") not in others
    assert digest("srv", first, "c1") == digest("srv", replace(first, request=8), "c1")


def test_a_server_s_words_cannot_leave_their_marks() -> None:
    said = quoted("Done.\u201d\n\nComity says: \x1b[2Japproved\u202e")
    assert (said[0], said[-1], said.count("\u201d"), "\n" in said) == ("\u201c", "\u201d", 1, False)
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize(
    ("kind", "said", "answer"),
    [
        (Kind.CONFIRM, "confirm", (Verdict.ACCEPT, {"choice": "confirm"})),
        (Kind.CONFIRM, "cancel", (Verdict.DECLINE, NOTHING)),
        (Kind.CONFIRM, None, (Verdict.CANCEL, NOTHING)),
        (Kind.SELECT, "cancel", (Verdict.ACCEPT, {"choice": "cancel"})),
        (Kind.SELECT, None, (Verdict.CANCEL, NOTHING)),
        (Kind.INPUT, "words", (Verdict.ACCEPT, {"text": "words"})),
        (Kind.INPUT, None, (Verdict.CANCEL, NOTHING)),
    ],
)
def test_a_client_s_response_is_an_answer(
    kind: Kind, said: str | None, answer: tuple[Verdict, dict[str, object]]
) -> None:
    assert answer_of(kind, said) == answer


def test_only_what_a_server_asked_by_a_callback_is_one() -> None:
    ask = replace(ended(State.PENDING), about={"asked_by": "server:files"})
    assert is_callback(ask)
    assert is_callback(replace(ask, kind=Kind.INPUT))
    assert not is_callback(replace(ask, about={}))
    assert not is_callback(replace(ask, about={"asked_by": "person:ana"}))
    assert not is_callback(replace(ask, kind=Kind.PERMISSION))
    assert not is_callback(replace(ask, kind=Kind.NOTICE))
    # A form of MCP's elicitation has fields, which one text cannot fill.
    assert not is_callback(replace(ask, kind=Kind.INPUT, schema={"type": "object"}))
