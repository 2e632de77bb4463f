"""A handshake client's call before a modern server, for the tests of how it goes on and ends."""

import pytest

from comity.kernel.sessions import Session
from comity.wire import mcp
from comity.wire.jsonrpc import Frame
from tests.kernel.bridged import EVERYTHING, FORM, Bridged
from tests.kernel.carriers import Params, until
from tests.kernel.desks import Asked
from tests.kernel.refused import kind_of, refusal_in

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])
CALL: Params = {"name": "t", "arguments": {"a": 1}, "_meta": {"vendor": 1}}
NAME: Params = {"method": mcp.ELICIT, "params": FORM}


async def begun(house: Bridged, **can: object) -> tuple[Session, Asked]:
    """A handshake client's tool call that has reached the server."""
    session = await house.front.client(**(can or EVERYTHING))
    asked = house.front.ask(session, mcp.CALL_TOOL, CALL)
    await until(lambda: house.calls)
    return session, asked


def refused_in(frame: Frame) -> str:
    return kind_of(refusal_in(frame))
