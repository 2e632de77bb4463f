"""Calls and questions under way: one answer each, deadlines, and nothing left behind."""

import asyncio
import itertools

import pytest
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.outbox import MOST_FRAMES, Outbox
from comity.kernel.own_call import OwnCall
from comity.kernel.question import Question
from comity.kernel.sessions import Session
from comity.kernel.underway import Underway, tend
from comity.rules.conversation import Conversation
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import UNKNOWN
from tests.kernel.carriers import Clock, settled
from tests.kernel.refused import kind_of, refusal_in

DEADLINE, CAP, PATIENCE = 60.0, 300.0, 15.0


class FarEnd:
    """The link a call is on, which only remembers."""

    mgp = None

    def __init__(self) -> None:
        self.conversation: Conversation[object] = Conversation()
        self.told: list[Frame] = []
        self.forsaken: list[int] = []

    def tell(self, frame: Frame) -> None:
        self.told.append(frame)

    def forsake(self, minted: int, reason: Raw | None) -> None:
        self.forsaken.append(minted)

    def throttle(self, minted: int, paused: bool) -> None: ...


class Desk:
    """Calls of one session on one far end, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.underway = Underway(self.clock, DEADLINE, CAP)
        self.session = Session("", 0)
        self.far = FarEnd()
        self._ids = itertools.count(1)

    def call(self, method: str = "tools/call", session: bool = True) -> Call:
        frame = jsonrpc.request(next(self._ids), method, {})
        call = self.underway.begin(frame, Outbox(), self.session if session else None)
        call.link = self.far  # type: ignore[assignment]
        call.minted = 7
        return call


def answer_in(call: Call) -> Frame:
    assert call.outbox.final
    (data,) = call.outbox.take()
    return jsonrpc.decode(data)


def error_in(call: Call) -> str:
    return kind_of(refusal_in(answer_in(call)))


def test_an_answer_settles_the_call_everywhere() -> None:
    desk = Desk()
    call = desk.call()
    assert (len(desk.underway), len(desk.session.conversation)) == (1, 1)
    call.answered(jsonrpc.result(1, {"ok": True}))
    assert answer_in(call) == jsonrpc.result(1, {"ok": True})
    assert (len(desk.underway), len(desk.session.conversation)) == (0, 0)


def test_an_id_that_is_in_use_is_refused_and_leaves_nothing() -> None:
    desk = Desk()
    frame = jsonrpc.request("same", "tools/call")
    desk.underway.begin(frame, Outbox(), desk.session)
    with pytest.raises(MalformedMessage):
        desk.underway.begin(frame, Outbox(), desk.session)
    assert len(desk.underway) == 1


def test_a_broken_answer_fails_only_its_call() -> None:
    desk = Desk()
    call, other = desk.call(), desk.call()

    def choke(frame: Frame) -> Frame:
        raise MalformedMessage("a key is repeated")

    call.adapt = choke
    call.answered(jsonrpc.result(1, []))
    assert error_in(call) == UPSTREAM_FAILED.error_type
    assert [*desk.underway] == [other]


def test_an_error_is_not_adapted() -> None:
    desk = Desk()
    call = desk.call()
    call.adapt = lambda frame: jsonrpc.result(1, "adapted")
    call.answered(jsonrpc.failure(1, METHOD_NOT_FOUND, "no"))
    assert error_in(call) == "method_not_found"


@pytest.mark.parametrize(("session", "status"), [(True, 200), (False, 404)])
def test_in_the_modern_era_an_errors_code_decides_the_status(session: bool, status: int) -> None:
    call = Desk().call(session=session)
    call.answered(jsonrpc.failure(1, METHOD_NOT_FOUND, "no"))
    assert call.outbox.status == status


@pytest.mark.parametrize("error", [b"5", b"{}", b'{"code":1e5}', b'{"code":1,"code":2}', b"[]"])
def test_an_error_of_no_known_shape_is_passed_on_all_the_same(error: bytes) -> None:
    call = Desk().call(session=False)
    call.answered(Frame("2.0", 1, error=Raw(error)))
    assert call.outbox.final
    assert call.outbox.take() == [b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"]


def test_a_withdrawn_call_is_called_off_and_has_no_answer() -> None:
    desk = Desk()
    call = desk.call()
    call.withdraw(None)
    call.answered(jsonrpc.result(1, {}))
    assert (call.outbox.final, call.outbox.take()) == (True, [])
    assert desk.far.forsaken == [7]
    assert len(desk.underway) == 0


def test_a_call_past_its_deadline_is_refused_and_called_off() -> None:
    desk = Desk()
    call = desk.call()
    desk.clock.passes(DEADLINE)
    desk.underway.look(PATIENCE)
    assert not call.outbox.final
    desk.clock.passes(1)
    desk.underway.look(PATIENCE)
    assert error_in(call) == "timeout"
    assert desk.far.forsaken == [7]
    assert (len(desk.underway), len(desk.session.conversation)) == (0, 0)


def test_progress_puts_the_deadline_off_but_not_beyond_the_cap() -> None:
    desk = Desk()
    call = desk.call()
    for _ in range(6):
        desk.clock.passes(DEADLINE - 10)
        call.told(jsonrpc.notification(mcp.PROGRESS))
        desk.underway.look(PATIENCE)
    assert not call.outbox.final
    desk.clock.passes(1)
    desk.underway.look(PATIENCE)
    assert call.outbox.final


def test_the_deadline_stands_still_while_somebody_is_asked_but_not_for_ever() -> None:
    """A person may take longer to answer than any server should. (D-94)"""
    desk = Desk()
    desk.session.capabilities = {"elicitation": Raw(b"{}")}
    call = desk.call()
    for ends_by in ("answer", "withdrawal"):
        frame = jsonrpc.request("q", mcp.ELICIT, {})
        question = Question(frame, desk.far, desk.far.tell)  # type: ignore[arg-type]
        call.asked(question, frame)
        desk.clock.passes(CAP - 1)
        desk.underway.look(PATIENCE)
        assert not call.outbox.final
        if ends_by == "answer":
            question.answered(jsonrpc.result("q", {"action": "accept"}))
        else:
            question.withdraw(None)
        desk.clock.passes(DEADLINE)
        desk.underway.look(PATIENCE)
        assert not call.outbox.final, "the deadline goes on where it stood"
    frame = jsonrpc.request("r", mcp.ELICIT, {})
    call.asked(Question(frame, desk.far, desk.far.tell), frame)  # type: ignore[arg-type]
    desk.clock.passes(CAP + 1)
    desk.underway.look(PATIENCE)
    assert call.outbox.final


def test_the_deadline_stands_still_until_the_last_of_several_questions_is_settled() -> None:
    desk = Desk()
    desk.session.capabilities = {"elicitation": Raw(b"{}")}
    call = desk.call()
    first, second = (question_of(desk, name) for name in ("q", "r"))
    call.asked(*first)
    call.asked(*second)
    first[0].answered(jsonrpc.result("q", {"action": "accept"}))
    desk.clock.passes(DEADLINE + 1)
    desk.underway.look(PATIENCE)
    assert not call.outbox.final
    second[0].withdraw(None)
    desk.clock.passes(DEADLINE + 1)
    desk.underway.look(PATIENCE)
    assert call.outbox.final


def test_who_listens_waits_for_ever_and_is_nudged_all_the_same() -> None:
    desk = Desk()
    call = desk.call(mcp.LISTEN, session=False)
    desk.clock.passes(CAP * 100)
    desk.underway.look(PATIENCE)
    assert not call.outbox.final
    assert call.outbox.nudged


def test_a_call_that_takes_long_is_watched_once_and_then_nudged() -> None:
    desk = Desk()
    call, watched = desk.call(), list[int]()
    call.on_long = lambda: watched.append(1)
    desk.underway.look(PATIENCE)
    desk.underway.look(PATIENCE)
    assert watched == [1]
    assert not call.outbox.nudged
    desk.clock.passes(PATIENCE + 1)
    desk.underway.look(PATIENCE)
    assert call.outbox.nudged


def test_a_reader_that_is_too_slow_loses_its_own_call_only() -> None:
    desk = Desk()
    slow, other = desk.call(), desk.call()
    for _ in range(MOST_FRAMES + 1):
        slow.told(jsonrpc.notification(mcp.PROGRESS))
    assert slow.outbox.overrun
    assert desk.far.forsaken == [7]
    assert [*desk.underway] == [other]


def question(desk: Desk, method: str = mcp.SAMPLE, **members: object) -> tuple[Question, Frame]:
    frame = jsonrpc.request("q", method, members)
    asked = Question(frame, desk.far, desk.far.tell)  # type: ignore[arg-type]
    desk.far.conversation.take("q", asked)
    return asked, frame


def reply(desk: Desk) -> Frame:
    (frame,) = desk.far.told
    assert len(desk.far.conversation) == 0
    return frame


def test_a_question_amid_a_call_goes_to_that_calls_stream_and_its_answer_back() -> None:
    desk = Desk()
    desk.session.capabilities = {"sampling": Raw(b"{}")}
    call = desk.call()
    asked, frame = question(desk, x=1)
    call.asked(asked, frame)
    (data,) = call.outbox.take()
    seen = jsonrpc.decode(data)
    assert (seen.method, seen.id) == (mcp.SAMPLE, 1)
    desk.session.hear(jsonrpc.result(1, {"said": "hello"}))
    assert reply(desk) == jsonrpc.result("q", {"said": "hello"})


@pytest.mark.parametrize("method", sorted(mcp.CLIENT_CAPABILITY))
def test_a_client_is_not_asked_what_it_did_not_declare(method: str) -> None:
    desk = Desk()
    call = desk.call()
    asked, frame = question(desk, method)
    call.asked(asked, frame)
    assert call.outbox.take() == []
    error = jsonrpc.error_of(reply(desk))
    assert error is not None
    assert error.code == METHOD_NOT_FOUND.code


def test_a_request_that_stands_alone_cannot_be_asked() -> None:
    desk = Desk()
    call = desk.call(session=False)
    call.asked(*question(desk, "vendor/ask"))
    assert jsonrpc.error_of(reply(desk)) is not None


def test_a_question_that_cannot_be_read_is_refused() -> None:
    desk = Desk()
    asked, _ = question(desk, "vendor/ask")
    broken = Frame("2.0", "q", "vendor/ask", Raw(b'{"progressToken":1,"a":1,"a":2}'))
    desk.call().asked(asked, broken)
    assert jsonrpc.error_of(reply(desk)) is not None
    assert desk.session.conversation.waiting == []


def test_a_question_on_a_stream_that_has_ended_is_refused() -> None:
    desk = Desk()
    asked, frame = question(desk, "vendor/ask")
    gone = Outbox()
    gone.end()
    asked.put_to(desk.session, frame, gone)
    assert jsonrpc.error_of(reply(desk)) is not None
    assert desk.session.conversation.waiting == []


def test_a_question_that_is_taken_back_is_taken_back_at_the_client() -> None:
    desk = Desk()
    call = desk.call()
    asked, frame = question(desk, "vendor/ask")
    call.asked(asked, frame)
    call.outbox.take()
    asked.withdraw(jsonrpc.to_raw("enough"))
    (data,) = call.outbox.take()
    assert jsonrpc.decode(data) == jsonrpc.notification(
        mcp.CANCELLED, {"requestId": 1, "reason": "enough"}
    )
    assert (desk.far.told, len(desk.far.conversation)) == ([], 0)
    asked.withdraw(None)
    assert call.outbox.take() == []


def test_a_question_whose_client_goes_away_is_answered_with_an_error() -> None:
    desk = Desk()
    asked, frame = question(desk, "vendor/ask")
    desk.call().asked(asked, frame)
    asked.failed(Unavailable("the client went away"))
    assert jsonrpc.error_of(reply(desk)) is not None


def test_nobody_asks_amid_an_answer() -> None:
    desk = Desk()
    asked, _ = question(desk, "vendor/ask")
    asked.asked(*question_of(desk, "r"))
    error = jsonrpc.error_of(desk.far.told[0])
    assert error is not None
    assert desk.far.told[0].id == "r"


def question_of(desk: Desk, name: str) -> tuple[Question, Frame]:
    frame = jsonrpc.request(name, "vendor/ask")
    return Question(frame, desk.far, desk.far.tell), frame  # type: ignore[arg-type]


def test_what_a_client_tells_amid_its_answer_reaches_the_server() -> None:
    desk = Desk()
    frame = jsonrpc.request("q", "vendor/ask", {"_meta": {"progressToken": "t"}})
    asked = Question(frame, desk.far, desk.far.tell)  # type: ignore[arg-type]
    desk.call().asked(asked, frame)
    minted = 1
    desk.session.hear(jsonrpc.notification(mcp.PROGRESS, {"progressToken": minted, "progress": 1}))
    assert desk.far.told == [
        jsonrpc.notification(mcp.PROGRESS, {"progressToken": "t", "progress": 1})
    ]


async def test_a_request_of_our_own_has_one_answer_or_one_failure() -> None:
    frame = jsonrpc.request("comity", "tools/list")
    answered, failed = OwnCall(frame, None), OwnCall(frame, None)
    answered.told(jsonrpc.notification("x"))
    answered.answered(jsonrpc.result("comity", 1))
    answered.answered(jsonrpc.result("comity", 2))
    answered.failed(Unavailable("late"))
    assert await answered.done == jsonrpc.result("comity", 1)
    failed.failed(Unavailable("gone"))
    failed.failed(Unavailable("again"))
    with pytest.raises(Unavailable, match="gone"):
        await failed.done


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_one_bad_look_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen = list[float]()

    def bad(patience: float) -> None:
        raise RuntimeError("a bug")

    tending = asyncio.ensure_future(tend((bad, seen.append), every=0, patience=15))
    await settled()
    tending.cancel()
    await asyncio.wait([tending])
    assert len(seen) > 1
    assert "a look after what waits failed" in caplog.text


def test_a_session_never_mistakes_one_answer_for_another() -> None:
    desk = Desk()
    first, frame = question(desk, "vendor/ask")
    desk.call().asked(first, frame)
    assert desk.session.conversation.hear(jsonrpc.result("1", {}), UNKNOWN) is not None
    assert desk.far.told == []
