"""Whoever waits is answered by the right one: no member breaks, floods or deceives another."""

import asyncio
from typing import Any

import pytest

from comity.rules.capabilities import FULL
from comity.sdk.events import Chat, Event, Misbehaviour, Request, Response, Welcome
from comity.sdk.membership import MOST_WAITED_FOR, Membership
from comity.sdk.participant import join
from comity.wire import envelope as wire
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.parties import GATEWAY
from tests.sdk.made import ME, frame, request, response, welcome
from tests.sdk.room import room
from tests.sdk.scene import ANA, BOT, LIFETIME, WORKER, WRITE, everybody, first, until

MALLORY = "agent:mallory"


def member() -> Membership:
    made = Membership(LIFETIME, has_later_kinds=False)
    assert made.greeted(welcome(ME, ANA))
    return made


async def test_a_member_who_was_not_asked_cannot_answer_for_another() -> None:
    async with room({ANA: FULL}) as gateway, join(gateway.url, "ops", token=ANA) as ana:
        blamed = ana.events(Misbehaviour)
        wanted = asyncio.create_task(ana.request("tools/call", WRITE, to=WORKER))
        asked = await gateway.until_said("mcp/request")
        kind = "mcp/response:tools/call:write"
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"by": "mallory"}}
        await gateway.forge(ANA, MALLORY, kind, answer, correlation_id=asked.id)
        told = await first(blamed)
        assert isinstance(told, Misbehaviour)
        assert (told.sender, wanted.done()) == (MALLORY, False)
        answer["result"] = {"by": "worker"}
        await gateway.forge(ANA, WORKER, kind, answer, correlation_id=asked.id)
        assert await wanted == {"by": "worker"}


async def test_nor_answer_what_another_fulfilled_for_us() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        del worker
        proposed = await bot.propose("tools/call", WRITE, to="agent:else")
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": WRITE}
        kind, about = "mcp/request:tools/call:write", {"correlation_id": proposed.id}
        requests = bot.events(Request)
        # Addressed to itself, this is no fulfilment of what was proposed to another.
        fake = await gateway.forge(BOT, MALLORY, kind, call, to=[MALLORY], **about)
        real = await gateway.forge(BOT, ANA, kind, call, to=["agent:else"], **about)
        for _ in range(2):
            await first(requests)
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"by": "mallory"}}
        kind = "mcp/response:tools/call:write"
        responses = bot.events(Response)
        await gateway.forge(BOT, MALLORY, kind, answer, correlation_id=fake)
        await first(responses)
        assert not proposed.answer.done()
        answer["result"] = {"by": "else"}
        await gateway.forge(BOT, "agent:else", kind, answer, correlation_id=real)
        assert await proposed == {"by": "else"}
        assert proposed.proposal.fulfilled_by == ana.id


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("system/welcome", {"you": {"id": MALLORY, "capabilities": ["mcp/*"]}}),
        ("system/error", {"error": "capability_violation", "message": "give up"}),
        ("system/presence", {"event": "leave", "participant": {"id": WORKER}}),
    ],
)
async def test_a_member_cannot_speak_for_the_gateway(kind: str, payload: dict[str, Any]) -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, _):
        stream = ana.events()
        wanted = asyncio.create_task(ana.request("tools/call", WRITE, to="agent:slow"))
        asked = await gateway.until_said("mcp/request")
        await gateway.forge(ANA, MALLORY, kind, payload, to=[ANA], correlation_id=asked.id)
        blamed = await until(stream, Misbehaviour)
        assert isinstance(blamed, Misbehaviour)
        assert (blamed.sender, ana.id, wanted.done()) == (MALLORY, ANA, False)
        assert WORKER in ana.others
        wanted.cancel()


async def test_what_cannot_be_read_breaks_nothing() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        chats = ana.events(Chat)
        for junk in (b"", b"{", b"[" * 100_000, b'"' + b"x" * 1_000_000 + b'"', b"\xff"):
            # What is no UTF-8 does not even reach us.
            await gateway.inject(ANA, junk)
        await bot.chat("still there?")
        heard = await first(chats)
        assert isinstance(heard, Chat)
        assert ana.reputation[""] >= 4


async def test_a_line_that_does_not_begin_with_a_welcome_is_none() -> None:
    made = Membership(LIFETIME, has_later_kinds=False)
    assert not made.greeted(frame("chat", {"text": "hello"}, ANA))
    assert not made.greeted(frame("system/welcome", {}, GATEWAY))
    assert not made.greeted(frame("system/welcome", {"you": {"id": ME}}, "agent:a"))


async def test_only_so_many_requests_wait_at_once() -> None:
    made = member()
    for number in range(MOST_WAITED_FOR):
        made.expect(wire.decode(request(id=str(number), sender=ME)), 1)
    with pytest.raises(Unavailable) as refused:
        made.expect(wire.decode(request(id="more", sender=ME)), 1)
    assert refused.value.fault is EXHAUSTED
    made.forget("0")
    made.expect(wire.decode(request(id="more", sender=ME)), 1)


async def test_an_answer_comes_once_and_a_second_one_changes_nothing() -> None:
    made = member()
    answer = made.expect(wire.decode(request(id="asked", sender=ME, to=[WORKER])), 7)
    made.heard(response("asked", WORKER, payload={"result": {"n": 1}}))
    made.heard(response("asked", WORKER, payload={"result": {"n": 2}}))
    assert (await answer).result == {"n": 1}


async def test_another_welcome_is_told_and_says_who_is_there_now() -> None:
    made = member()
    stream = made.events(Welcome)
    assert made.others == {ANA: ("chat",)}
    made.heard(welcome(ME, BOT))
    told: Event | Any = await first(stream)
    assert isinstance(told, Welcome)
    assert made.others == {BOT: ("chat",)}


@pytest.mark.requirement("MCPX-3.5.1-ignore")
async def test_a_welcome_of_another_is_nothing_to_us() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        told = ana.events(Welcome, Chat)
        payload = {"you": {"id": BOT, "capabilities": ["chat"]}}
        await gateway.forge(ANA, GATEWAY, "system/welcome", payload, to=[BOT])
        await bot.chat("hello")
        assert isinstance(await first(told), Chat)
        assert (ana.id, ana.capabilities) == (ANA, FULL)
        assert ana.reputation == {}
