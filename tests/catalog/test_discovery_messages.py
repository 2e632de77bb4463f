"""Messages of tool discovery: parameters, results, the meta-tools and the text for models."""

import contextlib
import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.catalog import discovery_messages
from comity.catalog.discovery_messages import (
    DEFINITIONS,
    LISTED_TOOLS,
    TOOL_BY_NAME,
    MetaTool,
    MissingTool,
    ToolRequestOutcome,
    ToolRequestParams,
    ToolSearchParams,
    find_meta_tool,
    is_reserved,
)
from comity.errors import INVALID_PARAMS, INVALID_TOOL_ARGS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.mgp import ServerLifecycleState
from comity.policy.risk import Risk
from tests.support.cases import loop_over


@loop_over("tool", LISTED_TOOLS)
def test_meta_tool_has_a_name_and_a_schema_that_every_model_takes(tool: MetaTool) -> None:
    definition = json.loads(DEFINITIONS[tool])
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", definition["name"])
    schema = definition["inputSchema"]
    jsonschema_rs.meta.validate(schema)
    assert schema["type"] == "object"
    assert all("type" in member for member in schema["properties"].values())


def test_meta_tools_have_names_of_their_own_only_where_they_are_listed() -> None:
    for tool in LISTED_TOOLS:
        assert find_meta_tool(tool, is_listed=True) is tool
        assert find_meta_tool(tool, is_listed=False) is None
    for name, tool in (
        ("mgp.tools.discover", MetaTool.SEARCH),
        ("mgp.tools.request", MetaTool.REQUEST),
        ("mgp.tools.session", MetaTool.SESSION),
        ("mgp/tools/discover", MetaTool.SEARCH),
        ("mgp/tools/session/evict", MetaTool.EVICT),
    ):
        assert find_meta_tool(name, is_listed=True) is find_meta_tool(name, is_listed=False) is tool
    assert find_meta_tool("files__read", is_listed=True) is None


def test_the_prefix_is_kept_for_them() -> None:
    assert all(map(is_reserved, TOOL_BY_NAME))
    assert is_reserved("mgp.anything")
    assert not is_reserved("mgpx")
    assert not is_reserved("files__search_tools")


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
    assert discovery_messages.decode_search(params(said)) == ToolSearchParams(
        ("which notes mention the harbour",),
        "semantic",
        5,
        ("notes",),
        Risk.MODERATE,
        ServerLifecycleState.CONNECTED,
    )


def test_search_takes_several_queries_or_categories_alone() -> None:
    said = {"query": "a", "queries": ["b", "a"], "_meta": {"anything": 1}, "unheard_of": 7}
    assert discovery_messages.decode_search(params(said)) == ToolSearchParams(("a", "b"))
    found = discovery_messages.decode_search(params({"filter": {"categories": ["web"]}}))
    assert (found.queries, found.categories) == ((), ("web",))


@loop_over(
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
        discovery_messages.decode_search(params(said))
    assert refused.value.fault is INVALID_PARAMS
    with pytest.raises(MalformedMessage) as refused:
        discovery_messages.decode_search(params(said), INVALID_TOOL_ARGS)
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
    assert discovery_messages.decode_tool_request(params(said)) == ToolRequestParams(
        "capability_gap",
        "The table is loaded, but nothing here can find its median",
        ("statistics", "tables"),
        ("csv", "parquet"),
        ("number", "plot"),
        Risk.SAFE,
        "9c1f0b52-6a3e-4d7c-8b21-5e0d94f7a386",
    )


@loop_over(
    ("decode", "said"),
    [
        (discovery_messages.decode_tool_request, {}),
        (discovery_messages.decode_tool_request, {"context": "  "}),
        (discovery_messages.decode_tool_request, {"context": 7}),
        (discovery_messages.decode_tool_request, {"requirements": {"capabilities": []}}),
        (discovery_messages.decode_tool_request, {"requirements": {"capabilities": ["x"] * 9}}),
        (discovery_messages.decode_tool_request, {"requirements": {"capabilities": [""]}}),
        (
            discovery_messages.decode_tool_request,
            {"context": "x", "requirements": {"preferred_risk_level": "none"}},
        ),
        (discovery_messages.decode_tool_request, {"context": "x", "task_trace_id": 7}),
        (discovery_messages.decode_tool_request, {"context": "x", "reason": ""}),
        (discovery_messages.decode_eviction, {}),
        (discovery_messages.decode_eviction, {"tools": "x"}),
        (discovery_messages.decode_eviction, {"tools": [7]}),
        (discovery_messages.decode_eviction, {"tools": ["x"] * 1001}),
    ],
)
def test_malformed_tool_request_or_eviction_is_refused(decode: Any, said: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        decode(params(said))


def test_eviction_names_tools_and_a_reason() -> None:
    said = {"tools": ["analyze_csv"], "reason": "no_longer_needed"}
    assert discovery_messages.decode_eviction(params(said)) == (["analyze_csv"], "no_longer_needed")


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
    for read in (
        discovery_messages.decode_search,
        discovery_messages.decode_tool_request,
        discovery_messages.decode_eviction,
    ):
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
    label = discovery_messages.security_label(Risk.MODERATE, ["memory.read"], ["sandbox"])
    told = discovery_messages.describe_tool(json.dumps(definition).encode(), "files", label, 0.95)
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


LABEL = discovery_messages.security_label(Risk.MODERATE, [], [])
SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}}}'
DEFINITION = (
    '{"name":"files__read","description":"Reads\\n\\n a file","inputSchema":' + SCHEMA + "}"
).encode()
TOOL = discovery_messages.describe_tool(DEFINITION, "files", LABEL, 0.9)
COUNT = {"method": "bytes/4.3", "exact": False}


def test_a_tool_that_was_found_can_be_called_by_what_is_read() -> None:
    said = discovery_messages.describe_search_result({"tools": [TOOL], "total_available": 47})
    assert "1 of 47 tools" in said
    assert "1. files__read (score 0.9, risk moderate): Reads a file" in said
    assert SCHEMA in said
    assert "call_tool" in said


def test_search_result_says_what_was_left_out_and_what_to_try() -> None:
    empty: dict[str, Any] = {"tools": [], "total_available": 2}
    assert "Try other words" in discovery_messages.describe_search_result(empty)
    said = discovery_messages.describe_search_result(
        {**empty, "omitted": ["files__big"], "fallback_strategy": "keyword"}
    )
    assert "files__big" in said
    assert "keyword" in said


def test_definition_with_odd_members_is_described_all_the_same() -> None:
    odd = discovery_messages.describe_tool(
        b'{"name":7,"description":["x"],"inputSchema":{},"_meta":7}', "a", LABEL
    )
    assert odd["_meta"] == {"dev.comity/security": LABEL}
    assert "1.  (risk moderate)" in discovery_messages.describe_search_result(
        {"tools": [odd], "total_available": 1}
    )


def test_a_request_says_what_came_of_it_and_which_ask_is_waited_for() -> None:
    bare = discovery_messages.describe_tool(b'{"name":"a__b"}', "a", LABEL)
    waits = MissingTool(
        ToolRequestOutcome.PENDING_APPROVAL, "fly", "air__fly", "air", "an operator decides", "a1"
    )
    said = discovery_messages.describe_request_result(
        {
            "status": ToolRequestOutcome.PARTIAL,
            "tools_loaded": [bare],
            "tools_unavailable": [waits.to_json(), MissingTool("unavailable", "swim").to_json()],
            "context_tokens_added": 380,
        }
    )
    assert said.startswith("partial: ")
    assert "1. a__b (risk moderate)\n" in said
    assert "Not available: air__fly: an operator decides (approval request a1)" in said
    assert "Not available: swim: unavailable" in said
    assert "380 tokens" in said
    assert {*discovery_messages.ADVICE_BY_OUTCOME} == {*ToolRequestOutcome}


def test_a_session_says_what_it_holds_and_whether_that_is_an_estimate() -> None:
    result = {"pinned": [], "cached": ["a__b"], "total_tokens": 5, "max_tokens": 8000}
    said = discovery_messages.describe_session_tools({**result, "token_count": COUNT})
    assert said == "Your tools take about 5 of 8000 tokens.\npinned: none\ncached: a__b"
    exact = {**result, "token_count": {"method": "o200k", "exact": True}, "evicted": ["c__d"]}
    assert discovery_messages.describe_session_tools(exact).startswith(
        "Your tools take 5 of 8000 tokens."
    )
    assert discovery_messages.describe_session_tools(exact).endswith("evicted: c__d")
