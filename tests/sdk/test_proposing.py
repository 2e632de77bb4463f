"""What is proposed: fulfilled by somebody who may, once, as it was meant, and in its time."""

import asyncio
from datetime import timedelta

import pytest

from comity.rules.capabilities import FULL
from comity.rules.proposals import State
from comity.sdk.events import (
    Fulfilment,
    Proposal,
    Rejection,
    Welcome,
)
from comity.sdk.participant import Options, join
from comity.wire.errors import MalformedMessage, Unavailable
from tests.sdk.room import room
from tests.sdk.scene import ANA, BEA, BOT, WRITE, everybody, first

LATER = Options(has_later_kinds=True)


async def test_who_may_not_ask_proposes_and_is_given_what_came_of_it() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        proposals = ana.events(Proposal)
        wanted = asyncio.create_task(bot.request("tools/call", WRITE, to=worker.id))
        proposal = await first(proposals)
        assert isinstance(proposal, Proposal)
        assert proposal.correlation_id == ""
        assert bytes(proposal.envelope.payload).startswith(b'{"method":')
        answer = await ana.fulfil(proposal)
        assert await wanted == answer.result
        fulfilment = await gateway.until_said("mcp/request")
        response = await gateway.until_said("mcp/response")
        assert fulfilment.correlation_id == proposal.id
        assert response.correlation_id == fulfilment.id
        assert response.to == (ANA, BOT)


async def test_what_the_gateway_refuses_in_the_end_is_proposed_too() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        welcomes = bot.events(Welcome)
        await gateway.promote(BOT, *FULL)
        await first(welcomes)
        # Taken away again, and the word of it is not there yet.
        gateway.allowed[BOT] = ("mcp/proposal:*", "chat")
        proposals = ana.events(Proposal)
        wanted = asyncio.create_task(bot.request("tools/call", WRITE, to=worker.id))
        proposal = await first(proposals)
        assert isinstance(proposal, Proposal)
        await ana.fulfil(proposal)
        assert "content" in await wanted


async def test_a_proposal_is_followed_to_its_end() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        fulfilments = bot.events(Fulfilment)
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        assert handle.proposal.status is State.PENDING
        await first(proposals)
        assert [each.id for each in ana.proposals] == [handle.id]
        await ana.fulfil(handle.id)
        assert "content" in await handle
        told = await first(fulfilments)
        assert isinstance(told, Fulfilment)
        assert (told.is_first, told.is_as_proposed, told.request.sender) == (True, True, ANA)
        assert (handle.proposal.status, handle.proposal.fulfilled_by) == (State.ANSWERED, ANA)
        with pytest.raises(Unavailable, match=f"is fulfilled|is answered by {ANA}"):
            await ana.fulfil(handle.id)


async def test_a_proposal_that_nobody_fulfils_ends_with_its_time() -> None:
    short = Options(lifetime=timedelta(milliseconds=100))
    async with room() as gateway, join(gateway.url, "ops", token=BOT, options=short) as bot:
        with pytest.raises(Unavailable, match="is expired and has no answer"):
            await bot.request("tools/call", WRITE, to="agent:nobody")
        assert bot.proposals == ()


async def test_nobody_is_asked_twice_for_one_proposal() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        gateway.allowed[BEA] = FULL
        async with join(gateway.url, "ops", token=BEA) as bea:
            seen = ana.events(Proposal), bea.events(Proposal)
            handle = await bot.propose("tools/call", WRITE, to=worker.id)
            for stream in seen:
                await first(stream)
            # Neither hears of the other's before it has sent its own.
            one, other = await asyncio.gather(ana.fulfil(handle.id), bea.fulfil(handle.id))
            assert sorted([one.error is None, other.error is None]) == [False, True]


async def test_what_was_proposed_to_one_is_not_done_by_another() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        await first(proposals)
        with pytest.raises(MalformedMessage, match="say with `to` who is to do it: agent:wk"):
            await ana.fulfil(handle.id, to=BOT)
        broad = await bot.propose("tools/call", WRITE)
        await first(proposals)
        with pytest.raises(MalformedMessage, match="somebody"):
            await ana.fulfil(broad.id)
        with pytest.raises(MalformedMessage, match="no proposal"):
            await ana.fulfil("never-seen")


async def test_rejecting_and_withdrawing_are_off_unless_a_topic_has_them() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        proposal = await first(proposals)
        assert isinstance(proposal, Proposal)
        with pytest.raises(PermissionError, match="is no kind of"):
            await ana.reject(proposal)
        with pytest.raises(PermissionError, match="is no kind of"):
            await handle.withdraw()


async def test_a_topic_with_later_kinds_knows_no_and_never_mind() -> None:
    async with room({ANA: FULL, BOT: ("mcp/*", "chat")}) as gateway:
        gateway.is_strict = False
        gateway.allowed[BOT] = ("mcp/proposal:*", "mcp/withdraw", "chat")
        async with (
            join(gateway.url, "ops", token=ANA, options=LATER) as ana,
            join(gateway.url, "ops", token=BOT, options=LATER) as bot,
        ):
            proposals, rejections = ana.events(Proposal), bot.events(Rejection)
            handle = await bot.propose("tools/call", WRITE)
            proposal = await first(proposals)
            assert isinstance(proposal, Proposal)
            await ana.reject(proposal, "not today")
            with pytest.raises(Unavailable, match="said no: not today"):
                await handle
            rejection = await first(rejections)
            assert isinstance(rejection, Rejection)
            assert rejection.proposal.status is State.REJECTED
            other = await bot.propose("tools/call", WRITE)
            await first(proposals)
            await other.withdraw("never mind")
            with pytest.raises(Unavailable, match="it was withdrawn"):
                await other
            assert other.proposal.status is State.WITHDRAWN
