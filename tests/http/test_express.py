"""Whole small requests that are answered without a cycle, among others that are not."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from comity.http import asgi
from comity.http.connection import ListenerLimits
from comity.http.fast_path import BODY_BYTES, FastPathRequest
from tests.support.cases import loop_over
from tests.support.listening import Peer, Receive, Scope, Send, echo, listening, on_both_loops

SOON = timedelta(milliseconds=300)


class House:
    """An application that takes what it is told to take in the express lane."""

    def __init__(self, take: Callable[[FastPathRequest], bool]) -> None:
        self.take = take
        self.taken: list[FastPathRequest] = []
        self.left: list[str] = []
        self.lengths: list[bytes | None] = []

    def serve(self, request: FastPathRequest) -> bool:
        if request.head.path != b"/call" or not self.take(request):
            return False
        self.taken.append(request)
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.left.append(scope["path"])
        self.lengths.append(dict(scope["headers"]).get(b"content-length"))
        await echo(scope, receive, send)


def post(body: bytes, *more: str, path: str = "/call") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def echoes(request: FastPathRequest) -> bool:
    request.answer(200, b"<" + request.body + b">")
    return True


def waits(request: FastPathRequest) -> bool:
    return True


def leaves(request: FastPathRequest) -> bool:
    return False


async def piece(peer: Peer) -> bytes:
    """The body of an answer that says how long it is."""
    head = await peer.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"), head
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return await peer.reader.readexactly(int(length.partition(b": ")[2]))


@on_both_loops
async def test_a_whole_request_is_answered_in_one_piece_and_so_is_the_next() -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        for body in (b"one", b"", b"three"):
            peer.say(post(body))
            assert await piece(peer) == b"<" + body + b">"
    assert house.left == []
    heads = [each.head for each in house.taken]
    assert [dict(each.listed) for each in heads] == [each.headers for each in heads]
    # The second head without a body is parsed. The third is known from the first.
    assert heads[0] is heads[2]
    assert house.taken[2].header_list() == [(b"host", b"x"), (b"content-length", b"5")]


@on_both_loops
async def test_a_request_that_comes_in_pieces_is_whole_when_the_last_is_there() -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        request = post(b"in pieces")
        for place in range(len(request)):
            peer.say(request[place : place + 1])
            await peer.writer.drain()
        assert await piece(peer) == b"<in pieces>"
    assert house.left == []


@on_both_loops
async def test_a_body_that_dawdles_is_left_to_the_application() -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        request = post(b"slowly")
        peer.say(request[:-3])
        while not house.left:
            await asyncio.sleep(0.01)
        assert await peer.ask(request[-3:]) == b"host,content-length|slowly"
        peer.say(post(b"again"))
        assert await piece(peer) == b"<again>"
    assert house.left == ["/call"]


@loop_over(
    "request_bytes",
    [
        post(b"x", path="/elsewhere"),
        post(b"", "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
        + b"1\r\nx\r\n0\r\n\r\n",
        post(b"x" * (BODY_BYTES + 1)),
        b"GET /call HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["another path", "chunked", "long", "no POST"],
)
async def test_what_is_no_whole_small_call_is_served_as_ever(request_bytes: bytes) -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        assert b"|" in await peer.ask(request_bytes)
        peer.say(post(b"y"))
        assert await piece(peer) == b"<y>"
    assert len(house.left) == len(house.taken) == 1


@on_both_loops
async def test_what_is_not_taken_reaches_the_application_untouched() -> None:
    house = House(lambda _: False)
    async with listening(house) as door:
        peer = await door.connect()
        assert await peer.ask(post(b"body", "x: y")) == b"host,content-length,x|body"
        assert await peer.ask(post(b"next")) == b"host,content-length|next"


@on_both_loops
async def test_answers_keep_the_order_of_their_requests() -> None:
    house = House(waits)
    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"first") + post(b"second") + post(b"third", path="/other"))
        while not house.taken:
            await asyncio.sleep(0)
        assert len(house.taken) == 1
        house.taken[0].answer(200, b"first")
        assert await piece(peer) == b"first"
        for body in (b"second", b"third"):
            await peer.reader.readuntil(b"\r\n\r\n")
            assert body in await peer.reader.readuntil(b"0\r\n\r\n")
    assert house.left == ["/call", "/other"]


@on_both_loops
async def test_an_answer_can_become_a_stream_after_all() -> None:
    house = House(waits)

    async def stream(receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for word in (b"one ", b"two"):
            await send({"type": "http.response.body", "body": word, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        while not house.taken:
            await asyncio.sleep(0)
        house.taken[0].hand_over(stream)
        await peer.reader.readuntil(b"\r\n\r\n")
        assert await peer.reader.readuntil(b"0\r\n\r\n") == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"
        house.take = echoes
        peer.say(post(b"after"))
        assert await piece(peer) == b"<after>"


@on_both_loops
async def test_a_stream_learns_that_its_client_has_gone() -> None:
    house, gone = House(waits), asyncio.Event()

    async def stream(receive: asgi.Receive, send: asgi.Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        while not house.taken:
            await asyncio.sleep(0)
        house.taken[0].hand_over(stream)
        peer.close()
        await gone.wait()


@on_both_loops
async def test_who_waits_is_told_that_its_client_has_gone_and_answers_nobody() -> None:
    house, lost = House(waits), asyncio.Event()
    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        while not house.taken:
            await asyncio.sleep(0)
        house.taken[0].on_lost = lost.set
        peer.close()
        await lost.wait()
        house.taken[0].answer(200, b"too late")
        assert house.taken[0].is_over


@on_both_loops
async def test_a_client_that_wants_the_connection_closed_has_it_closed() -> None:
    async with listening(House(echoes)) as door:
        peer = await door.connect()
        peer.say(post(b"x", "connection: close"))
        said = await peer.until_closed()
        assert b"connection: close\r\n" in said
        assert said.endswith(b"<x>")


@on_both_loops
async def test_a_kept_connection_is_closed_when_nothing_more_comes() -> None:
    async with listening(House(echoes), ListenerLimits(keep_alive=SOON, header_time=SOON)) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        assert await piece(peer) == b"<x>"
        assert await peer.until_closed() == b""


@on_both_loops
async def test_a_call_under_way_at_the_end_is_answered_and_then_closed() -> None:
    house = House(waits)
    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        while not house.taken:
            await asyncio.sleep(0)
        door.task.cancel()
        while house.taken[0].keep_alive:
            await asyncio.sleep(0)
        house.taken[0].answer(200, b"last")
        said = await peer.until_closed()
        assert said.endswith(b"last")


@on_both_loops
async def test_the_dawdling_body_of_a_known_head_is_left_to_the_application() -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"first"))
        assert await piece(peer) == b"<first>"
        request = post(b"slowly")
        peer.say(request[:-3])
        while not house.left:
            await asyncio.sleep(0.01)
        assert await peer.ask(request[-3:]) == b"host,content-length|slowly"
        peer.say(post(b"again"))
        assert await piece(peer) == b"<again>"


@on_both_loops
async def test_a_known_head_that_is_not_taken_reaches_the_application_with_its_length() -> None:
    house = House(echoes)
    async with listening(house) as door:
        peer = await door.connect()
        peer.say(post(b"first"))
        assert await piece(peer) == b"<first>"
        house.take = leaves
        assert await peer.ask(post(b"a longer body")) == b"host,content-length|a longer body"
    assert house.lengths == [b"13"]


@on_both_loops
async def test_blank_lines_after_an_answer_do_not_hold_the_connection() -> None:
    async with listening(House(echoes), ListenerLimits(header_time=SOON)) as door:
        peer = await door.connect()
        peer.say(post(b"x"))
        assert await piece(peer) == b"<x>"
        peer.say(b"\r\n")
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 408")
