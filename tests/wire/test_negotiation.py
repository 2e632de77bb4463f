"""What is said of MGP is found where it may stand, and broken words are no words."""

import json

import pytest
from msgspec import Raw

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.negotiation import Extension, Statement, declare, silenced, stated, without

SAID = {"version": "0.2.0", "extensions": ["security", "lifecycle"]}
STATED = Statement("0.2.0", frozenset({"security", "lifecycle"}))
PLACES = [
    {"mgp": SAID},
    {"experimental": {"mgp": SAID}},
    {"extensions": {"dev.comity/mgp": SAID}},
]
each_place = pytest.mark.parametrize("capabilities", PLACES, ids=["own", "experimental", "modern"])


def raw(anything: object) -> Raw:
    return Raw(json.dumps(anything).encode())


def shown(capabilities: dict[str, Raw]) -> object:
    return jsonrpc.value(jsonrpc.to_raw(capabilities))


@each_place
def test_mgp_is_found_in_each_of_its_places(capabilities: dict[str, object]) -> None:
    assert stated(raw({"sampling": {}, **capabilities})) == STATED


def test_the_place_of_the_document_counts_before_the_others() -> None:
    other: dict[str, object] = {"version": "0.1.0", "extensions": ["audit"]}
    assert stated(raw({"experimental": {"mgp": other}, "mgp": SAID})) == STATED


def test_a_server_may_say_what_it_needs_and_how_far_it_is_trusted() -> None:
    more = {"permissions_required": ["network.outbound"], "trust_level": "sandboxed"}
    found = stated(raw({"mgp": {**SAID, **more, "server_id": "x", "unknown": {"kept": "not"}}}))
    assert found == Statement("0.2.0", STATED.extensions, ("network.outbound",), "sandboxed")


@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"tools": {}},
        {"mgp": None},
        {"mgp": True},
        {"mgp": {}},
        {"mgp": {"version": "0.3.0"}},
        {"mgp": {"extensions": []}},
        {"mgp": {"version": 3, "extensions": []}},
        {"mgp": {"version": "0.3.0", "extensions": "security"}},
        {"mgp": {"version": "0.3.0", "extensions": [1]}},
        {"mgp": {"version": "0.3.0", "extensions": [], "trust_level": 7}},
        {"mgp": {"version": "0.3.0", "extensions": ["x" * 70_000]}},
        {"experimental": []},
        {"extensions": "dev.comity/mgp"},
        [],
        "mgp",
    ],
    ids=str,
)
def test_what_cannot_be_read_is_as_if_nothing_had_been_said(capabilities: object) -> None:
    assert stated(raw(capabilities)) is None


def test_a_key_that_stands_twice_is_not_read() -> None:
    assert stated(Raw(b'{"mgp":{"version":"0.3.0","version":"1.0.0","extensions":[]}}')) is None


def test_whoever_declared_no_capabilities_said_nothing() -> None:
    assert stated(None) is None


@each_place
def test_an_answer_stands_where_the_document_puts_it_and_where_it_was_asked(
    capabilities: dict[str, object],
) -> None:
    declared = declare({"tools": {}}, SAID, raw(capabilities))
    assert declared == {"tools": {}, "mgp": SAID, **capabilities}


def test_an_answer_leaves_beside_it_what_we_say_there_ourselves() -> None:
    declared = declare({"experimental": {"mcpl": {}}}, SAID, raw({"experimental": {"mgp": SAID}}))
    assert declared == {"mgp": SAID, "experimental": {"mcpl": {}, "mgp": SAID}}


def test_an_offer_to_somebody_who_has_not_spoken_stands_where_the_document_puts_it() -> None:
    assert declare({"roots": {}}, SAID) == {"roots": {}, "mgp": SAID}


@each_place
def test_nothing_is_left_of_it_and_all_else_is(capabilities: dict[str, object]) -> None:
    found = jsonrpc.members(raw({"tools": {}, **capabilities}))
    assert shown(without(found)) == {"tools": {}}


def test_what_stands_beside_it_stays() -> None:
    found = {"experimental": raw({"mgp": SAID, "mcpl": {}}), "extensions": raw([1])}
    assert shown(without(found)) == {"experimental": {"mcpl": {}}, "extensions": [1]}


def test_a_greeting_is_silenced_only_of_what_it_says_of_mgp() -> None:
    hello = {"serverInfo": raw({"name": "x"}), "capabilities": raw({"tools": {}, "mgp": SAID})}
    assert shown(silenced(hello)) == {"serverInfo": {"name": "x"}, "capabilities": {"tools": {}}}
    plain = {"capabilities": raw({"tools": {}, "mgp": 7})}
    assert silenced(plain) == plain
    assert silenced({}) == {}


def test_capabilities_that_are_none_cannot_be_answered() -> None:
    with pytest.raises(MalformedMessage):
        declare({}, SAID, raw([]))


def test_the_standard_extensions_are_those_of_the_document() -> None:
    assert sorted(Extension) == [
        "access_control",
        "audit",
        "bidirectional",
        "code_safety",
        "discovery",
        "lifecycle",
        "security",
        "streaming",
        "tool_discovery",
    ]
