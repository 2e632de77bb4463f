"""Which kinds a member may send: vectors, a slow reading of D-40 beside the quick one."""

import json
import re
from itertools import product
from pathlib import Path
from time import process_time
from typing import TypedDict, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.topics.rules import (
    FULL,
    MAX_CACHED_KINDS,
    MAX_CAPABILITY_LENGTH,
    PROFILES,
    PROPOSE,
    READ_ONLY,
    RESPOND,
    TOOLS,
    TopicCapabilities,
    can_send_kind,
    is_capability,
)
from tests.support.cases import loop_over
from tests.support.oracle import fits


class Vector(TypedDict):
    clause: str
    kind: str
    capabilities: list[str]
    allowed: bool


VECTORS = cast(
    "list[Vector]", json.loads(Path(__file__).with_name("capability-vectors.json").read_text())
)
RESERVED = re.compile(r"(system|presence)([/:].*)?", re.IGNORECASE | re.DOTALL)
# Few letters, so that what is drawn meets what is drawn.
PATTERNS = st.text("ab/:*", max_size=9)
KINDS = st.text("ab/:", max_size=9)
WORDS = st.sampled_from(
    ("mcp/request", "mcp/response", "*", "tools/", "call", "list", ":", "/", "x", "chat", "system")
)
LIKELY = st.lists(WORDS, max_size=6).map("".join)


def read_slowly(capability: str, kind: str) -> bool:
    """D-40 as a regular expression: no colon for an inner star, and any context for a method."""
    if RESERVED.fullmatch(kind) or not kind.isprintable():
        return False
    ends_in_star = capability.endswith("*")
    inner = capability[:-1] if ends_in_star else capability
    expression = "[^:]*".join(map(re.escape, inner.split("*")))
    if ends_in_star:
        expression += ".*"
    elif capability.count(":") == 1:
        expression += "(:.*)?"
    return re.fullmatch(expression, kind) is not None


@loop_over("vector", VECTORS, ids=lambda each: f"{each['clause']}: {each['kind']!r}")
def test_each_vector_is_decided_as_it_says(vector: Vector) -> None:
    capabilities = TopicCapabilities(vector["capabilities"])
    assert capabilities.allows(vector["kind"]) is vector["allowed"]
    assert (
        any(can_send_kind(each, vector["kind"]) for each in vector["capabilities"])
        is vector["allowed"]
    )


@loop_over(
    ("capability", "kind", "is_covered"),
    [
        pytest.param("mcp/request:*", "mcp/request", False, id="the colon is a character too"),
        pytest.param("mcp/request*", "mcp/request:tools/call", True, id="a star within a family"),
        pytest.param("mcp/request", "mcp/request:tools/call", False, id="a family alone"),
        pytest.param("chat", "chat:aside", False, id="a chat has no method"),
        pytest.param("chat", "chat", True, id="itself"),
        pytest.param("chat", "Chat", False, id="another case"),
        pytest.param("chat", "chat ", False, id="a space behind it"),
        pytest.param("chat", "chat\x00", False, id="a NUL behind it"),
        pytest.param("*", "chat\n", False, id="a line break under a star"),
        pytest.param("*", "ch\u0430t", False, id="a letter of another alphabet"),
        pytest.param("", "", True, id="nothing covers nothing"),
        pytest.param("", "chat", False, id="nothing"),
        pytest.param("mcp/request:tools/call", "mcp/request:tools/call:", True, id="no context"),
        pytest.param("mcp/request:tools/call", "mcp/request:tools/call/x", False, id="a slash"),
        pytest.param("mcp/request:tools/call", "mcp/request:tools/call:a:b", True, id="a URI"),
        pytest.param("mcp/request:tools/call:a", "mcp/request:tools/call:a:b", False, id="longer"),
        pytest.param("mcp/request:tools/call:a:*", "mcp/request:tools/call:a:b", True, id="below"),
        pytest.param("mcp/request:*:a", "mcp/request:tools/call:a", True, id="any method"),
        pytest.param("mcp/request:*:a", "mcp/request:tools/call:b:a", False, id="not two parts"),
        pytest.param("mcp/*:tools/call", "mcp/response:tools/call:x", True, id="any family"),
        pytest.param("mcp/request:*/list", "mcp/request:tools/list:a", True, id="and any context"),
        pytest.param("*:tools/call", "mcp/request:x:tools/call", False, id="never over a colon"),
        pytest.param("**", "mcp/request:x", True, id="two stars"),
        pytest.param("a*a", "a", False, id="not one character for two"),
    ],
)
def test_a_star_and_a_missing_context_mean_what_is_decided(
    capability: str, kind: str, is_covered: bool
) -> None:
    assert can_send_kind(capability, kind) is is_covered
    assert not kind.isascii() or read_slowly(capability, kind) is is_covered


@given(st.one_of(PATTERNS, LIKELY), st.one_of(KINDS, LIKELY))
def test_the_quick_reading_agrees_with_the_slow_one(capability: str, kind: str) -> None:
    assert can_send_kind(capability, kind) is read_slowly(capability, kind)


@given(
    st.one_of(
        st.sampled_from(("*", "system*", "system/*", "presence", "s*", "SYSTEM/*")), PATTERNS
    ),
    st.sampled_from(("system", "presence")),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.one_of(st.just(""), st.builds(str.__add__, st.sampled_from("/:"), st.text(max_size=9))),
)
def test_nothing_covers_what_is_the_gateways_in_any_case(
    capability: str, name: str, is_upper: list[bool], rest: str
) -> None:
    kind = "".join(
        each.upper() if upper else each for each, upper in zip(name, is_upper, strict=False)
    )
    assert not can_send_kind(capability, kind + rest)
    assert not can_send_kind(kind + rest, kind + rest)
    assert not TopicCapabilities((capability, kind + rest)).allows(kind + rest)


def test_letters_that_only_fold_into_the_reserved_ones_are_covered_by_nothing() -> None:
    for kind in (
        "\u017fystem/welcome",
        "\uff53ystem/welcome",
        "syste\u043c/welcome",
        "pre\u017fence",
    ):
        assert not can_send_kind("*", kind)
        assert not can_send_kind(kind, kind)


@loop_over(
    ("capability", "kind"),
    [
        pytest.param("*a" * 10_000 + "b", "a" * 100_000, id="stars in one part"),
        pytest.param("*:" * 10_000 + "b", "a:" * 100_000, id="stars between colons"),
        pytest.param("*a*b:" * 2_000 + "c", "aab:" * 100_000, id="both"),
        pytest.param("a*" * 10_000 + "b", "a" * 100_000, id="stars behind letters"),
        pytest.param(":" * 100_000 + "*", ":" * 99_999, id="nothing but colons"),
    ],
)
def test_a_hostile_pattern_takes_no_longer_than_the_kind_is_long(
    capability: str, kind: str
) -> None:
    began = process_time()
    assert not can_send_kind(capability, kind)
    assert not can_send_kind(kind, capability)
    # One try of each place for each star would be 10^9 steps here, and going back has no end.
    assert process_time() - began < 2


def is_denied_slowly(denial: str, kind: str) -> bool:
    """What is denied in a context is denied to a kind that names a method and no context."""
    family, colon, method = kind.rstrip(":").partition(":")
    of_family, _, rest = denial.partition(":")
    of_method, has_context, _ = rest.partition(":")
    leaves_open = colon and ":" not in method and has_context
    return read_slowly(denial, kind) or bool(
        leaves_open and fits(of_family, family) and fits(of_method, method)
    )


@loop_over(
    ("kind", "is_allowed"),
    [
        ("mcp/request:tools/call:ls", True),
        ("mcp/request:tools/call:rm", False),
        ("mcp/request:tools/call", False),
        ("mcp/request:tools/call:", False),
        ("mcp/request:tools/call::", False),
        ("mcp/request:tools/list", True),
        ("mcp/proposal:tools/call", True),
        ("mcp/request", True),
    ],
)
def test_who_may_not_call_one_tool_may_not_leave_open_which_it_calls(
    kind: str, is_allowed: bool
) -> None:
    assert TopicCapabilities(("mcp/*",), ("mcp/request:tools/call:rm",)).allows(kind) is is_allowed


@given(st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=4), KINDS)
def test_whoever_has_a_capability_may_send_what_it_covers_unless_another_denies_it(
    allowed: list[str], denied: list[str], kind: str
) -> None:
    wanted = any(read_slowly(each, kind) for each in allowed) and not any(
        is_denied_slowly(each, kind) for each in denied
    )
    capabilities = TopicCapabilities(allowed, denied)
    assert [capabilities.allows(kind) for _ in range(2)] == [wanted, wanted]


@given(PATTERNS, PATTERNS, KINDS)
def test_what_is_not_told_for_being_denied_covers_nothing(
    capability: str, denial: str, kind: str
) -> None:
    capabilities = TopicCapabilities((capability,), (denial,))
    if not capabilities.listed:
        assert not can_send_kind(capability, kind) or can_send_kind(denial, kind)


@loop_over(
    ("allowed", "denied", "listed"),
    [
        pytest.param(("chat", "mcp/*", "chat"), (), ("chat", "mcp/*"), id="each once, in order"),
        pytest.param(("chat", "mcp/*"), ("chat",), ("mcp/*",), id="the very same"),
        pytest.param(("mcp/request:*", "chat"), ("mcp/*",), ("chat",), id="within a wider one"),
        pytest.param(("a:b:c",), ("a:b",), (), id="a context of a method"),
        pytest.param(("mcp/*",), ("mcp/request:*",), ("mcp/*",), id="only a part of it"),
        pytest.param(("system/x",), ("system/x",), (), id="what covers nothing anyway"),
    ],
)
def test_a_member_is_told_what_is_left_to_it(
    allowed: tuple[str, ...], denied: tuple[str, ...], listed: tuple[str, ...]
) -> None:
    assert TopicCapabilities(allowed, denied).listed == listed


def test_two_sets_are_the_same_where_they_list_and_deny_the_same() -> None:
    one, same = (
        TopicCapabilities(("chat",), ("mcp/*",)),
        TopicCapabilities(["chat", "chat"], ["mcp/*"]),
    )
    assert (one, hash(one)) == (same, hash(same))
    assert one != TopicCapabilities(("chat",))
    assert one != ("chat",)


def test_what_was_asked_is_remembered_within_a_bound() -> None:
    capabilities = TopicCapabilities(("mcp/request:*",))
    for _ in range(2):
        for number in range(3 * MAX_CACHED_KINDS):
            assert capabilities.allows(f"mcp/request:{number}")
            assert not capabilities.allows(f"chat:{number}")
            assert len(capabilities._known) <= MAX_CACHED_KINDS  # pyright: ignore[reportPrivateUsage]


@loop_over(
    ("text", "can_be_one"),
    [
        *((each, True) for each in ("chat", "mcp/*", "*", "a" * MAX_CAPABILITY_LENGTH)),
        *(
            (each, False)
            for each in ("", "a b", "a\n", "a\x00", "\u00e9", "a" * (MAX_CAPABILITY_LENGTH + 1))
        ),
    ],
)
def test_a_capability_is_printable_ascii_of_a_bounded_length(text: str, can_be_one: bool) -> None:
    assert is_capability(text) is can_be_one


CALL, READ, LIST = "tools/call", "resources/read", "tools/list"


@loop_over(
    ("profile", "may"),
    [
        (FULL, {*product(("request", "response", "proposal"), (CALL, READ, LIST))}),
        (PROPOSE, {*product(("response", "proposal"), (CALL, READ, LIST))}),
        (RESPOND, {*product(("response",), (CALL, READ, LIST))}),
        (
            READ_ONLY,
            {("request", READ), ("request", LIST), *product(("response",), (CALL, READ, LIST))},
        ),
        (TOOLS, {*product(("request", "response"), (CALL, LIST))}),
    ],
)
def test_a_profile_of_the_document_lets_do_what_it_says(
    profile: tuple[str, ...], may: set[tuple[str, str]]
) -> None:
    capabilities = TopicCapabilities(profile)
    asked = product(("request", "response", "proposal"), (CALL, READ, LIST))
    assert {each for each in asked if capabilities.allows("mcp/{}:{}".format(*each))} == may
    assert capabilities.allows("chat")
    assert profile in PROFILES.values()
    assert all(map(is_capability, profile))
