"""Modern clients at legacy servers: a call is parked while its client is asked."""

from datetime import timedelta

import pytest

from comity.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.era_bridge import MAX_TOTAL_PARKED_BYTES, NO_ANSWER_TEXT, ParkedCalls
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.sessions.calls import Call
from tests.support.bridged import (
    ACCEPT,
    DONE,
    FORM,
    Bridged,
    bridged,
    handshake_server,
    inputs,
    parked,
)
from tests.support.carriers import (
    SILENCE,
    AnySchema,
    Clock,
    Params,
    Script,
    ScriptedCarrier,
    params_of,
    result_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Asked, one_server
from tests.support.refused import kind_of, refusal_in

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


async def resumed(house: Bridged, state: object) -> Asked:
    """The retry of a parked call, once the server has heard its client's answer."""
    again = house.retry(state, {"1": ACCEPT})
    await until(lambda: house.heard_by_server("q-1"))
    return again


async def completes(house: Bridged, asked: Asked) -> None:
    house.finishes()
    assert (await asked.result())["content"] == DONE["content"]


@each_transport
async def test_a_call_that_asks_nothing_is_answered_with_the_stamps_of_its_era(
    process: bool,
) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called()
        assert params_of(house.asked) == {"name": "t", "arguments": {}}
        house.finishes({**DONE, "structuredContent": {"a": 1}})
        result = await asked.result()
    assert result["resultType"] == "complete"
    assert result["structuredContent"] == {"a": 1}
    assert result["_meta"] == {protocol.SERVER_INFO: {"name": "scripted", "version": "1"}}


@each_transport
async def test_a_question_parks_the_call_and_the_retry_resumes_it(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        questions, state = await parked(house)
        assert questions == {"1": {"method": protocol.ELICIT, "params": FORM}}
        assert len(house.front.parking) == 1
        assert len(house.front.underway) == 0

        again = await resumed(house, state)
        assert len(house.front.parking) == 0
        (heard,) = house.heard_by_server("q-1")
        assert result_of(heard) == ACCEPT
        house.finishes()
        answer = await again.answer()
        assert (answer.id, result_of(answer)["resultType"]) == ("own-2", "complete")
        assert len(house.calls) == 1


@loop_over(
    ("method", "params", "answer"),
    [
        (protocol.ELICIT, {**FORM, "mode": "form"}, {"action": "decline"}),
        (protocol.ELICIT, {"mode": "url", "message": "m", "url": "u"}, {"action": "cancel"}),
        (protocol.SAMPLE, {"messages": [], "maxTokens": 5}, {"role": "assistant", "model": "m"}),
        (protocol.SAMPLE, {"messages": [], "maxTokens": 5, "tools": []}, {"role": "assistant"}),
        (protocol.LIST_ROOTS, UNSET, {"roots": [{"uri": "file:///a"}]}),
    ],
)
async def test_everything_that_a_client_can_be_asked_crosses(
    method: str, params: object, answer: Params
) -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        house.asks("q", method, params)
        result = await asked.result()
        expected = {"method": method} if params is UNSET else {"method": method, "params": params}
        assert inputs(result) == {"1": expected}
        again = house.retry(result["requestState"], {"1": {**answer, "resultType": "complete"}})
        await until(lambda: house.heard_by_server("q"))
        assert result_of(house.heard_by_server("q")[0]) == answer
        await completes(house, again)


async def test_questions_that_come_while_nobody_stands_in_front_are_asked_next() -> None:
    async with bridged(handshake_server()) as house:
        questions, state = await parked(house, "q-1", "q-2", "q-3")
        # The first ended the client's request; the others came too late for it.
        assert list(questions) == ["1"]
        second = await house.retry(state, {"1": ACCEPT}).result()
        assert list(inputs(second)) == ["2", "3"]
        third = await house.retry(second["requestState"], {"3": ACCEPT}).result()
        assert list(inputs(third)) == ["2"]
        last = house.retry(third["requestState"], {"2": ACCEPT})
        await until(lambda: house.heard_by_server("q-2"))
        await completes(house, last)


@loop_over("responses", [None, {}, {"9": ACCEPT}, {"q-1": ACCEPT}])
async def test_a_retry_that_answers_nothing_is_asked_again(responses: Params | None) -> None:
    async with bridged(handshake_server()) as house:
        questions, state = await parked(house)
        again = await house.retry(state, responses).result()
        assert inputs(again) == questions
        assert again["requestState"] != state
        assert house.heard_by_server("q-1") == []
        last = house.retry(again["requestState"], {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        await completes(house, last)


async def _is_refused(house: Bridged, state: object, params: Params | None = None) -> None:
    answer = await house.retry(state, {"1": ACCEPT}, params).answer()
    error = refusal_in(answer)
    assert error is not None
    assert error.code == INVALID_PARAMS.code
    assert kind_of(error) == "invalid_params"


async def test_a_state_is_good_for_one_return_of_the_same_request() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        await _is_refused(house, state[:-4] + "AAAA")
        await _is_refused(house, "made up")
        await _is_refused(house, "x" * 100_000)
        await _is_refused(house, 7)
        await _is_refused(house, ["a"])
        await _is_refused(house, state, params={"arguments": {"other": 1}})
        await _is_refused(house, state, params={"name": "another"})
        assert len(house.front.parking) == 1
        again = await resumed(house, state)
        await _is_refused(house, state)
        await completes(house, again)
        await _is_refused(house, state)


async def test_answers_without_their_state_do_not_make_the_call_again() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        params: Params = {"name": "t", "arguments": {}, "inputResponses": {"1": ACCEPT}}
        error = await house.modern(params=params).error()
        assert error.code == INVALID_PARAMS.code
        assert len(house.calls) == 1
        house.finishes()
        await house.retry(state, {}).result()


@loop_over("response", [None, [], "accept", 7])
async def test_an_answer_that_cannot_be_read_leaves_the_call_parked(response: object) -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        await house.retry(state, {"1": response}).error()
        assert len(house.front.parking) == 1
        again = await resumed(house, state)
        await completes(house, again)


@pytest.mark.parametrize(
    ("can", "method", "params"),
    [
        ({}, protocol.ELICIT, FORM),
        ({"sampling": {}}, protocol.ELICIT, FORM),
        ({"elicitation": {}}, protocol.ELICIT, {"mode": "url", "message": "m", "url": "u"}),
        ({"sampling": {}}, protocol.SAMPLE, {"messages": [], "tools": []}),
        ({"elicitation": {}}, "vendor/ask", {}),
        ({"elicitation": {}}, protocol.ELICIT, []),
        ({"elicitation": {}}, protocol.ELICIT, {"mode": ["form"], "_meta": 7}),
    ],
)
@each_transport
async def test_what_a_client_cannot_be_asked_is_refused_in_its_name(
    process: bool, can: Params, method: str, params: object
) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(can=can)
        house.asks("q", method, params)
        (heard,) = house.heard_by_server("q")
        assert jsonrpc.error_of(heard) is not None
        assert len(house.front.parking) == 0
        await completes(house, asked)


async def test_a_retry_says_anew_what_its_client_can() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = house.retry(state, {"1": ACCEPT}, can={"sampling": {}})
        await until(lambda: house.heard_by_server("q-1"))
        house.asks("q-2")
        (heard,) = house.heard_by_server("q-2")
        assert jsonrpc.error_of(heard) is not None
        await completes(house, again)


async def test_a_server_cannot_ask_without_end_at_once() -> None:
    async with bridged(handshake_server()) as house:
        names = [f"q-{number}" for number in range(eras.MAX_REQUESTS + 5)]
        _, state = await parked(house, *names)
        refused = [name for name in names if house.heard_by_server(name)]
        assert refused == names[eras.MAX_REQUESTS :]
        house.finishes()
        await house.retry(state, {}).result()


async def test_a_server_cannot_ask_more_than_a_message_holds() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        large = {**FORM, "message": "x" * 3_000_000}
        house.asks("q-1", params=large)
        house.asks("q-2", params=large)
        assert [bool(house.heard_by_server(name)) for name in ("q-1", "q-2")] == [False, True]
        result = await asked.result()
        house.finishes()
        await house.retry(result["requestState"], {}).result()


async def test_a_full_parking_refuses_the_question_and_not_the_call() -> None:
    async with bridged(handshake_server()) as house:
        states = [(await parked(house, f"full-{number}"))[1] for number in range(4)]
        asked = await house.called()
        house.asks("q")
        (heard,) = house.heard_by_server("q")
        error = jsonrpc.error_of(heard)
        assert error is not None
        assert "too many" in error.message
        await completes(house, asked)
        for frame, state in zip(house.calls, states, strict=False):
            house.carrier.answers(frame, DONE)
            await house.retry(state, {}).result()


@loop_over(
    ("method", "params"),
    [(protocol.GET_PROMPT, {"name": "p"}), (protocol.READ_RESOURCE, {"uri": "a://b"})],
)
async def test_prompts_and_resources_ask_in_the_same_way(method: str, params: Params) -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern(method, params)
        await until(lambda: house.script.last.asked(method))
        carrier = house.script.last
        (seen,) = carrier.asked(method)
        carrier.says(jsonrpc.make_request("q", protocol.ELICIT, FORM), seen)
        result = await asked.result()
        answer = {"inputResponses": {"1": ACCEPT}, "requestState": result["requestState"]}
        again = house.modern(method, {**params, **answer})
        await until(carrier.told)
        carrier.answers(seen, {"contents": [], "messages": []})
        assert (await again.result())["resultType"] == "complete"


# How a parked call ends.


def cancellations(house: Bridged) -> list[object]:
    told = [frame for frame in house.carrier.told() if frame.method == protocol.CANCELLED]
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


@each_transport
async def test_a_list_that_comes_while_nobody_asks_holds_only_what_its_client_may_use(
    process: bool,
) -> None:
    listed: Params = {"tools": [{"name": "good"}, {"name": "bad", "inputSchema": {"type": "x"}}]}
    script = handshake_server(process, tools_list=listed)
    async with one_server(script, AnySchema({"inputSchema bad": "no such type"})) as front:
        house, before = Bridged(front, script), len(lists_at(script))
        script.replies[protocol.LIST_TOOLS] = SILENCE
        asked = house.modern(protocol.LIST_TOOLS, {})
        await until(lambda: len(lists_at(script)) > before)
        carrier, request = lists_at(script)[-1]
        carrier.says(jsonrpc.make_request("q-1", protocol.ELICIT, FORM), request)
        state = (await asked.result())["requestState"]
        carrier.answers(request, listed)
        await settled()
        again = house.modern(
            protocol.LIST_TOOLS, {"requestState": state, "inputResponses": {"1": ACCEPT}}
        )
        assert (await again.result())["tools"] == [{"name": "good"}]


def lists_at(script: Script) -> list[tuple[ScriptedCarrier, Frame]]:
    return [(each, asked) for each in script.carriers for asked in each.asked(protocol.LIST_TOOLS)]


async def test_an_error_of_the_servers_waits_too() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        told = jsonrpc.make_error(house.asked.id, URL_ELICITATION_REQUIRED, "no", {"a": 1})  # type: ignore[arg-type]
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
        house.carrier.receiver.on_stream_ended(house.asked.id, None)
        assert house.heard_by_server("q-1") != []
        error = refusal_in(await house.retry(state, {}).answer())
        assert kind_of(error) == "upstream_failed"


async def test_a_question_that_is_withdrawn_is_not_asked_again() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house, "q-1", "q-2")
        taken_back = jsonrpc.make_notification(protocol.CANCELLED, {"requestId": "q-1"})
        house.carrier.says(taken_back, house.asked)
        again = await house.retry(state, {"1": ACCEPT}).result()
        assert list(inputs(again)) == ["2"]
        assert house.heard_by_server("q-1") == []
        last = house.retry(again["requestState"], {"2": ACCEPT})
        await until(lambda: house.heard_by_server("q-2"))
        await completes(house, last)


async def test_a_call_whose_only_question_is_withdrawn_goes_on_when_its_client_comes_back() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.carrier.says(
            jsonrpc.make_notification(protocol.CANCELLED, {"requestId": "q-1"}), house.asked
        )
        again = house.retry(state, {"1": ACCEPT})
        await settled()
        assert len(house.front.underway) == 1
        await completes(house, again)


async def test_a_call_that_nobody_comes_back_for_lapses() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.front.clock.passes(599)
        house.front.parking.check(0)
        assert len(house.front.parking) == 1
        house.front.clock.passes(1)
        house.front.parking.check(0)
        (heard,) = house.heard_by_server("q-1")
        error = jsonrpc.error_of(heard)
        assert error is not None
        assert error.message == NO_ANSWER_TEXT
        assert cancellations(house) == [house.asked.id]
        await house.retry(state, {"1": ACCEPT}).error()
        # What the server says now is heard by nobody, and breaks nothing.
        house.finishes()


async def test_no_deadline_runs_while_the_client_is_asked() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        house.front.clock.passes(500)
        house.front.underway.check(0)
        again = await resumed(house, state)
        house.front.clock.passes(59)
        house.front.underway.check(1000)
        await completes(house, again)


async def test_the_deadline_of_a_resumed_call_ends_it_at_the_server() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = await resumed(house, state)
        house.front.clock.passes(61)
        house.front.underway.check(1000)
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
        await completes(house, second)


async def test_a_client_that_withdraws_its_retry_ends_the_call() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = await resumed(house, state)
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
        again = await resumed(house, state)
        await completes(house, again)


async def test_a_server_that_asks_after_it_answered_is_refused() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        await completes(house, asked)
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
    told = jsonrpc.make_error(house.asked.id, URL_ELICITATION_REQUIRED, "sign in first", data)
    house.carrier.says(told, house.asked)


async def test_pages_that_a_server_demands_are_a_round_and_then_the_call_is_made_again() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        demand(house, PAGE, {**PAGE, "url": "https://example.test/2"})
        result = await asked.result()
        shown = {"mode": "url", "message": "sign in", "url": PAGE["url"]}
        assert inputs(result)["1"] == {"method": protocol.ELICIT, "params": shown}
        partly = await house.retry(result["requestState"], {"1": {"action": "accept"}}).result()
        assert list(inputs(partly)) == ["2"]
        again = house.retry(partly["requestState"], {"2": {"action": "accept"}})
        await until(lambda: len(house.calls) == 2)
        assert params_of(house.calls[0]) == params_of(house.calls[1])
        await completes(house, again)


@loop_over("action", ["decline", "cancel"])
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
        house.front.parking.check(0)


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
        house.front.parking.check(0)


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
        await completes(house, last)


# Limits of parked calls.


class Waiter:
    def __init__(self) -> None:
        self.lapsed = 0

    def resume(self, call: Call, frame: Frame) -> None: ...

    def expire_parked(self) -> None:
        self.lapsed += 1


def parking(most: int = 3, seconds: float = 60) -> tuple[ParkedCalls, Clock]:
    clock = Clock()
    return ParkedCalls(clock, most, timedelta(seconds=seconds)), clock


def test_each_principal_has_a_share_of_the_places() -> None:
    place = ParkedCalls(Clock(), 100, timedelta(seconds=60), max_per_principal=2)
    mine = [Waiter(), Waiter()]
    for each in mine:
        place.park(each, 1, principal="agent:a")
    with pytest.raises(Unavailable, match="max_parked_per_principal") as refused:
        place.park(Waiter(), 1, principal="agent:a")
    assert (refused.value.fault, refused.value.retry_after is None) == (EXHAUSTED, False)
    # Who waits already may wait anew, and somebody else waits undisturbed.
    place.park(mine[0], 1, principal="agent:a")
    place.park(Waiter(), 1, principal="agent:b")
    place.remove(mine[0])
    place.park(Waiter(), 1, principal="agent:a")
    assert len(place) == 3


def test_few_large_calls_of_one_principal_leave_room_for_others() -> None:
    place = ParkedCalls(Clock(), 100, timedelta(seconds=60), max_per_principal=50)
    place.park(Waiter(), MAX_TOTAL_PARKED_BYTES // 4, principal="agent:a")
    with pytest.raises(Unavailable, match="bytes"):
        place.park(Waiter(), 1, principal="agent:a")
    place.park(Waiter(), MAX_TOTAL_PARKED_BYTES // 4, principal="agent:b")


def test_a_state_of_another_gateway_leads_nowhere() -> None:
    ours, _ = parking()
    theirs, _ = parking()
    with pytest.raises(MalformedMessage):
        ours.find(theirs.park(Waiter(), 0), b"")


def test_whoever_parks_again_has_one_place_and_a_new_name() -> None:
    place, clock = parking()
    waiter = Waiter()
    first = place.park(waiter, 0)
    clock.passes(50)
    second = place.park(waiter, 0)
    assert len(place) == 1
    with pytest.raises(MalformedMessage):
        place.find(first, b"")
    assert place.find(second, b"") is waiter
    clock.passes(50)
    place.check(0)
    assert waiter.lapsed == 0
    clock.passes(10)
    place.check(0)
    assert (waiter.lapsed, len(place)) == (1, 0)


def test_a_full_parking_still_has_room_for_who_is_in_it() -> None:
    place, _ = parking(most=1)
    waiter = Waiter()
    place.park(waiter, 0)
    assert place.find(place.park(waiter, 0), b"") is waiter


def test_a_parking_is_full_by_size_as_well() -> None:
    place, _ = parking()
    large = Waiter()
    place.park(large, MAX_TOTAL_PARKED_BYTES - 1)
    place.park(Waiter(), 1)
    with pytest.raises(Unavailable):
        place.park(Waiter(), 1)
    place.park(large, MAX_TOTAL_PARKED_BYTES - 2)
    place.park(Waiter(), 1)


def test_a_lapse_that_ends_others_too_ends_each_of_them_once() -> None:
    place, clock = parking()
    second = Waiter()

    class First(Waiter):
        def expire_parked(self) -> None:
            super().expire_parked()
            place.remove(second)

    first = First()
    place.park(first, 0)
    place.park(second, 0)
    clock.passes(60)
    place.check(0)
    assert (first.lapsed, second.lapsed, len(place)) == (1, 0, 0)


def test_a_lapse_that_fails_holds_up_no_other() -> None:
    place, clock = parking()

    class Broken(Waiter):
        def expire_parked(self) -> None:
            raise ValueError("a bug")

    place.park(Broken(), 0)
    after = Waiter()
    place.park(after, 0)
    clock.passes(60)
    with pytest.raises(ValueError, match="a bug"):
        place.check(0)
    place.check(0)
    assert (after.lapsed, len(place)) == (1, 0)
