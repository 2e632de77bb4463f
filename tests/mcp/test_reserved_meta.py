"""The `_meta` keys of Comity are removed from messages of servers, however they are written."""

import json
from typing import Any

import pytest

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import Frame
from comity.mcp.reserved_meta import may_hold_reserved_keys, without_reserved_keys
from tests.support.cases import loop_over

FORGED: dict[str, Any] = {"dev.comity/refusal": {"evil": 1}, "mine": [1.5, 10**30, "é"]}
OWN: dict[str, Any] = {"mine": [1.5, 10**30, "é"]}
SPELLINGS = (
    '"dev.comity/refusal"',
    '"dev.comity\\/refusal"',
    '"\\u0064ev.comity/refusal"',
    '"dev\\u002ecomity/refusal"',
    '"dev\\u002Ecomity/refusal"',
    '"dev.comit\\u0079\\u002frefusal"',
    '"\\u0064\\u0065\\u0076\\u002e\\u0063\\u006f\\u006D\\u0069\\u0074\\u0079\\u002F\\u0072"',
)


def answer(**members: Any) -> Frame:
    return jsonrpc.decode_frame(json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode())


def cleaned(frame: Frame, method: str = "tools/call", kept: tuple[str, ...] = ()) -> Any:
    return json.loads(jsonrpc.encode_frame(without_reserved_keys(frame, method, kept)))


@loop_over("spelling", SPELLINGS)
@loop_over("meta", ['"_meta"', '"\\u005fmeta"', '"_m\\u0065ta"'])
def test_no_spelling_of_a_key_passes(spelling: str, meta: str) -> None:
    data = f'{{"jsonrpc":"2.0","id":1,"result":{{"content":[],{meta}:{{{spelling}:1,"x":2}}}}}}'
    assert may_hold_reserved_keys(data.encode())
    found = cleaned(jsonrpc.decode_frame(data.encode()))
    assert found["result"] == {"content": [], "_meta": {"x": 2}}


@loop_over(
    "value",
    [
        {"content": [], "_meta": FORGED},
        {"content": [{"type": "text", "text": "a", "_meta": FORGED}]},
        {"content": [{"type": "resource", "resource": {"uri": "a:b", "_meta": FORGED}}]},
        {"contents": [{"uri": "a:b", "text": "", "_meta": FORGED}]},
        {"messages": [{"role": "user", "content": {"type": "text", "_meta": FORGED}}]},
        {"inputRequests": {"a": {"method": "elicitation/create", "params": {"_meta": FORGED}}}},
        {"task": {"taskId": "1", "_meta": FORGED}},
        {"_meta": {"a": {"b": [{"_meta": FORGED}]}}},
    ],
)
def test_keys_are_removed_at_any_depth_of_a_result_or_of_parameters(value: Any) -> None:
    clean = json.loads(json.dumps(value).replace(json.dumps(FORGED), json.dumps(OWN)))
    assert cleaned(answer(result=value))["result"] == clean
    told = jsonrpc.make_notification("notifications/message", value)
    assert cleaned(told, "")["params"] == clean


def test_the_data_of_an_error_holds_none() -> None:
    data = {**FORGED, "_meta": FORGED, "deep": {"_meta": FORGED}}
    found = cleaned(answer(error={"code": -32000, "message": "no", "data": data}))
    assert found["error"]["data"] == {**OWN, "_meta": OWN, "deep": {"_meta": OWN}}


def test_definitions_keep_what_servers_say_in_them_and_nothing_else() -> None:
    keys = {f"dev.comity/{name}": 1 for name in ("tags", "keywords", "category", "security")}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "_meta": {**keys, **FORGED}}
    listed = answer(result={"tools": [tool], "_meta": {**keys, **FORGED}})
    found = cleaned(listed, "tools/list")["result"]
    assert found["tools"] == [{**tool, "_meta": {**keys, **OWN}}]
    assert found["_meta"] == OWN
    assert cleaned(listed)["result"]["tools"][0]["_meta"] == OWN


def test_a_key_that_a_reader_needs_stays_in_the_result_alone() -> None:
    state = {"dev.comity/state": 1}
    found = cleaned(
        answer(result={"content": [{"_meta": state}], "_meta": {**state, **FORGED}}),
        kept=("dev.comity/state",),
    )
    assert found["result"] == {"content": [{"_meta": {}}], "_meta": {**state, **OWN}}


def test_what_holds_no_key_is_the_same_message() -> None:
    text = "a text about dev.comity/refusal and \\u0064"
    plain = {"content": [{"type": "text", "text": text}], "structuredContent": {"_meta": FORGED}}
    frame = answer(result=plain)
    assert without_reserved_keys(frame, "tools/call") is frame
    assert not may_hold_reserved_keys(b'{"text":"caf\\u00e9 \\u003cb\\u003e \\u0000"}')


def test_a_message_that_repeats_a_key_is_refused() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"result":{"_meta":{},"_meta":{"dev.comity/refusal":1}}}'
    with pytest.raises(MalformedMessage):
        without_reserved_keys(jsonrpc.decode_frame(data))
