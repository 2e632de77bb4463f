"""What can be written down: names as they stand, words made harmless, times in UTC, few keys."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import keeping
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("k", "agent:ci", b"m" * 32)
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


@given(ANY_TEXT)
def test_a_name_is_refused_or_can_be_written_as_it_stands(text: str) -> None:
    if not keeping.is_name(text):
        with pytest.raises(MalformedMessage) as refused:
            keeping.name(text, "it")
        assert refused.value.fault is INVALID_PARAMS
        return
    assert keeping.name(text, "it") == text
    assert text
    assert "\0" not in text
    assert text.encode().decode() == text


@given(ANY_TEXT)
def test_words_can_always_be_written(text: str) -> None:
    safe = keeping.words(text)
    assert "\0" not in safe
    assert safe.encode().decode() == safe
    assert len(safe) == len(text)


def test_words_keep_their_lines_and_not_more_than_their_room() -> None:
    assert keeping.words("a\n\tb\r\n") == "a\n\tb\r\n"
    assert len(keeping.words("x" * 10_000)) == keeping.WORDS_LENGTH


def test_a_time_is_said_in_utc_or_refused() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=-8)))
    said = keeping.moment(there)
    assert said == NOW
    assert said is not None
    assert said.tzinfo is UTC
    assert keeping.moment(None) is None
    with pytest.raises(MalformedMessage, match="zone"):
        keeping.moment(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(MalformedMessage, match="years 1 and 9999"):
        keeping.moment(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))))


@given(st.tuples(*[st.text(alphabet="ab\0/", max_size=3)] * 3))
def test_grants_about_different_things_have_different_ids(named: tuple[str, str, str]) -> None:
    kept = [("a", "b", "a"), ("ab", "a", "b"), ("a", "ba", "b")]
    for each in kept:
        assert (keeping.grant_id(*named) == keeping.grant_id(*each)) == (named == each)


@pytest.mark.parametrize(
    ("check", "record"),
    [
        (keeping.grant, Grant("", CALL, "*", Effect.ALLOW)),
        (keeping.grant, Grant("a", "", "*", Effect.ALLOW)),
        (keeping.grant, Grant("a", CALL, "\ud800", Effect.ALLOW)),
        (keeping.party, Party("\0")),
        (keeping.key, Key("", "a", b"m")),
        (keeping.key, Key("k", "a", b"m" * 65)),
        (keeping.key, Key("k", "a", b"m", permissions=("x",) * 1_001)),
        (keeping.pin, Pin("s", "t", "", b"")),
        (keeping.pin, Pin("s", "t", "d", bytes(keeping.DOCUMENT_BYTES + 1))),
        (keeping.registration, Registration("", {}, "me")),
        (keeping.registration, Registration("s", {"a": object()}, "me")),
        (keeping.registration, Registration("s", {"a": "x" * keeping.DOCUMENT_BYTES}, "me")),
    ],
)
def test_what_cannot_be_kept_is_refused(check: object, record: object) -> None:
    assert callable(check)
    with pytest.raises(MalformedMessage):
        check(record)


def test_an_entry_comes_back_as_plain_json() -> None:
    assert keeping.kept({"a": (1, "\0"), "b": 10**300}) == {"a": [1, "\0"], "b": 10**300}
    assert keeping.read("[]") == {}
    assert keeping.read_list(keeping.listed(("a", "b"))) == ("a", "b")
    assert keeping.read_list("{}") == ()


def test_a_third_key_is_refused_while_two_can_be_used() -> None:
    present = [Key("a", "p", b"m"), Key("b", "p", b"m", expires_at=NOW + timedelta(seconds=1))]
    with pytest.raises(Misconfigured, match="a and b"):
        keeping.refuse_a_third(KEY, present, NOW)
    keeping.refuse_a_third(KEY, present, NOW + timedelta(seconds=1))
    keeping.refuse_a_third(Key("a", "p", b"n"), present, NOW)
    keeping.refuse_a_third(Key("c", "p", b"m", revoked_at=NOW), present, NOW)


def test_too_many_names_are_told_as_one_empty_name() -> None:
    assert keeping.told(["a", "b", "a"]) == ("a", "b")
    assert keeping.told(map(str, range(1_001))) == ("",)
    assert keeping.told([]) == ()
