"""What the listener reads in one turn of the event loop, however many peers send at once."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from comity.http.connection import (
    DISCARDED_AT_MOST,
    PARSED_AFTER_ANSWER,
    HttpServerConnection,
    ListenerLimits,
)
from comity.http.request_turns import PORTION_BYTES, TURN_BYTES
from tests.support.listening import (
    GET,
    Application,
    Peer,
    Receive,
    Scope,
    Send,
    answer,
    echo,
    listening,
    on_both_loops,
)
from tests.support.loop_turns import Ticks

pytestmark = pytest.mark.integration

PEERS = 30
CHUNK = b"1\r\na\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
MANY_HEADERS = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 15_000
WITHOUT_END = 1_000
"""Of pieces with 240 KB. No connection reads a tenth of them before it is cut."""
WORST_TURN = 2 * (TURN_BYTES + PORTION_BYTES)
"""The bytes of two turns: one may end, and the next begin, between two ticks of the test."""


@asynccontextmanager
async def counting(*names: str) -> AsyncGenerator[Ticks]:
    """The calls of these callbacks of the parser."""
    ticks = Ticks()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            inner: Callable[..., None] = getattr(HttpServerConnection, name)

            def count(
                self: HttpServerConnection, *given: bytes, inner: Callable[..., None] = inner
            ) -> None:
                ticks.count()
                inner(self, *given)

            patch.setattr(HttpServerConnection, name, count)
        async with ticks.running():
            yield ticks


async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a POST before it has read the body, as for a request without credentials."""
    if scope["method"] == "POST":
        await answer(send, b"no")
    else:
        await echo(scope, receive, send)


async def says(peer: Peer, data: bytes, times: int) -> bool:
    """Whether the peer could send all of it, before its connection was cut."""
    try:
        for _ in range(times):
            peer.say(data)
            await peer.writer.drain()
    except ConnectionError:
        return False
    return True


async def everybody_says(app: Application, head: bytes, piece: bytes, times: int) -> list[bool]:
    """Many peers send at once, while somebody else is served. Whether each could send all."""
    async with listening(app) as door:
        calm = await door.connect()
        peers = [await door.connect() for _ in range(PEERS)]
        for peer in peers:
            peer.say(head)
        sending = [asyncio.ensure_future(says(peer, piece, times)) for peer in peers]
        for _ in range(5):
            assert await calm.ask(GET) == b"host|"
        sent = await asyncio.gather(*sending)
        assert await calm.ask(GET) == b"host|"
        return sent


@on_both_loops
async def test_tiny_chunks_after_an_early_answer_cost_little_and_end_in_a_cut() -> None:
    async with counting("on_body") as ticks:
        sent = await everybody_says(refuses, CHUNKED, CHUNK * 40_000, WITHOUT_END)
    assert not any(sent)
    assert ticks.worst <= WORST_TURN / len(CHUNK)
    assert ticks.total <= PEERS * (PARSED_AFTER_ANSWER + 2 * PORTION_BYTES) / len(CHUNK)


@on_both_loops
async def test_tiny_chunks_of_an_awaited_body_cost_little_in_a_turn_and_end_in_a_cut() -> None:
    async with counting("on_body") as ticks:
        sent = await everybody_says(echo, CHUNKED, CHUNK * 40_000, WITHOUT_END)
    assert not any(sent)
    assert ticks.worst <= WORST_TURN / len(CHUNK)
    framing = 2 * ListenerLimits().header_bytes
    assert ticks.total <= PEERS * (2 * framing + 2 * PORTION_BYTES) / len(CHUNK)


@on_both_loops
async def test_long_heads_of_many_peers_cost_little_in_a_turn() -> None:
    async with counting("on_header") as ticks:
        await everybody_says(refuses, b"", MANY_HEADERS, 1)
    assert ticks.worst <= WORST_TURN / len(b"a:\r\n")
    assert ticks.total >= PEERS * 10_000


@on_both_loops
async def test_a_client_that_sends_on_after_its_answer_can_read_it() -> None:
    async with listening(refuses) as door:
        peer = await door.connect()
        body = b"b" * (DISCARDED_AT_MOST // 2)
        peer.say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n")
        await says(peer, body, 1)
        told = await peer.until_closed()
        assert told.startswith(b"HTTP/1.1 200")
        assert told.endswith(b"\r\nno\r\n0\r\n\r\n")


@on_both_loops
async def test_what_is_short_after_an_early_answer_keeps_the_connection() -> None:
    async with listening(refuses) as door:
        peer = await door.connect()
        size = PARSED_AFTER_ANSWER // 2
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
        assert await peer.ask(head) == b"no"
        assert await peer.ask(b"b" * size + GET) == b"host|"


@on_both_loops
async def test_a_long_body_in_chunks_of_any_usual_size_arrives_whole() -> None:
    body = b"a" * 500_000
    async with listening() as door:
        peer = await door.connect()
        for size in (5, 100, 10_000, 100_000):
            chunks = b"%x\r\n%b\r\n" % (size, b"a" * size) * (len(body) // size)
            asked = await peer.ask(CHUNKED + chunks + b"0\r\n\r\n" + GET)
            assert asked == b"host,transfer-encoding|" + body
            assert await peer.answer() == b"host|"
