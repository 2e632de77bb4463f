"""Requests, results, notifications and tasks of one protocol version in the words of the other."""

import json
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, UPSTREAM_FAILED, MalformedMessage
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.eras import ClientInfo, TaskStatus, TaskView
from comity.mcp.jsonrpc import Frame
from tests.mcp.json_values import (
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
from tests.support.cases import loop_over

ENVELOPE: Object = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    protocol.CLIENT_CAPABILITIES: {"elicitation": {}},
    protocol.CLIENT_INFO: {"name": "c", "version": "1"},
    protocol.LOG_LEVEL: "info",
}
ABOUT = raw({"name": "s", "version": "2"})
METHODS = st.sampled_from(sorted(eras.CROSSING))


def call(params: object, method: str = protocol.CALL_TOOL) -> Frame:
    return jsonrpc.make_request(7, method, params)


def answer(result: object) -> Frame:
    return jsonrpc.make_result(7, result)


def notice(method: str, params: object) -> Frame:
    return jsonrpc.make_notification(method, params)


# Requests.


def test_an_envelope_says_what_its_client_is_and_can() -> None:
    said = eras.client_declaration_in(call({"_meta": {**ENVELOPE, "progressToken": 3}}))
    assert {name: jsonrpc.decode_value(terms) for name, terms in said.capabilities.items()} == {
        "elicitation": {}
    }
    assert said.info == raw({"name": "c", "version": "1"})
    assert said.level == "info"
    assert said.token == raw(3)


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
    assert (plain.id, plain.method) == (7, protocol.CALL_TOOL)


def test_a_handshake_request_gains_the_envelope_of_its_client() -> None:
    said = ClientInfo(raws({"sampling": {}, "tasks": {}}), raw({"name": "c"}), "error")
    frame = call({"name": "t", "task": {}, "requestState": "x", "_meta": {"progressToken": 1}})
    assert params_in(eras.modern_request(frame, said)) == {
        "name": "t",
        "_meta": {
            "progressToken": 1,
            protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
            protocol.CLIENT_CAPABILITIES: {"sampling": {}},
            protocol.CLIENT_INFO: {"name": "c"},
            protocol.LOG_LEVEL: "error",
        },
    }


def test_a_client_cannot_write_its_own_envelope_in_the_handshake_era() -> None:
    forged = call({"_meta": {**ENVELOPE, protocol.CLIENT_CAPABILITIES: {"sampling": {}}}})
    meta = params_in(eras.modern_request(forged, ClientInfo({})))["_meta"]
    assert meta == {
        protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
        protocol.CLIENT_CAPABILITIES: {},
    }


@given(
    objects("_meta", "task", *eras.ROUND),
    objects("progressToken", *eras.ENVELOPE),
    objects("tasks"),
)
def test_a_request_said_in_the_other_era_and_back_is_the_same(
    params: Object, meta: Object, capabilities: Object
) -> None:
    frame = call({**params, "_meta": meta} if meta else params)
    said = ClientInfo(raws(capabilities), ABOUT, "info")
    modern = eras.modern_request(frame, said)
    assert eras.client_declaration_in(modern) == ClientInfo(raws(capabilities), ABOUT, "info", None)
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
        "_meta": {protocol.SERVER_INFO: {"name": "s"}, "vendor": 1},
    }
    plain = eras.handshake_result(answer(result), protocol.READ_RESOURCE)
    assert result_in(plain) == {"contents": [], "_meta": {"vendor": 1}}
    stamped: Object = {"content": [], "_meta": {protocol.SERVER_INFO: {"name": "s"}}}
    assert result_in(eras.handshake_result(answer(stamped), protocol.CALL_TOOL)) == {"content": []}
    assert result_in(eras.handshake_result(answer({}), protocol.LIST_TOOLS)) == {}


@loop_over("kind", ["input_required", "task", 7, None, ["complete"]])
def test_a_result_of_a_kind_that_only_one_era_has_is_refused(kind: object) -> None:
    with pytest.raises(MalformedMessage) as refused:
        eras.handshake_result(answer({"resultType": kind}), protocol.CALL_TOOL)
    assert refused.value.fault is UPSTREAM_FAILED


@loop_over("content", [[1], "text", 7, None, True])
def test_only_an_object_is_structured_content_in_the_handshake_era(content: object) -> None:
    result: Object = {"content": [], "structuredContent": content}
    assert result_in(eras.handshake_result(answer(result), protocol.CALL_TOOL)) == {"content": []}
    kept: Object = {"content": [], "structuredContent": {"a": content}}
    assert result_in(eras.handshake_result(answer(kept), protocol.CALL_TOOL)) == kept


@loop_over(
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
    plain = result_in(eras.handshake_result(answer(listed), protocol.LIST_TOOLS))
    assert plain == {"tools": [{**tool, "outputSchema": schema} if is_kept else tool, tool]}


@loop_over(
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


@loop_over("listed", [{"tools": {}}, {"tools": [1]}, {"tools": None}])
def test_a_list_that_is_none_is_refused(listed: Object) -> None:
    with pytest.raises(MalformedMessage):
        eras.handshake_result(answer(listed), protocol.LIST_TOOLS)


@loop_over(
    ("method", "stamps"),
    [
        (protocol.CALL_TOOL, {}),
        (protocol.COMPLETE, {}),
        (protocol.READ_RESOURCE, {"ttlMs": 0, "cacheScope": "private"}),
        *((name, {"ttlMs": 5000, "cacheScope": "private"}) for name in sorted(eras.LISTS)),
    ],
)
def test_a_handshake_result_gains_the_stamps_of_its_method(method: str, stamps: Object) -> None:
    result: Object = {"kept": 1, "resultType": "strange", "_meta": {"vendor": 1, eras.RELATED: {}}}
    modern = eras.modern_result(answer(result), method, ABOUT)
    meta = {"vendor": 1, protocol.SERVER_INFO: {"name": "s", "version": "2"}}
    assert result_in(modern) == {"kept": 1, "resultType": "complete", **stamps, "_meta": meta}


def test_a_server_that_did_not_name_itself_is_not_named() -> None:
    forged: Object = {"_meta": {protocol.SERVER_INFO: {"name": "another"}}}
    assert result_in(eras.modern_result(answer(forged), protocol.CALL_TOOL, None)) == {
        "resultType": "complete"
    }


@given(objects("_meta", "structuredContent", "tools", *eras.STAMPS), objects(protocol.SERVER_INFO))
def test_a_result_said_in_the_other_era_and_back_is_the_same(result: Object, meta: Object) -> None:
    frame = answer({**result, "_meta": meta} if meta else result)
    for method in eras.CROSSING:
        modern = eras.modern_result(frame, method, ABOUT)
        assert result_in(eras.handshake_result(modern, method)) == result_in(frame)


def test_a_resource_that_is_not_there_has_another_number_in_the_modern_era() -> None:
    frame = jsonrpc.make_error(7, RESOURCE_NOT_FOUND, "no such resource", {"uri": "a://b"})
    error = jsonrpc.error_of(eras.modern_error(frame, protocol.READ_RESOURCE))
    assert error is not None
    assert (error.code, error.message) == (INVALID_PARAMS.code, "no such resource")
    assert as_object(error.data)["uri"] == "a://b"


def test_every_other_error_keeps_its_number() -> None:
    vendors = jsonrpc.make_error(7, RESOURCE_NOT_FOUND, "mine")
    assert eras.modern_error(vendors, protocol.CALL_TOOL) is vendors
    other = jsonrpc.make_error(7, INVALID_PARAMS, "no")
    assert eras.modern_error(other, protocol.READ_RESOURCE) is other
    good = answer({})
    assert eras.modern_error(good, protocol.READ_RESOURCE) is good


# What a server says of itself.


def test_a_modern_server_welcomes_a_handshake_client() -> None:
    said = raws(
        {
            "capabilities": {"tools": {"listChanged": True}, "extensions": {"e": {}}},
            "instructions": "be kind",
            "_meta": {protocol.SERVER_INFO: {"name": "s"}},
        }
    )
    assert msgspec.json.decode(jsonrpc.to_json(eras.welcome_message(said, "2025-06-18"))) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "s"},
        "instructions": "be kind",
    }


@loop_over("wanted", [None, "2026-07-28", "1999-01-01"])
def test_a_client_is_offered_the_latest_of_its_era_for_a_version_that_is_not(
    wanted: str | None,
) -> None:
    assert eras.welcome_message({}, wanted)["protocolVersion"] == protocol.LATEST_HANDSHAKE


def test_a_server_without_a_name_is_unnamed_and_one_in_the_old_place_is_found() -> None:
    assert eras.welcome_message({}, None)["serverInfo"] == {"name": "unnamed", "version": "0"}
    assert eras.welcome_message({"serverInfo": ABOUT}, None)["serverInfo"] == ABOUT


def test_a_handshake_server_is_discovered() -> None:
    hello = raws(
        {
            "capabilities": {"tools": {}, "tasks": {}},
            "serverInfo": {"name": "s"},
            "instructions": "be kind",
        }
    )
    assert msgspec.json.decode(jsonrpc.to_json(eras.discover_result(hello))) == {
        "resultType": "complete",
        "supportedVersions": [protocol.LATEST_MODERN],
        "capabilities": {"tools": {}},
        "ttlMs": 5000,
        "cacheScope": "private",
        "_meta": {protocol.SERVER_INFO: {"name": "s"}},
        "instructions": "be kind",
    }


@loop_over("broken", [[], None, "tools", 7])
def test_capabilities_that_are_none_are_none(broken: object) -> None:
    assert eras.discover_result(raws({"capabilities": broken}))["capabilities"] == {}
    assert eras.welcome_message(raws({"capabilities": broken}), None)["capabilities"] == {}


# Notices.


@loop_over("method", sorted(eras.OUTSIDE_CALL_METHODS))
def test_what_belongs_to_no_call_is_told_to_nobody_amid_one(method: str) -> None:
    assert (
        eras.translate_notification(notice(method, {}), ClientInfo({}, level="debug", token=raw(1)))
        is None
    )
    assert eras.retold_plainly(notice(method, {})) is None


@loop_over("method", [protocol.PROGRESS, protocol.MESSAGE, "notifications/vendor.x"])
def test_a_handshake_client_receives_other_notifications_unchanged(method: str) -> None:
    frame = notice(method, {"a": 1})
    assert eras.retold_plainly(frame) is frame
    vendors = notice("notifications/vendor.x", [1])
    assert eras.translate_notification(vendors, ClientInfo({})) is vendors


def test_progress_bears_the_token_of_the_request_that_stands_now() -> None:
    frame = notice(protocol.PROGRESS, {"progressToken": "comity-1", "progress": 0.5, "vendor": 1})
    told = eras.translate_notification(frame, ClientInfo({}, token=raw("mine")))
    assert told is not None
    assert params_in(told) == {"progressToken": "mine", "progress": 0.5, "vendor": 1}
    assert eras.translate_notification(frame, ClientInfo({})) is None


@loop_over(
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
    frame = notice(protocol.MESSAGE, {"level": level, "data": "x"})
    assert eras.translate_notification(frame, ClientInfo({}, level=least)) is (
        frame if is_heard else None
    )


# Strangers.

_ODD = odd(
    *eras.ENVELOPE, *eras.ROUND, *eras.STAMPS, "_meta", "task", "progressToken", "level", "tools",
    "structuredContent", "capabilities", "serverInfo", "instructions", protocol.SERVER_INFO,
)  # fmt: skip


@given(st.one_of(json_values, _ODD, _ODD.map(lambda found: {"_meta": found})), METHODS)
def test_whatever_a_stranger_says_is_understood_or_malformed(said: object, method: str) -> None:
    asked, answered = call(said, method), answer(said)
    for attempt in (
        lambda: eras.client_declaration_in(asked),
        lambda: eras.handshake_request(asked, "t"),
        lambda: eras.modern_request(asked, ClientInfo({})),
        lambda: eras.handshake_result(answered, method),
        lambda: eras.modern_result(answered, method, None),
        lambda: eras.translate_notification(
            notice(protocol.MESSAGE, said), ClientInfo({}, level="info")
        ),
        lambda: eras.translate_notification(
            notice(protocol.PROGRESS, said), ClientInfo({}, token=raw(1))
        ),
        lambda: eras.modern_error(Frame("2.0", 7, error=raw(said)), protocol.READ_RESOURCE),
        lambda: eras.handshake_tool(jsonrpc.to_json(said)),
    ):
        try:
            attempt()
        except MalformedMessage:
            continue


@given(_ODD)
def test_whatever_a_server_says_of_itself_is_no_fault_of_its_clients(said: Object) -> None:
    found: dict[str, Raw] = raws(said)
    assert eras.discover_result(found)["supportedVersions"] == [protocol.LATEST_MODERN]
    assert eras.welcome_message(found, None)["protocolVersion"] == protocol.LATEST_HANDSHAKE


def renamed(text: bytes) -> object:
    changed = eras.rename_tasks(
        jsonrpc.to_raw(jsonrpc.decode_value(text)), lambda name: f"s:{name}"
    )
    return jsonrpc.decode_value(changed)


NAMES = eras.TaskIds(b"k" * 32)
MINE = "agent:mine"


@loop_over("names", [NAMES, eras.UNKEYED_TASK_IDS])
@loop_over("party", [MINE, ""])
@loop_over("tool", ["read", "", "a:b/%3A", "ключ", "\ud800"])
@loop_over("task", ["t", "a:b", ":", "ключ"])
def test_a_public_id_leads_back_to_its_server_and_tool(
    names: eras.TaskIds, party: str, tool: str, task: str
) -> None:
    public = names.public(party, "files", tool, task)
    assert names.decode(party, public) == ("files", tool, task)


@loop_over("names", [NAMES, eras.UNKEYED_TASK_IDS])
@loop_over("public", [None, "", "plain", ":a", "server:", "server::", ":::", "s:::t", "s:t:t:t"])
def test_an_id_that_was_not_given_out_here_is_refused(
    names: eras.TaskIds, public: str | None
) -> None:
    with pytest.raises(MalformedMessage):
        names.decode(MINE, public)


GIVEN = NAMES.public(MINE, "files", "read", "t")


@loop_over(
    "stolen",
    [
        NAMES.public("agent:other", "files", "read", "t"),
        GIVEN.replace(":t", ":u"),
        GIVEN.replace("files", "other"),
        GIVEN.replace(":read:", ":write:"),
        GIVEN.replace(":read:t", "::readt"),
        GIVEN.replace(":read:t", ":rea:dt"),
        eras.TaskIds(b"q" * 32).public(MINE, "files", "read", "t"),
        "files:t",
        "files::t",
        f"files:{'0' * 16}:t",
        f"files:{'0' * 16}:read:t",
    ],
)
def test_a_task_of_another_party_is_no_task(stolen: str) -> None:
    with pytest.raises(MalformedMessage, match="unknown task"):
        NAMES.decode(MINE, stolen)


def test_the_key_of_the_names_is_in_no_repr() -> None:
    assert "kkkk" not in repr(NAMES)


def test_every_place_that_holds_a_task_id_is_renamed() -> None:
    related = b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"kept":1}}'
    assert renamed(b'{"taskId":"t","status":"working"}') == {"taskId": "s:t", "status": "working"}
    assert renamed(b'{"task":{"taskId":"t","ttl":5}}') == {"task": {"taskId": "s:t", "ttl": 5}}
    assert renamed(related) == {
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "s:t"}, "kept": 1}
    }


@loop_over("text", [b"{}", b'{"taskId":7}', b'{"task":"t"}', b'{"_meta":[]}', b'{"_meta":{"a":1}}'])
def test_what_holds_no_task_id_stays_as_it_is(text: bytes) -> None:
    assert renamed(text) == jsonrpc.decode_value(text)


@loop_over(
    ("execution", "must"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": ["required"]}, False),
        ({}, False),
        ([], False),
        ("taskSupport", False),
    ],
)
def test_a_tool_that_runs_only_as_a_task_says_so(execution: object, must: bool) -> None:
    definition = jsonrpc.to_json({"name": "taskSupport", "execution": execution})
    assert eras.must_be_task(definition) is must
    assert not eras.must_be_task(b'{"name":"plain"}')


def test_a_call_is_made_a_task_and_is_otherwise_the_same() -> None:
    frame = jsonrpc.make_request(1, "tools/call", {"name": "t", "arguments": {}})
    asked = eras.as_task(frame)
    assert asked.parameters == {
        **frame.parameters,
        "task": jsonrpc.to_raw({}),
    }


def test_the_task_that_was_begun_is_named() -> None:
    begun = jsonrpc.make_result(1, {"task": {"taskId": "t-1", "status": "working"}})
    assert eras.task_in(begun) == "t-1"


@loop_over("result", [{"content": []}, {"task": []}, {"task": {"taskId": 7}}, [], {}])
def test_any_other_answer_names_no_task(result: object) -> None:
    assert eras.task_in(jsonrpc.make_result(1, result)) is None
    assert eras.task_in(jsonrpc.make_error(1, INVALID_PARAMS, "no")) is None


NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
SHOWN = TaskView("~:mark:t", TaskStatus.WORKING, "waiting", NOW, NOW)
EXTENSION = eras.EXTENSION.decode()


def _call(capabilities: object = None, **members: object) -> Frame:
    said: object = {} if capabilities is None else capabilities
    meta = {protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN, protocol.CLIENT_CAPABILITIES: said}
    params: dict[str, object] = {"name": "x", "_meta": meta, **members}
    return jsonrpc.make_request(1, protocol.CALL_TOOL, params)


def test_a_client_wants_a_task_in_the_words_of_its_era() -> None:
    declared = _call({"extensions": {EXTENSION: {}}})
    assert eras.wants_task(declared, modern=True)
    assert not eras.wants_task(declared, modern=False)
    assert eras.wants_task(_call(task={}), modern=False)
    assert not eras.wants_task(_call(task={}), modern=True)
    # To speak of it elsewhere is not to declare it.
    assert not eras.wants_task(_call(arguments={"a": EXTENSION}), modern=True)
    assert not eras.wants_task(_call({"extensions": [EXTENSION]}), modern=True)


def test_a_call_goes_on_as_no_task_and_with_nobody_to_ask() -> None:
    frame = _call({"elicitation": {}, "extensions": {EXTENSION: {}}}, task={"ttl": 1})
    params = json.loads(bytes(cast("Any", eras.detach_request(frame).params)))
    assert "task" not in params
    assert params["_meta"][protocol.CLIENT_CAPABILITIES] == {}
    plain = jsonrpc.make_request(
        1, protocol.CALL_TOOL, {"name": "x", "_meta": {"progressToken": 1}}
    )
    params = json.loads(bytes(cast("Any", eras.detach_request(plain).params)))
    assert params["_meta"] == {"progressToken": 1}


def test_a_task_is_told_of_in_the_words_of_its_era() -> None:
    old, new = (eras.task_start_result(SHOWN, modern=modern) for modern in (False, True))
    task = cast("dict[str, object]", old["task"])
    assert {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"} <= set(task)
    assert new["resultType"] == "task"
    assert {"taskId", "status", "ttlMs", "pollIntervalMs"} <= set(new)
    assert {"task", "ttl", "pollInterval", "requestState"}.isdisjoint(new)


def test_the_end_stands_in_the_modern_task_alone() -> None:
    done = TaskView("~:mark:t", TaskStatus.COMPLETED, "", NOW, NOW)
    answer = jsonrpc.make_result(1, {"content": []})
    assert "result" not in eras.task_get_result(done, answer, modern=False)
    assert "result" in eras.task_get_result(done, answer, modern=True)
    failed = jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    told = eras.task_get_result(TaskView("t", TaskStatus.FAILED, "", NOW, NOW), failed, modern=True)
    assert "error" in told
    assert "result" not in told


@loop_over(
    ("result", "old", "new"),
    [
        ({"content": []}, TaskStatus.COMPLETED, TaskStatus.COMPLETED),
        ({"content": [], "isError": False}, TaskStatus.COMPLETED, TaskStatus.COMPLETED),
        ({"content": [], "isError": True}, TaskStatus.FAILED, TaskStatus.COMPLETED),
    ],
    ids=str,
)
def test_a_tools_own_error_is_a_result_to_the_modern(
    result: dict[str, object], old: TaskStatus, new: TaskStatus
) -> None:
    answer = jsonrpc.make_result(1, result)
    assert eras.status_of(answer, modern=False) is old
    assert eras.status_of(answer, modern=True) is new


def test_a_result_says_of_which_task_it_is() -> None:
    answer = eras.relate_result(jsonrpc.make_result(1, {"content": [], "_meta": {"a": 1}}), "t")
    said = json.loads(bytes(cast("Any", answer.result)))
    assert said["_meta"] == {"a": 1, eras.RELATED: {"taskId": "t"}}
    failed = jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    assert eras.relate_result(failed, "t") is failed
