"""MGP: negotiation, where it is declared, and the states of a server."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.mgp import (
    CLIENT_EXTENSIONS,
    SERVER_EXTENSIONS,
    VERSION,
    MgpExtension,
    MgpStatement,
    NegotiatedTerms,
    ServerLifecycleState,
    ShutdownReason,
    declare_mgp,
    decode_statement,
    format_timestamp,
    negotiate_terms,
    of_request,
    offer_extensions,
    shutdown_in,
    state_change_notification,
    strip_mgp,
    strip_mgp_capabilities,
    strip_mgp_request,
    version_remark,
)
from comity.mcp.protocol import CLIENT_CAPABILITIES
from tests.support.cases import loop_over

names = st.frozensets(st.sampled_from([*map(str, MgpExtension), "com.example.own", ""]))


@given(theirs=names, ours=names)
def test_what_is_active_is_what_both_named(theirs: frozenset[str], ours: frozenset[str]) -> None:
    assert negotiate_terms(MgpStatement("0.3.0", theirs), ours) == NegotiatedTerms(
        "0.3.0", theirs & ours
    )


@loop_over("version", ["0.1.0", "0.2.0-draft", "0.3.0", "0.3", "0.99.1+build.5"])
def test_any_minor_version_will_do(version: str) -> None:
    terms = negotiate_terms(MgpStatement(version, frozenset({"lifecycle"})), SERVER_EXTENSIONS)
    assert terms == NegotiatedTerms(version, frozenset({"lifecycle"}))


@loop_over("version", ["1.0.0", "2.3.0", "0", "", "zero", "0.3.0 ", "00000000.3.0"])
def test_another_major_version_is_no_mgp_and_is_remarked(version: str) -> None:
    stated = MgpStatement(version, frozenset({"lifecycle"}))
    assert negotiate_terms(stated, SERVER_EXTENSIONS) is None
    assert "plain MCP" in (version_remark(stated) or "")


def test_another_minor_version_is_remarked_and_the_same_is_not() -> None:
    assert version_remark(MgpStatement(VERSION, frozenset())) is None
    assert version_remark(MgpStatement("0.3.9", frozenset())) is None
    assert "0.1.0" in (version_remark(MgpStatement("0.1.0", frozenset())) or "")


def test_a_modern_request_says_its_terms_in_its_envelope() -> None:
    said = {"extensions": {"dev.comity/mgp": offer_extensions({"discovery", "telepathy"})}}
    params = jsonrpc.to_raw({"name": "x", "_meta": {CLIENT_CAPABILITIES: said}})
    assert of_request(params) == NegotiatedTerms(VERSION, frozenset({"discovery"}))


@loop_over("params", [UNSET, Raw(b"{}"), Raw(b"[]"), Raw(b'{"_meta":[]}'), Raw(b'{"_meta":{}}')])
def test_a_request_that_says_nothing_is_made_in_plain_mcp(params: Raw) -> None:
    assert of_request(params) is None


def envelope(capabilities: object) -> Raw:
    return jsonrpc.to_raw({"name": "mgp", "_meta": {CLIENT_CAPABILITIES: capabilities, "x": 1}})


def test_what_a_client_says_of_mgp_goes_no_further_than_the_gateway() -> None:
    said = {
        "mgp": offer_extensions({"discovery"}),
        "extensions": {"dev.comity/mgp": offer_extensions(()), "other": {}},
    }
    frame = jsonrpc.make_request(1, "tools/call", envelope({"sampling": {}, **said}))
    plain = envelope({"sampling": {}, "extensions": {"other": {}}})
    assert strip_mgp_request(frame) == jsonrpc.make_request(1, "tools/call", plain)


@loop_over("params", [UNSET, Raw(b'{"name":"x"}'), envelope({"sampling": {}})])
def test_a_request_that_says_nothing_of_it_goes_on_as_it_is(params: Raw) -> None:
    frame = jsonrpc.make_request(1, "tools/call", params)
    assert strip_mgp_request(frame) is frame


def test_an_offer_names_our_version_and_its_extensions_in_order() -> None:
    assert offer_extensions({"lifecycle", "discovery"}, {"server_id": "x"}) == {
        "version": VERSION,
        "extensions": ["discovery", "lifecycle"],
        "server_id": "x",
    }
    assert offer_extensions(()) == {"version": VERSION, "extensions": []}


SAID = {"version": "0.2.0", "extensions": ["security", "lifecycle"]}
STATED = MgpStatement("0.2.0", frozenset({"security", "lifecycle"}))
PLACES = [
    {"mgp": SAID},
    {"experimental": {"mgp": SAID}},
    {"extensions": {"dev.comity/mgp": SAID}},
]
each_place = loop_over("capabilities", PLACES, ids=["own", "experimental", "modern"])


def raw(anything: object) -> Raw:
    return Raw(json.dumps(anything).encode())


def shown(capabilities: dict[str, Raw]) -> object:
    return jsonrpc.decode_value(jsonrpc.to_raw(capabilities))


@each_place
def test_mgp_is_found_in_each_of_its_places(capabilities: dict[str, object]) -> None:
    assert decode_statement(raw({"sampling": {}, **capabilities})) == STATED


def test_the_place_of_the_document_counts_before_the_others() -> None:
    other: dict[str, object] = {"version": "0.1.0", "extensions": ["audit"]}
    assert decode_statement(raw({"experimental": {"mgp": other}, "mgp": SAID})) == STATED


def test_a_server_may_say_what_it_needs_and_how_far_it_is_trusted() -> None:
    more = {"permissions_required": ["network.outbound"], "trust_level": "sandboxed"}
    found = decode_statement(
        raw({"mgp": {**SAID, **more, "server_id": "x", "unknown": {"kept": "not"}}})
    )
    assert found == MgpStatement("0.2.0", STATED.extensions, ("network.outbound",), "sandboxed")


@loop_over(
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
        None,
        Raw(b'{"mgp":{"version":"0.3.0","version":"1.0.0","extensions":[]}}'),
    ],
    ids=str,
)
def test_an_unreadable_declaration_counts_as_none(capabilities: object) -> None:
    given = capabilities if isinstance(capabilities, Raw) else raw(capabilities)
    found = decode_statement(None if capabilities is None else given)
    assert found is None
    assert negotiate_terms(found, CLIENT_EXTENSIONS) is None
    assert version_remark(found) is None


@each_place
def test_an_answer_stands_where_the_document_puts_it_and_where_it_was_asked(
    capabilities: dict[str, object],
) -> None:
    assert declare_mgp({"roots": {}}, SAID) == {"roots": {}, "mgp": SAID}
    declared = declare_mgp({"tools": {}}, SAID, raw(capabilities))
    assert declared == {"tools": {}, "mgp": SAID, **capabilities}
    ours: dict[str, dict[str, object]] = {"experimental": {"mcpl": {}}}
    declared = declare_mgp(ours, SAID, raw({"experimental": {"mgp": SAID}}))
    assert declared == {"mgp": SAID, "experimental": {"mcpl": {}, "mgp": SAID}}
    with pytest.raises(MalformedMessage):
        declare_mgp({}, SAID, raw([]))


@each_place
def test_mgp_is_stripped_and_all_else_stays(capabilities: dict[str, object]) -> None:
    found = jsonrpc.decode_members(raw({"tools": {}, **capabilities}))
    assert shown(strip_mgp_capabilities(found)) == {"tools": {}}
    beside = {"experimental": raw({"mgp": SAID, "mcpl": {}}), "extensions": raw([1])}
    assert shown(strip_mgp_capabilities(beside)) == {
        "experimental": {"mcpl": {}},
        "extensions": [1],
    }


def test_a_greeting_is_silenced_only_of_what_it_says_of_mgp() -> None:
    hello = {"serverInfo": raw({"name": "x"}), "capabilities": raw({"tools": {}, "mgp": SAID})}
    assert shown(strip_mgp(hello)) == {"serverInfo": {"name": "x"}, "capabilities": {"tools": {}}}
    plain = {"capabilities": raw({"tools": {}, "mgp": 7})}
    assert strip_mgp(plain) == plain
    assert strip_mgp({}) == {}


@loop_over("zone", [UTC, timezone(timedelta(hours=9))])
def test_a_moment_is_written_in_universal_time(zone: timezone) -> None:
    at = datetime(2026, 11, 2, 8, 0, 0, 5499, UTC).astimezone(zone)
    assert format_timestamp(at) == "2026-11-02T08:00:00.005Z"


def test_a_change_of_state_is_told_in_the_words_of_the_document() -> None:
    at = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
    frame = state_change_notification(
        "mind",
        ServerLifecycleState.CONNECTED,
        ServerLifecycleState.DRAINING,
        ShutdownReason.OPERATOR_REQUEST,
        at,
    )
    assert frame.method == "notifications/mgp.lifecycle"
    assert jsonrpc.decode_value(jsonrpc.to_raw(frame.parameters)) == {
        "server_id": "mind",
        "previous_state": "connected",
        "new_state": "draining",
        "reason": "operator_request",
        "timestamp": "2026-11-02T08:00:00.000Z",
    }


@loop_over("reason", list(ShutdownReason))
def test_an_end_is_wanted_for_one_of_the_known_reasons(reason: ShutdownReason) -> None:
    assert shutdown_in({"reason": jsonrpc.to_raw(reason)}) is reason


@loop_over("params", [{}, {"reason": 7}, {"reason": "boredom"}, {"reason": None}])
def test_no_other_reason_is_one(params: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        shutdown_in({name: jsonrpc.to_raw(value) for name, value in params.items()})
