"""What an operator's order may say, and how it is told that it cannot."""

from datetime import UTC, datetime

import pytest

from comity.surfaces.members import moment, refuse_strangers, text
from comity.wire.errors import MalformedMessage


def test_a_member_that_nobody_reads_is_named_beside_those_that_are_read() -> None:
    refuse_strangers({"b": 1}, {"a", "b"})
    with pytest.raises(MalformedMessage, match="'c' is not one of: a, b"):
        refuse_strangers({"b": 1, "c": 2}, {"a", "b"})


def test_a_text_is_as_long_as_it_may_be() -> None:
    assert text({"a": "four"}, "a", 4) == "four"
    assert text({}, "a", 4, "") == ""


@pytest.mark.parametrize("body", [{}, {"a": None}, {"a": 4}, {"a": "fives"}])
def test_what_is_no_such_text_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage, match="a must be a text of at most 4 characters"):
        text(body, "a", 4)


def test_a_time_is_told_in_one_zone() -> None:
    assert moment({}, "at") is None
    assert moment({"at": "2026-12-31T20:00:00+02:00"}, "at") == datetime(
        2026, 12, 31, 18, tzinfo=UTC
    )


@pytest.mark.parametrize("said", ["2026-12-31T18:00:00", "tomorrow", 5, ""])
def test_a_time_without_its_zone_is_none(said: object) -> None:
    with pytest.raises(MalformedMessage, match="at must be a time with its zone"):
        moment({"at": said}, "at")
