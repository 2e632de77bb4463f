"""How a parked call ends: by its answer, its client, its server, its time, and in any order."""

import pytest

from comity.kernel.parked import NOBODY_ANSWERED
from comity.wire import jsonrpc, mcp
from comity.wire.errors import URL_ELICITATION_REQUIRED
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    Bridged,
    bridged,
    handshake_server,
    inputs,
    parked,
)
from tests.kernel.carriers import Params, params_of, settled, until
from tests.kernel.refused import kind_of, refusal_in

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


def cancellations(house: Bridged) -> list[object]:
    told = [frame for frame in house.carrier.told() if frame.method == mcp.CANCELLED]
    return [params_of(frame)["requestId"] for frame in told]


@each_transport
async def test_an_answer_that_comes_while_nobody_asks_waits_for_the_next_who_does(
    process: bool,
) -> None:
    async with bridged(handshake_server(process)) as house:
        _, state = await parked(house)
        house.finishes()
        # The server no longer wants to know; its question is not left open.
        (heard,) = house.heard_by_server("q-1")
        assert jsonrpc.error_of(heard) is not None
        assert len(house.front.parking) == 1
        result = await house.retry(state, {"1": ACCEPT}).result()
        assert result["resultType"] == "complete"
        assert len(house.heard_by_server("q-1")) == 1


async def test_an_error_of_the_servers_waits_too() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        told = jsonrpc.failure(house.asked.id, URL_ELICITATION_REQUIRED, "no", {"a": 1})  # type: ignore[arg-type]
        house.carrier.says(told, house.asked)
        error = jsonrpc.error_of(await house.retry(state, {}).answer())
        assert error is not None
        assert error.code == URL_ELICITATION_REQUIRED.code


@each_transport
async def test_a_server_that_dies_fails_the_parked_call(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        _, state = await parked(house)
        house.carrier.dies()
        error = refusal_in(await house.retry(state, {"1": ACCEPT}).answer())
        assert kind_of(error) == "upstream_failed"


async def test_a_stream_that_ends_without_an_answer_fails_the_parked_call() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        assert isinstance(house.asked.id, int)
        house.carrier.receiver.stream_ended(house.asked.id, None)
        assert house.heard_by_server("q-1") != []
        error = refusal_in(await house.retry(state, {}).answer())
        assert kind_of(error) == "upstream_failed"


async def test_a_question_that_is_withdrawn_is_not_asked_again() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house, "q-1", "q-2")
        taken_back = jsonrpc.notification(mcp.CANCELLED, {"requestId": "q-1"})
        house.carrier.says(taken_back, house.asked)
        again = await house.retry(state, {"1": ACCEPT}).result()
        assert list(inputs(again)) == ["2"]
        assert house.heard_by_server("q-1") == []
        last = house.retry(again["requestState"], {"2": ACCEPT})
        await until(lambda: house.heard_by_server("q-2"))
        house.finishes()
        await last.result()


async def test_a_call_whose_only_question_is_withdrawn_goes_on_when_its_client_comes_back() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.carrier.says(jsonrpc.notification(mcp.CANCELLED, {"requestId": "q-1"}), house.asked)
        again = house.retry(state, {"1": ACCEPT})
        await settled()
        assert len(house.front.underway) == 1
        house.finishes()
        assert (await again.result())["content"] == DONE["content"]


async def test_a_call_that_nobody_comes_back_for_lapses() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.front.clock.passes(599)
        house.front.parking.look(0)
        assert len(house.front.parking) == 1
        house.front.clock.passes(1)
        house.front.parking.look(0)
        (heard,) = house.heard_by_server("q-1")
        error = jsonrpc.error_of(heard)
        assert error is not None
        assert error.message == NOBODY_ANSWERED
        assert cancellations(house) == [house.asked.id]
        await house.retry(state, {"1": ACCEPT}).error()
        # What the server says now is heard by nobody, and breaks nothing.
        house.finishes()


async def test_no_deadline_runs_while_the_client_is_asked() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.front.clock.passes(500)
        house.front.underway.look(0)
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        house.front.clock.passes(59)
        house.front.underway.look(1000)
        house.finishes()
        assert (await again.result())["content"] == DONE["content"]


async def test_the_deadline_of_a_resumed_call_ends_it_at_the_server() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        house.front.clock.passes(61)
        house.front.underway.look(1000)
        assert kind_of(refusal_in(await again.answer())) == "timeout"
        assert cancellations(house) == [house.asked.id]


@each_transport
async def test_a_client_that_withdraws_before_it_is_asked_ends_the_call(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called()
        (await asked.asking).withdraw(None)
        assert cancellations(house) == [house.asked.id]
        house.asks("q-1")
        house.finishes()
        if process:
            # On one pipe for all, nobody can be told whose question it was.
            assert len(house.heard_by_server("q-1")) == 1


async def test_a_client_that_never_read_what_it_was_asked_ends_the_call() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        house.asks("q-1")
        await asked.result()
        # Its door finds only now that the client had gone before the last byte.
        (await asked.asking).withdraw(None)
        assert len(house.front.parking) == 0
        assert cancellations(house) == [house.asked.id]
        assert len(house.heard_by_server("q-1")) == 1


async def test_the_end_of_an_older_request_does_not_end_the_one_that_took_its_place() -> None:
    async with bridged(handshake_server()) as house:
        first = await house.called()
        house.asks("q-1")
        state = (await first.result())["requestState"]
        second = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        (await first.asking).withdraw(None)
        assert cancellations(house) == []
        house.finishes()
        assert (await second.result())["content"] == DONE["content"]


async def test_a_client_that_withdraws_its_retry_ends_the_call() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        (await again.asking).withdraw(jsonrpc.to_raw("enough"))
        assert cancellations(house) == [house.asked.id]


async def test_a_retry_that_is_withdrawn_on_its_way_uses_up_no_state() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        lost = house.retry(state, {"1": ACCEPT})
        lost.outbox.end()
        assert len(house.front.parking) == 1
        (await lost.asking).withdraw(None)
        assert len(house.front.parking) == 1
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        house.finishes()
        await again.result()


async def test_a_server_that_asks_after_it_answered_is_refused() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        house.finishes()
        await asked.result()
        house.asks("late")
        (heard,) = house.heard_by_server("late")
        assert jsonrpc.error_of(heard) is not None


async def test_a_second_answer_is_heard_by_nobody() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.finishes()
        house.finishes({"content": [], "isError": True})
        assert "isError" not in await house.retry(state, {}).result()


# A server that wants pages visited first, and says so by an error.

PAGE: Params = {"elicitationId": "e", "message": "sign in", "url": "https://example.test/"}


def demand(house: Bridged, *pages: Params) -> None:
    data = {"elicitations": list(pages)}
    assert isinstance(house.asked.id, int)
    told = jsonrpc.failure(house.asked.id, URL_ELICITATION_REQUIRED, "sign in first", data)
    house.carrier.says(told, house.asked)


async def test_pages_that_a_server_demands_are_a_round_and_then_the_call_is_made_again() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        demand(house, PAGE, {**PAGE, "url": "https://example.test/2"})
        result = await asked.result()
        shown = {"mode": "url", "message": "sign in", "url": PAGE["url"]}
        assert inputs(result)["1"] == {"method": mcp.ELICIT, "params": shown}
        partly = await house.retry(result["requestState"], {"1": {"action": "accept"}}).result()
        assert list(inputs(partly)) == ["2"]
        again = house.retry(partly["requestState"], {"2": {"action": "accept"}})
        await until(lambda: len(house.calls) == 2)
        assert params_of(house.calls[0]) == params_of(house.calls[1])
        house.finishes()
        assert (await again.result())["content"] == DONE["content"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_page_that_is_not_visited_gives_the_client_the_servers_error(action: str) -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        demand(house, PAGE, PAGE)
        state = (await asked.result())["requestState"]
        answers = {"1": {"action": action}, "2": {"action": "accept"}}
        error = jsonrpc.error_of(await house.retry(state, answers).answer())
        assert error is not None
        assert (error.code, error.message) == (URL_ELICITATION_REQUIRED.code, "sign in first")
        assert len(house.calls) == 1


async def test_a_client_that_can_visit_no_page_gets_the_servers_error() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called(can={"elicitation": {}})
        demand(house, PAGE)
        error = jsonrpc.error_of(await asked.answer())
        assert error is not None
        assert error.code == URL_ELICITATION_REQUIRED.code


async def test_pages_are_demanded_while_nobody_stands_in_front() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        demand(house, PAGE)
        result = await house.retry(state, {"1": ACCEPT}).result()
        assert list(inputs(result)) == ["2"]
        house.front.clock.passes(601)
        house.front.parking.look(0)


async def test_pages_find_a_full_parking() -> None:
    async with bridged(handshake_server()) as house:
        for number in range(4):
            await parked(house, f"full-{number}")
        asked = await house.called()
        demand(house, PAGE)
        error = jsonrpc.error_of(await asked.answer())
        assert error is not None
        assert error.code == URL_ELICITATION_REQUIRED.code
        house.front.clock.passes(601)
        house.front.parking.look(0)


async def test_a_question_after_the_pages_does_not_make_the_call_once_more() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        demand(house, PAGE)
        state = (await asked.result())["requestState"]
        again = house.retry(state, {"1": {"action": "accept"}})
        await until(lambda: len(house.calls) == 2)
        house.asks("q")
        state = (await again.result())["requestState"]
        last = house.retry(state, {"2": ACCEPT})
        await until(lambda: house.heard_by_server("q"))
        await settled()
        assert len(house.calls) == 2
        house.finishes()
        assert (await last.result())["content"] == DONE["content"]
