"""Calls that wait for a person, and what may happen to them before and while they leave."""

import asyncio
from datetime import timedelta

from comity.kernel.approvals import AskOptions
from comity.rules.refusals import Refusal
from comity.wire.asks import Ask, State
from comity.wire.errors import JOURNAL_AWAY, TOOL_DISABLED, Unavailable
from tests.kernel.asking import DONE, asking
from tests.kernel.carriers import settled
from tests.kernel.refused import kind_of

AT_ONCE = AskOptions(hold=timedelta(milliseconds=1))


async def test_a_client_that_withdraws_before_the_answer_runs_nothing_until_it_calls_again() -> (
    None
):
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        ask = await bed.open_ask()
        (await call.asking).withdraw(None)
        await bed.nothing_waits()
        await bed.answer()
        await settled()
        assert bed.runs == 0
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1
        assert (await bed.asks.get(ask.id) or ask).state is State.USED


async def test_a_client_that_withdraws_amid_the_last_step_leaves_the_answer_to_its_next_call() -> (
    None
):
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        await bed.open_ask()
        asked = await call.asking
        use = bed.asks.use

        async def use_slowly(id: str, name: str, at: object) -> object:
            used = await use(id, name, at)  # type: ignore[arg-type]
            asked.withdraw(None)
            return used

        bed.asks.use = use_slowly  # type: ignore[method-assign,assignment]
        ask = await bed.answer()
        await bed.nothing_waits()
        bed.asks.use = use
        assert bed.runs == 0
        assert (await bed.asks.get(ask.id) or ask).state is State.ACCEPTED
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1
        told = await bed.told()
        assert told.count("CALL_INTENDED") == 2
        assert told.count("TOOL_BLOCKED") == 1


async def test_whoever_left_before_it_was_asked_wakes_nobody() -> None:
    async with asking() as bed:
        woken: list[str] = []
        bed.approvals.changed = woken.append  # type: ignore[method-assign]
        latest, is_left = bed.asks.latest, asyncio.Event()

        async def latest_slowly(digest: str) -> Ask | None:
            await is_left.wait()
            return await latest(digest)

        bed.asks.latest = latest_slowly
        call = bed.call(await bed.front.client())
        (await call.asking).withdraw(None)
        is_left.set()
        await bed.nothing_waits()
        assert woken == []
        assert bed.runs == 0


async def test_a_definition_that_drifts_meanwhile_is_not_run() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        await bed.open_ask()
        bed.tools.version = "second"
        ask = await bed.answer()
        assert kind_of(await call.error()) == TOOL_DISABLED.error_type
        assert (await bed.asks.get(ask.id) or ask).state is State.WITHDRAWN
        # The same call is about another thing now, and somebody is asked about that.
        bed.call(session)
        assert (await bed.open_ask()).digest != ask.digest
        assert bed.runs == 0


async def test_a_definition_that_drifts_amid_the_last_step_is_not_run() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        use = bed.asks.use

        async def drift(id: str, name: str, at: object) -> object:
            bed.tools.version = "second"
            return await use(id, name, at)  # type: ignore[arg-type]

        bed.asks.use = drift  # type: ignore[method-assign,assignment]
        await bed.answer()
        assert kind_of(await call.error()) == TOOL_DISABLED.error_type
        assert bed.runs == 0


async def test_a_tool_that_is_not_offered_any_more_is_not_run_and_the_answer_stands() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.front.catalog.clear("srv")
        ask = await bed.answer()
        assert kind_of(await call.error()) == "tool_not_found"
        assert (await bed.asks.get(ask.id) or ask).state is State.ACCEPTED
        assert bed.runs == 0


async def test_a_grant_that_was_revoked_meanwhile_ends_the_call() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.grants.denied = True
        ask = await bed.answer()
        assert kind_of(await call.error()) == "access_denied"
        assert (await bed.asks.get(ask.id) or ask).state is State.WITHDRAWN
        assert bed.runs == 0


async def test_without_the_journal_nothing_runs_and_the_answer_stands() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        await bed.open_ask()
        insist = bed.journal.insist

        def away(_: object) -> asyncio.Future[None]:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(bed.journal.away())
            return failed

        bed.journal.insist = away  # type: ignore[method-assign]
        ask = await bed.answer()
        assert kind_of(await call.error()) == JOURNAL_AWAY.error_type
        assert (await bed.asks.get(ask.id) or ask).state is State.ACCEPTED
        assert bed.runs == 0
        bed.journal.insist = insist
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_call_that_was_never_sent_leaves_its_answer_as_it_was() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        await bed.open_ask()
        for carrier in bed.script.carriers:
            carrier.breaks = Unavailable("no way there")
        ask = await bed.answer()
        assert "no way there" in (await call.error()).message
        await bed.nothing_waits()
        assert (await bed.asks.get(ask.id) or ask).state is State.ACCEPTED
        assert "TOOL_EXECUTED" not in await bed.told()
        for carrier in bed.script.carriers:
            carrier.breaks = None
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_tool_that_is_set_aside_meanwhile_is_not_run() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.tools.refusal = Refusal(TOOL_DISABLED, "set aside")
        await bed.answer()
        assert "set aside" in (await call.error()).message
        assert bed.runs == 0


async def test_a_gateway_that_ends_lets_everybody_go_and_the_same_call_runs_at_the_next() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        calls = [bed.call(session), bed.call(session, arguments={"path": "/"})]
        for call in calls:
            await call.asking
        async with asyncio.timeout(10):
            while await bed.asks.count((State.PENDING,)) < len(calls):
                await asyncio.sleep(0)
        bed.holding.end()
        for call in calls:
            assert kind_of(await call.error()) == "pending_approval"
        await bed.nothing_waits()
        assert not bed.holding.held
        for ask in await bed.asks.page((State.PENDING,)):
            await bed.answer_to(ask)
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_gateway_that_ends_amid_the_last_step_runs_nothing_and_the_answer_stands() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        use = bed.asks.use

        async def end(id: str, name: str, at: object) -> object:
            used = await use(id, name, at)  # type: ignore[arg-type]
            bed.holding.end()
            return used

        bed.asks.use = end  # type: ignore[method-assign,assignment]
        ask = await bed.answer()
        assert kind_of(await call.error()) == "pending_approval"
        await bed.nothing_waits()
        assert (await bed.asks.get(ask.id) or ask).state is State.ACCEPTED
        assert bed.runs == 0
