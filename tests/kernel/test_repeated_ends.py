"""How a call that is made again and again ends: by time, its client, its server."""

import pytest

from comity.kernel import repeated
from comity.wire import jsonrpc, mcp
from comity.wire.errors import Unavailable
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    answers,
    bridged,
    modern_server,
    question_to,
    wants,
)
from tests.kernel.carriers import params_of, settled, until
from tests.kernel.desks import Asked
from tests.kernel.repeating import CALL, NAME, begun, refused_in
from tests.kernel.server_house import AT_ONCE


async def test_a_call_that_is_withdrawn_while_its_server_takes_time_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated, "PAUSES", AT_ONCE)
    async with bridged(modern_server()) as house:
        _, asked = await begun(house)
        house.finishes(wants(state="later"))
        (await asked.asking).withdraw(None)
        await settled()
        assert len(house.calls) == 1


async def test_the_deadline_runs_while_the_server_takes_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated, "PAUSES", AT_ONCE)
    async with bridged(modern_server()) as house:
        _, asked = await begun(house)
        house.finishes(wants(state="later"))
        house.front.clock.passes(61)
        house.front.underway.look(1000)
        assert refused_in(await asked.answer()) == "timeout"
        await settled()
        assert len(house.calls) == 1


async def test_no_deadline_runs_while_the_client_is_asked() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        question = await question_to(session, asked)
        house.front.clock.passes(250)
        house.front.underway.look(1000)
        answers(session, question, ACCEPT)
        house.front.clock.passes(59)
        house.front.underway.look(1000)
        assert not asked.outbox.final
        house.front.clock.passes(2)
        house.front.underway.look(1000)
        assert refused_in(await asked.answer()) == "timeout"


async def test_a_question_that_nobody_answers_ends_the_call() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        question = await question_to(session, asked)
        house.front.clock.passes(601)
        house.front.parking.look(0)
        withdrawn = jsonrpc.decode(asked.outbox.frames[0])
        assert withdrawn.method == mcp.CANCELLED
        assert params_of(withdrawn)["requestId"] == question.id
        assert refused_in(await asked.answer()) == "timeout"
        answers(session, question, ACCEPT)
        assert len(house.calls) == 1


async def test_a_client_that_withdraws_while_it_is_asked_is_asked_no_more() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME, "b": NAME}))
        question = await question_to(session, asked)
        call = await asked.asking
        session.hear(jsonrpc.notification(mcp.CANCELLED, {"requestId": call.asker_id}))
        answers(session, question, ACCEPT)
        assert len(house.calls) == 1
        assert len(house.front.parking) == 0


async def test_a_client_that_withdraws_in_a_later_round_is_withdrawn_at_the_server() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        answers(session, await question_to(session, asked), ACCEPT)
        (await asked.asking).withdraw(None)
        assert house.carrier.abandoned == [house.asked.id]


async def test_a_session_that_ends_while_it_is_asked_answers_nothing() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME, "b": NAME}))
        await question_to(session, asked)
        await house.front.sessions.end(session)
        await settled()
        assert len(house.calls) == 1


async def test_a_full_parking_ends_the_call() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client(**EVERYTHING)
        open_calls: list[Asked] = []
        for number in range(5):
            open_calls.append(house.front.ask(session, mcp.CALL_TOOL, CALL))
            await until(lambda expected=number + 1: len(house.calls) == expected)
            house.finishes(wants({"a": NAME}))
        assert refused_in(await open_calls[4].answer()) == "exhausted"
        house.front.clock.passes(601)
        house.front.parking.look(0)
        for each in open_calls[:4]:
            assert refused_in(await each.answer()) == "timeout"


async def test_a_server_that_is_gone_when_the_answer_comes_fails_the_call() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        question = await question_to(session, asked)
        house.carrier.dies()
        answers(session, question, ACCEPT)
        assert refused_in(await asked.answer()).startswith(("server_", "upstream_"))


async def test_a_message_that_cannot_be_sent_again_fails_the_call() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        question = await question_to(session, asked)
        house.carrier.breaks = Unavailable("the pipe is full")
        answers(session, question, ACCEPT)
        assert refused_in(await asked.answer()) == "upstream_failed"


async def test_a_client_whose_stream_broke_finds_its_question_when_it_comes_back() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        replay = session.begin_stream(asked.outbox)
        house.finishes(wants({"a": NAME}))
        data = replay.next()
        assert data is not None
        replay.record(data)
        # The stream breaks here; its session keeps it, and what was said comes once more.
        assert session.streams is not None
        ((_, again),) = session.streams[replay.number].after(0)
        question = jsonrpc.decode(again)
        answers(session, question, ACCEPT)
        house.finishes()
        assert await asked.result() == DONE
