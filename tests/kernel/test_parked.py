"""A modern client before a handshake server: parked while it is asked, resumed by its retry."""

import pytest

from comity.rules import rounds
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS
from comity.wire.jsonrpc import UNSET
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    FORM,
    Bridged,
    bridged,
    handshake_server,
    inputs,
    parked,
)
from tests.kernel.carriers import Params, params_of, result_of, until
from tests.kernel.refused import kind_of, refusal_in

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


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
    assert result["_meta"] == {mcp.SERVER_INFO: {"name": "scripted", "version": "1"}}


@each_transport
async def test_a_question_parks_the_call_and_the_retry_resumes_it(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        questions, state = await parked(house)
        assert questions == {"1": {"method": mcp.ELICIT, "params": FORM}}
        assert len(house.front.parking) == 1
        assert len(house.front.underway) == 0

        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        assert len(house.front.parking) == 0
        (heard,) = house.heard_by_server("q-1")
        assert result_of(heard) == ACCEPT
        house.finishes()
        answer = await again.answer()
        assert (answer.id, result_of(answer)["resultType"]) == ("own-2", "complete")
        assert len(house.calls) == 1


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        (mcp.ELICIT, {**FORM, "mode": "form"}, {"action": "decline"}),
        (mcp.ELICIT, {"mode": "url", "message": "m", "url": "u"}, {"action": "cancel"}),
        (mcp.SAMPLE, {"messages": [], "maxTokens": 5}, {"role": "assistant", "model": "m"}),
        (mcp.SAMPLE, {"messages": [], "maxTokens": 5, "tools": []}, {"role": "assistant"}),
        (mcp.LIST_ROOTS, UNSET, {"roots": [{"uri": "file:///a"}]}),
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
        house.finishes()
        await again.result()


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
        house.finishes()
        assert (await last.result())["content"] == DONE["content"]


@pytest.mark.parametrize("responses", [None, {}, {"9": ACCEPT}, {"q-1": ACCEPT}])
async def test_a_retry_that_answers_nothing_is_asked_again(responses: Params | None) -> None:
    async with bridged(handshake_server()) as house:
        questions, state = await parked(house)
        again = await house.retry(state, responses).result()
        assert inputs(again) == questions
        assert again["requestState"] != state
        assert house.heard_by_server("q-1") == []
        last = house.retry(again["requestState"], {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        house.finishes()
        await last.result()


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
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        await _is_refused(house, state)
        house.finishes()
        await again.result()
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


@pytest.mark.parametrize("response", [None, [], "accept", 7])
async def test_an_answer_that_cannot_be_read_leaves_the_call_parked(response: object) -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        await house.retry(state, {"1": response}).error()
        assert len(house.front.parking) == 1
        again = house.retry(state, {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q-1"))
        house.finishes()
        await again.result()


@pytest.mark.parametrize(
    ("can", "method", "params"),
    [
        ({}, mcp.ELICIT, FORM),
        ({"sampling": {}}, mcp.ELICIT, FORM),
        ({"elicitation": {}}, mcp.ELICIT, {"mode": "url", "message": "m", "url": "u"}),
        ({"sampling": {}}, mcp.SAMPLE, {"messages": [], "tools": []}),
        ({"elicitation": {}}, "vendor/ask", {}),
        ({"elicitation": {}}, mcp.ELICIT, []),
        ({"elicitation": {}}, mcp.ELICIT, {"mode": ["form"], "_meta": 7}),
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
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


async def test_a_retry_says_anew_what_its_client_can() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        again = house.retry(state, {"1": ACCEPT}, can={"sampling": {}})
        await until(lambda: house.heard_by_server("q-1"))
        house.asks("q-2")
        (heard,) = house.heard_by_server("q-2")
        assert jsonrpc.error_of(heard) is not None
        house.finishes()
        await again.result()


async def test_a_server_cannot_ask_without_end_at_once() -> None:
    async with bridged(handshake_server()) as house:
        names = [f"q-{number}" for number in range(rounds.MOST_REQUESTS + 5)]
        _, state = await parked(house, *names)
        refused = [name for name in names if house.heard_by_server(name)]
        assert refused == names[rounds.MOST_REQUESTS :]
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
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]
        for frame, state in zip(house.calls, states, strict=False):
            house.carrier.answers(frame, DONE)
            await house.retry(state, {}).result()


@pytest.mark.parametrize(
    ("method", "params"),
    [(mcp.GET_PROMPT, {"name": "p"}), (mcp.READ_RESOURCE, {"uri": "a://b"})],
)
async def test_prompts_and_resources_ask_in_the_same_way(method: str, params: Params) -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern(method, params)
        await until(lambda: house.script.last.asked(method))
        carrier = house.script.last
        (seen,) = carrier.asked(method)
        carrier.says(jsonrpc.request("q", mcp.ELICIT, FORM), seen)
        result = await asked.result()
        answer = {"inputResponses": {"1": ACCEPT}, "requestState": result["requestState"]}
        again = house.modern(method, {**params, **answer})
        await until(carrier.told)
        carrier.answers(seen, {"contents": [], "messages": []})
        assert (await again.result())["resultType"] == "complete"
