"""Tasks at the door of all servers: what their names are there."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.task_routes import modern_link, publish
from comity.rules.tasks import TaskNames
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage
from comity.wire.mcp import Era
from tests.kernel.asking import AGENT

NAMES = TaskNames(b"k" * 32)


def _call() -> Call:
    outbox = Outbox()
    outbox.actor = AGENT
    return Call(jsonrpc.request(1, mcp.CALL_TOOL, {}), outbox, None, 0)


def test_a_task_is_named_in_public_form_wherever_it_is_said() -> None:
    call = _call()
    publish(call, "files", NAMES)
    public = NAMES.public(AGENT.party, "files", "t1")
    assert call.adapt is not None
    assert call.retell is not None
    answer = call.adapt(jsonrpc.result(1, {"task": {"taskId": "t1"}}))
    assert json.loads(bytes(cast("Any", answer.result)))["task"]["taskId"] == public
    told = call.retell(jsonrpc.notification("notifications/tasks/status", {"taskId": "t1"}))
    assert told is not None
    assert public.encode() in bytes(cast("Any", told.params))


def test_what_names_no_task_stays_as_it_is() -> None:
    call = _call()
    publish(call, "files", NAMES)
    assert call.adapt is not None
    assert call.retell is not None
    plain = jsonrpc.notification("notifications/message")
    assert call.retell(plain) is plain
    failed = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    assert call.adapt(failed) is failed


async def test_a_server_of_the_other_era_has_no_such_tasks() -> None:
    reached = SimpleNamespace(eras={Era.HANDSHAKE})
    with pytest.raises(MalformedMessage, match="no tasks of this era"):
        await modern_link(cast("Any", SimpleNamespace(reached=reached)))
