"""What a server asks is put to people in words that say whose they are, and ends with its call."""

from dataclasses import replace
from datetime import timedelta

import pytest

from comity.kernel.across import Across, Way
from comity.kernel.call import Call
from comity.kernel.inquiries import Asked, Inquiries, Inquiry, call_of
from comity.kernel.own_call import OwnCall
from comity.rules.callbacks import MOST_OF_SERVER, MOST_OPEN
from comity.wire import jsonrpc
from comity.wire.asks import Ask, Kind, State
from comity.wire.errors import Unavailable
from tests.kernel.carriers import settled
from tests.kernel.inquired import NOW, Study

ASKED = Asked("srv", Kind.INPUT, "Which\x1b\u201d one?", timedelta(minutes=2), lambda name: name)


def begun(study: Study, call: Call, asked: Asked = ASKED) -> tuple[Inquiry, list[Ask | None]]:
    delivered: list[Ask | None] = []

    async def deliver(ended: Ask | None) -> None:
        delivered.append(ended)

    inquiry = Inquiry(call, call, asked.server, study.inquiries.ask_of(asked, call), deliver)
    study.inquiries.follow(study.room.link.conversation)
    study.inquiries.begin(inquiry)
    return inquiry, delivered


def another(number: int) -> Asked:
    def digest(name: str) -> str:
        return f"{name}-{number}"

    return replace(ASKED, digest=digest)


async def test_a_question_says_who_asks_and_amid_what() -> None:
    study = await Study().open()
    call, _ = study.call()
    ask = study.inquiries.ask_of(ASKED, call)
    assert ask.message == (
        "Server srv asks, amid a call of delete by agent:ci: "
        '\N{LEFT DOUBLE QUOTATION MARK}Which\\x1b" one?\N{RIGHT DOUBLE QUOTATION MARK}'
    )
    assert (ask.asker, ask.own, ask.expires_at) == ("agent:ci", False, NOW + timedelta(minutes=2))
    assert ask.about["asked_by"] == "server:srv"
    assert ask.digest == ask.about["call"]
    assert ask.trace == call.traced()


async def test_a_secret_in_a_server_s_words_is_not_shown() -> None:
    study = await Study().open()

    def redact(value: object) -> object:
        return str(value).replace("hunter2", "(hidden)")

    call, _ = study.call()
    ask = Inquiries(study.approvals, redact=redact).ask_of(
        replace(ASKED, words="Is it hunter2?"), call
    )
    assert "hunter2" not in ask.message
    assert "Is it (hidden)?" in ask.message


async def test_what_was_filled_in_is_delivered_once_and_kept_no_longer() -> None:
    study = await Study().open()
    call, _ = study.call()
    _, delivered = begun(study, call)
    (ask,) = await study.asked()
    await study.answer(ask, text="hunter2")
    used = await study.state(ask, State.USED)
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
    study = await Study().open()
    call, _ = study.call()
    ask = await study.approvals.open(study.inquiries.ask_of(ASKED, call))
    await study.answer(ask, text="hunter2")
    study.now += study.approvals.options.lasts
    assert await study.approvals.sweep() == 1
    kept = await study.asks.get(ask.id)
    assert kept is not None
    assert (kept.state, kept.answers[0].content) == (State.EXPIRED, {})


async def test_a_store_that_cannot_erase_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = await Study().open()

    async def away(id: str) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(study.asks, "erase", away)
    call, _ = study.call()
    _, delivered = begun(study, call)
    (ask,) = await study.asked()
    await study.answer(ask, text="hunter2")
    await study.state(ask, State.USED)
    await settled()
    assert len(delivered) == 1
    assert "could not be erased yet" in caplog.text


async def test_who_wanted_to_know_may_want_so_no_longer() -> None:
    study = await Study().open()
    call, _ = study.call()
    inquiry, delivered = begun(study, call)
    (ask,) = await study.asked()
    study.inquiries.end(inquiry)
    await study.state(ask, State.WITHDRAWN)
    await settled()
    assert (delivered, call.held) == ([], None)


async def test_a_server_has_so_many_questions_open_in_all() -> None:
    study = await Study().open()
    call, _ = study.call()
    assert study.inquiries.why_full(call, "srv") is None
    study.inquiries._of_server["srv"] = MOST_OF_SERVER  # pyright: ignore[reportPrivateUsage]
    assert str(MOST_OF_SERVER) in str(study.inquiries.why_full(call, "srv"))
    assert study.inquiries.why_full(call, "another") is None


async def test_and_so_many_amid_one_call() -> None:
    study = await Study().open()
    call, _ = study.call()
    other, _ = study.call()
    for number in range(MOST_OPEN):
        begun(study, call, another(number))
    assert str(MOST_OPEN) in str(study.inquiries.why_full(call, "srv"))
    assert study.inquiries.why_full(other, "srv") is None


async def test_deadlines_go_on_with_the_last_answer() -> None:
    study = await Study().open()
    call, _ = study.call()
    for number in range(2):
        begun(study, call, another(number))
    first, second = await study.asked(2)
    await study.answer(first, text="a")
    await study.state(first, State.USED)
    await settled()
    assert call.held is not None
    await study.answer(second, text="b")
    await study.state(second, State.USED)
    await settled()
    assert call.held is None


async def test_behind_an_errand_stands_its_client_s_call_or_none() -> None:
    study = await Study().open()
    call, frame = study.call()
    across = Across(frame, call, Way("srv", lambda _call, _frame: None))
    assert call_of(call) is call
    assert call_of(across) is call
    across.front = None
    assert call_of(across) is None
    assert call_of(OwnCall(jsonrpc.request(1, "ping"), None)) is None
    assert call_of(None) is None
