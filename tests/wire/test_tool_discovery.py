"""How the four methods of tool discovery are read, and what a tool looks like in their answers."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.wire import jsonrpc, tool_discovery
from comity.wire.errors import INVALID_PARAMS, INVALID_TOOL_ARGS, MalformedMessage
from comity.wire.lifecycle import State
from comity.wire.security import Risk
from comity.wire.tool_discovery import Lacking, Search, Wanted


def params(said: dict[str, Any]) -> dict[str, Raw]:
    return {name: jsonrpc.to_raw(value) for name, value in said.items()}


def test_a_search_is_read_as_the_document_writes_it() -> None:
    said = {
        "query": "which notes mention the harbour",
        "strategy": "semantic",
        "max_results": 5,
        "filter": {
            "categories": ["notes"],
            "risk_level_max": "moderate",
            "status": "connected",
        },
    }
    assert tool_discovery.search(params(said)) == Search(
        ("which notes mention the harbour",),
        "semantic",
        5,
        ("notes",),
        Risk.MODERATE,
        State.CONNECTED,
    )


def test_several_queries_are_one_search_and_the_same_one_counts_once() -> None:
    said = {"query": "a", "queries": ["b", "a"], "_meta": {"anything": 1}, "unheard_of": 7}
    assert tool_discovery.search(params(said)) == Search(("a", "b"))


def test_categories_alone_can_be_looked_through() -> None:
    found = tool_discovery.search(params({"filter": {"categories": ["web"]}}))
    assert (found.queries, found.categories) == ((), ("web",))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"query": ""},
        {"query": 7},
        {"query": "x" * 1001},
        {"queries": ["x"] * 9},
        {"query": "x", "queries": [f"{number}" for number in range(8)]},
        {"query": "x", "strategy": "guess"},
        {"query": "x", "max_results": 0},
        {"query": "x", "max_results": 51},
        {"query": "x", "max_results": "5"},
        {"query": "x", "max_results": True},
        {"query": "x", "filter": []},
        {"query": "x", "filter": {"risk_level_max": "mild"}},
        {"query": "x", "filter": {"status": "well"}},
        {"query": "x", "filter": {"categories": "web"}},
        {"query": "x", "filter": {"categories": ["x"] * 33}},
    ],
)
def test_a_search_that_cannot_be_read_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        tool_discovery.search(params(said))
    assert refused.value.fault is INVALID_PARAMS
    with pytest.raises(MalformedMessage) as refused:
        tool_discovery.search(params(said), INVALID_TOOL_ARGS)
    assert refused.value.fault is INVALID_TOOL_ARGS


def test_a_request_is_read_as_the_document_writes_it() -> None:
    said = {
        "reason": "capability_gap",
        "context": "The table is loaded, but nothing here can find its median",
        "requirements": {
            "capabilities": ["statistics", "tables", "tables"],
            "input_types": ["csv", "parquet"],
            "output_types": ["number", "plot"],
            "preferred_risk_level": "safe",
        },
        "task_trace_id": "9c1f0b52-6a3e-4d7c-8b21-5e0d94f7a386",
    }
    assert tool_discovery.wanted(params(said)) == Wanted(
        "capability_gap",
        "The table is loaded, but nothing here can find its median",
        ("statistics", "tables"),
        ("csv", "parquet"),
        ("number", "plot"),
        Risk.SAFE,
        "9c1f0b52-6a3e-4d7c-8b21-5e0d94f7a386",
    )


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"context": "  "},
        {"context": 7},
        {"requirements": {"capabilities": []}},
        {"requirements": {"capabilities": ["x"] * 9}},
        {"requirements": {"capabilities": [""]}},
        {"context": "x", "requirements": {"preferred_risk_level": "none"}},
        {"context": "x", "task_trace_id": 7},
        {"context": "x", "reason": ""},
    ],
)
def test_a_request_that_cannot_be_read_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        tool_discovery.wanted(params(said))


def test_an_eviction_names_tools_and_may_say_why() -> None:
    said = {"tools": ["analyze_csv"], "reason": "no_longer_needed"}
    assert tool_discovery.evicted(params(said)) == (["analyze_csv"], "no_longer_needed")
    for wrong in ({}, {"tools": "x"}, {"tools": [7]}, {"tools": ["x"] * 1001}):
        with pytest.raises(MalformedMessage):
            tool_discovery.evicted(params(wrong))


@given(
    st.dictionaries(
        st.sampled_from(["query", "queries", "filter", "max_results", "tools", "context"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=5,
        ),
    )
)
def test_whatever_is_sent_is_read_or_refused(said: dict[str, Any]) -> None:
    for read in (tool_discovery.search, tool_discovery.wanted, tool_discovery.evicted):
        with contextlib.suppress(MalformedMessage):
            read(params(said))


def test_a_tool_is_its_whole_definition_and_what_the_gateway_knows_of_it() -> None:
    definition = {
        "name": "files__read",
        "description": "Reads",
        "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
        "security": {"risk_level": "safe"},
        "_meta": {"theirs": 1, "dev.comity/security": {"risk_level": "safe"}},
    }
    label = tool_discovery.security(Risk.MODERATE, ["memory.read"], ["sandbox"])
    told = tool_discovery.tool(json.dumps(definition).encode(), "files", label, 0.95)
    assert json.loads(jsonrpc.to_json(told)) == {
        **definition,
        "server_id": "files",
        "relevance_score": 0.95,
        "security": {
            "risk_level": "moderate",
            "permissions_required": ["memory.read"],
            "validator": "sandbox",
        },
        "_meta": {"theirs": 1, "dev.comity/security": label},
    }


def test_several_validators_are_a_list_and_none_are_not_named() -> None:
    assert tool_discovery.security(Risk.SAFE, [], ["a", "b"])["validator"] == ["a", "b"]
    assert "validator" not in tool_discovery.security(Risk.SAFE, [], [])


def test_a_tool_whose_own_meta_is_no_object_is_told_all_the_same() -> None:
    told = tool_discovery.tool(b'{"name": "x", "_meta": 7}', "s", {"risk_level": "safe"})
    assert told["_meta"] == {"dev.comity/security": {"risk_level": "safe"}}
    assert "relevance_score" not in told


def test_what_is_lacking_says_only_what_is_known() -> None:
    assert Lacking("unavailable", "fly").told() == {"reason": "unavailable", "capability": "fly"}
