"""Resources that scripted servers are asked to tell of, and tell of."""

import msgspec
import pytest

from comity.kernel import following
from comity.wire import jsonrpc, mcp
from comity.wire.jsonrpc import Frame
from tests.kernel.bridged import inside
from tests.kernel.carriers import Params, Script, params_of
from tests.kernel.server_house import AT_ONCE

A, B = "file:///a", "file:///b"
each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


def leave_out_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "Backoff", lambda: AT_ONCE)


def listened(script: Script) -> list[object]:
    asked = [frame for each in script.open for frame in each.asked(mcp.LISTEN)]
    filters = [inside(params_of(frame), "notifications") for frame in asked]
    found = [each.get("resourceSubscriptions", []) for each in filters]
    return [uri for uris in found for uri in msgspec.convert(uris, list[object])]


def listens(script: Script, uri: str) -> Frame:
    """The last request of ours to hear of this resource."""
    (carrier,) = script.open
    return [
        frame
        for frame in carrier.asked(mcp.LISTEN)
        if params_of(frame)["notifications"] == {"resourceSubscriptions": [uri]}
    ][-1]


def agrees(script: Script, uri: str) -> None:
    says(script, uri, mcp.ACKNOWLEDGED, {"notifications": {"resourceSubscriptions": [uri]}})


def says(script: Script, uri: str, method: str, params: Params) -> None:
    (carrier,) = script.open
    asked = listens(script, uri)
    stamped = {**params, "_meta": {mcp.SUBSCRIPTION_ID: asked.id}}
    carrier.says(jsonrpc.notification(method, stamped), asked)
