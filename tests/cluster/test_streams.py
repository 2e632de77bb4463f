"""Streams between nodes: whole or failed, bounded at both ends, ended at both."""

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cluster import streams
from comity.cluster import streams as room
from comity.cluster.bus import BusMessage
from comity.cluster.streams import (
    PIECE_BYTES,
    WINDOW,
    ClusterStreamReader,
    ClusterStreamWriter,
    StreamAction,
    StreamCount,
    StreamFrame,
    StreamOpen,
    StreamReplyWriter,
)
from comity.errors import (
    CUT_OFF,
    EXHAUSTED,
    METHOD_NOT_FOUND,
    TIMEOUT,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from tests.support.carriers import Clock, settled, until
from tests.support.node_house import MOST_BYTES, OneNode, some_nodes


def test_a_piece_is_read_as_it_was_written() -> None:
    piece = StreamFrame(StreamAction.SAY, "a-1", 7, True, 3, True, b"\x00\xff")
    assert streams.decode_frame(streams.encode_message(piece)) == piece
    begun = StreamOpen("http", b"head", 1.5, b"body")
    assert streams.decode_opening(streams.encode_message(begun)) == begun
    told = [StreamCount(1, True, 4), StreamCount(2, False, 0)]
    assert streams.decode_counts(streams.encode_message(told)) == told


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_piece_or_is_refused(data: bytes) -> None:
    for read in (
        streams.decode_frame,
        streams.decode_opening,
        streams.decode_counts,
        streams.decode_failure,
    ):
        try:
            read(data)
        except MalformedMessage:
            continue


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_a_message_is_split_into_pieces_that_a_bus_takes(length: int) -> None:
    data = bytes(length)
    pieces = list(streams.split_message(data))
    assert b"".join(piece for piece, _ in pieces) == data
    assert [more for _, more in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(len(piece) <= PIECE_BYTES for piece, _ in pieces)


def test_a_failure_keeps_its_kind_and_its_time() -> None:
    error = Unavailable("too much", EXHAUSTED, timedelta(seconds=2))
    told = streams.decode_failure(streams.encode_failure(error))
    assert (str(told), told.fault, told.retry_after) == ("too much", EXHAUSTED, error.retry_after)
    plain = streams.decode_failure(streams.encode_failure(MalformedMessage("x" * 5000)))
    assert (len(str(plain)), plain.retry_after) == (2000, None)


def test_a_failure_of_a_kind_that_is_not_known_is_a_plain_one() -> None:
    data = streams.encode_failure(Unavailable("x", EXHAUSTED)).replace(b"exhausted", b"unheardof")
    assert streams.decode_failure(data).fault is UPSTREAM_FAILED


def reading(said: list[tuple[StreamAction, int]]) -> ClusterStreamReader:
    forgotten = said.clear
    return ClusterStreamReader(
        "b", lambda act, count: said.append((act, count)), lambda: forgotten, 2 * WINDOW, None
    )


def test_pieces_are_taken_in_order_or_not_at_all() -> None:
    stream = ClusterStreamWriter("a")
    assert stream.takes(StreamFrame(StreamAction.OPEN, "a", number=0))
    assert not stream.takes(StreamFrame(StreamAction.SAY, "a", number=2))
    assert stream.takes(StreamFrame(StreamAction.SAY, "a", number=1))
    assert [stream.next(), stream.next()] == [0, 1]


async def test_what_came_before_the_end_is_still_read() -> None:
    stream = reading([])
    stream.put(b"one", False)
    stream.end(Unavailable("gone"))
    stream.put(b"two", False)
    assert await anext(stream) == b"one"
    with pytest.raises(Unavailable, match="gone"):
        await anext(stream)


async def test_an_end_amid_a_message_is_no_end() -> None:
    stream = reading([])
    stream.put(b"half", True)
    stream.end()
    with pytest.raises(Unavailable, match="during a message"):
        await anext(stream)


async def test_the_other_end_is_told_what_was_taken_and_once_that_no_more_is_wanted() -> None:
    said: list[tuple[StreamAction, int]] = []
    stream = reading(said)
    stream.put(bytes(WINDOW // 4), False)
    stream.put(b"x", False)
    await anext(stream)
    assert said == [(StreamAction.CREDIT, WINDOW // 4)]
    stream.close()
    stream.close()
    assert said == [(StreamAction.CREDIT, WINDOW // 4), (StreamAction.CANCEL, 0)]


async def test_who_waits_for_room_is_told_that_nobody_reads() -> None:
    stream = ClusterStreamWriter("a")
    await stream.room_for(2 * WINDOW)
    waiting = asyncio.ensure_future(stream.room_for(1))
    await settled()
    stream.credit(1)
    await settled()
    assert not waiting.done()
    stream.stop()
    with pytest.raises(Unavailable, match="its reader is gone"):
        await waiting
    with pytest.raises(Unavailable, match="its reader is gone"):
        await stream.room_for(1)


async def echo(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
    await reply.send(head)
    await reply.send(body)


async def all_of(stream: ClusterStreamReader) -> list[bytes]:
    async with asyncio.timeout(10):
        return [message async for message in stream]


def lose(node: OneNode, is_lost: Callable[[StreamFrame], bool]) -> None:
    """Have the bus lose some of what this node would hear."""
    hears = node.bus.enqueue

    def take(message: BusMessage) -> None:
        if ".to." not in message.subject or not is_lost(streams.decode_frame(message.data)):
            hears(message)

    node.bus.enqueue = take


@pytest.mark.parametrize("length", [0, 10, PIECE_BYTES, 3 * PIECE_BYTES + 1])
async def test_a_request_of_any_length_is_answered_in_whole_messages(length: int) -> None:
    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("echo", echo)
        body = bytes(range(256)) * (length // 256) + bytes(length % 256)
        assert await all_of(await a.carrying.open(b.id, "echo", b"head", body)) == [b"head", body]
        assert len(a.carrying) == len(b.carrying) == 0


async def test_a_slow_reader_bounds_what_is_on_its_way() -> None:
    sent = 0

    async def pour(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        nonlocal sent
        for _ in range(100):
            await reply.send(bytes(PIECE_BYTES))
            sent += 1

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("pour", pour)
        stream = await a.carrying.open(b.id, "pour", b"")
        await settled(200)
        assert sent == WINDOW // PIECE_BYTES
        await anext(stream)
        await settled(200)
        assert sent == WINDOW // PIECE_BYTES + 1
        assert len(await all_of(stream)) == 99


async def test_a_reader_that_goes_ends_the_work() -> None:
    ended = asyncio.Event()

    async def wait(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("wait", wait)
        stream = await a.carrying.open(b.id, "wait", b"")
        await until(lambda: len(b.carrying) == 1)
        stream.close()
        await until(ended.is_set)
        assert len(a.carrying) == len(b.carrying) == 0


async def test_a_failure_is_told_as_what_it_is() -> None:
    async def fail(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        await reply.send(b"so far")
        raise Unavailable("no room", EXHAUSTED, timedelta(seconds=3))

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("fail", fail)
        stream = await a.carrying.open(b.id, "fail", b"")
        assert await anext(stream) == b"so far"
        with pytest.raises(Unavailable, match="no room") as failed:
            await anext(stream)
        assert failed.value.fault is EXHAUSTED
        assert failed.value.retry_after == timedelta(seconds=3)


async def test_what_a_node_cannot_do_and_a_bug_of_it_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def bug(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        raise RuntimeError("secret")

    async with some_nodes("a", "b") as (a, b):
        with pytest.raises(Unavailable) as failed:
            await all_of(await a.carrying.open(b.id, "what", b""))
        assert failed.value.fault is METHOD_NOT_FOUND
        b.carrying.answer("bug", bug)
        with pytest.raises(Unavailable, match="see its log"):
            await all_of(await a.carrying.open(b.id, "bug", b""))
    assert "secret" in caplog.text


async def wait_for_ever(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
    await reply.send(b"begun")
    await asyncio.Event().wait()


async def test_a_deadline_ends_it_at_both_ends() -> None:
    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("wait", wait_for_ever)
        soon = timedelta(milliseconds=50)
        stream = await a.carrying.open(b.id, "wait", b"", timeout=soon)
        with pytest.raises(Unavailable) as failed:
            await all_of(stream)
        assert failed.value.fault is TIMEOUT
        await until(lambda: not len(b.carrying))


async def test_the_death_of_either_node_ends_it_at_the_other() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        b.carrying.answer("wait", wait_for_ever)
        stream = await a.carrying.open(b.id, "wait", b"")
        assert await anext(stream) == b"begun"
        clock.passes(6 * 3600)
        b.peers.look()
        await until(lambda: not len(b.carrying))
        a.peers.look()
        with pytest.raises(Unavailable, match="is gone") as failed:
            await anext(stream)
        assert failed.value.fault is CUT_OFF
        with pytest.raises(Unavailable, match="is gone"):
            await a.carrying.open(b.id, "wait", b"")


async def test_a_node_that_is_cut_off_refuses_and_lets_go_of_what_it_had() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        b.carrying.answer("wait", wait_for_ever)
        stream = await a.carrying.open(b.id, "wait", b"")
        assert await anext(stream) == b"begun"
        a.bus.cut_off()
        with pytest.raises(Unavailable) as failed:
            await a.carrying.open(b.id, "wait", b"")
        assert failed.value.fault is CUT_OFF
        a.carrying.look()
        assert len(a.carrying) == 1
        clock.passes(3 * 3600)
        a.carrying.look()
        with pytest.raises(Unavailable, match="cannot reach the other nodes"):
            await anext(stream)
        a.bus.rejoin()
        # What the other end still works on is found out by its sums.
        b.carrying.look()
        await until(lambda: not len(b.carrying))


async def test_a_short_cut_in_which_nothing_was_said_ends_nothing() -> None:
    go_on = asyncio.Event()

    async def in_two(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        await reply.send(b"one")
        await go_on.wait()
        await reply.send(b"two")

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("in two", in_two)
        stream = await a.carrying.open(b.id, "in two", b"")
        assert await anext(stream) == b"one"
        a.bus.cut_off()
        a.bus.rejoin()
        await settled()
        go_on.set()
        assert await all_of(stream) == [b"two"]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_lost_piece_of_the_answer_is_found_out(number: int) -> None:
    """By the next piece, or by the sums where it was the last."""
    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("echo", echo)
        lose(a, lambda piece: not piece.is_own and piece.number == number)
        stream = await a.carrying.open(b.id, "echo", b"head", b"body")
        await settled()
        a.carrying.look()
        with pytest.raises(Unavailable, match="was lost"):
            await all_of(stream)
        assert len(a.carrying) == len(b.carrying) == 0


async def test_a_piece_that_is_lost_before_a_silence_is_found_out_by_the_other_ends_sums() -> None:
    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("wait", wait_for_ever)
        lose(a, lambda piece: piece.act is StreamAction.SAY)
        stream = await a.carrying.open(b.id, "wait", b"")
        await settled()
        b.carrying.look()
        with pytest.raises(Unavailable, match="was lost"):
            await all_of(stream)
        await until(lambda: not len(b.carrying))


async def test_a_lost_piece_of_what_is_asked_is_found_out() -> None:
    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("echo", echo)
        lose(b, lambda piece: piece.act is StreamAction.SAY and piece.number == 1)
        stream = await a.carrying.open(b.id, "echo", b"", bytes(3 * PIECE_BYTES))
        with pytest.raises(Unavailable, match="was lost"):
            await all_of(stream)
        lose(b, lambda piece: piece.act is StreamAction.OPEN)
        stream = await a.carrying.open(b.id, "echo", b"", b"")
        a.carrying.look()
        with pytest.raises(Unavailable, match="was lost"):
            await all_of(stream)


async def test_more_than_a_message_may_hold_is_taken_by_neither_end() -> None:
    async def too_much(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        await reply.send(bytes(MOST_BYTES + 1))

    async with some_nodes("a", "b") as (a, b):
        b.carrying.answer("too much", too_much)
        for what, body in (("too much", b""), ("echo", bytes(MOST_BYTES + 2 * PIECE_BYTES))):
            with pytest.raises(Unavailable) as failed:
                await all_of(await a.carrying.open(b.id, what, b"", body))
            assert failed.value.fault is EXHAUSTED
        await until(lambda: not len(b.carrying))


async def test_no_more_streams_are_open_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_STREAMS", 1)
    async with some_nodes("a", "b", "c") as (a, b, c):
        b.carrying.answer("wait", wait_for_ever)
        first = await a.carrying.open(b.id, "wait", b"")
        assert await anext(first) == b"begun"
        with pytest.raises(Unavailable) as failed:
            await a.carrying.open(b.id, "wait", b"")
        assert failed.value.fault is EXHAUSTED
        with pytest.raises(Unavailable, match="too much to answer"):
            await all_of(await c.carrying.open(b.id, "wait", b""))


async def test_what_is_no_piece_and_what_belongs_to_nothing_are_left_alone() -> None:
    async with some_nodes("a", "b") as (a, b):
        b.bus.publish(f"test.to.{a.id}", b"\xc1")
        for act in StreamAction:
            for own in (True, False):
                piece = StreamFrame(act, b.id, 99, own, 7, False, b"\x90")
                b.bus.publish(f"test.to.{a.id}", streams.encode_message(piece))
        await settled()
        assert len(a.carrying) == 0


async def test_a_sender_whose_name_cannot_be_answered_costs_nothing() -> None:
    """It would otherwise leave a task whose error nobody looks at."""
    unseen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unseen.append(told))
    async with some_nodes("a", "b") as (a, b):
        for act in (StreamAction.OPEN, StreamAction.SUMS):
            for data in (
                b"",
                b"\xc1",
                streams.encode_message([StreamCount(7, True, 3), StreamCount(8, False, 3)]),
            ):
                piece = StreamFrame(act, "no subject\r\n", 5, True, data=data)
                a.bus.publish(f"test.to.{b.id}", streams.encode_message(piece))
        await settled()
        assert len(b.carrying) == 0
        gc.collect()
        await settled()
    assert unseen == []
