"""The words of the gateway's own tasks, in both eras."""

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from comity.rules import own_tasks, tasks
from comity.rules.own_tasks import Shown, Status
from comity.wire import jsonrpc, mcp
from comity.wire.jsonrpc import Frame

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
SHOWN = Shown("~:mark:t", Status.WORKING, "waiting", NOW, NOW)
EXTENSION = tasks.EXTENSION.decode()


def _call(capabilities: object = None, **members: object) -> Frame:
    said: object = {} if capabilities is None else capabilities
    meta = {mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN, mcp.CLIENT_CAPABILITIES: said}
    params: dict[str, object] = {"name": "x", "_meta": meta, **members}
    return jsonrpc.request(1, mcp.CALL_TOOL, params)


def test_a_client_wants_a_task_in_the_words_of_its_era() -> None:
    declared = _call({"extensions": {EXTENSION: {}}})
    assert own_tasks.wants_task(declared, modern=True)
    assert not own_tasks.wants_task(declared, modern=False)
    assert own_tasks.wants_task(_call(task={}), modern=False)
    assert not own_tasks.wants_task(_call(task={}), modern=True)
    # To speak of it elsewhere is not to declare it.
    assert not own_tasks.wants_task(_call(arguments={"a": EXTENSION}), modern=True)
    assert not own_tasks.wants_task(_call({"extensions": [EXTENSION]}), modern=True)


def test_a_call_goes_on_as_no_task_and_with_nobody_to_ask() -> None:
    frame = _call({"elicitation": {}, "extensions": {EXTENSION: {}}}, task={"ttl": 1})
    params = json.loads(bytes(cast("Any", own_tasks.apart(frame).params)))
    assert "task" not in params
    assert params["_meta"][mcp.CLIENT_CAPABILITIES] == {}
    plain = jsonrpc.request(1, mcp.CALL_TOOL, {"name": "x", "_meta": {"progressToken": 1}})
    params = json.loads(bytes(cast("Any", own_tasks.apart(plain).params)))
    assert params["_meta"] == {"progressToken": 1}


def test_a_task_is_told_of_in_the_words_of_its_era() -> None:
    old, new = (own_tasks.begun(SHOWN, modern=modern) for modern in (False, True))
    task = cast("dict[str, object]", old["task"])
    assert {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"} <= set(task)
    assert new["resultType"] == "task"
    assert {"taskId", "status", "ttlMs", "pollIntervalMs"} <= set(new)
    assert {"task", "ttl", "pollInterval", "requestState"}.isdisjoint(new)


def test_the_end_stands_in_the_modern_task_alone() -> None:
    done = Shown("~:mark:t", Status.COMPLETED, "", NOW, NOW)
    answer = jsonrpc.result(1, {"content": []})
    assert "result" not in own_tasks.got(done, answer, modern=False)
    assert "result" in own_tasks.got(done, answer, modern=True)
    failed = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    told = own_tasks.got(Shown("t", Status.FAILED, "", NOW, NOW), failed, modern=True)
    assert "error" in told
    assert "result" not in told


@pytest.mark.parametrize(
    ("result", "old", "new"),
    [
        ({"content": []}, Status.COMPLETED, Status.COMPLETED),
        ({"content": [], "isError": False}, Status.COMPLETED, Status.COMPLETED),
        ({"content": [], "isError": True}, Status.FAILED, Status.COMPLETED),
    ],
    ids=str,
)
def test_a_tools_own_error_is_a_result_to_the_modern(
    result: dict[str, object], old: Status, new: Status
) -> None:
    answer = jsonrpc.result(1, result)
    assert own_tasks.status_of(answer, modern=False) is old
    assert own_tasks.status_of(answer, modern=True) is new


def test_a_result_says_of_which_task_it_is() -> None:
    answer = own_tasks.related(jsonrpc.result(1, {"content": [], "_meta": {"a": 1}}), "t")
    said = json.loads(bytes(cast("Any", answer.result)))
    assert said["_meta"] == {"a": 1, tasks.RELATED: {"taskId": "t"}}
    failed = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    assert own_tasks.related(failed, "t") is failed
