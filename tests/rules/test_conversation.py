"""Who an answer is for, who a notice is for, and what is nobody's, case by case."""

import pytest
from msgspec import Raw

from comity.rules.conversation import (
    Answer,
    Conversation,
    Notice,
    Question,
    Stray,
    Withdrawal,
)
from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, INVALID_REQUEST, UPSTREAM_FAILED, MalformedMessage
from comity.wire.jsonrpc import Frame, Id
from comity.wire.mcp import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    STANDALONE,
    SUBSCRIPTION_ID,
    TOOLS_CHANGED,
    UNKNOWN,
    Stream,
)


def frame_of(text: str) -> Frame:
    return jsonrpc.decode(text.encode())


def text_of(frame: Frame) -> str:
    return jsonrpc.encode(frame).decode()


def calls(*errands: str) -> Conversation[str]:
    """A conversation in which each errand has asked, under the minted ids 1, 2, ..."""
    conversation = Conversation[str]()
    for errand in errands:
        conversation.ask(jsonrpc.request(f"id of {errand}", "tools/call"), errand)
    return conversation


def listening(asker_id: Id = "own") -> Conversation[str]:
    conversation = Conversation[str]()
    conversation.ask(jsonrpc.request(asker_id, LISTEN), "listener")
    return conversation


def asking_with(token: object) -> tuple[Conversation[str], Frame]:
    conversation = Conversation[str]()
    params = {"name": "t", "_meta": {"progressToken": token, "more": 1}}
    asked = conversation.ask(jsonrpc.request(9, "tools/call", params), "caller", mint_token=True)
    return conversation, asked


def progress(token: object) -> Frame:
    return jsonrpc.notification(PROGRESS, {"progressToken": token, "progress": 0.5})


def changed(subscription: object) -> Frame:
    return jsonrpc.notification(TOOLS_CHANGED, {"_meta": {SUBSCRIPTION_ID: subscription, "x": 1}})


def cancelled(request_id: object) -> Frame:
    return jsonrpc.notification(CANCELLED, {"requestId": request_id, "reason": "changed my mind"})


def test_a_question_leaves_under_a_minted_id_and_nothing_else_is_changed() -> None:
    conversation = Conversation[str]()
    text = '{"jsonrpc":"2.0","id":"own","method":"m","params":{"a":[1]},"trace":"t"}'
    asked = [conversation.ask(frame_of(text), "one") for _ in range(2)]
    assert [text_of(frame) for frame in asked] == [
        text.replace('"own"', "1"),
        text.replace('"own"', "2"),
    ]
    assert conversation.waiting == ["one", "one"]


@pytest.mark.parametrize("stream", [UNKNOWN, 1])
@pytest.mark.parametrize("body", ['"result":{"a":1}', '"error":{"code":1,"message":"m"}'])
def test_an_answer_bears_the_askers_own_id_again(stream: Stream, body: str) -> None:
    conversation = calls("one")
    heard = conversation.hear(frame_of(f'{{"jsonrpc":"2.0","id":1,{body},"x":0}}'), stream)
    expected = frame_of(f'{{"jsonrpc":"2.0","id":"id of one",{body},"x":0}}')
    assert heard == Answer("one", expected)
    assert len(conversation) == 0


@pytest.mark.parametrize(
    ("answer_id", "stream"),
    [
        *(("1", UNKNOWN), ("1", 1), ("id of one", UNKNOWN), (3, UNKNOWN), (3, 3), (0, STANDALONE)),
        *((1, STANDALONE), (1, 2), (2, 1), (-1, UNKNOWN), (None, UNKNOWN), (True, UNKNOWN)),
    ],
)
def test_an_answer_of_another_type_or_stream_is_a_stray(answer_id: Id, stream: Stream) -> None:
    conversation = calls("one", "two")
    answer = Frame("2.0", answer_id, error=Raw(b"{}"))
    assert isinstance(conversation.hear(answer, stream), Stray)
    assert conversation.waiting == ["one", "two"]


def test_a_second_answer_and_one_before_its_question_are_strays() -> None:
    conversation = calls("one")
    second = jsonrpc.result(2, "for whom?")
    assert isinstance(conversation.hear(second, UNKNOWN), Stray)
    assert isinstance(conversation.hear(jsonrpc.result(1, {}), UNKNOWN), Answer)
    assert isinstance(conversation.hear(jsonrpc.result(1, {}), UNKNOWN), Stray)
    assert conversation.ask(jsonrpc.request("b", "m"), "two").id == 2
    assert isinstance(conversation.hear(jsonrpc.result(1, {}), UNKNOWN), Stray)
    assert conversation.waiting == ["two"]


@pytest.mark.parametrize("frame", [jsonrpc.notification("m"), jsonrpc.result(1, {})])
def test_only_a_request_can_be_asked(frame: Frame) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Conversation[str]().ask(frame, "one")
    assert caught.value.fault is INVALID_REQUEST


def test_a_conversation_holds_so_many_open_questions_and_no_more() -> None:
    conversation = Conversation[str](limit=2)
    for number in (1, 2):
        conversation.ask(jsonrpc.request(number, "m"), "ours")
        conversation.take(number, "theirs")
    with pytest.raises(MalformedMessage) as caught:
        conversation.ask(jsonrpc.request(3, "m"), "ours")
    assert caught.value.fault is EXHAUSTED
    with pytest.raises(MalformedMessage) as caught:
        conversation.take(3, "theirs")
    assert caught.value.fault is EXHAUSTED
    assert len(conversation) == 4


@pytest.mark.parametrize(("stream", "amid"), [(1, "one"), (2, None), (STANDALONE, None)])
def test_a_question_that_reuses_a_pending_id_is_a_question(stream: int, amid: str | None) -> None:
    conversation = calls("one")
    asked = jsonrpc.request(1, "roots/list")
    assert conversation.hear(asked, stream) == Question(asked, amid)
    assert conversation.hear(asked, UNKNOWN) == Question(asked, None)
    assert conversation.waiting == ["one"]
    assert conversation.amid(stream) == amid


def test_a_question_of_the_peers_is_taken_once_until_it_is_settled() -> None:
    conversation = Conversation[str]()
    conversation.take(1, "one")
    conversation.take("1", "another")
    with pytest.raises(MalformedMessage, match="already in use"):
        conversation.take(1, "again")
    conversation.settle(1)
    conversation.settle(1)
    conversation.take(1, "again")
    assert len(conversation) == 2


def test_the_peer_takes_back_its_own_question_and_no_other() -> None:
    conversation = calls("ours")
    conversation.take("1", "theirs")
    assert isinstance(conversation.hear(cancelled(1), UNKNOWN), Stray)
    heard = conversation.hear(cancelled("1"), UNKNOWN)
    assert heard == Withdrawal("theirs", Raw(b'"changed my mind"'))
    assert isinstance(conversation.hear(cancelled("1"), UNKNOWN), Stray)
    assert conversation.waiting == ["ours"]


def test_a_withdrawal_needs_no_reason() -> None:
    conversation = Conversation[str]()
    conversation.take(7, "theirs")
    told = jsonrpc.notification(CANCELLED, {"requestId": 7})
    assert conversation.hear(told, UNKNOWN) == Withdrawal("theirs", None)


@pytest.mark.parametrize(
    "params",
    [
        *("{}", "[]", "null", "7", '{"requestId":null}', '{"requestId":true}'),
        *('{"requestId":1.0}', '{"requestId":[1]}', '{"requestId":"1"}', '{"requestId":2}'),
        '{"requestId":"' + "x" * 100_000 + '"}',
    ],
)
def test_a_cancellation_that_names_nothing_open_is_a_short_stray(params: str) -> None:
    conversation = Conversation[str]()
    conversation.take(1, "theirs")
    text = f'{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{params}}}'
    heard = conversation.hear(frame_of(text), UNKNOWN)
    assert isinstance(heard, Stray)
    assert len(heard.because) < 200
    assert len(conversation) == 1


def test_a_cancellation_without_parameters_is_a_stray() -> None:
    assert isinstance(Conversation[str]().hear(jsonrpc.notification(CANCELLED), UNKNOWN), Stray)


def test_withdrawing_a_question_forgets_it_and_words_its_cancellation() -> None:
    conversation = calls("one", "two")
    told = conversation.withdraw(2, Raw(b'"late"'))
    assert told is not None
    expected = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":'
    assert text_of(told) == expected + '{"requestId":2,"reason":"late"}}'
    assert conversation.withdraw(2) is None
    told = conversation.withdraw(1)
    assert told is not None
    assert text_of(told) == expected + '{"requestId":1}}'
    assert isinstance(conversation.hear(jsonrpc.result(1, {}), UNKNOWN), Stray)


def test_a_stream_that_ends_leaves_its_own_question_and_no_other() -> None:
    conversation = calls("one", "two")
    assert conversation.drop(STANDALONE) is None
    assert conversation.drop(UNKNOWN) is None
    assert conversation.drop(3) is None
    assert conversation.drop(2) == "two"
    assert conversation.drop(2) is None
    assert conversation.waiting == ["one"]


def test_closing_gives_back_everything_that_was_open() -> None:
    conversation = calls("one", "two")
    conversation.take("a", "theirs")
    assert conversation.close() == (["one", "two"], ["theirs"])
    assert len(conversation) == 0
    assert conversation.close() == ([], [])
    assert isinstance(conversation.hear(jsonrpc.result(1, {}), UNKNOWN), Stray)


@pytest.mark.parametrize("token", ["own", 1, 77, 0, None, [1]])
@pytest.mark.parametrize("stream", [UNKNOWN, STANDALONE, 1])
def test_a_minted_token_comes_back_as_the_askers_own(token: object, stream: Stream) -> None:
    conversation, asked = asking_with(token)
    minted = {"name": "t", "_meta": {"progressToken": 1, "more": 1}}
    assert asked == jsonrpc.request(1, "tools/call", minted)
    assert conversation.hear(progress(1), stream) == Notice(progress(token), "caller")


@pytest.mark.parametrize("token", ["own", "1", 2, 1.0, True, None])
@pytest.mark.parametrize("stream", [UNKNOWN, 1])
def test_progress_under_a_token_that_was_not_minted_is_a_stray(
    token: object, stream: Stream
) -> None:
    conversation, _ = asking_with("own")
    assert isinstance(conversation.hear(progress(token), stream), Stray)


def test_progress_cannot_be_slipped_into_the_stream_of_another_call() -> None:
    conversation, _ = asking_with("first")
    params = {"_meta": {"progressToken": "second"}}
    conversation.ask(jsonrpc.request(9, "tools/call", params), "other", mint_token=True)
    assert isinstance(conversation.hear(progress(1), 2), Stray)
    assert conversation.hear(progress(2), 2) == Notice(progress("second"), "other")


def test_progress_of_a_call_that_wanted_none_is_a_stray() -> None:
    conversation = Conversation[str]()
    conversation.ask(jsonrpc.request(9, "m", {"_meta": {}}), "one", mint_token=True)
    conversation.ask(jsonrpc.request(9, "m"), "two", mint_token=True)
    for minted in (1, 2):
        assert isinstance(conversation.hear(progress(minted), UNKNOWN), Stray)
    assert isinstance(conversation.hear(jsonrpc.notification(PROGRESS), UNKNOWN), Stray)


@pytest.mark.parametrize(("stream", "amid"), [(1, "one"), (2, None), (STANDALONE, None)])
def test_where_tokens_are_not_minted_the_stream_tells(stream: int, amid: str | None) -> None:
    conversation = calls("one")
    assert conversation.hear(progress("own"), stream) == Notice(progress("own"), amid)


@pytest.mark.parametrize("params", ["[1]", "null", '"a"', '{"_meta":5}', '{"_meta":[1]}', "{}"])
def test_parameters_without_a_token_are_asked_as_they_stand(params: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    asked = Conversation[str]().ask(frame_of(text), "one", mint_token=True)
    assert text_of(asked) == text


@pytest.mark.parametrize(
    "params",
    [
        '{"_meta":{},"_meta":{"progressToken":1}}',
        '{"_meta":{"progressToken":1,"progressToken":2}}',
        '{"_meta":{"progress\\u0054oken":1,"progress\\u0054oken":2}}',
    ],
)
def test_a_question_whose_parameters_say_two_things_is_not_asked(params: str) -> None:
    conversation = Conversation[str]()
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    with pytest.raises(MalformedMessage, match="repeated"):
        conversation.ask(frame_of(text), "one", mint_token=True)
    assert len(conversation) == 0


def test_a_token_whose_key_is_spelt_with_an_escape_is_minted_too() -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progress\\u0054oken":9}}}'
    asked = Conversation[str]().ask(frame_of(text), "one", mint_token=True)
    assert text_of(asked).endswith('"params":{"_meta":{"progressToken":1}}}')


@pytest.mark.parametrize("stream", [UNKNOWN, 1])
@pytest.mark.parametrize("asker_id", ["own", 1, 40])
def test_a_listener_sees_its_own_id_on_what_it_listens_to(stream: Stream, asker_id: Id) -> None:
    conversation = listening(asker_id)
    assert conversation.hear(changed(1), stream) == Notice(changed(asker_id), "listener")
    body = {"_meta": {SUBSCRIPTION_ID: 1}, "resultType": "complete"}
    heard = conversation.hear(jsonrpc.result(1, body), stream)
    body = {"_meta": {SUBSCRIPTION_ID: asker_id}, "resultType": "complete"}
    assert heard == Answer("listener", jsonrpc.result(asker_id, body))


def test_the_end_of_listening_keeps_members_that_nobody_knows() -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{{"{SUBSCRIPTION_ID}":1}}}},"x":1}}'
    heard = listening("own").hear(frame_of(text), UNKNOWN)
    assert heard == Answer("listener", frame_of(text.replace(":1", ':"own"', 2)))


@pytest.mark.parametrize("body", [1, "a", [1], {}, {"_meta": 1}, None])
def test_the_end_of_listening_needs_no_stamp(body: object) -> None:
    heard = listening().hear(jsonrpc.result(1, body), UNKNOWN)
    assert heard == Answer("listener", jsonrpc.result("own", body))


def test_the_end_of_listening_by_an_error_is_told_as_it_is() -> None:
    error = '"error":{"code":1,"message":"m","message":"n"}'
    heard = listening().hear(frame_of(f'{{"jsonrpc":"2.0","id":1,{error}}}'), UNKNOWN)
    assert heard == Answer("listener", frame_of(f'{{"jsonrpc":"2.0","id":"own",{error}}}'))


def test_a_listener_learns_of_an_end_that_cannot_be_read() -> None:
    conversation = listening()
    text = '{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1,"a":2}}}'
    heard = conversation.hear(frame_of(text), UNKNOWN)
    assert isinstance(heard, Answer)
    error = jsonrpc.error_of(heard.frame)
    assert error is not None
    assert (heard.errand, heard.frame.id, error.code) == ("listener", "own", UPSTREAM_FAILED.code)
    assert len(conversation) == 0


@pytest.mark.parametrize("subscription", [2, 3, 0, -1, "1", "own", 1.0, True, None, [1]])
def test_a_notice_for_no_open_subscription_is_a_stray(subscription: object) -> None:
    conversation = listening()
    conversation.ask(jsonrpc.request("x", "tools/call"), "no listener")
    assert isinstance(conversation.hear(changed(subscription), UNKNOWN), Stray)


@pytest.mark.parametrize("params", [None, "[1]", "5", "{}", '{"_meta":7}', '{"_meta":{"a":1}}'])
@pytest.mark.parametrize(
    ("stream", "amid"), [(UNKNOWN, None), (STANDALONE, None), (1, "one"), (2, None)]
)
def test_a_notice_belongs_to_the_call_on_whose_stream_it_came(
    params: str | None, stream: Stream, amid: str | None
) -> None:
    tail = "" if params is None else f',"params":{params}'
    frame = frame_of(f'{{"jsonrpc":"2.0","method":"own/notice"{tail}}}')
    assert calls("one").hear(frame, stream) == Notice(frame, amid)


def test_a_notice_that_says_two_things_is_refused() -> None:
    conversation = listening()
    text = '{"jsonrpc":"2.0","method":"m","params":{"_meta":{},"_meta":{}}}'
    with pytest.raises(MalformedMessage, match="repeated"):
        conversation.hear(frame_of(text), UNKNOWN)
    assert conversation.waiting == ["listener"]


def test_whoever_wants_hears_once_of_each_errand_that_is_owed_nothing_any_more() -> None:
    conversation = calls("answered", "withdrawn", "dropped", "closed")
    ended: list[str] = []
    conversation.on_end = ended.append
    conversation.hear(jsonrpc.result(1, {}), UNKNOWN)
    conversation.hear(jsonrpc.result(1, {}), UNKNOWN)
    conversation.withdraw(2)
    conversation.drop(3)
    conversation.withdraw(3)
    assert ended == ["answered", "withdrawn", "dropped"]
    conversation.close()
    assert ended[-1] == "closed"


@pytest.mark.parametrize(("stream", "is_heard"), [(None, True), (0, True), (1, True), (2, False)])
def test_what_is_told_of_a_call_by_its_id_is_believed_on_no_others_stream(
    stream: int | None, is_heard: bool
) -> None:
    conversation: Conversation[str] = Conversation()
    for errand in ("mine", "another's"):
        conversation.ask(jsonrpc.request(errand, "tools/call", {}), errand)
    notice = jsonrpc.notification("notifications/mgp.stream.chunk", {"request_id": 1})
    heard = conversation.hear(notice, stream)
    assert isinstance(heard, Notice)
    assert heard.amid == ("mine" if is_heard else None)


def test_a_question_of_the_peers_is_found_by_its_own_id_while_it_is_open() -> None:
    conversation: Conversation[str] = Conversation()
    conversation.take("a", "mine")
    assert (conversation.taken("a"), conversation.taken("b")) == ("mine", None)
    conversation.settle("a")
    assert conversation.taken("a") is None
