"""Who an answer is for, who a notice is for, and what is nobody's, case by case."""

import pytest
from msgspec import Raw

from comity.errors import INVALID_REQUEST, UPSTREAM_FAILED, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.conversation import (
    Conversation,
    PeerCancellation,
    PeerNotification,
    PeerResponse,
    UnmatchedMessage,
)
from comity.mcp.jsonrpc import Frame, Id
from comity.mcp.protocol import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    STANDALONE,
    SUBSCRIPTION_ID,
    TOOLS_CHANGED,
    UNKNOWN,
    Stream,
)
from tests.support.cases import loop_over


def frame_of(text: str) -> Frame:
    return jsonrpc.decode_frame(text.encode())


def text_of(frame: Frame) -> str:
    return jsonrpc.encode_frame(frame).decode()


def calls(*errands: str) -> Conversation[str]:
    """A conversation in which each errand has asked, under the minted ids 1, 2, ..."""
    conversation = Conversation[str]()
    for errand in errands:
        conversation.register_request(jsonrpc.make_request(f"id of {errand}", "tools/call"), errand)
    return conversation


def listening(asker_id: Id = "own") -> Conversation[str]:
    conversation = Conversation[str]()
    conversation.register_request(jsonrpc.make_request(asker_id, LISTEN), "listener")
    return conversation


def asking_with(token: object) -> tuple[Conversation[str], Frame]:
    conversation = Conversation[str]()
    params = {"name": "t", "_meta": {"progressToken": token, "more": 1}}
    asked = conversation.register_request(
        jsonrpc.make_request(9, "tools/call", params), "caller", mint_token=True
    )
    return conversation, asked


def progress(token: object) -> Frame:
    return jsonrpc.make_notification(PROGRESS, {"progressToken": token, "progress": 0.5})


def changed(subscription: object) -> Frame:
    return jsonrpc.make_notification(
        TOOLS_CHANGED, {"_meta": {SUBSCRIPTION_ID: subscription, "x": 1}}
    )


def cancelled(request_id: object) -> Frame:
    return jsonrpc.make_notification(
        CANCELLED, {"requestId": request_id, "reason": "changed my mind"}
    )


def test_a_question_leaves_under_a_minted_id_and_nothing_else_is_changed() -> None:
    conversation = Conversation[str]()
    text = '{"jsonrpc":"2.0","id":"own","method":"m","params":{"a":[1]},"trace":"t"}'
    asked = [conversation.register_request(frame_of(text), "one") for _ in range(2)]
    assert [text_of(frame) for frame in asked] == [
        text.replace('"own"', "1"),
        text.replace('"own"', "2"),
    ]
    assert conversation.pending_requests == ["one", "one"]


@loop_over("stream", [UNKNOWN, 1])
@loop_over("body", ['"result":{"a":1}', '"error":{"code":1,"message":"m"}'])
def test_an_answer_bears_the_askers_own_id_again(stream: Stream, body: str) -> None:
    conversation = calls("one")
    heard = conversation.classify(frame_of(f'{{"jsonrpc":"2.0","id":1,{body},"x":0}}'), stream)
    expected = frame_of(f'{{"jsonrpc":"2.0","id":"id of one",{body},"x":0}}')
    assert heard == PeerResponse("one", expected)
    assert len(conversation) == 0


@loop_over(
    ("answer_id", "stream"),
    [
        *(("1", UNKNOWN), ("1", 1), ("id of one", UNKNOWN), (3, UNKNOWN), (3, 3), (0, STANDALONE)),
        *((1, STANDALONE), (1, 2), (2, 1), (-1, UNKNOWN), (None, UNKNOWN), (True, UNKNOWN)),
    ],
)
def test_an_answer_of_another_type_or_stream_is_a_stray(answer_id: Id, stream: Stream) -> None:
    conversation = calls("one", "two")
    answer = Frame("2.0", answer_id, error=Raw(b"{}"))
    assert isinstance(conversation.classify(answer, stream), UnmatchedMessage)
    assert conversation.pending_requests == ["one", "two"]


@loop_over("frame", [jsonrpc.make_notification("m"), jsonrpc.make_result(1, {})])
def test_only_a_request_can_be_asked(frame: Frame) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Conversation[str]().register_request(frame, "one")
    assert caught.value.fault is INVALID_REQUEST


def test_the_peer_cancels_its_own_question_and_no_other() -> None:
    conversation = calls("ours")
    conversation.register_peer_request("1", "theirs")
    conversation.register_peer_request(7, "theirs too")
    assert isinstance(conversation.classify(cancelled(1), UNKNOWN), UnmatchedMessage)
    heard = conversation.classify(cancelled("1"), UNKNOWN)
    assert heard == PeerCancellation("theirs", Raw(b'"changed my mind"'))
    assert isinstance(conversation.classify(cancelled("1"), UNKNOWN), UnmatchedMessage)
    without_reason = jsonrpc.make_notification(CANCELLED, {"requestId": 7})
    assert conversation.classify(without_reason, UNKNOWN) == PeerCancellation("theirs too", None)
    assert conversation.pending_requests == ["ours"]


@loop_over(
    "params",
    [
        *("{}", "[]", "null", "7", '{"requestId":null}', '{"requestId":true}'),
        *('{"requestId":1.0}', '{"requestId":[1]}', '{"requestId":"1"}', '{"requestId":2}'),
        '{"requestId":"' + "x" * 100_000 + '"}',
        None,
    ],
)
def test_a_cancellation_that_names_nothing_open_is_unmatched(params: str | None) -> None:
    conversation = Conversation[str]()
    conversation.register_peer_request(1, "theirs")
    tail = "" if params is None else f',"params":{params}'
    heard = conversation.classify(
        frame_of(f'{{"jsonrpc":"2.0","method":"{CANCELLED}"{tail}}}'), UNKNOWN
    )
    assert isinstance(heard, UnmatchedMessage)
    assert len(heard.because) < 200
    assert len(conversation) == 1


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
    assert isinstance(conversation.classify(jsonrpc.make_result(1, {}), UNKNOWN), UnmatchedMessage)


@loop_over("token", ["own", 1, 77, 0, None, [1]])
@loop_over("stream", [UNKNOWN, STANDALONE, 1])
def test_a_minted_token_comes_back_as_the_askers_own(token: object, stream: Stream) -> None:
    conversation, asked = asking_with(token)
    minted = {"name": "t", "_meta": {"progressToken": 1, "more": 1}}
    assert asked == jsonrpc.make_request(1, "tools/call", minted)
    assert conversation.classify(progress(1), stream) == PeerNotification(progress(token), "caller")


@loop_over("token", ["own", "1", 2, 1.0, True, None])
@loop_over("stream", [UNKNOWN, 1])
def test_progress_under_a_token_that_was_not_minted_is_a_stray(
    token: object, stream: Stream
) -> None:
    conversation, _ = asking_with("own")
    assert isinstance(conversation.classify(progress(token), stream), UnmatchedMessage)


def test_progress_of_a_call_that_wanted_none_is_a_stray() -> None:
    conversation = Conversation[str]()
    conversation.register_request(
        jsonrpc.make_request(9, "m", {"_meta": {}}), "one", mint_token=True
    )
    conversation.register_request(jsonrpc.make_request(9, "m"), "two", mint_token=True)
    for minted in (1, 2):
        assert isinstance(conversation.classify(progress(minted), UNKNOWN), UnmatchedMessage)
    assert isinstance(
        conversation.classify(jsonrpc.make_notification(PROGRESS), UNKNOWN), UnmatchedMessage
    )


@loop_over(("stream", "amid"), [(1, "one"), (2, None), (STANDALONE, None)])
def test_where_tokens_are_not_minted_the_stream_tells(stream: int, amid: str | None) -> None:
    conversation = calls("one")
    assert conversation.classify(progress("own"), stream) == PeerNotification(progress("own"), amid)


@loop_over("params", ["[1]", "null", '"a"', '{"_meta":5}', '{"_meta":[1]}', "{}"])
def test_parameters_without_a_token_are_asked_as_they_stand(params: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    asked = Conversation[str]().register_request(frame_of(text), "one", mint_token=True)
    assert text_of(asked) == text


@loop_over(
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
        conversation.register_request(frame_of(text), "one", mint_token=True)
    assert len(conversation) == 0


def test_a_token_whose_key_is_spelt_with_an_escape_is_minted_too() -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progress\\u0054oken":9}}}'
    asked = Conversation[str]().register_request(frame_of(text), "one", mint_token=True)
    assert text_of(asked).endswith('"params":{"_meta":{"progressToken":1}}}')


@loop_over("stream", [UNKNOWN, 1])
@loop_over("asker_id", ["own", 1, 40])
def test_a_listener_sees_its_own_id_on_what_it_listens_to(stream: Stream, asker_id: Id) -> None:
    conversation = listening(asker_id)
    assert conversation.classify(changed(1), stream) == PeerNotification(
        changed(asker_id), "listener"
    )
    body = {"_meta": {SUBSCRIPTION_ID: 1}, "resultType": "complete"}
    heard = conversation.classify(jsonrpc.make_result(1, body), stream)
    body = {"_meta": {SUBSCRIPTION_ID: asker_id}, "resultType": "complete"}
    assert heard == PeerResponse("listener", jsonrpc.make_result(asker_id, body))


def test_the_end_of_listening_keeps_unknown_members_and_errors_as_they_are() -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{{"{SUBSCRIPTION_ID}":1}}}},"x":1}}'
    heard = listening("own").classify(frame_of(text), UNKNOWN)
    assert heard == PeerResponse("listener", frame_of(text.replace(":1", ':"own"', 2)))
    error = '"error":{"code":1,"message":"m","message":"n"}'
    heard = listening().classify(frame_of(f'{{"jsonrpc":"2.0","id":1,{error}}}'), UNKNOWN)
    assert heard == PeerResponse("listener", frame_of(f'{{"jsonrpc":"2.0","id":"own",{error}}}'))


@loop_over("body", [1, "a", [1], {}, {"_meta": 1}, None])
def test_the_end_of_listening_needs_no_stamp(body: object) -> None:
    heard = listening().classify(jsonrpc.make_result(1, body), UNKNOWN)
    assert heard == PeerResponse("listener", jsonrpc.make_result("own", body))


def test_a_listener_learns_of_an_end_that_cannot_be_read() -> None:
    conversation = listening()
    text = '{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1,"a":2}}}'
    heard = conversation.classify(frame_of(text), UNKNOWN)
    assert isinstance(heard, PeerResponse)
    error = jsonrpc.error_of(heard.frame)
    assert error is not None
    assert (heard.errand, heard.frame.id, error.code) == ("listener", "own", UPSTREAM_FAILED.code)
    assert len(conversation) == 0


@loop_over("subscription", [2, 3, 0, -1, "1", "own", 1.0, True, None, [1]])
def test_a_notice_for_no_open_subscription_is_a_stray(subscription: object) -> None:
    conversation = listening()
    conversation.register_request(jsonrpc.make_request("x", "tools/call"), "no listener")
    assert isinstance(conversation.classify(changed(subscription), UNKNOWN), UnmatchedMessage)


@loop_over("params", [None, "[1]", "5", "{}", '{"_meta":7}', '{"_meta":{"a":1}}'])
@loop_over(("stream", "amid"), [(UNKNOWN, None), (STANDALONE, None), (1, "one"), (2, None)])
def test_a_notice_belongs_to_the_call_on_whose_stream_it_came(
    params: str | None, stream: Stream, amid: str | None
) -> None:
    tail = "" if params is None else f',"params":{params}'
    frame = frame_of(f'{{"jsonrpc":"2.0","method":"own/notice"{tail}}}')
    assert calls("one").classify(frame, stream) == PeerNotification(frame, amid)


def test_a_notice_that_says_two_things_is_refused() -> None:
    conversation = listening()
    text = '{"jsonrpc":"2.0","method":"m","params":{"_meta":{},"_meta":{}}}'
    with pytest.raises(MalformedMessage, match="repeated"):
        conversation.classify(frame_of(text), UNKNOWN)
    assert conversation.pending_requests == ["listener"]


def test_whoever_wants_hears_once_of_each_errand_that_is_owed_nothing_any_more() -> None:
    conversation = calls("answered", "withdrawn", "dropped", "closed")
    ended: list[str] = []
    conversation.on_end = ended.append
    conversation.classify(jsonrpc.make_result(1, {}), UNKNOWN)
    conversation.classify(jsonrpc.make_result(1, {}), UNKNOWN)
    conversation.withdraw(2)
    conversation.drop(3)
    conversation.withdraw(3)
    assert ended == ["answered", "withdrawn", "dropped"]
    conversation.close()
    assert ended[-1] == "closed"


@loop_over(("stream", "is_heard"), [(None, True), (0, True), (1, True), (2, False)])
def test_what_is_told_of_a_call_by_its_id_is_believed_on_no_others_stream(
    stream: int | None, is_heard: bool
) -> None:
    conversation: Conversation[str] = Conversation()
    for errand in ("mine", "another's"):
        conversation.register_request(jsonrpc.make_request(errand, "tools/call", {}), errand)
    notice = jsonrpc.make_notification("notifications/mgp.stream.chunk", {"request_id": 1})
    heard = conversation.classify(notice, stream)
    assert isinstance(heard, PeerNotification)
    assert heard.amid == ("mine" if is_heard else None)


def test_a_question_of_the_peers_is_found_by_its_own_id_while_it_is_open() -> None:
    conversation: Conversation[str] = Conversation()
    conversation.register_peer_request("a", "mine")
    assert (conversation.find_peer_request("a"), conversation.find_peer_request("b")) == (
        "mine",
        None,
    )
    conversation.settle("a")
    assert conversation.find_peer_request("a") is None
