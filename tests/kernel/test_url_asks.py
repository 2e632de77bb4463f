"""Asks on the stream of a handshake client's call: by a page, or by a form."""

from typing import Any

import pytest

from comity.kernel.sessions import Session
from comity.wire import jsonrpc, mcp
from comity.wire.asks import State, Verdict
from comity.wire.jsonrpc import Frame
from tests.kernel.asking import AGENT, ANA, BEA, DONE, Bed, asking
from tests.kernel.carriers import params_of, settled, until
from tests.kernel.desks import Asked
from tests.kernel.refused import kind_of


async def _asked(call: Asked) -> tuple[Frame, dict[str, Any]]:
    await until(lambda: bool(call.outbox.frames))
    frame = jsonrpc.decode(call.outbox.take()[0])
    assert frame.method == mcp.ELICIT
    return frame, params_of(frame)


def _answer(bed: Bed, session: Session, question: Frame, result: object) -> None:
    bed.front.desk.hear(session, jsonrpc.result(question.id, result))  # type: ignore[arg-type]


async def test_a_client_that_can_show_a_page_is_given_one_and_told_when_it_is_done() -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session)
        question, params = await _asked(call)
        ask = await bed.open_ask()
        assert (params["mode"], params["url"]) == ("url", f"/asks/{ask.id}")
        _answer(bed, session, question, {"action": "accept"})
        await settled()
        assert bed.runs == 0
        assert not (await bed.open_ask()).answers
        await bed.answer(by=ANA)
        await call.asking
        await call.outbox.until_final()
        told, answer = map(jsonrpc.decode, call.outbox.take())
        assert told.method == mcp.ELICITED
        assert params_of(told) == {"elicitationId": params["elicitationId"]}
        assert b"deleted" in jsonrpc.encode(answer)
        assert bed.runs == 1


async def test_a_question_that_nobody_answered_is_taken_back_with_the_answer() -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session)
        question, _ = await _asked(call)
        await bed.answer(by=ANA)
        await call.outbox.until_final()
        told = [jsonrpc.decode(frame) for frame in call.outbox.take()]
        assert told[0].method == mcp.CANCELLED
        assert params_of(told[0])["requestId"] == question.id
        # A late word of the client's counts for nothing.
        _answer(bed, session, question, {"action": "decline"})
        await settled()
        assert bed.runs == 1


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_an_agent_that_declines_the_page_only_does_not_wait(action: str) -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session)
        question, _ = await _asked(call)
        _answer(bed, session, question, {"action": action})
        assert kind_of(await call.error()) == "pending_approval"
        assert (await bed.open_ask()).state is State.PENDING
        await bed.answer(Verdict.ACCEPT)
        assert await bed.call(await bed.front.client()).result() == DONE
        assert bed.runs == 1


async def test_who_may_answer_for_itself_says_no_by_declining_the_page() -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session, BEA)
        question, _ = await _asked(call)
        _answer(bed, session, question, {"action": "decline"})
        assert kind_of(await call.error()) == "declined"
        assert bed.runs == 0


async def test_who_may_answer_for_itself_is_asked_by_a_form() -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(elicitation={})
        call = bed.call(session, BEA)
        question, params = await _asked(call)
        assert params["requestedSchema"]["required"] == ["decision"]
        _answer(bed, session, question, {"action": "accept", "content": {"decision": "approve"}})
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_an_agent_is_asked_by_no_form() -> None:
    async with asking() as bed:
        bed.grants.own.add(AGENT.party)
        session = await bed.front.client(elicitation={})
        call = bed.call(session)
        await bed.open_ask()
        await settled()
        assert call.outbox.frames == []
        assert not call.outbox.final


async def test_what_is_no_answer_ends_the_call_and_nothing_runs() -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(elicitation={})
        call = bed.call(session, BEA)
        question, _ = await _asked(call)
        _answer(bed, session, question, {"action": "accept", "content": {"name": "you"}})
        assert "decision" in (await call.error()).message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_client_that_cannot_be_asked_after_all_is_held_like_any_other() -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session)
        question, _ = await _asked(call)
        refused = {"jsonrpc": "2.0", "id": question.id, "error": {"code": -32601, "message": "no"}}
        bed.front.desk.hear(session, jsonrpc.decode(jsonrpc.to_json(refused)))
        await settled()
        assert not call.outbox.final
        await bed.answer(by=ANA)
        assert await call.result() == DONE


async def test_an_older_client_is_shown_no_page() -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        session.version = "2025-06-18"
        call = bed.call(session)
        await bed.open_ask()
        await settled()
        assert call.outbox.frames == []
