"""Which trace a request is part of: what has the shape is kept, all else does not exist."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from comity.mcp import jsonrpc
from comity.telemetry.tracing import (
    TraceContext,
    context_of,
    from_headers,
    from_params,
    with_context,
    with_trace_id,
)
from tests.support.cases import loop_over

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@loop_over(
    "parent",
    [PARENT, PARENT[:-2] + "00", f"01{PARENT[2:]}", f"cc{PARENT[2:]}-what-the-future-adds"],
)
def test_a_parent_of_the_right_shape_names_its_trace(parent: str) -> None:
    context = context_of(parent, None)
    assert context is not None
    assert (context.parent, context.trace_id, context.state) == (parent, TRACE, "")


@loop_over(
    "parent",
    [
        *("", "00", None, PARENT.upper(), f" {PARENT}", f"{PARENT}\n", f"{PARENT}\r\nx: y"),
        *(f"ff{PARENT[2:]}", f"{PARENT}-more", f"01{PARENT[2:]}more", f"cc{PARENT[2:]}-a b"),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-b7ad6b716920333-01",
        f"cc{PARENT[2:]}-{'x' * 300}",
    ],
)
def test_a_parent_of_any_other_shape_does_not_exist(parent: str | None) -> None:
    assert context_of(parent, "rojo=1") is None


@loop_over(
    "state",
    ["rojo=00f067aa0ba902b7", "rojo=1,congo=t61rcWkgMzE", "a@b=x y", "rojo=1, ,congo=2", "0a=1"],
)
def test_a_state_of_the_right_shape_is_kept(state: str) -> None:
    assert context_of(PARENT, state) == TraceContext(PARENT, state)


@loop_over(
    "state",
    [
        *("nothing", "=1", "Rojo=1", "rojo=1\r\nx: y", "rojo=a=b", "rojo=é", "rojo=1;congo=2"),
        ",".join(f"k{number}=1" for number in range(33)),
        "rojo=" + "x" * 256 + "," + "congo=" + "x" * 256,
    ],
)
def test_a_state_of_any_other_shape_is_left_out(state: str) -> None:
    assert context_of(PARENT, state) == TraceContext(PARENT)


def test_headers_are_read_and_said_again() -> None:
    said = {b"traceparent": b" " + PARENT.encode(), b"tracestate": b"rojo=1", b"cookie": b"a=b"}
    context = from_headers(said)
    assert context is not None
    assert context == TraceContext(PARENT, "rojo=1")
    assert context.headers == ((b"traceparent", PARENT.encode()), (b"tracestate", b"rojo=1"))
    assert TraceContext(PARENT).headers == ((b"traceparent", PARENT.encode()),)
    assert from_headers({b"tracestate": b"rojo=1"}) is None


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_whatever_headers_hold_no_line_break_goes_on(parent: bytes, state: bytes) -> None:
    for first in (parent, PARENT.encode()):
        context = from_headers({b"traceparent": first, b"tracestate": state})
        for _, value in () if context is None else context.headers:
            assert value.isascii()
            assert value.decode().isprintable()


def test_parameters_are_read_where_mcp_says_it() -> None:
    meta = {"traceparent": PARENT, "tracestate": "rojo=1", "baggage": "a=b"}
    assert from_params(jsonrpc.to_raw({"_meta": meta})) == TraceContext(PARENT, "rojo=1")


@loop_over(
    "params",
    [
        UNSET,
        Raw(b"[]"),
        Raw(b'["traceparent"]'),
        Raw(b'{"_meta":"traceparent"}'),
        Raw(b'{"_meta":{"traceparent":1}}'),
        jsonrpc.to_raw({"traceparent": PARENT}),
        jsonrpc.to_raw({"arguments": {"_meta": {"traceparent": PARENT}}}),
        Raw(b'{"_meta":{"traceparent":"%b","traceparent":"x"}}' % PARENT.encode()),
    ],
)
def test_parameters_that_name_no_trace_have_none(params: Raw) -> None:
    assert from_params(params) is None


def test_a_request_takes_its_place_and_keeps_all_else() -> None:
    params = {"name": "look", "_meta": {"progressToken": 7, "tracestate": "old=1"}}
    frame = with_context(jsonrpc.make_request(1, "tools/call", params), TraceContext(PARENT))
    assert json.loads(bytes(frame.params or b"")) == {
        "name": "look",
        "_meta": {"progressToken": 7, "traceparent": PARENT},
    }
    bare = with_context(jsonrpc.make_request(1, "tools/list"), TraceContext(PARENT, "rojo=1"))
    assert from_params(bare.params) == TraceContext(PARENT, "rojo=1")


@loop_over("params", [b"[1]", b'{"_meta":[]}', b'{"_meta":{},"_meta":{}}'])
def test_a_request_of_another_shape_stays_as_it_is(params: bytes) -> None:
    frame = jsonrpc.Frame("2.0", 1, "tools/call", Raw(params))
    assert with_context(frame, TraceContext(PARENT)) is frame


@loop_over(
    "said",
    [
        *(None, b"{}", b"{ }", b'{"a":[1,2.50]}', b'{ "a" : {"trace_id_of":"x"}}'),
        *(b'{"trace_id":"mine","a":1}', b'{"a":{"trace_id":"mine"}}'),
    ],
)
def test_a_request_says_its_trace_as_mgp_does_and_nothing_else_otherwise(
    said: bytes | None,
) -> None:
    frame = jsonrpc.Frame("2.0", 1, "tools/call", UNSET if said is None else Raw(said))
    params = with_trace_id(frame, TRACE).parameters
    before = json.loads(said or b"{}")
    named = {"trace_id": "0af76519-16cd-43dd-8448-eb211c80319c"}
    # Who says something of it itself is left alone.
    assert json.loads(jsonrpc.to_json(params)) == {**named, **before}


def test_a_list_of_parameters_has_no_place_for_a_trace() -> None:
    frame = jsonrpc.Frame("2.0", 1, "x", Raw(b"[1]"))
    assert with_trace_id(frame, TRACE) is frame
