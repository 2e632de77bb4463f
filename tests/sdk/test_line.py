"""The connection to a gateway: opened, kept, opened again, and given up where it has to be."""

import asyncio
from datetime import timedelta

import pytest

from comity.rules.backoff import Backoff
from comity.sdk.events import (
    Chat,
    Disconnected,
    Reconnected,
)
from comity.sdk.participant import Options, join
from comity.wire.errors import ACCESS_DENIED, Misconfigured, Unavailable
from tests.sdk.room import room
from tests.sdk.scene import BOT, QUICK, WRITE, first, until


async def test_it_comes_back_after_a_cut_and_says_what_waited() -> None:
    async with room() as gateway, join(gateway.url, "ops", token=BOT, options=QUICK) as bot:
        stream = bot.events()
        gateway.statuses = [503, 429]
        await gateway.cut(BOT)
        assert isinstance(await until(stream, Disconnected), Disconnected)
        waiting = asyncio.create_task(bot.chat("I was away"))
        back = await until(stream, Reconnected)
        assert isinstance(back, Reconnected)
        assert back.attempts == 3
        await waiting
        assert (await gateway.until_said("chat")).sender == BOT
        assert bot.is_connected


@pytest.mark.parametrize(("code", "word"), [(4001, "took our place"), (4003, "no more")])
async def test_it_stays_away_when_it_was_replaced_or_put_out(code: int, word: str) -> None:
    async with room() as gateway, join(gateway.url, "ops", token=BOT, options=QUICK) as bot:
        stream = bot.events(Chat)
        pending = await bot.propose("tools/call", WRITE)
        await gateway.cut(BOT, code, "go")
        with pytest.raises(Unavailable, match=word):
            await pending
        with pytest.raises(StopAsyncIteration):
            await first(stream)
        with pytest.raises(Unavailable, match=word) as refused:
            await bot.chat("anybody?")
        assert refused.value.fault is ACCESS_DENIED
        assert not bot.is_connected
        assert len(gateway.upgrades) == 1


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "show a token"), (403, "ask an operator"), (404, "name of the topic"), (302, "address")],
)
async def test_who_is_not_let_in_is_told_what_to_do(status: int, advice: str) -> None:
    async with room() as gateway:
        gateway.statuses = [status]
        with pytest.raises(Unavailable, match=advice):
            async with join(gateway.url, "ops", token=BOT, options=QUICK):
                pass
        assert len(gateway.upgrades) == 1


async def test_a_refusal_is_told_in_its_own_words_and_who_we_would_be_is_asked_for() -> None:
    async with room() as gateway:
        gateway.statuses = [403]
        with pytest.raises(Unavailable, match="HTTP 403: refused;"):
            async with join(gateway.url, "ops", token=BOT, options=Options(alias="ana")):
                pass
        assert gateway.upgrades[0].path.endswith("&as=ana")


async def test_a_gateway_that_is_not_there_is_tried_for_a_while() -> None:
    short = Options(patience=timedelta(milliseconds=300), backoff=QUICK.backoff)
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with join("http://127.0.0.1:9", "ops", token=BOT, options=short):
            pass


@pytest.mark.parametrize(
    ("url", "topic"), [("gateway", "ops"), ("ftp://host", "ops"), ("http://host", "o/p")]
)
async def test_an_address_that_is_none_is_told_at_once(url: str, topic: str) -> None:
    with pytest.raises(Misconfigured):
        async with join(url, topic, token=BOT):
            pass


async def test_after_leaving_nothing_is_sent_and_nobody_waits() -> None:
    async with room() as gateway:
        async with join(gateway.url, "ops", token=BOT) as bot:
            stream = bot.events()
        with pytest.raises(Unavailable, match="left the topic"):
            await bot.chat("one more thing")
        async with asyncio.timeout(20):
            assert [event async for event in stream if isinstance(event, Chat)] == []
            assert [event async for event in bot] == []


async def test_a_gateway_that_cuts_at_once_is_not_run_at() -> None:
    slow = Options(backoff=Backoff(timedelta(seconds=60), timedelta(seconds=60)))
    async with room() as gateway, join(gateway.url, "ops", token=BOT, options=slow) as bot:
        stream = bot.events()
        await gateway.cut(BOT, 1011, "something went wrong")
        await until(stream, Disconnected)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(gateway.upgrades) == 1
        assert not bot.is_connected
