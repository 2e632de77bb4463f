"""How a call in the express lane is answered: its ends at the door are in test_mcp_http."""

import asyncio
from typing import Any

import pytest

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.surfaces.express import Continuation, Express
from comity.surfaces.replying import Reply
from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, Unavailable


class Lane:
    """Notes what becomes of a request."""

    address = "192.0.2.1"

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.continued_with: list[Continuation] = []

    def written(self, request: Express, data: bytes) -> None:
        self.said.append(data)

    def continued(self, request: Express, continuation: Continuation) -> None:
        self.continued_with.append(continuation)


def begun() -> tuple[Lane, Express, Outbox, Reply]:
    lane, outbox = Lane(), Outbox()
    request = Express(lane, b"/mcp", {}, [], b"", True)

    async def stream(receive: Any, send: Any) -> None:
        raise NotImplementedError

    return lane, request, outbox, Reply(request, outbox, lambda _call: stream)


def call_on(outbox: Outbox) -> Call:
    return Call(jsonrpc.request(1, "tools/call", {}), outbox, None, 0.0)


async def test_an_answer_that_is_there_at_once_is_said_at_once() -> None:
    lane, _, outbox, reply = begun()

    async def ask() -> Call:
        outbox.finish(b"{}")
        return call_on(outbox)

    reply.ask(ask())
    assert [data[-2:] for data in lane.said] == [b"{}"]


async def test_an_answer_that_comes_later_is_said_when_it_comes() -> None:
    lane, _, outbox, reply = begun()
    asked = asyncio.Event()

    async def ask() -> Call:
        await asyncio.sleep(0)
        asked.set()
        return call_on(outbox)

    reply.ask(ask())
    await asked.wait()
    await asyncio.sleep(0)
    assert lane.said == []
    outbox.finish(b"{}", 404)
    assert lane.said[0].startswith(b"HTTP/1.1 404 Not Found\r\n")


async def test_nothing_of_an_answered_call_waits_for_a_sweep() -> None:
    """What holds itself is found by the garbage collector alone, at the cost of every call."""
    _, request, outbox, reply = begun()

    async def ask() -> Call:
        return call_on(outbox)

    reply.ask(ask(), ends_with_client=True)
    assert request.on_lost is not None
    outbox.finish(b"{}")
    assert request.on_lost is None


async def test_what_is_told_before_the_answer_makes_it_a_stream() -> None:
    lane, _, outbox, reply = begun()

    async def ask() -> Call:
        return call_on(outbox)

    reply.ask(ask())
    outbox.put(b"{}")
    outbox.finish(b"{}")
    assert lane.said == []
    assert len(lane.continued_with) == 1


async def test_a_call_that_takes_long_goes_on_where_its_client_is_watched() -> None:
    lane, _, outbox, reply = begun()
    call = call_on(outbox)

    async def ask() -> Call:
        return call

    reply.ask(ask(), ends_with_client=True)
    assert call.on_long is not None
    call.on_long()
    assert len(lane.continued_with) == 1
    assert outbox.on_ready is None


async def test_a_client_that_goes_withdraws_the_call_that_ends_with_it() -> None:
    lane, request, outbox, reply = begun()

    async def ask() -> Call:
        return call_on(outbox)

    reply.ask(ask(), ends_with_client=True)
    request.lose()
    assert outbox.final
    assert lane.said == []


async def test_a_client_that_goes_while_its_call_is_at_the_gate_withdraws_it_too() -> None:
    lane, request, outbox, reply = begun()
    passes = asyncio.Event()

    async def ask() -> Call:
        await passes.wait()
        return call_on(outbox)

    reply.ask(ask(), ends_with_client=True)
    request.lose()
    assert not outbox.final
    passes.set()
    async with asyncio.timeout(5):
        while not outbox.final:
            await asyncio.sleep(0)
    assert lane.said == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unavailable("full", EXHAUSTED), b"503"), (RuntimeError("a bug"), b"500")],
    ids=["refused", "bug"],
)
async def test_a_call_that_could_not_begin_is_refused(error: Exception, status: bytes) -> None:
    lane, _, _, reply = begun()

    async def ask() -> Call:
        raise error

    reply.ask(ask())
    assert lane.said[0].startswith(b"HTTP/1.1 " + status)
    assert b"a bug" not in lane.said[0]
