"""Hostile members who say too much, come too often, or take nothing: others notice nothing of it.

`COMITY_STORM` says how many times somebody comes again; 5,000 is the full form.
"""

import asyncio
import contextlib
import json
import os
import struct
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import AsyncExitStack
from typing import cast

import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from comity.topics.service import MAX_TOPICS_PER_PARTY
from comity.topics.settings import TopicOverride
from tests.security.hostile_members.frames import CLOSE, CONT, PING, TEXT, frame
from tests.security.hostile_members.said import said
from tests.security.hostile_members.scene import (
    ANA,
    ANYTHING,
    BEA,
    SECONDS,
    Envelope,
    Member,
    Scene,
    fresh_topic,
    honest,
    joined,
    staged,
    watched,
)
from tests.security.hostile_members.wire import code_of_the_end, head, next_frame, upgraded

STORM = int(os.environ.get("COMITY_STORM", "500"))
MESSAGES, CHATS = 60, 10
REPLACED = 4001
SENT_AWAY = (1008, 1006)
"""By a word; or, where that is not taken in time for all the sending, without one."""

SMALL = "a-topic-with-a-name-as-long-as-a-name-may-be-and-with-few-places"
MEBIBYTE = 2**20


@pytest.fixture
def scene() -> Generator[Scene]:
    """With the usual bounds of what a member may say in a minute."""
    rooms = (TopicOverride(SMALL, access="public", max_members=2),)
    with staged(
        topics_message_rate=MESSAGES,
        topics_chat_rate=CHATS,
        topics_max_topics=300,
        topics_overrides=rooms,
    ) as scene:
        yield scene


@pytest.fixture
def unhurried() -> Generator[Scene]:
    with staged() as scene:
        yield scene


async def everybody_is_served(scene: Scene) -> None:
    """Two who have nothing to do with it meet in a topic, and one of them is heard."""
    async with watched(scene) as watch, joined(scene, BEA, watch.topic) as another:
        said = await another.is_passed_on()
        assert await watch.heard_since() == [said]


async def until_closed(member: Member) -> tuple[list[Envelope], int]:
    """All that a member is told before it is sent away."""
    heard: list[Envelope] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            heard.append(await member.hear())
    return heard, await member.closed()


def errors(heard: list[Envelope]) -> Counter[str]:
    return Counter(each["payload"]["error"] for each in heard if each["kind"] == "system/error")


async def flood(member: Member, texts: Iterable[bytes]) -> None:
    """As much as can be sent before the gateway has enough of it."""
    with contextlib.suppress(ConnectionClosed):
        for text in texts:
            await member.tell(text)


async def test_attack_18_who_says_too_much_is_told_and_then_sent_away(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    async with watched(scene) as watch, joined(scene, ANYTHING, watch.topic) as attacker:
        sending = asyncio.ensure_future(flood(attacker, much(ANYTHING)))
        heard, code = await until_closed(attacker)
        await sending
        passed = await watch.heard_since()
        earned = MESSAGES + 2 + int(asyncio.get_running_loop().time() - began)
        assert code in SENT_AWAY
        assert MESSAGES <= len(passed) <= earned
        assert errors(heard)["rate_limited"] >= 1
    await everybody_is_served(scene)


def much(party: str) -> Iterable[bytes]:
    for number in range(20 * MESSAGES):
        yield json.dumps({**honest(party), "kind": f"x/{number}"}).encode()


async def test_attack_18_chats_have_a_bound_of_their_own(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    async with watched(scene) as watch, joined(scene, ANYTHING, watch.topic) as attacker:
        for _ in range(3 * CHATS):
            await attacker.say()
        error = await attacker.hear_kind("system/error")
        assert error["payload"]["error"] == "rate_limited"
        last = await attacker.say(kind="x/last")
        while (await attacker.hear())["id"] != last["id"]:
            pass
        chats = [each for each in await watch.heard_since() if each["kind"] == "chat"]
        assert CHATS <= len(chats) <= CHATS + 1 + (asyncio.get_running_loop().time() - began) / 6


async def test_attack_18_who_comes_again_may_not_for_that_say_more(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    async with watched(scene) as watch:
        for _ in range(5):
            async with joined(scene, ANYTHING, watch.topic) as attacker:
                for _ in range(CHATS):
                    await attacker.say()
                last = await attacker.say(kind="x/last")
                while (await attacker.hear())["id"] != last["id"]:
                    pass
        chats = [each for each in await watch.heard_since() if each["kind"] == "chat"]
        assert CHATS <= len(chats) <= CHATS + 1 + (asyncio.get_running_loop().time() - began) / 6


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(said(ANA), id="in another's name"),
        pytest.param(said(ANYTHING, kind="system/welcome"), id="what is the gateway's"),
        pytest.param(b"[" * 2_000, id="nothing but brackets"),
    ],
)
async def test_attack_18_what_is_refused_counts_as_said(scene: Scene, text: bytes) -> None:
    async with watched(scene) as watch, joined(scene, ANYTHING, watch.topic) as attacker:
        sending = asyncio.ensure_future(flood(attacker, [text] * (20 * MESSAGES)))
        heard, code = await until_closed(attacker)
        await sending
        assert code in SENT_AWAY
        assert sum(errors(heard).values()) <= 4 * MESSAGES
        assert await watch.heard_since() == []
    await everybody_is_served(scene)


async def test_attack_18_a_storm_of_one_who_comes_again_and_again(unhurried: Scene) -> None:
    """The newest connection counts, each older one is told so, and nobody else hears of it."""
    async with watched(unhurried) as watch, AsyncExitStack() as stack:
        before = await stack.enter_async_context(upgraded(unhurried, ANYTHING, watch.topic))
        await next_frame(before)
        for _ in range(STORM):
            async with asyncio.timeout(SECONDS):
                peer = await stack.enter_async_context(upgraded(unhurried, ANYTHING, watch.topic))
                await next_frame(peer)
            assert await code_of_the_end(before) == REPLACED
            before.close()
            before = peer
        assert watch.members == {ANA, ANYTHING}
        fence = await watch.member.say()
        events = [await watch.member.hear()]
        while events[-1]["id"] != fence["id"]:
            events.append(await watch.member.hear())
        assert [each["kind"] for each in events] == ["system/presence", "chat"]
    await everybody_is_served(unhurried)


async def test_attack_18_a_storm_of_all_at_once(unhurried: Scene) -> None:
    """Nobody waits for the one before: one of them stays, and each other was let in or told why."""
    async with watched(unhurried) as watch:
        at_once = asyncio.Semaphore(100)

        async def come() -> int:
            async with at_once, upgraded(unhurried, ANYTHING, watch.topic) as peer:
                return await code_of_the_end(peer)

        coming = {asyncio.ensure_future(come()) for _ in range(STORM)}
        ended, staying = set[asyncio.Future[int]](), coming
        while len(staying) > 1:
            some, staying = await asyncio.wait(
                staying, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            assert some, f"{len(staying)} were neither let in nor told why"
            ended |= some
        assert {each.result() for each in ended} == {REPLACED}
        assert watch.members == {ANA, ANYTHING}
        for each in staying:
            each.cancel()
        await asyncio.wait(staying)
    await everybody_is_served(unhurried)


async def test_attack_18_who_comes_and_goes_is_held_back(scene: Scene) -> None:
    """Everybody is told who joins and leaves, so that it costs as much as something said."""
    statuses: Counter[int] = Counter()
    async with watched(scene) as watch:
        for _ in range(2 * MESSAGES):
            async with scene.peering() as peer:
                peer.say(head(scene, ANYTHING, watch.topic))
                async with asyncio.timeout(SECONDS):
                    answer = await peer.reader.readuntil(b"\r\n\r\n")
                statuses[int(answer.split()[1])] += 1
                assert b" 101 " in answer or b"retry-after: " in answer
                if b" 101 " in answer:
                    await next_frame(peer)
                    peer.say(frame(CLOSE, struct.pack("!H", 1000)))
                    await code_of_the_end(peer)
        assert set(statuses) == {101, 429}
        assert statuses[101] >= MESSAGES
        assert await watch.heard_since() == []
    await everybody_is_served(scene)


async def test_attack_18_a_full_topic_stays_so_whoever_comes_and_how(scene: Scene) -> None:
    """All at once, so that many are let in before the first of them has a place."""
    parties = [f"agent:{number}" for number in range(60)]

    async def come(party: str) -> tuple[int, int]:
        async with scene.peering() as peer, asyncio.timeout(SECONDS):
            peer.say(head(scene, party, SMALL))
            status = int((await peer.reader.readuntil(b"\r\n\r\n")).split()[1])
            opcode, data = await next_frame(peer) if status == 101 else (0, b"")
            left[party] = None
            if opcode != TEXT:
                return status, int.from_bytes(data[:2])
            await all_came.wait()
            return status, 0

    all_came, left = asyncio.Event(), dict[str, None]()
    for party in parties:
        scene.key_of(party)
    coming = [asyncio.ensure_future(come(party)) for party in parties]
    async with asyncio.timeout(SECONDS):
        while len(left) < len(parties):
            await asyncio.wait(coming, timeout=0.05)
    all_came.set()
    answers = Counter(await asyncio.gather(*coming))
    assert answers[101, 0] == 2
    assert set(answers) <= {(101, 0), (503, 0), (101, 1013)}
    await everybody_is_served(scene)


async def test_attack_18_nobody_takes_every_topic_for_itself(scene: Scene) -> None:
    answers: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_TOPICS_PER_PARTY + 10):
            peer = await stack.enter_async_context(scene.peering())
            peer.say(head(scene, ANYTHING, fresh_topic()))
            async with asyncio.timeout(SECONDS):
                status = (await peer.reader.readuntil(b"\r\n\r\n")).split()[1]
            opcode, _ = await next_frame(peer) if status == b"101" else (0, b"")
            answers["let in" if opcode == TEXT else "refused"] += 1
        assert answers == {"let in": MAX_TOPICS_PER_PARTY, "refused": 10}
        await everybody_is_served(scene)


async def test_attack_18_half_a_head_or_half_a_frame_keeps_nobody_waiting(scene: Scene) -> None:
    topic = fresh_topic()
    async with AsyncExitStack() as stack:
        for _ in range(100):
            peer = await stack.enter_async_context(scene.peering())
            peer.say(head(scene, ANYTHING, topic)[:-2])
        half = await stack.enter_async_context(upgraded(scene, ANYTHING, topic))
        half.say(frame(TEXT, said(ANYTHING))[:-1])
        await everybody_is_served(scene)


async def test_attack_18_who_sends_parts_without_an_end_is_let_go(scene: Scene) -> None:
    """Empty ones, of which a limit on the size of a message takes no notice."""
    async with watched(scene) as watch, upgraded(scene, ANYTHING, watch.topic) as peer:
        peer.say(frame(TEXT, b"", is_last=False))
        peer.say(frame(CONT, b"", is_last=False) * 10_000)
        assert await code_of_the_end(peer) == 1008
        assert await watch.heard_since() == []
    await everybody_is_served(scene)


async def test_attack_19_who_asks_for_signs_of_life_and_takes_none_is_let_go(scene: Scene) -> None:
    memory = psutil.Process().memory_info
    async with watched(scene) as watch, upgraded(scene, ANYTHING, watch.topic) as peer:
        peer.writer.transport.set_write_buffer_limits(MEBIBYTE)
        cast("asyncio.ReadTransport", peer.writer.transport).pause_reading()
        before = memory().rss
        with pytest.raises(ConnectionError):  # noqa: PT012  # until it is cut
            for _ in range(2_000):
                peer.say(frame(PING, b"a" * 125) * 1_000)
                async with asyncio.timeout(SECONDS):
                    await peer.writer.drain()
        assert memory().rss - before < 64 * MEBIBYTE
        assert await watch.heard_since() == []
    await everybody_is_served(scene)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(said(ANYTHING, kind="system/welcome"), "reserved_kind", id="a welcome"),
        pytest.param(said(ANA), "auth_violation", id="in another's name"),
    ],
)
async def test_attack_16_what_is_said_before_the_door_is_open_is_judged_too(
    scene: Scene, text: bytes, error: str
) -> None:
    async with (
        watched(scene) as watch,
        upgraded(scene, ANYTHING, watch.topic, at_once=frame(TEXT, text)) as peer,
    ):
        peer.say(frame(TEXT, text))
        heard = [json.loads((await next_frame(peer))[1]) for _ in range(3)]
        assert [each["kind"] for each in heard] == [
            "system/welcome",
            "system/presence",
            "system/error",
        ]
        assert heard[-1]["payload"]["error"] == error
        assert await watch.heard_since() == []
