"""One WebSocket against real clients: what is read, written and given up. (RFC 6455)"""

import asyncio
import base64
import os
from collections.abc import Callable

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from comity.http.request_turns import PORTION_BYTES, TURN_BYTES
from comity.http.server import event_loop
from comity.http.websocket import (
    CLOSING_SECONDS,
    FRAME_COST,
    FRAMES_WITHOUT_MESSAGE,
    PIECE_BYTES,
    TINY_BYTES,
    TOO_SLOW,
    WebSocketConnection,
    WebSocketLimits,
    encode_text_frame,
)
from tests.http.socket_shell import SECONDS, SMALL, Heard, closed, masked, raw, shell
from tests.support.cases import loop_over
from tests.support.loop_turns import Ticks

FRAMES = 30_000


@loop_over("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_a_frame_is_what_the_protocol_makes_of_it(size: int) -> None:
    text = b"x" * size
    assert encode_text_frame(text) == Frame(Opcode.TEXT, text).serialize(mask=False)


async def test_what_is_said_is_heard_in_order_and_answered() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects()
        for number in range(5_000):
            await client.send(str(number))
        await heard.until(lambda h: len(h.messages) == 5_000)
        assert heard.messages == [str(number).encode() for number in range(5_000)]
        assert all(socket.write(encode_text_frame(str(number).encode())) for number in range(1_000))
        async with asyncio.timeout(SECONDS):
            assert [await client.recv() for _ in range(1_000)] == [str(n) for n in range(1_000)]
        await client.close()
        await heard.until(lambda h: h.ended)
        assert heard.ended == [True]
        assert not scene.sockets.open


async def test_a_message_in_fragments_is_one_message() -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects()
        await client.send(["a", "", "b", "c"])
        await raw(
            client,
            masked(Opcode.TEXT, b"d", is_last=False),
            masked(Opcode.PING, b"between"),
            masked(Opcode.CONT, b"", is_last=False),
            masked(Opcode.CONT, b"e"),
            masked(Opcode.TEXT, b"f"),
        )
        await heard.until(lambda h: len(h.messages) == 3)
        assert heard.messages == [b"abc", b"de", b"f"]
        await client.close()


@loop_over(
    ("frames", "code"),
    [
        ([masked(Opcode.BINARY, b"x")], 1003),
        ([masked(Opcode.BINARY, b"x", is_last=False), masked(Opcode.CONT, b"{}")], 1003),
        ([masked(Opcode.CONT, b"x")], 1002),
        ([masked(Opcode.TEXT, b"x", is_last=False), masked(Opcode.TEXT, b"y")], 1002),
        ([Frame(Opcode.TEXT, b"unmasked").serialize(mask=False)], 1002),
        ([b"\xf1\x80\x00\x00\x00\x00"], 1002),
        ([masked(Opcode.TEXT, b"x" * 65_537)], 1009),
        ([masked(Opcode.TEXT, b"x" * 40_000, is_last=False), masked(Opcode.CONT, b"y" * 40_000)],
         1009),
        ([b"\x81\xff" + (2**62).to_bytes(8) + b"mask"], 1009),
    ],
)  # fmt: skip
async def test_bad_data_closes_with_its_code_and_is_not_heard(
    frames: list[bytes], code: int
) -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects()
        await raw(client, *frames)
        assert (await closed(client))[0] == code
        await heard.until(lambda h: h.ended)
        assert heard.messages == []
        assert heard.ended == [False]


async def test_whoever_still_sends_much_reads_why_it_was_too_much() -> None:
    async with shell() as scene:
        client, _, _ = await scene.connects()
        await raw(client, masked(Opcode.TEXT, b"x" * 10_000_000))
        assert (await closed(client))[0] == 1009


async def test_a_few_empty_fragments_and_pings_are_no_harm() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects(ping_interval=None)
        await raw(client, masked(Opcode.TEXT, b"{", is_last=False))
        await raw(client, masked(Opcode.CONT, is_last=False) * (FRAMES_WITHOUT_MESSAGE.burst // 2))
        await raw(client, masked(Opcode.CONT, b"}"))
        await raw(client, masked(Opcode.PONG) * (FRAMES_WITHOUT_MESSAGE.burst // 2 - 1))
        await heard.until(lambda h: h.messages)
        assert heard.messages == [b"{}"]
        scene.passes(1.0)
        await raw(client, masked(Opcode.PONG) * (FRAMES_WITHOUT_MESSAGE.count - 1))
        async with asyncio.timeout(SECONDS):
            await (await client.ping())
        assert socket.is_open


FLOODS = {
    "empty fragments": masked(Opcode.CONT, is_last=False),
    "tiny fragments": masked(Opcode.CONT, b"a", is_last=False),
    "pings": masked(Opcode.PING),
    "pongs": masked(Opcode.PONG),
    "texts": masked(Opcode.TEXT, b"{}"),
}
WORST_TURN = 2 * ((TURN_BYTES + PORTION_BYTES) // FRAME_COST + PIECE_BYTES // 6)
"""The frames of two turns: one may end, and the next begin, between two ticks of the test."""


async def floods(kind: str) -> None:
    """One client sends very many frames while another is served."""
    ticks = Ticks()
    inner: Callable[..., None] = vars(WebSocketConnection)["_see"]

    def count(self: WebSocketConnection, event: object) -> None:
        ticks.count()
        inner(self, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WebSocketConnection, "_see", count)
        async with shell() as scene, ticks.running():
            eager, _, heard = await scene.connects(ping_interval=None)
            calm, _, beside = await scene.connects(ping_interval=None)
            begin = masked(Opcode.TEXT, b"{", is_last=False) if "fragments" in kind else b""
            eager.transport.write(begin + FLOODS[kind] * FRAMES)
            for number in range(5):
                await calm.send(str(number))
                await beside.until(lambda h, n=number: len(h.messages) == n + 1)
            if kind == "texts":
                await heard.until(lambda h: len(h.messages) == FRAMES)
            else:
                assert (await closed(eager))[0] == 1008
                assert heard.messages == []
                assert ticks.total <= 2 * FRAMES_WITHOUT_MESSAGE.burst
            await calm.send("last")
            await beside.until(lambda h: h.messages[-1] == b"last")
    assert ticks.worst <= WORST_TURN


@loop_over("kind", FLOODS)
def test_a_flood_of_frames_costs_little_in_a_turn_and_ends_where_it_says_nothing(
    kind: str,
) -> None:
    for new_loop in (asyncio.new_event_loop, event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(floods(kind), SECONDS))


MEMBERS = 10
WORST_TURN_BYTES = 2 * (TURN_BYTES + PORTION_BYTES)


async def long_messages(size: int, fragments: int) -> None:
    """Many clients send one long message each, in fragments that are not tiny."""
    decoded, seen = Ticks(), Ticks()
    receive_data = ServerProtocol.receive_data
    see: Callable[..., None] = vars(WebSocketConnection)["_see"]

    def count_bytes(self: ServerProtocol, data: bytes) -> None:
        decoded.count(len(data))
        receive_data(self, data)

    def count_frames(self: WebSocketConnection, event: object) -> None:
        seen.count()
        see(self, event)

    part = b"a" * size
    long = WebSocketLimits(message_bytes=(fragments + 1) * size)
    begin, middle = (masked(opcode, part, is_last=False) for opcode in (Opcode.TEXT, Opcode.CONT))
    whole = begin + middle * (fragments - 1) + masked(Opcode.CONT)
    with pytest.MonkeyPatch.context() as patch:
        async with shell(long) as scene:
            members = [await scene.connects(ping_interval=None) for _ in range(MEMBERS)]
            patch.setattr(ServerProtocol, "receive_data", count_bytes)
            patch.setattr(WebSocketConnection, "_see", count_frames)
            async with decoded.running(), seen.running():
                for client, _, _ in members:
                    client.transport.write(whole)
                for _, _, heard in members:
                    await heard.until(lambda h: h.messages)
                    assert heard.messages == [part * fragments]
            assert decoded.total == MEMBERS * len(whole)
            assert seen.total == MEMBERS * (fragments + 1)
    assert decoded.worst <= WORST_TURN_BYTES
    assert seen.worst <= WORST_TURN


@loop_over(("size", "fragments"), [(TINY_BYTES, 2_000), (16_384, 64), (262_144, 4)])
def test_long_messages_in_fragments_arrive_whole_and_cost_little_in_a_turn(
    size: int, fragments: int
) -> None:
    for new_loop in (asyncio.new_event_loop, event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(long_messages(size, fragments), SECONDS))


@loop_over(("code", "is_clean"), [(1000, True), (1001, True), (4000, False)])
async def test_a_word_of_leaving_is_a_clean_end(code: int, is_clean: bool) -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects()
        await client.send("last words")
        await client.close(code)
        await heard.until(lambda h: h.ended)
        assert heard.ended == [is_clean]
        assert heard.messages == [b"last words"]


async def test_a_cut_is_no_clean_end() -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects()
        client.transport.abort()
        await heard.until(lambda h: h.ended)
        assert heard.ended == [False]


async def test_who_is_told_to_go_reads_what_was_said_before_and_is_not_heard_any_more() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects()
        assert socket.write(encode_text_frame(b"one last thing"))
        socket.close(4003, "é" * 200)
        socket.close(4001, "too late")
        assert not socket.write(encode_text_frame(b"never"))
        await raw(client, masked(Opcode.TEXT, b"but"))
        async with asyncio.timeout(SECONDS):
            assert await client.recv() == "one last thing"
        assert await closed(client) == (4003, "é" * 60)
        await heard.until(lambda h: h.ended)
        assert (heard.messages, heard.ended) == ([], [False])


async def test_who_does_not_answer_a_close_is_cut_off_in_time() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects()
        client.transport.pause_reading()
        socket.close(4003, "go")
        scene.passes(CLOSING_SECONDS - 0.1)
        assert heard.ended == []
        scene.passes(0.2)
        await heard.until(lambda h: h.ended)
        client.transport.abort()


async def test_who_says_nothing_is_asked_and_who_does_not_answer_is_given_up() -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects(ping_interval=None)
        scene.passes(SMALL.ping_seconds)
        async with asyncio.timeout(SECONDS):
            await (await client.ping())
        scene.passes(SMALL.silent_seconds - 1)
        assert heard.ended == []
        client.transport.pause_reading()
        scene.passes(SMALL.silent_seconds)
        client.transport.resume_reading()
        assert (await closed(client))[0] == TOO_SLOW
        await heard.until(lambda h: h.ended)
        assert heard.ended == [False]


async def fills(client: ClientConnection, socket: WebSocketConnection) -> int:
    """Write to somebody who does not read, until there is no room; how much was taken."""
    client.transport.pause_reading()
    written = 0
    frame = encode_text_frame(b"x" * 10_000)
    while socket.write(frame):
        written += len(frame)
        await asyncio.sleep(0)
        assert written < 50_000_000
    return written


async def test_what_a_slow_reader_does_not_take_is_not_kept_for_it() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects(max_queue=None)
        other, beside, _ = await scene.connects()
        written = await fills(client, socket)
        assert beside.write(encode_text_frame(b"others are not held up"))
        async with asyncio.timeout(SECONDS):
            assert await other.recv() == "others are not held up"
        assert not socket.write(encode_text_frame(b"no room"))
        client.transport.resume_reading()
        await heard.until(lambda h: h.resumptions)
        assert socket.write(encode_text_frame(b"again"))
        read = 0
        async with asyncio.timeout(SECONDS):
            while (text := await client.recv()) != "again":
                read += len(encode_text_frame(str(text).encode()))
        assert read == written


async def test_a_reader_that_takes_nothing_for_too_long_is_given_up() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects(ping_interval=None)
        await fills(client, socket)
        scene.passes(SMALL.send_seconds - 1)
        assert heard.ended == []
        scene.passes(1.5)
        scene.passes(CLOSING_SECONDS)
        await heard.until(lambda h: h.ended)
        client.transport.abort()


async def test_one_that_takes_little_is_waited_for() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects(ping_interval=None, max_queue=None)
        await fills(client, socket)
        scene.passes(SMALL.send_seconds - 1)
        client.transport.resume_reading()
        await heard.until(lambda h: h.resumptions)
        scene.passes(SMALL.send_seconds - 1)
        assert socket.is_open
        assert heard.ended == []


async def test_who_asks_for_signs_of_life_and_reads_none_of_them_is_cut_off() -> None:
    async with shell() as scene:
        client, socket, heard = await scene.connects(ping_interval=None)
        client.transport.pause_reading()
        pings = masked(Opcode.PING, b"x" * 125) * 500
        async with asyncio.timeout(SECONDS):
            while socket.is_open:
                client.transport.write(pings)
                await asyncio.sleep(0)
        scene.passes(CLOSING_SECONDS + 0.1)
        await heard.until(lambda h: h.ended)
        client.transport.abort()


async def test_nothing_is_read_before_somebody_listens() -> None:
    async with shell() as scene:
        scene.listens = False
        client, socket, _ = await scene.connects(ping_interval=None)
        sending = asyncio.ensure_future(flood(client))
        await asyncio.sleep(0.1)
        assert not sending.done()
        heard = Heard()
        socket.begin(heard)
        async with asyncio.timeout(SECONDS):
            await sending
        await heard.until(lambda h: len(h.messages) == 1_000)


async def flood(client: ClientConnection) -> None:
    for _ in range(1_000):
        await client.send("x" * 60_000)


async def test_one_who_says_much_leaves_the_others_their_turn() -> None:
    async with shell() as scene:
        eager, _, first = await scene.connects()
        calm, _, second = await scene.connects()
        await raw(eager, masked(Opcode.TEXT, b"x") * 10_000)
        await calm.send("me too")
        await second.until(lambda h: h.messages)
        await first.until(lambda h: len(h.messages) == 10_000)


async def test_the_end_of_the_gateway_is_told() -> None:
    async with shell() as scene:
        client, _, heard = await scene.connects()
        assert scene.place is not None
        scene.place.task.cancel()
        assert await closed(client) == (1001, "the gateway is going away")
        assert heard.ended == [False]


@loop_over(
    "changed",
    [
        {"sec-websocket-version": "8"},
        {"sec-websocket-key": "short"},
        {"sec-websocket-key": ""},
    ],
)
async def test_what_is_no_handshake_is_answered_as_http(changed: dict[str, str]) -> None:
    async with shell() as scene:
        assert scene.place is not None
        peer = await scene.place.connect()
        headers = {
            "host": "x",
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
            **changed,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        peer.say(f"GET / HTTP/1.1\r\n{lines}\r\n".encode())
        async with asyncio.timeout(SECONDS):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert not scene.sockets.open


async def test_nothing_is_compressed() -> None:
    async with shell() as scene:
        client, _, _ = await scene.connects(compression="deflate")
        assert client.protocol.extensions == []


def test_it_is_the_same_on_uvloop() -> None:
    async def story() -> None:
        async with shell() as scene:
            client, socket, heard = await scene.connects(max_queue=None)
            await client.send(["a", "b"])
            await heard.until(lambda h: h.messages == [b"ab"])
            await fills(client, socket)
            client.transport.resume_reading()
            await heard.until(lambda h: h.resumptions)
            await client.send("x" * 70_000)
            assert (await closed(client))[0] == 1009

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(asyncio.wait_for(story(), SECONDS))
