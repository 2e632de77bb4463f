"""Bodies and queries of the operator API: decoded into their type, or refused by field."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.http.api_input import RequestBody, RequestQuery, decode_body, decode_query


class Colour(StrEnum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class SampleBody(RequestBody, frozen=True):
    """A body with a field of each kind."""

    text: Annotated[str, Meta(max_length=4)]
    name: Annotated[str, Meta(min_length=1)] = "x"
    count: Annotated[int, Meta(ge=0, le=9)] | None = None
    at: Annotated[datetime, Meta(tz=True)] | None = None
    colour: Colour = Colour.RED
    word: Literal["accept", "dismiss"] = "accept"
    names: Annotated[tuple[str, ...], Meta(max_length=2)] = ()
    where: dict[str, object] | None = None
    is_new: bool = False


class SampleQuery(RequestQuery, frozen=True):
    """A query with a number."""

    limit: Annotated[int, Meta(ge=1, le=9)] = 5
    server: str | None = None


def refusal(**body: object) -> str:
    with pytest.raises(MalformedMessage) as refused:
        decode_body(SampleBody, body, "agent:ci")
    assert refused.value.fault is INVALID_PARAMS
    return str(refused.value)


def test_a_field_that_nobody_reads_is_named_beside_those_that_are_read() -> None:
    told = refusal(text="four", colours=1)
    assert told.startswith("'colours' is not one of: at, colour, count, is_new")
    assert len(refusal(**{"x" * 5000: 1, "text": ""})) < 200


def test_a_text_is_as_long_as_it_may_be() -> None:
    assert decode_body(SampleBody, {"text": "four"}, "") == SampleBody("four")


@pytest.mark.parametrize("body", [{}, {"text": None}, {"text": 4}, {"text": "fives"}])
def test_what_is_no_such_text_is_refused(body: dict[str, object]) -> None:
    assert refusal(**body).endswith("must be a text of at most 4 characters")


def test_a_time_may_be_of_any_zone() -> None:
    body = decode_body(SampleBody, {"text": "", "at": "2026-12-31T20:00:00+02:00"}, "")
    assert body.at == datetime(2026, 12, 31, 18, tzinfo=UTC)


@pytest.mark.parametrize("said", ["2026-12-31T18:00:00", "tomorrow", 5, ""])
def test_a_time_without_its_zone_is_none(said: object) -> None:
    assert refusal(text="", at=said).startswith("at must be a time with its zone")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "", "name must be a text of at least 1 characters"),
        ("count", 10, "count must be a whole number of 0 to 9"),
        ("count", True, "count must be a whole number of 0 to 9"),
        ("colour", "green", "colour must be one of: red, blue"),
        ("word", "perhaps", "word must be one of: accept, dismiss"),
        ("names", "s3cret", "names must be a list of at most 2 values, each a text"),
        ("names", ["a", 7], "names must be a list of at most 2 values, each a text"),
        ("names", ["a", "b", "c"], "names must be a list of at most 2 values, each a text"),
        ("where", ["s3cret"], "where must be an object"),
        ("is_new", "s3cret", "is_new must be true or false"),
    ],
)
def test_a_refusal_says_what_the_field_must_be(field: str, value: object, told: str) -> None:
    assert refusal(text="", **{field: value}) == told


@pytest.mark.parametrize("field", SampleBody.__struct_fields__)
def test_no_value_of_a_body_is_told_in_a_refusal(field: str) -> None:
    for value in ("s3cret-value", ["s3cret-value", 1], {"s3cret-value": ["s3cret-value"]}):
        told = ""
        try:
            decode_body(SampleBody, {"text": "", field: value}, "agent:ci")
        except MalformedMessage as refused:
            told = f"{refused} {refused.__cause__}"
        assert "s3cret" not in told


def test_a_query_is_text_that_becomes_its_type() -> None:
    found = decode_query(SampleQuery, {"limit": "7", "server": "files", "colour": "red"})
    assert found == SampleQuery(7, "files")


@pytest.mark.parametrize("limit", ["0", "10", "many", " 7", ""])
def test_a_query_that_cannot_be_is_refused(limit: str) -> None:
    with pytest.raises(MalformedMessage, match="limit must be a whole number of 1 to 9"):
        decode_query(SampleQuery, {"limit": limit})
