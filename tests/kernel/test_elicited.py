"""A form that a client cannot be shown is filled in by people, where their operator wants that."""

from typing import Any

import pytest

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.rules.callbacks import MOST_OPEN
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Kind, State, Verdict
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from tests.kernel.carriers import result_of, settled
from tests.kernel.inquired import AGENT, Study
from tests.kernel.link_room import frames_in

FORM: dict[str, Any] = {
    "message": "Which one?",
    "requestedSchema": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}},
        "required": ["name"],
    },
}


def counted(study: Study, call: Call) -> Call:
    call.counted = study.room.underway.tallies.at("srv")
    return call


def elicit(study: Study, amid: Frame, named: object = "q", **other: object) -> None:
    asked = jsonrpc.request(str(named), mcp.ELICIT, {**FORM, **other})
    study.room.carrier.says(asked, amid)


def answers(study: Study) -> list[Frame]:
    """What the server was answered."""
    return [each for each in study.room.carrier.told() if each.id is not UNSET]


@pytest.mark.parametrize("process", [True, False])
async def test_a_person_fills_in_what_a_client_cannot_be_asked(process: bool) -> None:
    study = await Study(process).open()
    call, frame = study.call()
    counted(study, call)
    if process:
        # On one stream for all, whoever listens knows whose question it is.
        study.room.asked = lambda link, question, asked: call.asked(question, asked)  # type: ignore[method-assign]
    elicit(study, frame)
    (ask,) = await study.asked()
    assert (ask.kind, ask.asker, ask.server, ask.tool) == (
        Kind.INPUT,
        "agent:ci",
        "srv",
        "delete",
    )
    assert call.held is not None
    with pytest.raises(MalformedMessage, match="has to be filled in"):
        await study.answer(ask)
    with pytest.raises(MalformedMessage, match="too long"):
        await study.answer(ask, name="0123456789")
    await study.answer(ask, name="blue")
    await study.state(ask, State.USED)
    await settled()
    (answer,) = answers(study)
    assert answer.id == "q"
    assert result_of(answer) == {"action": "accept", "content": {"name": "blue"}}
    assert (call.held, frames_in(call), len(study.inquiries)) == (None, [], 0)
    kept = await study.asks.get(ask.id)
    assert kept is not None
    assert kept.answers[0].content == {}


async def begun(study: Study) -> tuple[Call, Frame]:
    call, frame = study.call()
    elicit(study, frame)
    return counted(study, call), frame


@pytest.mark.parametrize(
    ("verdict", "action"), [(Verdict.DECLINE, "decline"), (Verdict.CANCEL, "cancel")]
)
async def test_who_does_not_want_to_says_so(verdict: Verdict, action: str) -> None:
    study = await Study(process=False).open()
    await begun(study)
    (ask,) = await study.asked()
    await study.answer(ask, verdict)
    await settled()
    (answer,) = answers(study)
    assert result_of(answer) == {"action": action}


async def test_when_its_time_is_over_it_is_cancelled() -> None:
    study = await Study(process=False).open()
    await begun(study)
    (ask,) = await study.asked()
    study.now = ask.expires_at
    study.approvals.changed(ask.id)
    await study.state(ask, State.EXPIRED)
    await settled()
    (answer,) = answers(study)
    assert result_of(answer) == {"action": "cancel"}


async def test_a_call_that_is_over_cancels_its_form() -> None:
    study = await Study(process=False).open()
    call, _ = await begun(study)
    (ask,) = await study.asked()
    call.withdraw(None)
    await study.state(ask, State.WITHDRAWN)
    (answer,) = answers(study)
    assert result_of(answer) == {"action": "cancel"}
    assert len(study.room.link.conversation) == 0


async def test_a_server_that_takes_its_form_back_gets_no_answer() -> None:
    study = await Study(process=False).open()
    _, frame = await begun(study)
    (ask,) = await study.asked()
    taken_back = jsonrpc.notification("notifications/cancelled", {"requestId": "q"})
    study.room.carrier.says(taken_back, frame)
    await study.state(ask, State.WITHDRAWN)
    await settled()
    assert answers(study) == []
    assert len(study.inquiries) == 0


async def test_two_equal_forms_are_two_questions() -> None:
    study = await Study(process=False).open()
    _, frame = await begun(study)
    elicit(study, frame, "other")
    assert len(await study.asked(2)) == 2


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"mode": "url", "url": "https://example.org"}, -32601),
        ({"message": None}, -32602),
        ({"message": "x" * 5_000}, -32602),
        ({"requestedSchema": {"type": "object"}}, -32602),
        ({"requestedSchema": None}, -32602),
        ({"more": "x" * 70_000}, -32602),
    ],
)
async def test_what_people_cannot_be_asked_is_refused(other: dict[str, object], code: int) -> None:
    study = await Study(process=False).open()
    call, frame = study.call()
    elicit(study, frame, **other)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert (error.code, call.held) == (code, None)
    assert await study.asks.page() == []


async def test_nor_is_more_than_so_much_asked_amid_one_call() -> None:
    study = await Study(process=False).open()
    _, frame = study.call()
    for number in range(MOST_OPEN + 1):
        elicit(study, frame, f"q-{number}")
    (answer,) = answers(study)
    assert answer.id == f"q-{MOST_OPEN}"
    assert jsonrpc.error_of(answer) is not None


@pytest.mark.parametrize("method", [mcp.SAMPLE, mcp.LIST_ROOTS])
async def test_nobody_is_asked_anything_else_in_a_client_s_place(method: str) -> None:
    study = await Study(process=False).open()
    _, frame = study.call()
    study.room.carrier.says(jsonrpc.request("q", method, FORM), frame)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert error.code == -32601


async def test_by_default_everything_is_as_it_was() -> None:
    study = await Study(process=False, stand_in=False).open()
    _, frame = study.call()
    elicit(study, frame)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert error.message == "this client did not declare elicitation"


async def test_a_call_without_a_session_is_held_like_any_other() -> None:
    study = await Study(process=False).open()
    frame = jsonrpc.request("own", "tools/call", {"name": "delete"})
    call = counted(study, study.room.underway.begin(frame, Outbox(), None))
    call.outbox.actor = AGENT
    study.room.link.ask(call, frame)
    elicit(study, study.room.carrier.sent[-1].frame)
    (ask,) = await study.asked()
    assert call.held is not None
    await study.answer(ask, name="blue")
    await study.state(ask, State.USED)
    await settled()
    assert call.held is None
