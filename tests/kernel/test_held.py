"""Calls that wait for a person: what runs, how often, and what their clients are told."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.kernel.approvals import AskOptions
from comity.wire import jsonrpc, mcp
from comity.wire.asks import State, Verdict
from comity.wire.audit import Type
from comity.wire.errors import MalformedMessage
from tests.kernel.asking import AGENT, ANA, BEA, DONE, OTHER, asking
from tests.kernel.carriers import SILENCE, Script, params_of, settled, until
from tests.kernel.desks import Asked
from tests.kernel.refused import kind_of

AT_ONCE = AskOptions(hold=timedelta(milliseconds=1))


async def test_a_call_that_is_approved_runs_once() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        ask = await bed.open_ask()
        assert bed.runs == 0
        assert (ask.asker, ask.server, ask.tool) == (AGENT.party, "srv", "delete")
        await bed.answer()
        assert await call.result() == DONE
        assert bed.runs == 1
        assert (await bed.asks.get(ask.id) or ask).state is State.USED
        assert await bed.told() == [
            *("JOURNAL_OPENED", "ASK_OPENED", "ASK_ANSWERED", "CALL_INTENDED", "ASK_USED"),
            "TOOL_EXECUTED",
        ]
        intent = next(event for event in bed.events if event.type is Type.CALL_INTENDED)
        assert intent.details["answered_by"] == ask.id
        assert len({event.trace for event in bed.events[1:]}) == 1


async def test_a_call_that_is_declined_never_runs_nor_asks_again_for_a_while() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        await bed.open_ask()
        await bed.approvals.answer(ANA, (await bed.open_ask()).id, Verdict.DECLINE, "not today")
        error = await call.error()
        assert kind_of(error) == "declined"
        assert "person:ana@example.org declined this call: not today" in error.message
        assert kind_of(await bed.call(session).error()) == "declined"
        assert await bed.asks.count(list(State)) == 1
        bed.time.passes(bed.options.declined_for)
        bed.call(session)
        await bed.open_ask()
        assert bed.runs == 0


async def test_a_call_that_nobody_answers_expires() -> None:
    async with asking(options=AskOptions(hold=timedelta(hours=1))) as bed:
        call = bed.call(await bed.front.client())
        ask = await bed.open_ask()
        bed.time.passes(bed.options.expires)
        bed.approvals.changed(ask.id)
        error = await call.error()
        assert kind_of(error) == "declined"
        assert "in time" in error.message
        assert (await bed.asks.get(ask.id) or ask).state is State.EXPIRED
        with pytest.raises(MalformedMessage, match="expired"):
            await bed.approvals.answer(ANA, ask.id, Verdict.ACCEPT)
        assert bed.runs == 0


async def test_an_approval_that_nobody_used_in_time_is_void() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        await bed.call(session).error()
        first = await bed.answer()
        bed.time.passes(bed.options.lasts)
        assert kind_of(await bed.call(session).error()) == "pending_approval"
        assert (await bed.open_ask()).id != first.id
        assert bed.runs == 0


async def test_of_two_equal_calls_one_runs_by_one_approval_and_the_other_asks_anew() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        calls = [bed.call(session), bed.call(session)]
        for call in calls:
            await call.asking
        first = await bed.answer()
        await until(lambda: bed.runs == 1)
        second = await bed.open_ask()
        assert second.id != first.id
        assert bed.runs == 1
        await bed.answer()
        assert [await call.result() for call in calls] == [DONE, DONE]
        assert bed.runs == 2


async def test_two_hundred_equal_calls_at_once_with_one_approval_run_once() -> None:
    async with asking(options=AskOptions(hold=timedelta(hours=1))) as bed:
        session = await bed.front.client()
        calls = [bed.call(session) for _ in range(200)]
        for call in calls:
            await call.asking
        await bed.answer()
        await until(lambda: bed.runs == 1)
        await bed.answer(Verdict.DECLINE)
        kinds = [await _kind(call) for call in calls]
        assert (kinds.count(""), kinds.count("declined")) == (1, 199)
        assert bed.runs == 1


async def test_the_same_arguments_of_another_party_are_another_ask() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        await bed.call(session).error()
        await bed.answer()
        assert kind_of(await bed.call(session, OTHER).error()) == "pending_approval"
        assert kind_of(await bed.call(session, arguments={"path": "/"}).error()) == (
            "pending_approval"
        )
        assert bed.runs == 0


async def test_who_waits_too_long_is_told_to_call_again_and_that_runs_once() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        refusal = await bed.call(session).refusal()
        ask = await bed.open_ask()
        assert refusal["error_type"] == "pending_approval"
        assert refusal["retryable"] is True
        details = refusal["details"]
        assert isinstance(details, dict)
        assert details["ask_id"] == ask.id
        assert details["url"] == f"/asks/{ask.id}"
        again = await bed.call(session).refusal()
        assert again["details"] == details
        await bed.answer()
        assert await bed.call(session).result() == DONE
        assert kind_of(await bed.call(session).error()) == "pending_approval"
        assert bed.runs == 1


async def test_who_has_as_many_asks_as_it_may_is_still_told_of_those() -> None:
    async with asking(options=replace(AT_ONCE, most_of_one=1)) as bed:
        session = await bed.front.client()
        first = await bed.call(session).refusal()
        assert kind_of(await bed.call(session, arguments={"path": "/"}).error()) == ("exhausted")
        assert (await bed.call(session).refusal())["details"] == first["details"]


async def test_a_quorum_of_two_needs_two_people() -> None:
    async with asking() as bed:
        bed.tools.quorum = 2
        call = bed.call(await bed.front.client())
        await bed.answer(by=ANA)
        with pytest.raises(MalformedMessage):
            await bed.answer(by=ANA)
        await settled()
        assert bed.runs == 0
        await bed.answer(by=BEA)
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_no_deadline_runs_while_somebody_is_asked() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.front.clock.passes(299)
        bed.front.underway.look(10_000)
        assert not call.outbox.final
        await bed.answer()
        assert await call.result() == DONE


async def test_after_the_answer_the_deadline_runs() -> None:
    async with asking(Script(replies={mcp.CALL_TOOL: SILENCE})) as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.front.clock.passes(299)
        await bed.answer()
        await until(lambda: bed.runs == 1)
        bed.front.clock.passes(61)
        bed.front.underway.look(10_000)
        refusal = await call.refusal()
        assert (refusal["error_type"], refusal["retryable"]) == ("timeout", False)


async def test_a_call_that_waits_for_longer_than_any_may_is_known_not_to_have_run() -> None:
    async with asking(options=AskOptions(hold=timedelta(hours=9))) as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        bed.front.clock.passes(301)
        bed.front.underway.look(10_000)
        refusal = await call.refusal()
        assert (refusal["error_type"], refusal["retryable"]) == ("timeout", True)
        assert "TOOL_EXECUTED" not in await bed.told()


async def test_who_gave_a_token_hears_at_once_and_is_kept_for_as_long_as_it_takes() -> None:
    async with asking(options=AT_ONCE) as bed:
        call = bed.call(await bed.front.client(), _meta={"progressToken": "p"})
        ask = await bed.open_ask()
        await until(lambda: bool(call.outbox.frames))
        news = jsonrpc.decode(call.outbox.take()[0])
        assert news.method == mcp.PROGRESS
        assert params_of(news)["progressToken"] == "p"
        assert ask.id in str(params_of(news)["message"])
        await settled(200)
        assert not call.outbox.final
        await bed.answer()
        assert await call.result() == DONE


async def test_a_repeated_key_is_refused_before_anybody_is_asked() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        await bed.open_ask()
        frame = jsonrpc.decode(
            b'{"jsonrpc":"2.0","id":"d","method":"tools/call","params":'
            b'{"name":"delete","arguments":{"path":"/tmp/x","path":"/etc"}}}'
        )
        outbox = type(call.outbox)()
        outbox.actor = AGENT
        session = await bed.front.client()
        asked = Asked(outbox, asyncio.ensure_future(bed.front.desk.ask(session, frame, outbox)))
        assert "repeated" in (await asked.error()).message
        assert await bed.asks.count(list(State)) == 1
        assert bed.runs == 0


async def _kind(call: Asked) -> str:
    frame = await call.answer()
    found = jsonrpc.error_of(frame)
    if found is not None:
        return kind_of(found)
    return "declined" if b"declined" in jsonrpc.encode(frame) else ""
