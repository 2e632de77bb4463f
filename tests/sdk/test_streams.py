"""Events wait for whoever listens, within bounds, and what is lost is told."""

import asyncio
from typing import Any

import pytest

from comity.sdk import streams
from comity.sdk.events import Chat, Event, Missed, Presence
from comity.sdk.streams import MOST_BYTES, MOST_EVENTS, Events
from comity.wire import envelope as wire
from tests.sdk.made import frame


def chat(text: str) -> Chat:
    return Chat(wire.decode(frame("chat", {"text": text})), text)


def text_of(event: object) -> str:
    assert isinstance(event, Chat)
    return event.text


def listening(*wanted: type[Any]) -> tuple[Events[Any], list[Events[Any]]]:
    forgotten: list[Events[Any]] = []
    return Events(wanted or (object,), forgotten.append), forgotten


async def test_only_what_is_wanted_is_kept() -> None:
    stream, _ = listening(Chat)
    for event in (Presence("leave", "agent:a"), chat("one"), chat("two")):
        stream.give(event)
    stream.end()
    assert [text_of(event) async for event in stream] == ["one", "two"]


async def test_whoever_waits_is_given_what_comes() -> None:
    stream, _ = listening(Chat)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    stream.give(chat("at last"))
    assert text_of(await waiting) == "at last"


async def test_who_is_too_slow_is_told_how_many_were_lost_and_which() -> None:
    stream, _ = listening(Chat)
    events = [chat(str(number)) for number in range(MOST_EVENTS + 5)]
    for event in events:
        stream.give(event)
    missed = await anext(stream)
    assert isinstance(missed, Missed)
    assert (missed.count, missed.first, missed.last) == (5, events[0].id, events[4].id)
    assert text_of(await anext(stream)) == "5"


async def test_few_that_are_large_are_bounded_too() -> None:
    stream, _ = listening()
    large: Event = chat("x" * (MOST_BYTES // 20))
    for _ in range(30):
        stream.give(large)
    missed = await anext(stream)
    assert isinstance(missed, Missed)
    assert missed.count == 11


async def test_a_closed_stream_gives_up_what_waits_and_is_forgotten() -> None:
    stream, forgotten = listening()
    stream.give(chat("never read"))
    stream.close()
    assert forgotten == [stream]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def test_the_bounds_are_small_enough_for_many_streams() -> None:
    assert streams.MOST_BYTES <= 16 * 1024 * 1024
