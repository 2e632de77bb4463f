"""Questions of servers amid calls: callbacks of MGP and elicitations that people answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.approvals.answers import (
    MAX_OPEN_PER_CALL,
    MAX_OPEN_PER_SERVER,
    MAX_REMEMBERED_CALLBACKS,
)
from comity.approvals.model import (
    ANSWER_VERB,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.server_questions import (
    MAX_PENDING_REFUSALS,
    CallbackService,
    ElicitationInbox,
    OpenQuestion,
    ServerQuestion,
    ServerQuestions,
)
from comity.approvals.service import ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.errors import METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, NegotiatedTerms
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from comity.servers.connections import STAND_IN_CAPABILITIES
from comity.sessions.calls import Call, PendingMessage, ServerRequest
from comity.sessions.client_streams import ClientStream
from comity.sessions.upstream import QuestionConnection
from tests.support.carriers import WAIT_SECONDS, params_of, result_of, settled, until
from tests.support.inline_store import inline_records
from tests.support.link_room import Room, frames_in
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import at, visiting

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)
AGENT = Actor("agent:ci")
AGREED = NegotiatedTerms("0.3.0", frozenset({MgpExtension.BIDIRECTIONAL}))


class Study:
    """The server at one end, people at the other."""

    def __init__(self, process: bool = True, *, stand_in: bool = True) -> None:
        self.now = NOW
        self.grants = GrantSnapshot(
            GrantSet.from_grants([Grant(ANA.party, ANSWER_VERB, "*", Effect.ALLOW)]), self.clock
        )
        self.asks = inline_records().approval_requests
        self.approvals = ApprovalService(self.asks, self.grants, clock=self.clock)
        self.inquiries = ServerQuestions(self.approvals)
        self.callbacks = CallbackService(self.inquiries)
        self.elicited = ElicitationInbox(self.inquiries, timedelta(minutes=5), is_enabled=stand_in)
        self.room = Room(process)
        self.room.link.mgp = AGREED
        self.room.link.initialize_result = {}
        self.room.link.activity.question_handler = self

    def clock(self) -> datetime:
        return self.now

    async def open(self) -> "Study":
        await self.room.link.open()
        return self

    # As a link's questions.

    @property
    def provided_capabilities(self) -> Mapping[str, object]:
        return STAND_IN_CAPABILITIES if self.elicited.is_enabled else {}

    def handle_callback(
        self, connection: QuestionConnection, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        return self.callbacks.handle_callback(connection, frame, pending_message)

    def ask_people(self, server_request: ServerRequest, frame: Frame) -> bool:
        return self.elicited.ask_people(server_request, frame)

    # What happens.

    def call(self) -> tuple[Call, Frame]:
        """A call of an agent's, and the request as the server sees it."""
        call, frame = self.room.call(name="delete", arguments={})
        call.client_stream.actor, call.tool = AGENT, "delete"
        return call, frame

    def call_back(self, amid: Frame, of: str = "confirmation", **other: object) -> None:
        said = {"callback_id": "cb", "request_id": amid.id, "type": of, "message": "Sure?"}
        notice = jsonrpc.make_notification("notifications/mgp.callback.request", {**said, **other})
        self.room.carrier.says(notice, amid)

    def responses(self) -> list[tuple[object, object]]:
        """What the server was answered so far; it says that it heard."""
        asked = self.room.carrier.asked("mgp/callback/respond")
        for frame in asked:
            self.room.carrier.answers(frame, {})
        return [(params_of(each)["callback_id"], params_of(each)["response"]) for each in asked]

    async def asked(self, number: int = 1) -> list[ApprovalRequest]:
        """The asks that are open, once there are so many."""
        found: list[ApprovalRequest] = []

        async def look() -> bool:
            found[:] = await self.asks.page([ApprovalState.PENDING])
            return len(found) >= number

        await self.eventually(look)
        return found

    async def eventually(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await is_so():
                await asyncio.sleep(0)

    async def state(self, ask: ApprovalRequest, state: ApprovalState) -> ApprovalRequest:
        """The ask once it is in this state."""
        found: list[ApprovalRequest] = []

        async def look() -> bool:
            current = await self.asks.get(ask.id)
            found[:] = [] if current is None else [current]
            return current is not None and current.state is state

        await self.eventually(look)
        return found[0]

    async def answer(
        self,
        ask: ApprovalRequest,
        verdict: ApprovalDecision = ApprovalDecision.ACCEPT,
        **content: object,
    ) -> ApprovalRequest:
        return await self.approvals.answer(ANA, ask.id, verdict, "", content)

    async def told(self, number: int = 1) -> list[tuple[object, object]]:
        """What the server was answered, once it was so often."""
        await until(lambda: len(self.room.carrier.asked("mgp/callback/respond")) >= number)
        return self.responses()


async def calling(process: bool = True, *, stand_in: bool = True) -> tuple[Study, Call, Frame]:
    """A server amid a call of an agent, and the request as the server sees it."""
    study = await Study(process, stand_in=stand_in).open()
    return study, *study.call()


# Callbacks.


@pytest.mark.parametrize("process", [True, False])
async def test_what_a_person_says_reaches_the_server(process: bool) -> None:
    study, call, frame = await calling(process)
    study.call_back(frame)
    (ask,) = await study.asked()
    assert (ask.kind, ask.asker, ask.server, ask.tool) == (
        ApprovalKind.CONFIRM,
        "agent:ci",
        "srv",
        "delete",
    )
    assert ask.options == ("confirm", "cancel")
    assert call.held_since is not None
    await study.answer(ask)
    assert await study.told() == [("cb", "confirm")]
    assert call.held_since is None
    assert (await study.state(ask, ApprovalState.CONSUMED)).call == ask.about["call"]


async def test_a_modern_server_is_answered_in_its_envelope() -> None:
    study = await Study(process=False).open()
    study.room.link.initialize_result = None
    _, frame = study.call()
    study.call_back(frame)
    (ask,) = await study.asked()
    await study.answer(ask)
    await study.told()
    (asked,) = study.room.carrier.asked("mgp/callback/respond")
    assert protocol.PROTOCOL_VERSION in params_of(asked)["_meta"]  # type: ignore[operator]
    assert study.room.carrier.headers_of("mgp/callback/respond")[protocol.METHOD_HEADER]


async def test_without_an_answer_in_time_it_is_cancelled() -> None:
    study, call, frame = await calling()
    study.call_back(frame, timeout_ms=5_000)
    study.call_back(frame, "input", callback_id="text", timeout_ms=5_000)
    asks = await study.asked(2)
    assert {ask.expires_at - ask.created_at for ask in asks} == {timedelta(seconds=5)}
    study.now += timedelta(seconds=5)
    for ask in asks:
        study.approvals.on_changed(ask.id)
    assert sorted(await study.told(2), key=str) == [("cb", "cancel"), ("text", None)]
    assert call.held_since is None
    await study.state(asks[0], ApprovalState.EXPIRED)


async def test_where_nobody_can_be_asked_the_server_hears_no() -> None:
    study = await Study().open()
    study.approvals.settings = ApprovalSettings(max_open=0)
    call, frame = study.call()
    study.call_back(frame)
    assert await study.told() == [("cb", "cancel")]
    assert call.held_since is None


async def test_a_notice_is_kept_and_holds_nobody_up() -> None:
    study, call, frame = await calling()
    study.call_back(frame, "notification")
    (ask,) = await study.asked()
    assert (ask.kind, call.held_since) == (ApprovalKind.NOTICE, None)
    study.room.carrier.answers(frame, {"content": []})
    await settled()
    assert study.responses() == []
    await study.state(ask, ApprovalState.PENDING)


# Callbacks that are repeated, or come at the wrong place.


async def test_a_repeated_question_is_asked_once_and_its_answer_said_again() -> None:
    study, _, frame = await calling()
    for _ in range(3):
        study.call_back(frame)
    (ask,) = await study.asked()
    await study.answer(ask)
    assert await study.told() == [("cb", "confirm")]
    study.call_back(frame)
    assert await study.told(2) == [("cb", "confirm")] * 2
    assert len(await study.asks.page()) == 1


async def test_another_question_by_the_same_name_is_neither_asked_nor_answered() -> None:
    study, _, first = await calling()
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
    study, _, first = await calling()
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
    study, _, first = await calling(process=False)
    _, second = study.call()
    study.call_back(first, request_id=second.id)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


async def test_the_gateway_s_own_requests_are_no_calls_to_ask_amid() -> None:
    study = await Study().open()
    study.inquiries.background_tasks.start(study.room.link.request("ping"))  # type: ignore[arg-type]
    await settled()
    (ping,) = study.room.carrier.asked("ping")
    study.call_back(ping)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


async def test_what_comes_after_the_end_is_cancelled() -> None:
    study, _, frame = await calling()
    study.room.carrier.answers(frame, {"content": []})
    study.call_back(frame)
    assert await study.told() == [("cb", "cancel")]
    assert await study.asks.page() == []


# Callbacks end with their call.


@pytest.mark.parametrize("how", ["answered", "withdrawn", "link gone"])
async def test_a_call_that_is_over_takes_its_questions_and_answers_with_it(how: str) -> None:
    study, call, frame = await calling()
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
    await study.state(ask, ApprovalState.WITHDRAWN)
    await settled()
    assert [name for name, _ in study.responses()] == ["first"]
    assert (len(study.callbacks), len(study.inquiries), call.held_since) == (0, 0, None)


async def test_a_call_that_is_over_before_its_question_is_kept_leaves_none_open() -> None:
    study, _, frame = await calling()
    study.call_back(frame)
    study.room.carrier.answers(frame, {"content": []})
    await settled()
    assert [ask.state for ask in await study.asks.page()] == [ApprovalState.WITHDRAWN]


# Limits.


async def test_so_many_are_open_amid_one_call_and_no_more() -> None:
    study, _, frame = await calling()
    for number in range(MAX_OPEN_PER_CALL + 2):
        study.call_back(frame, callback_id=f"cb-{number}")
    asks = await study.asked(MAX_OPEN_PER_CALL)
    assert len(asks) == MAX_OPEN_PER_CALL
    assert len(await study.told(2)) == 2
    await study.answer(asks[0], ApprovalDecision.DECLINE)
    await study.told(3)
    study.call_back(frame, callback_id="one-more")
    await study.asked(MAX_OPEN_PER_CALL)


async def test_nor_is_more_than_so_much_remembered_of_one_call() -> None:
    study, _, frame = await calling()
    for number in range(MAX_REMEMBERED_CALLBACKS + 1):
        study.call_back(frame, "notification", callback_id=f"cb-{number}")
    assert await study.told() == [(f"cb-{MAX_REMEMBERED_CALLBACKS}", None)]


async def test_only_so_many_refusals_are_on_their_way_at_once() -> None:
    """A server that asks nonsense without end, and never says that it heard us."""
    study, _, frame = await calling()
    for number in range(200):
        study.call_back(frame, "nonsense", callback_id=f"cb-{number}")
    await settled(100)
    assert len(study.room.carrier.asked("mgp/callback/respond")) == MAX_PENDING_REFUSALS


async def test_a_server_that_refuses_its_answer_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    study, _, frame = await calling()
    study.call_back(frame, "nonsense")
    await settled()
    (asked,) = study.room.carrier.asked("mgp/callback/respond")
    assert isinstance(asked.id, int)
    study.room.carrier.says(jsonrpc.make_error(asked.id, METHOD_NOT_FOUND, "what?"))
    await settled()
    assert "refused the answer to its callback: what?" in caplog.text


# Who takes part.


@pytest.mark.parametrize("terms", [None, NegotiatedTerms("0.3.0", frozenset({"security"}))])
async def test_a_server_that_did_not_agree_on_callbacks_is_not_heard(
    terms: NegotiatedTerms | None,
) -> None:
    study = await Study().open()
    study.room.link.mgp = terms
    call, frame = study.call()
    study.call_back(frame)
    await settled()
    assert (await study.asks.page(), study.responses(), frames_in(call)) == ([], [], [])


async def test_a_client_that_speaks_mgp_with_the_server_is_called_back_by_its_own_id() -> None:
    study = await Study().open()
    said = {"mgp": {"version": "0.3.0", "extensions": ["bidirectional"]}}
    study.room.session.store_client_info({"capabilities": jsonrpc.to_raw(said)})
    study.room.session.store_mgp_terms({"capabilities": jsonrpc.to_raw(said)})
    call, frame = study.call()
    study.call_back(frame)
    (told,) = frames_in(call)
    assert params_of(told)["request_id"] == call.client_request_id
    assert await study.asks.page() == []


# Questions of either kind.


ASKED = ServerQuestion(
    "srv", ApprovalKind.INPUT, "Which\x1b\u201d one?", timedelta(minutes=2), lambda name: name
)


def begun(
    study: Study, call: Call, asked: ServerQuestion = ASKED
) -> tuple[OpenQuestion, list[ApprovalRequest | None]]:
    delivered: list[ApprovalRequest | None] = []

    async def deliver(ended: ApprovalRequest | None) -> None:
        delivered.append(ended)

    inquiry = OpenQuestion(
        call, call, asked.server, study.inquiries.make_request(asked, call), deliver
    )
    study.inquiries.watch_conversation(study.room.link.conversation)
    study.inquiries.ask(inquiry)
    return inquiry, delivered


def another(number: int) -> ServerQuestion:
    def digest(name: str) -> str:
        return f"{name}-{number}"

    return replace(ASKED, digest=digest)


async def test_a_question_says_who_asks_and_amid_what() -> None:
    study, call, _ = await calling()
    ask = study.inquiries.make_request(ASKED, call)
    assert ask.message == (
        "Server srv asks during a call of delete by agent:ci: "
        '\N{LEFT DOUBLE QUOTATION MARK}Which\\x1b" one?\N{RIGHT DOUBLE QUOTATION MARK}'
    )
    assert (ask.asker, ask.own, ask.expires_at) == ("agent:ci", False, NOW + timedelta(minutes=2))
    assert ask.about["asked_by"] == "server:srv"
    assert ask.digest == ask.about["call"]
    assert ask.trace == call.ensure_trace_id()


async def test_a_secret_in_a_server_s_words_is_not_shown() -> None:
    study = await Study().open()

    def redact(value: object) -> object:
        return str(value).replace("hunter2", "(hidden)")

    call, _ = study.call()
    ask = ServerQuestions(study.approvals, redact=redact).make_request(
        replace(ASKED, text="Is it hunter2?"), call
    )
    assert "hunter2" not in ask.message
    assert "Is it (hidden)?" in ask.message


async def test_what_was_filled_in_is_delivered_once_and_kept_no_longer() -> None:
    study, call, _ = await calling()
    _, delivered = begun(study, call)
    (ask,) = await study.asked()
    await study.answer(ask, text="hunter2")
    used = await study.state(ask, ApprovalState.CONSUMED)
    await settled()
    (ended,) = delivered
    assert ended is not None
    assert ended.answers[0].content == {"text": "hunter2"}
    kept = await study.asks.get(used.id)
    assert kept is not None
    assert [each.content for each in kept.answers] == [{}]
    assert len(study.inquiries) == 0


async def test_what_nobody_takes_up_any_more_is_erased_when_its_time_is_over() -> None:
    """The process that asked has ended, and somebody has answered after it."""
    study, call, _ = await calling()
    ask = await study.approvals.open(study.inquiries.make_request(ASKED, call))
    await study.answer(ask, text="hunter2")
    study.now += study.approvals.settings.approval_ttl
    assert await study.approvals.expire_overdue() == 1
    kept = await study.asks.get(ask.id)
    assert kept is not None
    assert (kept.state, kept.answers[0].content) == (ApprovalState.EXPIRED, {})


async def test_a_store_that_cannot_erase_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = await Study().open()

    async def away(id: str) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(study.asks, "erase_content", away)
    call, _ = study.call()
    _, delivered = begun(study, call)
    (ask,) = await study.asked()
    await study.answer(ask, text="hunter2")
    await study.state(ask, ApprovalState.CONSUMED)
    await settled()
    assert len(delivered) == 1
    assert "could not be erased yet" in caplog.text


async def test_who_wanted_to_know_may_want_so_no_longer() -> None:
    study, call, _ = await calling()
    inquiry, delivered = begun(study, call)
    (ask,) = await study.asked()
    study.inquiries.end(inquiry)
    await study.state(ask, ApprovalState.WITHDRAWN)
    await settled()
    assert (delivered, call.held_since) == ([], None)


async def test_a_server_has_so_many_questions_open_in_all() -> None:
    study, call, _ = await calling()
    assert study.inquiries.limit_problem(call, "srv") is None
    study.inquiries._count_by_server["srv"] = MAX_OPEN_PER_SERVER  # pyright: ignore[reportPrivateUsage]
    assert str(MAX_OPEN_PER_SERVER) in str(study.inquiries.limit_problem(call, "srv"))
    assert study.inquiries.limit_problem(call, "another") is None


async def test_deadlines_go_on_with_the_last_answer() -> None:
    study, call, _ = await calling()
    for number in range(2):
        begun(study, call, another(number))
    first, second = await study.asked(2)
    await study.answer(first, text="a")
    await study.state(first, ApprovalState.CONSUMED)
    await settled()
    assert call.held_since is not None
    await study.answer(second, text="b")
    await study.state(second, ApprovalState.CONSUMED)
    await settled()
    assert call.held_since is None


# Elicitations.


FORM: dict[str, Any] = {
    "message": "Which one?",
    "requestedSchema": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}},
        "required": ["name"],
    },
}


def counted(study: Study, call: Call) -> Call:
    call.counters = study.room.underway.metrics.at("srv")
    return call


def elicit(study: Study, amid: Frame, named: object = "q", **other: object) -> None:
    asked = jsonrpc.make_request(str(named), protocol.ELICIT, {**FORM, **other})
    study.room.carrier.says(asked, amid)


def answers(study: Study) -> list[Frame]:
    """What the server was answered."""
    return [each for each in study.room.carrier.told() if each.id is not UNSET]


@pytest.mark.parametrize("process", [True, False])
async def test_a_person_fills_in_what_a_client_cannot_be_asked(process: bool) -> None:
    study, call, frame = await calling(process)
    counted(study, call)
    if process:
        # On one stream for all, whoever listens knows whose question it is.
        study.room.on_request = lambda link, question, asked: call.deliver_request(question, asked)  # type: ignore[method-assign]
    elicit(study, frame)
    (ask,) = await study.asked()
    assert (ask.kind, ask.asker, ask.server, ask.tool) == (
        ApprovalKind.INPUT,
        "agent:ci",
        "srv",
        "delete",
    )
    assert call.held_since is not None
    with pytest.raises(MalformedMessage, match="has to be filled in"):
        await study.answer(ask)
    with pytest.raises(MalformedMessage, match="too long"):
        await study.answer(ask, name="0123456789")
    await study.answer(ask, name="blue")
    await study.state(ask, ApprovalState.CONSUMED)
    await settled()
    (answer,) = answers(study)
    assert answer.id == "q"
    assert result_of(answer) == {"action": "accept", "content": {"name": "blue"}}
    assert (call.held_since, frames_in(call), len(study.inquiries)) == (None, [], 0)
    kept = await study.asks.get(ask.id)
    assert kept is not None
    assert kept.answers[0].content == {}


async def begun_elicited(study: Study) -> tuple[Call, Frame]:
    call, frame = study.call()
    elicit(study, frame)
    return counted(study, call), frame


@pytest.mark.parametrize(
    ("verdict", "action"),
    [(ApprovalDecision.DECLINE, "decline"), (ApprovalDecision.CANCEL, "cancel")],
)
async def test_who_does_not_want_to_says_so(verdict: ApprovalDecision, action: str) -> None:
    study = await Study(process=False).open()
    await begun_elicited(study)
    (ask,) = await study.asked()
    await study.answer(ask, verdict)
    await settled()
    (answer,) = answers(study)
    assert result_of(answer) == {"action": action}


async def test_when_its_time_is_over_it_is_cancelled() -> None:
    study = await Study(process=False).open()
    await begun_elicited(study)
    (ask,) = await study.asked()
    study.now = ask.expires_at
    study.approvals.on_changed(ask.id)
    await study.state(ask, ApprovalState.EXPIRED)
    await settled()
    (answer,) = answers(study)
    assert result_of(answer) == {"action": "cancel"}


async def test_a_call_that_is_over_cancels_its_form() -> None:
    study = await Study(process=False).open()
    call, _ = await begun_elicited(study)
    (ask,) = await study.asked()
    call.withdraw(None)
    await study.state(ask, ApprovalState.WITHDRAWN)
    (answer,) = answers(study)
    assert result_of(answer) == {"action": "cancel"}
    assert len(study.room.link.conversation) == 0


async def test_a_server_that_takes_its_form_back_gets_no_answer() -> None:
    study = await Study(process=False).open()
    _, frame = await begun_elicited(study)
    (ask,) = await study.asked()
    taken_back = jsonrpc.make_notification("notifications/cancelled", {"requestId": "q"})
    study.room.carrier.says(taken_back, frame)
    await study.state(ask, ApprovalState.WITHDRAWN)
    await settled()
    assert answers(study) == []
    assert len(study.inquiries) == 0


async def test_two_equal_forms_are_two_questions() -> None:
    study = await Study(process=False).open()
    _, frame = await begun_elicited(study)
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
    study, call, frame = await calling(process=False)
    elicit(study, frame, **other)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert (error.code, call.held_since) == (code, None)
    assert await study.asks.page() == []


async def test_nor_is_more_than_so_much_asked_amid_one_call() -> None:
    study, _, frame = await calling(process=False)
    for number in range(MAX_OPEN_PER_CALL + 1):
        elicit(study, frame, f"q-{number}")
    (answer,) = answers(study)
    assert answer.id == f"q-{MAX_OPEN_PER_CALL}"
    assert jsonrpc.error_of(answer) is not None


@pytest.mark.parametrize("method", [protocol.SAMPLE, protocol.LIST_ROOTS])
async def test_nobody_is_asked_anything_else_in_a_client_s_place(method: str) -> None:
    study, _, frame = await calling(process=False)
    study.room.carrier.says(jsonrpc.make_request("q", method, FORM), frame)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert error.code == -32601


async def test_by_default_everything_is_as_it_was() -> None:
    study, _, frame = await calling(process=False, stand_in=False)
    elicit(study, frame)
    (answer,) = answers(study)
    error = jsonrpc.error_of(answer)
    assert error is not None
    assert error.message == "this client did not declare elicitation"


async def test_a_call_without_a_session_is_held_like_any_other() -> None:
    study = await Study(process=False).open()
    frame = jsonrpc.make_request("own", "tools/call", {"name": "delete"})
    call = counted(study, study.room.underway.begin(frame, ClientStream(), None))
    call.client_stream.actor = AGENT
    study.room.link.send_call(call, frame)
    elicit(study, study.room.carrier.sent[-1].frame)
    (ask,) = await study.asked()
    assert call.held_since is not None
    await study.answer(ask, name="blue")
    await study.state(ask, ApprovalState.CONSUMED)
    await settled()
    assert call.held_since is None


@pytest.mark.parametrize(("elicitations", "heard"), [("client", None), ("people", {"form": {}})])
async def test_a_server_over_http_hears_whether_its_clients_can_be_asked(
    elicitations: str, heard: dict[str, Any] | None
) -> None:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url), approvals_elicitations=elicitations) as visitor:
            merged = visitor.other("/mcp")
            await merged.greet()
            await merged.call("up__plain")
        own, of_session = server.of("initialize")
        assert own.frame["params"]["capabilities"]["elicitation"] == {"form": {}, "url": {}}
        assert of_session.frame["params"]["capabilities"].get("elicitation") == heard
