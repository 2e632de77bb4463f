"""Each message of one era, as the other says it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules import eras, tasks
from comity.rules.eras import Said
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, UPSTREAM_FAILED, MalformedMessage
from comity.wire.jsonrpc import Frame
from tests.rules.said import (
    Object,
    as_object,
    json_values,
    objects,
    odd,
    params_in,
    raw,
    raws,
    result_in,
)

ENVELOPE: Object = {
    mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
    mcp.CLIENT_CAPABILITIES: {"elicitation": {}},
    mcp.CLIENT_INFO: {"name": "c", "version": "1"},
    mcp.LOG_LEVEL: "info",
}
ABOUT = raw({"name": "s", "version": "2"})
METHODS = st.sampled_from(sorted(eras.CROSSING))


def call(params: object, method: str = mcp.CALL_TOOL) -> Frame:
    return jsonrpc.request(7, method, params)


def answer(result: object) -> Frame:
    return jsonrpc.result(7, result)


def notice(method: str, params: object) -> Frame:
    return jsonrpc.notification(method, params)


# Requests.


def test_an_envelope_says_what_its_client_is_and_can() -> None:
    said = eras.said_in(call({"_meta": {**ENVELOPE, "progressToken": 3}}))
    assert {name: jsonrpc.value(terms) for name, terms in said.capabilities.items()} == {
        "elicitation": {}
    }
    assert said.info == raw({"name": "c", "version": "1"})
    assert said.level == "info"
    assert said.token == raw(3)


def test_a_request_without_an_envelope_says_nothing_of_its_client() -> None:
    assert eras.said_in(call({})) == Said({}, None, None, None)


def test_a_modern_request_loses_its_envelope_its_round_and_its_task() -> None:
    meta = {**ENVELOPE, "progressToken": "mine", "vendor": 1}
    frame = call(
        {
            "name": "t",
            "arguments": {"a": 1},
            "task": {"ttl": 5},
            "inputResponses": {"k": {}},
            "requestState": "s",
            "_meta": meta,
        }
    )
    plain = eras.handshake_request(frame, "ours")
    assert params_in(plain) == {
        "name": "t",
        "arguments": {"a": 1},
        "_meta": {"progressToken": "ours", "vendor": 1},
    }
    assert (plain.id, plain.method) == (7, mcp.CALL_TOOL)


def test_a_client_that_gave_no_progress_token_is_given_none() -> None:
    assert params_in(eras.handshake_request(call({"_meta": ENVELOPE}), "ours")) == {}


def test_a_handshake_request_gains_the_envelope_of_its_client() -> None:
    said = Said(raws({"sampling": {}, "tasks": {}}), raw({"name": "c"}), "error")
    frame = call({"name": "t", "task": {}, "requestState": "x", "_meta": {"progressToken": 1}})
    assert params_in(eras.modern_request(frame, said)) == {
        "name": "t",
        "_meta": {
            "progressToken": 1,
            mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
            mcp.CLIENT_CAPABILITIES: {"sampling": {}},
            mcp.CLIENT_INFO: {"name": "c"},
            mcp.LOG_LEVEL: "error",
        },
    }


def test_a_client_cannot_write_its_own_envelope_in_the_handshake_era() -> None:
    forged = call({"_meta": {**ENVELOPE, mcp.CLIENT_CAPABILITIES: {"sampling": {}}}})
    meta = params_in(eras.modern_request(forged, Said({})))["_meta"]
    assert meta == {mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN, mcp.CLIENT_CAPABILITIES: {}}


@given(
    objects("_meta", "task", *eras.ROUND),
    objects("progressToken", *eras.ENVELOPE),
    objects("tasks"),
)
def test_a_request_said_in_the_other_era_and_back_is_the_same(
    params: Object, meta: Object, capabilities: Object
) -> None:
    frame = call({**params, "_meta": meta} if meta else params)
    said = Said(raws(capabilities), ABOUT, "info")
    modern = eras.modern_request(frame, said)
    assert eras.said_in(modern) == Said(raws(capabilities), ABOUT, "info", None)
    back = eras.handshake_request(modern, "ours")
    assert params_in(back) == params_in(frame)
    assert (back.id, back.method) == (frame.id, frame.method)


# Results.


def test_a_modern_result_loses_its_stamps() -> None:
    result: Object = {
        "resultType": "complete",
        "ttlMs": 1,
        "cacheScope": "public",
        "contents": [],
        "_meta": {mcp.SERVER_INFO: {"name": "s"}, "vendor": 1},
    }
    plain = eras.handshake_result(answer(result), mcp.READ_RESOURCE)
    assert result_in(plain) == {"contents": [], "_meta": {"vendor": 1}}


def test_a_result_without_other_words_of_its_own_has_none() -> None:
    result: Object = {"content": [], "_meta": {mcp.SERVER_INFO: {"name": "s"}}}
    assert result_in(eras.handshake_result(answer(result), mcp.CALL_TOOL)) == {"content": []}


@pytest.mark.parametrize("kind", ["input_required", "task", 7, None, ["complete"]])
def test_a_result_of_a_kind_that_only_one_era_has_is_refused(kind: object) -> None:
    with pytest.raises(MalformedMessage) as refused:
        eras.handshake_result(answer({"resultType": kind}), mcp.CALL_TOOL)
    assert refused.value.fault is UPSTREAM_FAILED


@pytest.mark.parametrize("content", [[1], "text", 7, None, True])
def test_only_an_object_is_structured_content_in_the_handshake_era(content: object) -> None:
    result: Object = {"content": [], "structuredContent": content}
    assert result_in(eras.handshake_result(answer(result), mcp.CALL_TOOL)) == {"content": []}
    kept: Object = {"content": [], "structuredContent": {"a": content}}
    assert result_in(eras.handshake_result(answer(kept), mcp.CALL_TOOL)) == kept


@pytest.mark.parametrize(
    ("schema", "is_kept"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"type": "array"}, False),
        ({"anyOf": []}, False),
        ({}, False),
    ],
)
def test_a_handshake_client_sees_outputs_that_are_objects_alone(
    schema: Object, is_kept: bool
) -> None:
    tool: Object = {"name": "t", "inputSchema": {"type": "object"}}
    listed: Object = {"tools": [{**tool, "outputSchema": schema}, tool]}
    plain = result_in(eras.handshake_result(answer(listed), mcp.LIST_TOOLS))
    assert plain == {"tools": [{**tool, "outputSchema": schema} if is_kept else tool, tool]}


@pytest.mark.parametrize(
    "definition",
    [
        b'{"name":"outputSchema"}',
        b'{"outputSchema":[]}',
        b'{"outputSchema":{"type":"array","type":"object"}}',
        b"[outputSchema",
    ],
)
def test_a_definition_that_cannot_be_judged_is_left_as_it_is(definition: bytes) -> None:
    assert eras.handshake_tool(definition) == definition


@pytest.mark.parametrize("listed", [{"tools": {}}, {"tools": [1]}, {"tools": None}])
def test_a_list_that_is_none_is_refused(listed: Object) -> None:
    with pytest.raises(MalformedMessage):
        eras.handshake_result(answer(listed), mcp.LIST_TOOLS)


def test_an_empty_answer_to_a_list_stays_empty() -> None:
    assert result_in(eras.handshake_result(answer({}), mcp.LIST_TOOLS)) == {}


@pytest.mark.parametrize(
    ("method", "stamps"),
    [
        (mcp.CALL_TOOL, {}),
        (mcp.COMPLETE, {}),
        (mcp.READ_RESOURCE, {"ttlMs": 0, "cacheScope": "private"}),
        *((name, {"ttlMs": 5000, "cacheScope": "private"}) for name in sorted(eras.LISTS)),
    ],
)
def test_a_handshake_result_gains_the_stamps_of_its_method(method: str, stamps: Object) -> None:
    result: Object = {"kept": 1, "resultType": "strange", "_meta": {"vendor": 1, tasks.RELATED: {}}}
    modern = eras.modern_result(answer(result), method, ABOUT)
    meta = {"vendor": 1, mcp.SERVER_INFO: {"name": "s", "version": "2"}}
    assert result_in(modern) == {"kept": 1, "resultType": "complete", **stamps, "_meta": meta}


def test_a_server_that_did_not_name_itself_is_not_named() -> None:
    forged: Object = {"_meta": {mcp.SERVER_INFO: {"name": "another"}}}
    assert result_in(eras.modern_result(answer(forged), mcp.CALL_TOOL, None)) == {
        "resultType": "complete"
    }


@given(objects("_meta", "structuredContent", "tools", *eras.STAMPS), objects(mcp.SERVER_INFO))
def test_a_result_said_in_the_other_era_and_back_is_the_same(result: Object, meta: Object) -> None:
    frame = answer({**result, "_meta": meta} if meta else result)
    for method in eras.CROSSING:
        modern = eras.modern_result(frame, method, ABOUT)
        assert result_in(eras.handshake_result(modern, method)) == result_in(frame)


def test_a_resource_that_is_not_there_has_another_number_in_the_modern_era() -> None:
    frame = jsonrpc.failure(7, RESOURCE_NOT_FOUND, "no such resource", {"uri": "a://b"})
    error = jsonrpc.error_of(eras.modern_error(frame, mcp.READ_RESOURCE))
    assert error is not None
    assert (error.code, error.message) == (INVALID_PARAMS.code, "no such resource")
    assert as_object(error.data)["uri"] == "a://b"


def test_every_other_error_keeps_its_number() -> None:
    vendors = jsonrpc.failure(7, RESOURCE_NOT_FOUND, "mine")
    assert eras.modern_error(vendors, mcp.CALL_TOOL) is vendors
    other = jsonrpc.failure(7, INVALID_PARAMS, "no")
    assert eras.modern_error(other, mcp.READ_RESOURCE) is other
    good = answer({})
    assert eras.modern_error(good, mcp.READ_RESOURCE) is good


# What a server says of itself.


def test_a_modern_server_welcomes_a_handshake_client() -> None:
    said = raws(
        {
            "capabilities": {"tools": {"listChanged": True}, "extensions": {"e": {}}},
            "instructions": "be kind",
            "_meta": {mcp.SERVER_INFO: {"name": "s"}},
        }
    )
    assert msgspec.json.decode(jsonrpc.to_json(eras.welcome(said, "2025-06-18"))) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "s"},
        "instructions": "be kind",
    }


@pytest.mark.parametrize("wanted", [None, "2026-07-28", "1999-01-01"])
def test_a_client_is_offered_the_latest_of_its_era_for_a_version_that_is_not(
    wanted: str | None,
) -> None:
    assert eras.welcome({}, wanted)["protocolVersion"] == mcp.LATEST_HANDSHAKE


def test_a_server_without_a_name_is_unnamed_and_one_in_the_old_place_is_found() -> None:
    assert eras.welcome({}, None)["serverInfo"] == {"name": "unnamed", "version": "0"}
    assert eras.welcome({"serverInfo": ABOUT}, None)["serverInfo"] == ABOUT


def test_a_handshake_server_is_discovered() -> None:
    hello = raws(
        {
            "capabilities": {"tools": {}, "tasks": {}},
            "serverInfo": {"name": "s"},
            "instructions": "be kind",
        }
    )
    assert msgspec.json.decode(jsonrpc.to_json(eras.discovered(hello))) == {
        "resultType": "complete",
        "supportedVersions": [mcp.LATEST_MODERN],
        "capabilities": {"tools": {}},
        "ttlMs": 5000,
        "cacheScope": "private",
        "_meta": {mcp.SERVER_INFO: {"name": "s"}},
        "instructions": "be kind",
    }


@pytest.mark.parametrize("broken", [[], None, "tools", 7])
def test_capabilities_that_are_none_are_none(broken: object) -> None:
    assert eras.discovered(raws({"capabilities": broken}))["capabilities"] == {}
    assert eras.welcome(raws({"capabilities": broken}), None)["capabilities"] == {}


# Notices.


@pytest.mark.parametrize("method", sorted(eras.NOT_AMID_A_CALL))
def test_what_belongs_to_no_call_is_told_to_nobody_amid_one(method: str) -> None:
    assert eras.retold(notice(method, {}), Said({}, level="debug", token=raw(1))) is None
    assert eras.retold_plainly(notice(method, {})) is None


@pytest.mark.parametrize("method", [mcp.PROGRESS, mcp.MESSAGE, "notifications/vendor.x"])
def test_a_handshake_client_hears_the_rest_as_it_is(method: str) -> None:
    frame = notice(method, {"a": 1})
    assert eras.retold_plainly(frame) is frame


def test_a_vendors_notice_reaches_a_modern_client() -> None:
    frame = notice("notifications/vendor.x", [1])
    assert eras.retold(frame, Said({})) is frame


def test_progress_bears_the_token_of_the_request_that_stands_now() -> None:
    frame = notice(mcp.PROGRESS, {"progressToken": "comity-1", "progress": 0.5, "vendor": 1})
    told = eras.retold(frame, Said({}, token=raw("mine")))
    assert told is not None
    assert params_in(told) == {"progressToken": "mine", "progress": 0.5, "vendor": 1}
    assert eras.retold(frame, Said({})) is None


@pytest.mark.parametrize(
    ("level", "least", "is_heard"),
    [
        ("error", "info", True),
        ("info", "info", True),
        ("debug", "info", False),
        ("info", None, False),
        ("info", "loud", False),
        ("loud", "info", False),
        (7, "info", False),
    ],
)
def test_a_log_message_reaches_those_who_asked_for_its_level(
    level: object, least: str | None, is_heard: bool
) -> None:
    frame = notice(mcp.MESSAGE, {"level": level, "data": "x"})
    assert eras.retold(frame, Said({}, level=least)) is (frame if is_heard else None)


# Strangers.

_ODD = odd(
    *eras.ENVELOPE, *eras.ROUND, *eras.STAMPS, "_meta", "task", "progressToken", "level", "tools",
    "structuredContent", "capabilities", "serverInfo", "instructions", mcp.SERVER_INFO,
)  # fmt: skip


@given(st.one_of(json_values, _ODD, _ODD.map(lambda found: {"_meta": found})), METHODS)
def test_whatever_a_stranger_says_is_understood_or_malformed(said: object, method: str) -> None:
    asked, answered = call(said, method), answer(said)
    for attempt in (
        lambda: eras.said_in(asked),
        lambda: eras.handshake_request(asked, "t"),
        lambda: eras.modern_request(asked, Said({})),
        lambda: eras.handshake_result(answered, method),
        lambda: eras.modern_result(answered, method, None),
        lambda: eras.retold(notice(mcp.MESSAGE, said), Said({}, level="info")),
        lambda: eras.retold(notice(mcp.PROGRESS, said), Said({}, token=raw(1))),
        lambda: eras.modern_error(Frame("2.0", 7, error=raw(said)), mcp.READ_RESOURCE),
        lambda: eras.handshake_tool(jsonrpc.to_json(said)),
    ):
        try:
            attempt()
        except MalformedMessage:
            continue


@given(_ODD)
def test_whatever_a_server_says_of_itself_is_no_fault_of_its_clients(said: Object) -> None:
    found: dict[str, Raw] = raws(said)
    assert eras.discovered(found)["supportedVersions"] == [mcp.LATEST_MODERN]
    assert eras.welcome(found, None)["protocolVersion"] == mcp.LATEST_HANDSHAKE
