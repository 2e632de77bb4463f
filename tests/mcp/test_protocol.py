"""Names in HTTP headers, and public names of tools."""

import base64
import re

from hypothesis import given
from hypothesis import strategies as st

from comity.mcp.protocol import (
    MAX_LENGTH,
    decode_header_value,
    encode_header_value,
    marked_name,
    public_name,
    public_prefix,
)
from tests.support.cases import loop_over

FIT = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Few letters, so that what could be confused with each other is often met.
parts = st.text(alphabet="a_-b.é/", min_size=1, max_size=8)
long_parts = st.text(alphabet="ab_é", min_size=1, max_size=120)


def test_a_name_that_fits_is_the_server_and_the_tool() -> None:
    assert public_name("files", "read-file_2") == "files__read-file_2"
    tool = "t" * (MAX_LENGTH - len("files__"))
    assert public_name("files", tool) == f"files__{tool}"
    assert public_name("files", tool + "t") != f"files__{tool}t"


def test_letters_that_do_not_fit_are_replaced_and_marked() -> None:
    named = public_name("files", "read file")
    assert named.startswith("files__read_file_")
    assert named != public_name("files", "read/file")


@given(long_parts, long_parts)
def test_every_name_fits_and_is_the_same_each_time(server: str, tool: str) -> None:
    named = public_name(server, tool)
    assert FIT.fullmatch(named)
    assert named == public_name(server, tool)


@given(parts, parts, parts, parts)
def test_two_entries_share_a_name_only_if_their_ids_share_a_prefix(
    one: str, this: str, other: str, that: str
) -> None:
    if one == other or public_prefix(one) != public_prefix(other):
        same = (one, this) == (other, that)
        assert (public_name(one, this) == public_name(other, that)) is same
    assert (marked_name(one, this) == marked_name(other, that)) is ((one, this) == (other, that))
    assert public_name(one, this) != marked_name(other, that) or (one, this) == (other, that)


def test_an_id_with_dots_gives_a_readable_name() -> None:
    assert public_name("mind.cerebras", "analyze_csv") == "mind_cerebras__analyze_csv"
    assert public_name("dynamic.custom_tool", "shout") == "dynamic_custom_tool__shout"
    # The prefix would end in the separator, or hold one.
    assert public_name("mind.", "think") != "mind___think"
    assert public_name("mind..cerebras", "think") != "mind__cerebras__think"


@given(st.text(alphabet="ab", min_size=1, max_size=3), long_parts, long_parts)
def test_two_long_names_of_one_server_stay_apart(server: str, one: str, other: str) -> None:
    assert (public_name(server, one) == public_name(server, other)) is (one == other)


def test_no_plain_name_can_pass_for_a_marked_one() -> None:
    marked = public_name("files", "read file")
    imitation = marked.removeprefix("files__")
    assert public_name("files", imitation) != marked


SURVIVES = re.compile(rb"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
header_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(header_names)
def test_every_name_survives_the_way_through_a_header(name: str) -> None:
    header = encode_header_value(name)
    assert SURVIVES.fullmatch(header)
    assert decode_header_value(header) == name
    assert decode_header_value(b" \t" + header + b"\t ") == name


@given(st.binary(max_size=40))
def test_no_header_is_too_odd_to_be_read(header: bytes) -> None:
    found = decode_header_value(header)
    assert found is None or isinstance(found, str)


@loop_over("name", ["get_weather", "a b", "file:///x?y=1", ""])
def test_a_plain_name_is_sent_as_it_is(name: str) -> None:
    assert encode_header_value(name) == name.encode()


@loop_over("name", ["größe", " a", "a\t", "a\r\nx: y", "=?base64?YQ==?="])
def test_what_would_not_survive_is_wrapped(name: str) -> None:
    assert encode_header_value(name) == b"=?base64?" + base64.b64encode(name.encode()) + b"?="


@loop_over(
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
    assert decode_header_value(header) is None
