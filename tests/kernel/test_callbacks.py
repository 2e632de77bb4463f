"""A callback is asked once, amid its own call, and answered by a request; else it is cancelled."""

import logging
from datetime import timedelta

import pytest

from comity.kernel.approvals import AskOptions
from comity.kernel.callbacks import MOST_REFUSED
from comity.rules.callbacks import MOST_OPEN, MOST_REMEMBERED
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Kind, State, Verdict
from comity.wire.errors import METHOD_NOT_FOUND
from comity.wire.parties import Actor
from tests.kernel.carriers import params_of, settled
from tests.kernel.inquired import Study
from tests.kernel.link_room import frames_in


@pytest.mark.parametrize("process", [True, False])
async def test_what_a_person_says_reaches_the_server(process: bool) -> None:
    study = await Study(process).open()
    call, frame = study.call()
    study.call_back(frame)
    (ask,) = await study.asked()
    assert (ask.kind, ask.asker, ask.server, ask.tool) == (
        Kind.CONFIRM,
        "agent:ci",
        "srv",
        "delete",
    )
    assert ask.options == ("confirm", "cancel")
    assert call.held is not None
    await study.answer(ask)
    assert await study.told() == [("cb", "confirm")]
    assert call.held is None
    assert (await study.state(ask, State.USED)).call == ask.about["call"]


async def test_a_modern_server_is_answered_in_its_envelope() -> None:
    study = await Study(process=False).open()
    study.room.link.hello = None
    _, frame = study.call()
    study.call_back(frame)
    (ask,) = await study.asked()
    await study.answer(ask)
    await study.told()
    (asked,) = study.room.carrier.asked("mgp/callback/respond")
    assert mcp.PROTOCOL_VERSION in params_of(asked)["_meta"]  # type: ignore[operator]
    assert study.room.carrier.headers_of("mgp/callback/respond")[mcp.METHOD_HEADER]


async def test_the_asker_does_not_answer_for_itself() -> None:
    study = await Study().open()
    _, frame = study.call()
    study.call_back(frame)
    (ask,) = await study.asked()
    because = study.approvals.why_not(ask, Actor("agent:ci"))
    assert because == "only a person can answer this"
    assert not ask.own


async def test_without_an_answer_in_time_it_is_cancelled() -> None:
    study = await Study().open()
    call, frame = study.call()
    study.call_back(frame, timeout_ms=5_000)
    study.call_back(frame, "input", callback_id="text", timeout_ms=5_000)
    asks = await study.asked(2)
    assert {ask.expires_at - ask.created_at for ask in asks} == {timedelta(seconds=5)}
    study.now += timedelta(seconds=5)
    for ask in asks:
        study.approvals.changed(ask.id)
    assert sorted(await study.told(2), key=str) == [("cb", "cancel"), ("text", None)]
    assert call.held is None
    await study.state(asks[0], State.EXPIRED)


async def test_where_nobody_can_be_asked_the_server_hears_no() -> None:
    study = await Study().open()
    study.approvals.options = AskOptions(most_open=0)
    call, frame = study.call()
    study.call_back(frame)
    assert await study.told() == [("cb", "cancel")]
    assert call.held is None


async def test_a_notice_is_kept_and_holds_nobody_up() -> None:
    study = await Study().open()
    call, frame = study.call()
    study.call_back(frame, "notification")
    (ask,) = await study.asked()
    assert (ask.kind, call.held) == (Kind.NOTICE, None)
    study.room.carrier.answers(frame, {"content": []})
    await settled()
    assert study.responses() == []
    await study.state(ask, State.PENDING)


# What is repeated, or comes at the wrong place.


async def test_a_repeated_question_is_asked_once_and_its_answer_said_again() -> None:
    study = await Study().open()
    _, frame = study.call()
    for _ in range(3):
        study.call_back(frame)
    (ask,) = await study.asked()
    await study.answer(ask)
    assert await study.told() == [("cb", "confirm")]
    study.call_back(frame)
    assert await study.told(2) == [("cb", "confirm")] * 2
    assert len(await study.asks.page()) == 1


async def test_another_question_by_the_same_name_is_neither_asked_nor_answered() -> None:
    study = await Study().open()
    _, first = study.call()
    _, second = study.call()
    study.call_back(first)
    await study.asked()
    study.call_back(first, message="Another?")
    study.call_back(second)
    study.call_back(first, "nonsense")
    await settled()
    assert len(await study.asks.page()) == 1
    assert study.responses() == []


async def test_nor_has_another_question_the_answer_of_the_first() -> None:
    study = await Study().open()
    _, first = study.call()
    _, second = study.call()
    study.call_back(first)
    (ask,) = await study.asked()
    await study.answer(ask)
    assert await study.told() == [("cb", "confirm")]
    study.call_back(first, message="Delete everything?")
    study.call_back(second)
    await settled()
    assert study.responses() == [("cb", "confirm")]


async def test_on_its_stream_a_server_speaks_of_that_call_alone() -> None:
    study = await Study(process=False).open()
    _, first = study.call()
    _, second = study.call()
    study.call_back(first, request_id=second.id)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


async def test_the_gateway_s_own_requests_are_no_calls_to_ask_amid() -> None:
    study = await Study().open()
    study.inquiries.chores.start(study.room.link.request("ping"))  # type: ignore[arg-type]
    await settled()
    (ping,) = study.room.carrier.asked("ping")
    study.call_back(ping)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


async def test_what_comes_after_the_end_is_cancelled() -> None:
    study = await Study().open()
    _, frame = study.call()
    study.room.carrier.answers(frame, {"content": []})
    study.call_back(frame)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


# How it ends with its call.


@pytest.mark.parametrize("how", ["answered", "withdrawn", "link gone"])
async def test_a_call_that_is_over_takes_its_questions_and_answers_with_it(how: str) -> None:
    study = await Study().open()
    call, frame = study.call()
    study.call_back(frame, callback_id="first")
    (first,) = await study.asked()
    await study.answer(first)
    await study.told()
    study.call_back(frame)
    (ask,) = await study.asked()
    if how == "answered":
        study.room.carrier.answers(frame, {"content": []})
    elif how == "withdrawn":
        call.withdraw(None)
    else:
        study.room.carrier.dies()
    await study.state(ask, State.WITHDRAWN)
    await settled()
    assert [name for name, _ in study.responses()] == ["first"]
    assert (len(study.callbacks), len(study.inquiries), call.held) == (0, 0, None)


async def test_a_call_that_is_over_before_its_question_is_kept_leaves_none_open() -> None:
    study = await Study().open()
    _, frame = study.call()
    study.call_back(frame)
    study.room.carrier.answers(frame, {"content": []})
    await settled()
    assert [ask.state for ask in await study.asks.page()] == [State.WITHDRAWN]


# Floods.


async def test_so_many_are_open_amid_one_call_and_no_more() -> None:
    study = await Study().open()
    _, frame = study.call()
    for number in range(MOST_OPEN + 2):
        study.call_back(frame, callback_id=f"cb-{number}")
    asks = await study.asked(MOST_OPEN)
    assert len(asks) == MOST_OPEN
    assert len(await study.told(2)) == 2
    await study.answer(asks[0], Verdict.DECLINE)
    await study.told(3)
    study.call_back(frame, callback_id="one-more")
    await study.asked(MOST_OPEN)


async def test_nor_is_more_than_so_much_remembered_of_one_call() -> None:
    study = await Study().open()
    _, frame = study.call()
    for number in range(MOST_REMEMBERED + 1):
        study.call_back(frame, "notification", callback_id=f"cb-{number}")
    assert await study.told() == [(f"cb-{MOST_REMEMBERED}", None)]


async def test_only_so_many_refusals_are_on_their_way_at_once() -> None:
    """A server that asks nonsense without end, and never says that it heard us."""
    study = await Study().open()
    _, frame = study.call()
    for number in range(200):
        study.call_back(frame, "nonsense", callback_id=f"cb-{number}")
    await settled(100)
    assert len(study.room.carrier.asked("mgp/callback/respond")) == MOST_REFUSED


async def test_a_server_that_refuses_its_answer_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    study = await Study().open()
    _, frame = study.call()
    study.call_back(frame, "nonsense")
    await settled()
    (asked,) = study.room.carrier.asked("mgp/callback/respond")
    assert isinstance(asked.id, int)
    study.room.carrier.says(jsonrpc.failure(asked.id, METHOD_NOT_FOUND, "what?"))
    await settled()
    assert "refused the answer to its callback: what?" in caplog.text


# Whose they are.


@pytest.mark.parametrize("terms", [None, Terms("0.3.0", frozenset({"security"}))])
async def test_a_server_that_did_not_agree_on_callbacks_is_not_heard(terms: Terms | None) -> None:
    study = await Study().open()
    study.room.link.mgp = terms
    call, frame = study.call()
    study.call_back(frame)
    await settled()
    assert (await study.asks.page(), study.responses(), frames_in(call)) == ([], [], [])


async def test_a_client_that_speaks_mgp_with_the_server_is_called_back_by_its_own_id() -> None:
    study = await Study().open()
    said = {"mgp": {"version": "0.3.0", "extensions": ["bidirectional"]}}
    study.room.session.introduce({"capabilities": jsonrpc.to_raw(said)})
    study.room.session.agree({"capabilities": jsonrpc.to_raw(said)})
    call, frame = study.call()
    study.call_back(frame)
    (told,) = frames_in(call)
    assert params_of(told)["request_id"] == call.asker_id
    assert await study.asks.page() == []
