"""Streams to clients: pauses, replay, and the one stream that all calls of a client share."""

import asyncio
from typing import Any
from unittest.mock import patch

from comity.gateway import streams
from comity.gateway.streams import StreamMultiplexer
from comity.http.asgi import Message
from comity.sessions import client_streams
from comity.sessions.client_streams import ClientStream, ResumableStream
from tests.support.cases import loop_over

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


def kept(
    replay: ResumableStream, reader: Reader, after: int = 0, **options: Any
) -> asyncio.Task[None]:
    prime = options.get("prime", False)
    work = streams.stream_resumable(reader.send, reader.receive, replay, after, prime)
    return asyncio.ensure_future(work)


def once(outbox: ClientStream, reader: Reader) -> asyncio.Task[bool]:
    return asyncio.ensure_future(streams.stream_once(reader.send, reader.receive, outbox))


async def ended[Outcome](task: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(SECONDS):
        return await task


async def test_a_source_that_pauses_stops_nothing_in_the_modern_era() -> None:
    """Neither the stream nor, by turning in circles, everything else."""
    outbox, reader = ClientStream(), Reader()
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


async def test_a_source_that_pauses_closes_a_kept_stream_and_the_rest_waits() -> None:
    replay, reader = ResumableStream(1, ClientStream()), Reader()
    streaming = kept(replay, reader)
    replay.client_stream.put(b"one")
    replay.client_stream.suspend()
    await ended(streaming)
    assert b"one" in reader.sent
    assert reader.over
    replay.client_stream.finish(b"two")
    again = Reader()
    await ended(kept(replay, again, after=1))
    assert b"data: two" in again.sent
    assert b"one" not in again.sent


async def test_what_was_not_sent_before_the_client_left_is_sent_when_it_is_back() -> None:
    replay, reader = ResumableStream(1, ClientStream()), Reader()
    for number in range(5):
        replay.client_stream.put(b"message %d" % number)
    reader.room.clear()
    streaming = kept(replay, reader)
    await asyncio.sleep(0)
    reader.leave()
    reader.room.set()
    await ended(streaming)
    replay.client_stream.finish(b"message 5")
    again = Reader()
    await ended(kept(replay, again, after=0))
    assert [again.sent.count(b"message %d" % number) for number in range(6)] == [1] * 6
    places = [again.sent.index(b"message %d" % number) for number in range(6)]
    assert places == sorted(places)


@loop_over("count", [300, 2000])
async def test_what_is_kept_for_coming_back_is_bounded(count: int) -> None:
    replay, reader = ResumableStream(1, ClientStream()), Reader()
    streaming = kept(replay, reader)
    for number in range(count):
        replay.client_stream.put(b"message %d." % number)
        await reader.until(b"message %d." % number)
    replay.client_stream.finish(b"end")
    await ended(streaming)
    assert len(replay.events_after(0)) == 256


# The shared stream.


def test_a_finished_inlet_says_nothing_more_and_is_forgotten() -> None:
    stream = ClientStream()
    funnel = StreamMultiplexer(stream)
    inlet = funnel.add_source()
    inlet.finish(b"answer")
    inlet.finish(b"again")
    assert not inlet.put(b"late")
    assert stream.take() == [b"answer"]
    assert len(funnel) == 0


def test_every_source_pauses_while_the_stream_is_half_full_also_one_that_comes_later() -> None:
    with (
        patch.object(client_streams, "MAX_QUEUED_FRAMES", 4),
        patch.object(ClientStream, "pause_frames", 2),
    ):
        stream = ClientStream()
        funnel = StreamMultiplexer(stream)
        told: list[tuple[str, bool]] = []
        first, silent = funnel.add_source(), funnel.add_source()
        first.on_throttle = lambda paused: told.append(("first", paused))
        silent.on_throttle = lambda paused: told.append(("silent", paused))
        for _ in range(3):
            first.put(b"x")
        assert sorted(told) == [("first", True), ("silent", True)]
        later = funnel.add_source()
        later.on_throttle = lambda paused: told.append(("later", paused))
        later.put(b"y")
        stream.take()
        assert sorted(told[2:]) == [
            ("first", False),
            ("later", False),
            ("later", True),
            ("silent", False),
        ]


def test_an_answer_without_room_overruns_the_stream() -> None:
    with patch.object(client_streams, "MAX_QUEUED_FRAMES", 1):
        stream = ClientStream()
        funnel = StreamMultiplexer(stream)
        funnel.add_source().finish(b"1")
        inlet = funnel.add_source()
        inlet.finish(b"2")
        assert stream.is_overrun
        assert stream.is_final
        assert inlet.is_final
