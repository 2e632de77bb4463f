"""Asks as they come and change: what is open first, then each change, for whoever may see it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.surfaces import asks_stream
from comity.surfaces.asks_stream import Reader
from comity.wire.grants import Effect, Grant
from comity.wire.sse import EventParser
from tests.conformance.governed import Guest
from tests.surfaces.credentials import bearer
from tests.surfaces.inbox_scene import BEN, Scene, an_inbox
from tests.surfaces.visitor import SECONDS, Reply

STREAM = "/api/asks/stream"


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        yield scene


class Watching:
    """One stream, read event by event."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._parser = EventParser()
        self._events: list[tuple[str, Any]] = []

    async def next(self) -> tuple[str, Any]:
        """The next event, by its name; raises EOFError at the end."""
        async with asyncio.timeout(SECONDS):
            while not self._events:
                piece = await self.reply._chunk()  # pyright: ignore[reportPrivateUsage]
                if not piece:
                    raise EOFError
                found = self._parser.feed(piece)
                self._events += [(each.event, json.loads(each.data)) for each in found if each.data]
        return self._events.pop(0)

    async def until(self, name: str) -> list[Any]:
        """What the events say up to, and with, the first of that name."""
        found: list[Any] = []
        while True:
            event, said = await self.next()
            found.append(said)
            if event == name:
                return found


async def watch(scene: Scene, guest: Guest) -> Watching:
    headers = {"accept": "text/event-stream", **bearer(guest.key)}
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert (reply.status, reply.is_stream) == (200, True)
    return Watching(reply)


async def test_what_is_open_comes_first_and_then_each_change(scene: Scene) -> None:
    first = await scene.ask(1)
    watching = await watch(scene, scene.person())
    assert [said.get("id") for said in await watching.until("current")] == [first.id, None]
    second = await scene.ask(2)
    event, said = await watching.next()
    assert (event, said["id"], said["state"]) == ("ask", second.id, "pending")
    assert said["may_answer"] is True
    await scene.person().http("POST", f"/api/asks/{second.id}/answer", {"verdict": "decline"})
    event, said = await watching.next()
    assert (event, said["id"], said["state"]) == ("ask", second.id, "declined")


async def test_nobody_is_told_of_what_it_may_not_see(scene: Scene) -> None:
    await scene.ask(1, server="mail", tool="send")
    ben = scene.person(BEN)
    watching = await watch(scene, ben)
    assert await watching.until("current") == [{"open": 0}]
    await scene.ask(2)
    await scene.governed.grant(Grant(BEN, "ask/answer", "files/write", Effect.ALLOW))
    third = await scene.ask(3)
    event, said = await watching.next()
    assert (event, said["id"]) == ("ask", third.id)


async def test_a_stream_ends_when_its_credentials_do(scene: Scene) -> None:
    ana = scene.person()
    watching = await watch(scene, ana)
    await watching.until("current")
    scene.governed.given_out.revoke(ana.key)
    event, said = await watching.next()
    assert event == "end"
    assert ana.key not in str(said)
    with pytest.raises(EOFError):
        await watching.next()


async def test_a_reader_that_leaves_is_forgotten(scene: Scene) -> None:
    stream = scene.governed.visitor.parts.asking.stream
    assert stream is not None
    watching = await watch(scene, scene.person())
    await watching.until("current")
    assert len(stream) == 1
    watching.reply.leave()
    async with asyncio.timeout(SECONDS):
        while len(stream):
            await asyncio.sleep(0.01)


async def test_readers_are_let_go_when_the_gateway_ends(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    await watching.until("current")
    scene.governed.visitor.parts.end_streams()
    with pytest.raises(EOFError):
        await watching.next()
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert reply.status == 503


async def test_who_hears_that_all_may_have_changed_is_told_to_read_again(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    await watching.until("current")
    stream = scene.governed.visitor.parts.asking.stream
    assert stream is not None
    stream.changed("")
    assert await watching.next() == ("lost", {"read": "/api/asks"})


async def test_silence_is_filled_with_signs_of_life(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks_stream, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(asks_stream, "QUIET_LOOKS", 2)
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    async with asyncio.timeout(SECONDS):
        while (await reply.event()).comment != "still here":
            pass


async def test_only_reading_is_possible_there(scene: Scene) -> None:
    headers = {"content-type": "application/json", **bearer(scene.person().key)}
    reply = await scene.governed.visitor.send("POST", headers.items(), b"{}", STREAM)
    assert reply.status == 405
    nobody = await scene.governed.visitor.send("GET", path=STREAM)
    assert nobody.status == 401


async def test_no_more_readers_come_in_than_there_is_room_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks_stream, "MOST_READERS", 0)
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert reply.status == 503


async def test_a_slow_reader_is_told_that_it_lost_something(scene: Scene) -> None:
    reader = Reader(most=2)
    asks = [scene.new(n) for n in range(4)]
    reader.hear(asks[0])
    reader.hear(asks[1])
    # The latest of one ask takes the place of what was said of it before.
    reader.hear(asks[1])
    assert reader.take() == (False, asks[:2])
    for ask in asks[:3]:
        reader.hear(ask)
    assert reader.take() == (True, [])
    reader.hear(asks[3])
    assert reader.take() == (False, [asks[3]])
    assert not reader.stirred.is_set()
