"""A modern client at stdio that calls off what has not found its way yet."""

import asyncio
import json
from typing import cast

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session, Sessions
from comity.ports import Headers
from comity.surfaces.mcp_stdio import Conversing
from comity.wire.jsonrpc import Frame
from comity.wire.parties import Actor
from tests.kernel.carriers import Clock, until
from tests.surfaces.visitor import ENVELOPE


class Withdrawn(Call):
    """A call that remembers whether it was called off."""

    times = 0

    def withdraw(self, reason: object) -> None:
        self.times += 1
        self.outbox.end()


class SlowDesk:
    """Finds the way of a call when the test says so."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()
        self.calls: list[Withdrawn] = []

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        raise AssertionError("nobody shakes hands here")

    def opens_to(self, actor: Actor) -> bool:
        return True

    def hear(self, session: Session, frame: Frame) -> None: ...

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        self.calls.append(Withdrawn(frame, outbox, None, 0))
        await self.may_go.wait()
        return self.calls[-1]


class Written:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.lines.append(data)

    async def drain(self) -> None: ...


async def test_a_call_is_called_off_before_it_found_its_way() -> None:
    desk, reader, writer = SlowDesk(), asyncio.StreamReader(), Written()
    conversing = Conversing(desk, Sessions(Clock(), 10, 1000))
    running = asyncio.ensure_future(conversing.run(reader, cast("asyncio.StreamWriter", writer)))

    def say(**frame: object) -> None:
        reader.feed_data(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    asked = {"name": "t", "_meta": ENVELOPE}
    say(id=1, method="tools/call", params=asked)
    await until(lambda: desk.calls)
    # Its id is in use, though nobody knows yet where it goes.
    say(id=1, method="tools/call", params=asked)
    await until(lambda: writer.lines)
    assert json.loads(writer.lines[0])["error"]["code"] == -32600
    say(method="notifications/cancelled", params={"requestId": 1})
    desk.may_go.set()
    await until(lambda: desk.calls[0].times)
    reader.feed_eof()
    async with asyncio.timeout(10):
        await running
    assert [call.times for call in desk.calls] == [1]
    assert len(writer.lines) == 1
