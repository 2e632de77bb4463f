"""Names in HTTP headers: what goes in comes out, and only one spelling of it is taken."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.wire.headers import unwrap, wrap

SURVIVES = re.compile(rb"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(names)
def test_every_name_survives_the_way_through_a_header(name: str) -> None:
    header = wrap(name)
    assert SURVIVES.fullmatch(header)
    assert unwrap(header) == name
    assert unwrap(b" \t" + header + b"\t ") == name


@given(st.binary(max_size=40))
def test_no_header_is_too_odd_to_be_read(header: bytes) -> None:
    found = unwrap(header)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("name", ["get_weather", "a b", "file:///x?y=1", ""])
def test_a_plain_name_is_sent_as_it_is(name: str) -> None:
    assert wrap(name) == name.encode()


@pytest.mark.parametrize("name", ["größe", " a", "a\t", "a\r\nx: y", "=?base64?YQ==?="])
def test_what_would_not_survive_is_wrapped(name: str) -> None:
    assert wrap(name) == b"=?base64?" + base64.b64encode(name.encode()) + b"?="


@pytest.mark.parametrize(
    "header",
    [
        b"=?base64?Y?=",
        b"=?base64?YQ?=",
        b"=?base64?YR==?=",
        b"=?base64?Y Q==?=",
        b"=?base64?!!!!?=",
        b"=?base64?\xe9\xe9\xe9\xe9?=",
        b"=?base64?/w==?=",
    ],
    ids=["short", "unpadded", "loose bits", "space", "letters", "not ASCII", "not UTF-8"],
)
def test_any_other_spelling_of_a_wrapped_name_says_nothing(header: bytes) -> None:
    assert unwrap(header) is None
