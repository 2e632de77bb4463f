"""What can be written down: names as they stand, words made harmless, times in UTC, few keys."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.catalog import definitions
from comity.catalog.definitions import AcceptedTool, RegistrationRecord
from comity.errors import INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.identity import principals
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL
from comity.policy import grants
from comity.policy.grants import Effect, Grant
from comity.storage import values
from tests.support.cases import loop_over

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ApiKey("k", "agent:ci", b"m" * 32)
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


@given(ANY_TEXT)
def test_a_name_is_refused_or_can_be_written_as_it_stands(text: str) -> None:
    if not values.is_name(text):
        with pytest.raises(MalformedMessage) as refused:
            values.check_name(text, "it")
        assert refused.value.fault is INVALID_PARAMS
        return
    assert values.check_name(text, "it") == text
    assert text
    assert "\0" not in text
    assert text.encode().decode() == text


@given(ANY_TEXT)
def test_words_can_always_be_written(text: str) -> None:
    safe = values.clean_words(text)
    assert "\0" not in safe
    assert safe.encode().decode() == safe
    assert len(safe) == len(text)


def test_words_keep_their_lines_and_not_more_than_their_room() -> None:
    assert values.clean_words("a\n\tb\r\n") == "a\n\tb\r\n"
    assert len(values.clean_words("x" * 10_000)) == values.WORDS_LENGTH


def test_a_time_is_said_in_utc_or_refused() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=-8)))
    said = values.to_optional_utc(there)
    assert said == NOW
    assert said is not None
    assert said.tzinfo is UTC
    assert values.to_optional_utc(None) is None
    with pytest.raises(MalformedMessage, match="zone"):
        values.to_optional_utc(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(MalformedMessage, match="years 1 and 9999"):
        values.to_optional_utc(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))))


@given(st.tuples(*[st.text(alphabet="ab\0/", max_size=3)] * 3))
def test_grants_about_different_things_have_different_ids(named: tuple[str, str, str]) -> None:
    kept = [("a", "b", "a"), ("ab", "a", "b"), ("a", "ba", "b")]
    for each in kept:
        assert (grants.grant_id(*named) == grants.grant_id(*each)) == (named == each)


@loop_over(
    ("check", "record"),
    [
        (grants.checked_grant, Grant("", CALL, "*", Effect.ALLOW)),
        (grants.checked_grant, Grant("a", "", "*", Effect.ALLOW)),
        (grants.checked_grant, Grant("a", CALL, "\ud800", Effect.ALLOW)),
        (principals.checked_principal, Principal("\0")),
        (principals.checked_key, ApiKey("", "a", b"m")),
        (principals.checked_key, ApiKey("k", "a", b"m" * 65)),
        (principals.checked_key, ApiKey("k", "a", b"m", permissions=("x",) * 1_001)),
        (definitions.checked_definition, AcceptedTool("s", "t", "", b"")),
        (
            definitions.checked_definition,
            AcceptedTool("s", "t", "d", bytes(values.DOCUMENT_BYTES + 1)),
        ),
        (definitions.checked_registration, RegistrationRecord("", {}, "me")),
        (definitions.checked_registration, RegistrationRecord("s", {"a": object()}, "me")),
        (
            definitions.checked_registration,
            RegistrationRecord("s", {"a": "x" * values.DOCUMENT_BYTES}, "me"),
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(check: object, record: object) -> None:
    assert callable(check)
    with pytest.raises(MalformedMessage):
        check(record)


def test_an_entry_comes_back_as_plain_json() -> None:
    assert values.decode_document("[]") == {}
    assert values.read_list(values.encode_names(("a", "b"))) == ("a", "b")
    assert values.read_list("{}") == ()


def test_a_third_key_is_refused_while_two_can_be_used() -> None:
    present = [
        ApiKey("a", "p", b"m"),
        ApiKey("b", "p", b"m", expires_at=NOW + timedelta(seconds=1)),
    ]
    with pytest.raises(Misconfigured, match="a and b"):
        principals.refuse_third_key(KEY, present, NOW)
    principals.refuse_third_key(KEY, present, NOW + timedelta(seconds=1))
    principals.refuse_third_key(ApiKey("a", "p", b"n"), present, NOW)
    principals.refuse_third_key(ApiKey("c", "p", b"m", revoked_at=NOW), present, NOW)


def test_too_many_names_are_told_as_one_empty_name() -> None:
    assert values.names_of_change(["a", "b", "a"]) == ("a", "b")
    assert values.names_of_change(map(str, range(1_001))) == ("",)
    assert values.names_of_change([]) == ()
