"""A handshake client before a modern server: asked by requests, its call made again."""

import pytest

from comity.kernel import repeated
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS, METHOD_NOT_FOUND
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    FORM,
    answers,
    bridged,
    modern_server,
    question_to,
    wants,
)
from tests.kernel.carriers import Params, params_of, until
from tests.kernel.refused import kind_of, refusal_in
from tests.kernel.repeating import CALL, NAME, begun, each_transport, refused_in
from tests.kernel.server_house import AT_ONCE


@each_transport
async def test_a_call_that_asks_nothing_is_answered_without_the_stamps(process: bool) -> None:
    async with bridged(modern_server(process)) as house:
        session = await house.front.client(**EVERYTHING)
        session.level = "info"
        asked = house.front.ask(session, mcp.CALL_TOOL, CALL)
        await until(lambda: house.calls)
        sent = params_of(house.asked)
        assert sent["arguments"] == {"a": 1}
        assert sent["_meta"] == {
            "vendor": 1,
            mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
            mcp.CLIENT_CAPABILITIES: EVERYTHING,
            mcp.LOG_LEVEL: "info",
        }
        headers = house.carrier.headers_of(mcp.CALL_TOOL)
        assert headers == {mcp.METHOD_HEADER: b"tools/call", mcp.NAME_HEADER: b"t"}
        house.finishes({**DONE, "resultType": "complete", "_meta": {mcp.SERVER_INFO: {}}})
        assert await asked.result() == DONE


@each_transport
async def test_a_client_is_asked_on_the_stream_of_its_call_and_the_call_is_made_again(
    process: bool,
) -> None:
    async with bridged(modern_server(process)) as house:
        session, asked = await begun(house)
        house.finishes(wants({"k": NAME}, "sealed by the server"))
        question = await question_to(session, asked)
        assert (question.method, params_of(question)) == (mcp.ELICIT, FORM)
        assert len(house.front.parking) == 1
        answers(session, question, ACCEPT)
        assert len(house.calls) == 2
        assert params_of(house.asked) == {
            **params_of(house.calls[0]),
            "inputResponses": {"k": ACCEPT},
            "requestState": "sealed by the server",
        }
        assert len(house.front.parking) == 0
        house.finishes()
        assert await asked.result() == DONE


async def test_the_call_waits_for_the_last_of_several_answers() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        sample: Params = {"method": mcp.SAMPLE, "params": {"messages": [], "maxTokens": 1}}
        roots: Params = {"method": mcp.LIST_ROOTS}
        house.finishes(wants({"a": NAME, "b": sample, "c": roots}))
        first, second, third = [await question_to(session, asked) for _ in range(3)]
        assert [each.method for each in (first, second, third)] == [
            mcp.ELICIT,
            mcp.SAMPLE,
            mcp.LIST_ROOTS,
        ]
        answers(session, third, {"roots": []})
        answers(session, first, ACCEPT)
        # An answer that comes twice is one answer.
        answers(session, first, {"action": "decline"})
        assert len(house.calls) == 1
        answers(session, second, {"role": "assistant"})
        sent = params_of(house.asked)
        assert sent["inputResponses"] == {
            "a": ACCEPT,
            "b": {"role": "assistant"},
            "c": {"roots": []},
        }
        assert "requestState" not in sent
        house.finishes()
        await asked.result()


async def test_rounds_follow_rounds_and_each_brings_only_its_own_answers() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        for number in range(3):
            house.finishes(wants({f"k-{number}": NAME}, f"s-{number}"))
            answers(session, await question_to(session, asked), {"action": "decline"})
            sent = params_of(house.asked)
            assert sent["inputResponses"] == {f"k-{number}": {"action": "decline"}}
            assert sent["requestState"] == f"s-{number}"
        house.finishes()
        await asked.result()
        assert len(house.calls) == 4


async def test_a_page_gets_the_name_that_the_handshake_era_demands() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        page = {"mode": "url", "message": "m", "url": "https://example.test/"}
        house.finishes(wants({"a": {"method": mcp.ELICIT, "params": page}}))
        question = await question_to(session, asked)
        name = params_of(question)["elicitationId"]
        assert isinstance(name, str)
        assert len(name) == 32
        answers(session, question, {"action": "accept"})
        house.finishes()
        await asked.result()


async def test_an_error_of_the_clients_cancels_an_elicitation() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        question = await question_to(session, asked)
        assert isinstance(question.id, int)
        session.hear(jsonrpc.failure(question.id, METHOD_NOT_FOUND, "no"))
        assert params_of(house.asked)["inputResponses"] == {"a": {"action": "cancel"}}
        house.finishes()
        await asked.result()


async def test_an_error_of_the_clients_ends_a_call_that_wanted_anything_else() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": {"method": mcp.LIST_ROOTS}, "b": NAME}))
        first = await question_to(session, asked)
        await question_to(session, asked)
        assert isinstance(first.id, int)
        session.hear(jsonrpc.failure(first.id, METHOD_NOT_FOUND, "no roots today"))
        withdrawn = jsonrpc.decode(asked.outbox.frames[0])
        assert withdrawn.method == mcp.CANCELLED
        refusal = refusal_in(await asked.answer())
        assert kind_of(refusal) == "missing_capability"
        assert refusal is not None
        assert "no roots today" in refusal.message
        assert len(house.calls) == 1


@pytest.mark.parametrize(
    ("can", "request_"),
    [
        ({"roots": {}}, NAME),
        ({"elicitation": {"url": {}}}, NAME),
        ({"sampling": {}}, {"method": mcp.SAMPLE, "params": {"messages": [], "tools": []}}),
    ],
)
async def test_a_client_is_not_asked_what_it_did_not_declare(can: Params, request_: Params) -> None:
    async with bridged(modern_server()) as house:
        _, asked = await begun(house, **can)
        house.finishes(wants({"a": request_, "b": request_}))
        assert refused_in(await asked.answer()) == "missing_capability"


@pytest.mark.parametrize(
    "result",
    [
        wants(),
        wants({}),
        wants([]),
        wants({"a": 7}),
        wants({"a": {"method": "tools/call"}}),
        wants({"a": {"method": mcp.ELICIT, "params": [1]}}),
        wants({"a": NAME}, 7),
        wants({str(number): NAME for number in range(33)}),
        {"resultType": "task", "taskId": "t"},
        {"resultType": 7},
    ],
)
async def test_a_server_that_speaks_of_nothing_known_is_at_fault_itself(result: object) -> None:
    async with bridged(modern_server()) as house:
        _, asked = await begun(house)
        house.finishes(result)
        assert refused_in(await asked.answer()) == "upstream_failed"


async def test_an_error_keeps_its_number_and_loses_its_status() -> None:
    async with bridged(modern_server()) as house:
        _, asked = await begun(house)
        assert isinstance(house.asked.id, int)
        told = jsonrpc.encode(jsonrpc.failure(house.asked.id, METHOD_NOT_FOUND, "no such tool"))
        # In the handshake era the status 404 would end the client's session.
        house.carrier.receiver.heard(told, house.asked.id, 404)
        error = jsonrpc.error_of(await asked.answer())
        assert error is not None
        assert (error.code, asked.outbox.status) == (METHOD_NOT_FOUND.code, 200)


async def test_a_server_that_asks_without_end_is_stopped() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        for _ in range(repeated.MOST_ROUNDS):
            house.finishes(wants({"a": NAME}))
            answers(session, await question_to(session, asked), ACCEPT)
        house.finishes(wants({"a": NAME}))
        assert refused_in(await asked.answer()) == "upstream_failed"
        assert len(house.calls) == repeated.MOST_ROUNDS + 1


async def test_a_server_that_wants_nothing_but_time_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated, "PAUSES", AT_ONCE)
    async with bridged(modern_server()) as house:
        _, asked = await begun(house)
        house.finishes(wants(state="later"))
        assert len(house.front.parking) == 0
        await until(lambda: len(house.calls) == 2)
        sent = params_of(house.asked)
        assert sent["requestState"] == "later"
        assert "inputResponses" not in sent
        house.finishes()
        assert await asked.result() == DONE


async def test_a_strange_answer_of_the_clients_is_for_the_server_to_judge() -> None:
    async with bridged(modern_server()) as house:
        session, asked = await begun(house)
        house.finishes(wants({"a": NAME}))
        answers(session, await question_to(session, asked), 7)
        assert params_of(house.asked)["inputResponses"] == {"a": 7}
        assert isinstance(house.asked.id, int)
        house.carrier.says(
            jsonrpc.failure(house.asked.id, INVALID_PARAMS, "not an answer"), house.asked
        )
        error = jsonrpc.error_of(await asked.answer())
        assert error is not None
        assert error.message == "not an answer"
