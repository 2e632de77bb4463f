"""What is said of a server to whoever asks for servers, and whom a filter leaves out."""

import json

import pytest
from msgspec import Raw

from comity.rules.discovery import Filter, Listed
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.lifecycle import State
from comity.wire.negotiation import Statement

SAID = Statement("0.2.0", frozenset({"streaming", "lifecycle"}), ("network.outbound",))
DECLARED = Statement("", frozenset({"audit"}), ("memory.read",), "trusted")
MET = Listed("a", State.CONNECTED, ("think", "analyze"), True, SAID, DECLARED)
UNMET = Listed("b", State.REGISTERED, declared=DECLARED)
PLAIN = Listed("c", State.CONNECTED, ("echo",), True)


def wanted(**names: object) -> Filter:
    return Filter.parse({"filter": Raw(json.dumps(names).encode())})


def trust(declared: str | None, said: str | None) -> str:
    both = Statement("", frozenset(), (), declared), Statement("0.3.0", frozenset(), (), said)
    return Listed("x", State.CONNECTED, (), True, both[1], both[0]).trust_level


def test_a_server_that_was_met_is_shown_by_its_own_word() -> None:
    assert MET.shown() == {
        "id": "a",
        "status": "connected",
        "mgp_version": "0.2.0",
        "extensions": ["lifecycle", "streaming"],
        "tools": ["think", "analyze"],
        "trust_level": "trusted",
    }


def test_before_it_is_met_a_server_is_shown_as_its_operator_wrote() -> None:
    assert UNMET.shown() == {
        "id": "b",
        "status": "registered",
        "mgp_version": None,
        "extensions": ["audit"],
        "tools": [],
        "trust_level": "trusted",
    }


def test_a_server_that_turned_out_plain_has_no_extensions_whatever_was_written() -> None:
    met = Listed("a", State.CONNECTED, (), True, None, DECLARED)
    assert met.shown()["extensions"] == []
    assert PLAIN.shown()["mgp_version"] is None


@pytest.mark.parametrize(
    ("declared", "said", "level"),
    [
        (None, None, "standard"),
        (None, "trusted", "standard"),
        (None, "sandboxed", "sandboxed"),
        ("trusted", None, "trusted"),
        ("trusted", "standard", "standard"),
        ("trusted", "core", "trusted"),
        ("trusted", "untrusted", "sandboxed"),
        ("trusted", "experimental", "sandboxed"),
        ("sandboxed", "trusted", "sandboxed"),
        ("trusted", "divine", "trusted"),
    ],
)
def test_a_server_can_only_lower_the_trust_it_was_given(
    declared: str | None, said: str | None, level: str
) -> None:
    assert trust(declared, said) == level


@pytest.mark.parametrize(
    ("filtered", "found"),
    [
        (Filter.parse({}), "abc"),
        (wanted(), "abc"),
        (wanted(status="connected"), "ac"),
        (wanted(status="registered"), "b"),
        (wanted(extensions=["streaming"]), "a"),
        (wanted(extensions=["streaming", "audit"]), ""),
        (wanted(extensions=["audit"]), "b"),
        (wanted(permissions=["memory.read"]), "ab"),
        (wanted(permissions=["memory.read", "network.outbound"]), "a"),
        (wanted(permissions=["memory.read"], status="connected"), "a"),
        (wanted(unknown=True), "abc"),
    ],
)
def test_a_filter_lets_through_whoever_has_all_that_is_named(filtered: Filter, found: str) -> None:
    passed = [server.id for server in (MET, UNMET, PLAIN) if filtered.lets_through(server)]
    assert "".join(passed) == found


@pytest.mark.parametrize(
    "names", [{"status": "well"}, {"extensions": "streaming"}, {"permissions": [1]}, {"status": 1}]
)
def test_a_filter_that_cannot_be_read_is_refused(names: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage) as caught:
        wanted(**names)
    assert caught.value.fault is INVALID_PARAMS


def test_a_filter_is_an_object() -> None:
    with pytest.raises(MalformedMessage):
        Filter.parse({"filter": Raw(b"[]")})
