"""What a member asks of a server: only what its kind says, and only what its method knows."""

import json
from typing import Any

import pytest

from comity.rules.capabilities import Capabilities
from comity.rules.topic_requests import (
    answered_plainly,
    asked_plainly,
    context_of,
    introduced,
    is_fulfilment,
    proposed_in,
    request_in,
    response_kind,
    whole_kind,
)
from comity.wire import jsonrpc, mcp
from comity.wire.envelope import PROPOSAL, REQUEST, Envelope, Heading, decode, written
from comity.wire.errors import MalformedMessage

CALL = "mcp/request:tools/call"


def envelope(kind: str, payload: Any) -> Envelope:
    return written(Heading("e-1", ""), "agent:ci", kind, payload)


def call(name: str = "read", **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"path": "/a"}, **more}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


@pytest.mark.parametrize("kind", [CALL, f"{CALL}:read"])
def test_a_request_that_is_what_its_kind_says_is_read(kind: str) -> None:
    frame = request_in(envelope(kind, call()))
    assert (frame.id, frame.method, context_of(frame)) == (7, "tools/call", "read")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (f"{CALL}:read", call("write")),
        (f"{CALL}:READ", call("read")),
        (f"{CALL}:read:x", call("read")),
        ("mcp/request:tools/list", call()),
        (CALL, {**call(), "method": "tools/list"}),
        (CALL, {**call(), "jsonrpc": "1.0"}),
        (CALL, {**call(), "params": ["read"]}),
        (CALL, {**call(), "params": None}),
        (CALL, {"jsonrpc": "2.0", "id": 7, "result": {}}),
        (CALL, {**call(), "result": {}}),
        (CALL, {**call(), "id": None}),
        (CALL, {**call(), "id": [7]}),
        (CALL, {**call(), "Method": "tools/list"}),
        (f"{CALL}:", {"jsonrpc": "2.0", "id": 7, "method": 7}),
    ],
)
def test_what_is_not_what_its_kind_says_is_dropped(kind: str, payload: Any) -> None:
    with pytest.raises(MalformedMessage):
        request_in(envelope(kind, payload))


@pytest.mark.parametrize(
    "payload",
    [
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","method":"tools/call","params":{}}',
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"write","name":"read"}}',
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","_meta":{"a":1,"a":2}}}',
    ],
)
def test_a_member_that_stands_twice_is_read_by_nobody(payload: str) -> None:
    head = f'{{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"{CALL}:read","payload":'
    with pytest.raises(MalformedMessage):
        request_in(decode(f"{head}{payload}}}".encode()))


def test_what_is_denied_by_its_whole_name_is_denied_by_a_shorter_kind() -> None:
    may = Capabilities(["mcp/request:*"], [f"{CALL}:delete*"])
    frame = request_in(envelope(CALL, call("delete_all")))
    assert not may.cover(whole_kind(REQUEST, frame))
    odd = request_in(envelope(CALL, call("delete é\n x")))
    assert not may.cover(whole_kind(REQUEST, odd))
    assert Capabilities([CALL]).cover(whole_kind(REQUEST, odd))


def test_a_proposal_is_read_as_strictly() -> None:
    proposed: Any = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
    frame = proposed_in(envelope(f"{PROPOSAL}:tools/call:write", proposed))
    assert (frame.method, context_of(frame)) == ("tools/call", "write")
    for kind, payload in (
        (f"{PROPOSAL}:tools/call:read", proposed),
        (f"{PROPOSAL}:tools/list", proposed),
        (f"{PROPOSAL}:tools/call", {"method": 1}),
        (f"{PROPOSAL}:tools/call", {}),
    ):
        with pytest.raises(MalformedMessage):
            proposed_in(envelope(kind, payload))


def test_only_what_a_method_knows_goes_on_to_the_server() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    brought: dict[str, Any] = {
        "task": {"ttl": 1},
        "requestState": "sealed",
        "inputResponses": {},
        "_meta": {"progressToken": 1, "traceparent": trace, mcp.CLIENT_CAPABILITIES: {"roots": {}}},
    }
    plain = asked_plainly(request_in(envelope(CALL, call(**brought))))
    params = json.loads(bytes(plain.params))  # type: ignore[arg-type]
    assert params.keys() == {"name", "arguments", "_meta"}
    assert params["_meta"]["traceparent"] == trace
    assert params["_meta"][mcp.CLIENT_CAPABILITIES] == {}
    assert "progressToken" not in params["_meta"]


def test_an_answer_is_without_the_stamps_of_an_era() -> None:
    stamped = jsonrpc.result(1, {"content": [], "resultType": "complete", "ttlMs": 0})
    assert jsonrpc.value(answered_plainly(stamped, "tools/call").result) == {"content": []}  # type: ignore[arg-type]
    with pytest.raises(MalformedMessage):
        answered_plainly(jsonrpc.result(1, {"resultType": "input_required"}), "tools/call")


def test_a_response_repeats_the_method_and_the_context() -> None:
    assert response_kind(f"{CALL}:read") == "mcp/response:tools/call:read"
    assert response_kind("mcp/request:resources/read:file:///a:b") == (
        "mcp/response:resources/read:file:///a:b"
    )


def test_a_server_says_of_itself_what_a_topic_carries() -> None:
    hello = jsonrpc.members(
        b'{"protocolVersion":"2025-06-18","serverInfo":{"name":"s","version":"1"},'
        b'"capabilities":{"tools":{"listChanged":true},"logging":{},"tasks":{}}}'
    )
    told = introduced(hello, "2025-06-18")
    assert told["capabilities"] == {"tools": {}}
    assert told["protocolVersion"] == "2025-06-18"


@pytest.mark.parametrize(
    ("request_kind", "proposal", "is_so"),
    [
        (f"{CALL}:write", "mcp/proposal:tools/call:write", True),
        (CALL, "mcp/proposal:tools/call:write", True),
        (f"{CALL}:write", "mcp/proposal:tools/call", True),
        (f"{CALL}:read", "mcp/proposal:tools/call:write", False),
        ("mcp/request:tools/list", "mcp/proposal:tools/call", False),
        (CALL, CALL, False),
        ("chat", "mcp/proposal:tools/call", False),
    ],
)
def test_a_fulfilment_does_what_was_proposed(request_kind: str, proposal: str, is_so: bool) -> None:
    assert is_fulfilment(request_kind, proposal) is is_so
