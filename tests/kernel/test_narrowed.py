"""What is listened for at a server of the modern era: no resource that may not be read."""

from typing import Any

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.subscribing import narrowed
from comity.wire import jsonrpc, mcp
from comity.wire.jsonrpc import Frame


def listening(wanted: dict[str, Any]) -> tuple[Call, Frame]:
    frame = jsonrpc.request(1, mcp.LISTEN, {"notifications": wanted, "kept": 1})
    return Call(frame, Outbox(), None, 0), frame


def wanted_in(frame: Frame) -> object:
    return jsonrpc.value(jsonrpc.params_of(frame)["notifications"])


def test_what_may_not_be_read_is_not_asked_for() -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["x:1", "x:2"]}
    call, frame = listening(wanted)
    left = narrowed(call, frame, lambda uri: uri == "x:1")
    assert wanted_in(left) == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
    assert jsonrpc.value(jsonrpc.params_of(left)["kept"]) == 1


def test_what_may_be_read_is_asked_for_as_it_is() -> None:
    call, frame = listening({"resourceSubscriptions": ["x:1"]})
    assert narrowed(call, frame, lambda _: True) is frame


def test_what_may_not_be_read_any_more_is_not_told() -> None:
    readable = {"x:1", "x:2"}
    call, frame = listening({"resourceSubscriptions": ["x:1", "x:2"]})
    narrowed(call, frame, readable.__contains__)
    retell = call.retell
    assert retell is not None
    told = jsonrpc.notification(mcp.RESOURCE_UPDATED, {"uri": "x:2"})
    other = jsonrpc.notification(mcp.TOOLS_CHANGED)
    assert retell(told) is told
    readable.discard("x:2")
    assert retell(told) is None
    assert retell(other) is other
