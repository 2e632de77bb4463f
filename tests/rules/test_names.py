"""Public names: short enough, in letters every client takes, and never shared by two offers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from comity.rules.names import LONGEST, public_name

FIT = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Few letters, so that what could be confused with each other is often met.
parts = st.text(alphabet="a_-b.é/", min_size=1, max_size=8)
long_parts = st.text(alphabet="ab_é", min_size=1, max_size=120)


def test_a_name_that_fits_is_the_server_and_the_tool() -> None:
    assert public_name("files", "read-file_2") == "files__read-file_2"


def test_a_name_of_exactly_the_longest_length_is_left_as_it_is() -> None:
    tool = "t" * (LONGEST - len("files__"))
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
def test_two_offers_never_share_a_name(one: str, this: str, other: str, that: str) -> None:
    same = (one, this) == (other, that)
    assert (public_name(one, this) == public_name(other, that)) is same


@given(st.text(alphabet="ab", min_size=1, max_size=3), long_parts, long_parts)
def test_two_long_names_of_one_server_stay_apart(server: str, one: str, other: str) -> None:
    assert (public_name(server, one) == public_name(server, other)) is (one == other)


def test_a_separator_inside_a_name_confuses_nobody() -> None:
    assert public_name("a", "b__c") != public_name("a__b", "c")
    assert public_name("a_", "b") != public_name("a", "_b")


def test_no_plain_name_can_pass_for_a_marked_one() -> None:
    marked = public_name("files", "read file")
    imitation = marked.removeprefix("files__")
    assert public_name("files", imitation) != marked
