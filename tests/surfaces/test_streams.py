"""Streams to clients, with the sending and the leaving in the test's own hands."""

import asyncio
from typing import Any

import pytest

from comity.kernel.outbox import Outbox
from comity.kernel.replay import Replay
from comity.surfaces import streams
from comity.surfaces.doorway import Message

SECONDS = 10.0


class Reader:
    """The far end of one response: what it was sent, how fast it takes it, and when it leaves."""

    def __init__(self) -> None:
        self.sent = b""
        self.over = False
        self.room = asyncio.Event()
        self.room.set()
        self._gone = asyncio.Event()
        self._news = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.room.wait()
        self.sent += message.get("body", b"")
        self.over = message["type"] == "http.response.body" and not message.get("more_body")
        self._news.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()

    async def until(self, words: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            while words not in self.sent:
                self._news.clear()
                await self._news.wait()


def kept(replay: Replay, reader: Reader, after: int = 0, **options: Any) -> asyncio.Task[None]:
    prime = options.get("prime", False)
    work = streams.stream_kept(reader.send, reader.receive, replay, after, prime)
    return asyncio.ensure_future(work)


def once(outbox: Outbox, reader: Reader) -> asyncio.Task[bool]:
    return asyncio.ensure_future(streams.stream_once(reader.send, reader.receive, outbox))


async def ended[Outcome](task: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(SECONDS):
        return await task


async def test_a_stream_ends_with_the_last_message() -> None:
    outbox, reader = Outbox(), Reader()
    streaming = once(outbox, reader)
    outbox.put(b"one")
    await reader.until(b"data: one")
    outbox.finish(b"two")
    assert await ended(streaming) is True
    assert reader.sent == b"event: message\ndata: one\n\nevent: message\ndata: two\n\n"
    assert reader.over


async def test_a_client_that_leaves_is_told_of_at_once() -> None:
    outbox, reader = Outbox(), Reader()
    streaming = once(outbox, reader)
    outbox.put(b"one")
    await reader.until(b"one")
    reader.leave()
    assert await ended(streaming) is False


async def test_a_nudge_shows_a_sign_of_life_and_nothing_more() -> None:
    outbox, reader = Outbox(), Reader()
    streaming = once(outbox, reader)
    outbox.nudge()
    await reader.until(b": still here\n\n")
    outbox.end()
    await ended(streaming)
    assert b"data" not in reader.sent


async def test_a_source_that_pauses_stops_nothing_in_the_modern_era() -> None:
    """Neither the stream nor, by turning in circles, everything else."""
    outbox, reader = Outbox(), Reader()
    streaming = once(outbox, reader)
    outbox.suspend()
    outbox.put(b"later")
    await reader.until(b"later")
    outbox.suspend()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not streaming.done()
    outbox.finish(b"end")
    assert await ended(streaming) is True


async def test_a_kept_stream_is_primed_once() -> None:
    replay, reader = Replay(4, Outbox()), Reader()
    streaming = kept(replay, reader, prime=True)
    replay.outbox.finish(b"answer")
    await ended(streaming)
    first = reader.sent.partition(b"\n\n")[0].split(b"\n")
    assert sorted(first) == [b"data: ", b"id: 4-1", b"retry: 500"]
    assert reader.sent.count(b"4-1") == 1
    assert b"id: 4-2" in reader.sent


async def test_a_source_that_pauses_closes_a_kept_stream_and_the_rest_waits() -> None:
    replay, reader = Replay(1, Outbox()), Reader()
    streaming = kept(replay, reader)
    replay.outbox.put(b"one")
    replay.outbox.suspend()
    await ended(streaming)
    assert b"one" in reader.sent
    assert reader.over
    replay.outbox.finish(b"two")
    again = Reader()
    await ended(kept(replay, again, after=1))
    assert b"data: two" in again.sent
    assert b"one" not in again.sent


async def test_what_was_not_sent_before_the_client_left_is_sent_when_it_is_back() -> None:
    replay, reader = Replay(1, Outbox()), Reader()
    for number in range(5):
        replay.outbox.put(b"message %d" % number)
    reader.room.clear()
    streaming = kept(replay, reader)
    await asyncio.sleep(0)
    reader.leave()
    reader.room.set()
    await ended(streaming)
    replay.outbox.finish(b"message 5")
    again = Reader()
    await ended(kept(replay, again, after=0))
    assert [again.sent.count(b"message %d" % number) for number in range(6)] == [1] * 6
    places = [again.sent.index(b"message %d" % number) for number in range(6)]
    assert places == sorted(places)


async def test_the_newest_reader_has_the_stream_though_the_older_one_is_stuck() -> None:
    replay, stuck = Replay(1, Outbox()), Reader()
    streaming = kept(replay, stuck)
    replay.outbox.put(b"first")
    await stuck.until(b"first")
    stuck.room.clear()
    for number in range(3):
        replay.outbox.put(b"message %d" % number)
    await asyncio.sleep(0)
    newer = Reader()
    following = kept(replay, newer, after=1)
    await newer.until(b"message 2")
    replay.outbox.put(b"message 3")
    await newer.until(b"message 3")
    stuck.room.set()
    await ended(streaming)
    assert b"message 3" not in stuck.sent
    replay.outbox.finish(b"end")
    await ended(following)
    assert [newer.sent.count(b"message %d" % number) for number in range(4)] == [1] * 4


@pytest.mark.parametrize("count", [300, 2000])
async def test_what_is_kept_for_coming_back_is_bounded(count: int) -> None:
    replay, reader = Replay(1, Outbox()), Reader()
    streaming = kept(replay, reader)
    for number in range(count):
        replay.outbox.put(b"message %d." % number)
        await reader.until(b"message %d." % number)
    replay.outbox.finish(b"end")
    await ended(streaming)
    assert len(replay.after(0)) == 256


async def test_a_shared_stream_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.02)
    outbox, reader = Outbox(), Reader()
    reader.room.clear()
    outbox.put(b"one")
    shared = streams.stream_shared(reader.send, reader.receive, outbox, b"opening")
    async with asyncio.timeout(SECONDS):
        await shared
