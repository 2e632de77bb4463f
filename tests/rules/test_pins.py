"""One digest for one meaning, and every difference told so that a person can see it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules.pins import LONGEST_TOLD, MOST_TOLD, canonical, differences, digest, without
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage

type Json = Any

JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
TABLE = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def written(text: str | Json) -> bytes:
    raw = text if isinstance(text, str) else json.dumps(text)
    return canonical(jsonrpc.members(raw.encode()), "tool")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": {"c": 2, "d": 3}}', '{"b":{"d":3,"c":2},"a":1}'),
        ('{"a": 1.0}', '{"a": 1}'),
        ('{"a": 1e2}', '{"a": 100}'),
        ('{"a": -0.0}', '{"a": 0}'),
        ('{"a": 0.10}', '{"a": 0.1}'),
        ('{"a": "\\u0041"}', '{"a": "A"}'),
        ('{"\\u0061": [ ]}', '{"a":[]}'),
    ],
)
def test_what_means_the_same_is_the_same(one: str, other: str) -> None:
    assert written(one) == written(other)
    assert differences(written(one), written(other)) == []


def test_the_name_is_the_servers_own_whatever_the_list_says() -> None:
    assert written('{"name": "server__tool"}') == b'{"name":"tool"}'


@pytest.mark.parametrize("text", ['{"a": {"b": 1, "b": 2}}', '{"a": [{"b": 1, "\\u0062": 1}]}'])
def test_a_key_that_stands_twice_is_no_definition(text: str) -> None:
    with pytest.raises(MalformedMessage):
        written(text)


@given(TABLE, TABLE)
def test_two_definitions_are_equal_when_nothing_is_other_in_them(one: Json, other: Json) -> None:
    first, second = written(one), written(other)
    told = differences(first, second)
    assert (digest(first) == digest(second)) == (first == second) == (not told)


@given(TABLE)
def test_the_order_of_keys_never_counts(table: Json) -> None:
    turned = dict(reversed(list(table.items())))
    assert written(table) == written(turned)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"a": 1}, {"a": 2}, "/a was 1 and is 2"),
        ({"a": 1}, {"a": True}, "/a was 1 and is true"),
        ({}, {"x/y~": "new"}, '/x~1y~0 is new: "new"'),
        ({"l": [1, 2]}, {"l": [1]}, "/l/1 is gone: 2"),
        ({"l": [1]}, {"l": {"0": 1}}, '/l was [1] and is {"0": 1}'),
        ({"d": "go"}, {"d": "go\u200b"}, r'/d was "go" and is "go\u{200b}"'),
        ({"d": "copy"}, {"d": "co\u0440y"}, r'/d was "copy" and is "co\u0440y"'),
        ({"d": "caf\u00e9"}, {"d": "cafe\u0301"}, r'/d was "caf\u00e9" and is "cafe\u0301"'),
        ({"d": "\u4e16"}, {"d": "\u754c"}, '/d was "\u4e16" and is "\u754c"'),
    ],
)
def test_a_difference_can_be_read(before: Json, after: Json, told: str) -> None:
    assert [str(each) for each in differences(written(before), written(after))] == [told]


def test_there_is_an_end_to_what_is_told() -> None:
    many = {str(number): number for number in range(MOST_TOLD + 50)}
    told = differences(written({}), written(many))
    assert len(told) == MOST_TOLD + 1
    assert "more differences" in str(told[-1])
    (long,) = differences(written({"a": ""}), written({"a": "x" * 100_000}))
    assert long.after is not None
    assert len(long.after) < LONGEST_TOLD + 50


def test_members_can_be_left_out() -> None:
    assert without(b'{"a":1,"b":2,"name":"t"}', "a", "z") == b'{"b":2,"name":"t"}'


def test_the_digest_is_not_that_of_the_plain_text() -> None:
    assert digest(b"{}") != "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert canonical({"a": Raw(b"1")}, "t") == b'{"a":1,"name":"t"}'
