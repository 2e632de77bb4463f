"""The terms of a link follow from what both sides said, and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from comity.rules.negotiation import (
    TO_CLIENTS,
    TO_SERVERS,
    Terms,
    agree,
    of_request,
    offer,
    remark,
    unsaid,
)
from comity.wire import jsonrpc
from comity.wire.mcp import CLIENT_CAPABILITIES
from comity.wire.negotiation import VERSION, Extension, Statement

names = st.frozensets(st.sampled_from([*map(str, Extension), "com.example.own", ""]))


@given(theirs=names, ours=names)
def test_what_is_active_is_what_both_named(theirs: frozenset[str], ours: frozenset[str]) -> None:
    assert agree(Statement("0.3.0", theirs), ours) == Terms("0.3.0", theirs & ours)


def test_with_no_word_from_the_other_side_the_link_is_plain() -> None:
    assert agree(None, TO_CLIENTS) is None
    assert remark(None) is None


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0-draft", "0.3.0", "0.3", "0.99.1+build.5"])
def test_any_minor_version_will_do(version: str) -> None:
    terms = agree(Statement(version, frozenset({"lifecycle"})), TO_SERVERS)
    assert terms == Terms(version, frozenset({"lifecycle"}))


@pytest.mark.parametrize("version", ["1.0.0", "2.3.0", "0", "", "zero", "0.3.0 ", "00000000.3.0"])
def test_another_major_version_is_no_mgp_and_is_remarked(version: str) -> None:
    stated = Statement(version, frozenset({"lifecycle"}))
    assert agree(stated, TO_SERVERS) is None
    assert "plain MCP" in (remark(stated) or "")


def test_another_minor_version_is_remarked_and_the_same_is_not() -> None:
    assert remark(Statement(VERSION, frozenset())) is None
    assert remark(Statement("0.3.9", frozenset())) is None
    assert "0.1.0" in (remark(Statement("0.1.0", frozenset())) or "")


def test_a_modern_request_says_its_terms_in_its_envelope() -> None:
    said = {"extensions": {"dev.comity/mgp": offer({"discovery", "telepathy"})}}
    params = jsonrpc.to_raw({"name": "x", "_meta": {CLIENT_CAPABILITIES: said}})
    assert of_request(params) == Terms(VERSION, frozenset({"discovery"}))


@pytest.mark.parametrize(
    "params", [UNSET, Raw(b"{}"), Raw(b"[]"), Raw(b'{"_meta":[]}'), Raw(b'{"_meta":{}}')]
)
def test_a_request_that_says_nothing_is_made_in_plain_mcp(params: Raw) -> None:
    assert of_request(params) is None


def envelope(capabilities: object) -> Raw:
    return jsonrpc.to_raw({"name": "mgp", "_meta": {CLIENT_CAPABILITIES: capabilities, "x": 1}})


def test_what_a_client_says_of_mgp_goes_no_further_than_the_gateway() -> None:
    said = {"mgp": offer({"discovery"}), "extensions": {"dev.comity/mgp": offer(()), "other": {}}}
    frame = jsonrpc.request(1, "tools/call", envelope({"sampling": {}, **said}))
    plain = envelope({"sampling": {}, "extensions": {"other": {}}})
    assert unsaid(frame) == jsonrpc.request(1, "tools/call", plain)


@pytest.mark.parametrize("params", [UNSET, Raw(b'{"name":"x"}'), envelope({"sampling": {}})])
def test_a_request_that_says_nothing_of_it_goes_on_as_it_is(params: Raw) -> None:
    frame = jsonrpc.request(1, "tools/call", params)
    assert unsaid(frame) is frame


def test_an_offer_names_our_version_and_its_extensions_in_order() -> None:
    assert offer({"lifecycle", "discovery"}, {"server_id": "x"}) == {
        "version": VERSION,
        "extensions": ["discovery", "lifecycle"],
        "server_id": "x",
    }
    assert offer(()) == {"version": VERSION, "extensions": []}


def test_only_extensions_of_the_document_are_offered() -> None:
    assert set(Extension) >= TO_CLIENTS | TO_SERVERS
