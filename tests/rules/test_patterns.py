"""What a verb or a target is about."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.patterns import Level, covers, level_of, target_covers, verb_covers
from tests.pace import here
from tests.rules import oracle

TEXTS = st.text("ab*/", max_size=8)


@given(TEXTS, TEXTS)
def test_a_pattern_covers_what_the_same_regular_expression_would(pattern: str, text: str) -> None:
    assert covers(pattern, text) is oracle.fits(pattern, text)


@given(TEXTS, TEXTS, TEXTS)
def test_a_target_covers_an_offer_part_by_part(target: str, server: str, name: str) -> None:
    assert target_covers(target, server, name) is oracle.target_fits(target, server, name)


@pytest.mark.parametrize(
    ("pattern", "verb", "is_covered"),
    [
        ("tools/call", "tools/call", True),
        ("tools/call", "tools/calls", False),
        ("*", "admin/write", True),
        ("tools/*", "tools/call", True),
        ("tools/*", "toolsmith/call", False),
        ("tools/*", "tools", False),
        ("*/list", "tools/list", False),
        ("to*", "tools/call", False),
        ("", "tools/call", False),
    ],
)
def test_a_verb_is_itself_or_all_or_a_family(pattern: str, verb: str, is_covered: bool) -> None:
    assert verb_covers(pattern, verb) is is_covered


@pytest.mark.parametrize(
    ("target", "level"),
    [
        ("files/read", Level.OFFER),
        ("files/*", Level.SERVER),
        ("files/re*", Level.SERVER),
        ("files/a/*", Level.SERVER),
        ("*", Level.EVERYTHING),
        ("*/read", Level.EVERYTHING),
        ("fi*/read", Level.EVERYTHING),
        ("network.outbound", Level.OFFER),
    ],
)
def test_a_pattern_stands_at_the_level_of_what_it_leaves_open(target: str, level: Level) -> None:
    assert level_of(target) is level


def test_a_hostile_name_does_not_make_a_pattern_slow() -> None:
    began = time.process_time()
    assert not covers("*a*a*a*a*a*a*b", "a" * 8192)
    assert not covers("*aab*aab*aab*c", "aab" * 2730)
    assert time.process_time() - began < here(0.1)
