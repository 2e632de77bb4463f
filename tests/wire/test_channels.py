"""What is said of channels: strictly read, each message by itself, and answered one by one."""

from datetime import UTC, datetime

import pytest
from msgspec import Raw

from comity.wire import channels, jsonrpc
from comity.wire.channels import Descriptor, Direction, Incoming, Published
from comity.wire.contents import said
from comity.wire.errors import MalformedMessage


def raw(value: object) -> Raw:
    return jsonrpc.to_raw(value)


GENERAL = {
    "id": "irc:#quay",
    "type": "irc",
    "label": "#quay",
    "direction": "outbound",
    "address": {"network": "harbour"},
    "metadata": {"x": 1},
}


def test_a_descriptor_is_read_as_the_document_writes_it() -> None:
    (found,) = channels.registered_in(raw({"channels": [GENERAL]}))
    assert found == Descriptor(
        "irc:#quay", "irc", "#quay", Direction.OUT, {"network": "harbour"}, {"x": 1}
    )
    assert channels.listing([found]) == {"channels": [GENERAL]}
    assert channels.listed_in(raw(channels.listing([found]))) == (found,)
    assert channels.opened_in(raw({"channel": GENERAL})) == found


def test_changes_say_what_came_and_went() -> None:
    changes = channels.changes_in(raw({"added": [GENERAL], "removed": ["a"], "updated": []}))
    assert [each.id for each in changes.added] == ["irc:#quay"]
    assert changes.removed == ("a",)
    assert channels.changes_in(raw({})) == channels.Changes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": [{"type": "x"}]},
        {"channels": [{"id": "", "type": "x"}]},
        {"channels": [{"id": "a", "type": ""}]},
        {"channels": [{"id": "a\u202e\n", "type": "x"}]},
        {"channels": [{"id": "x" * 257, "type": "x"}]},
        {"channels": [{"id": "a", "type": "x", "direction": "up"}]},
        {"channels": [{"id": "a", "type": "x", "metadata": {"m": "m" * 16_384}}]},
        {"channels": [GENERAL] * 1_001},
        {"channels": {}},
        [],
    ],
)
def test_what_is_no_registration_is_refused(wrong: object) -> None:
    with pytest.raises(MalformedMessage):
        channels.registered_in(raw(wrong))


MESSAGE = {
    "channelId": "irc:#quay",
    "messageId": "m-31",
    "threadId": "t-9",
    "author": {"id": "u-5", "name": "A visitor"},
    "timestamp": "2026-11-02T08:30:00Z",
    "content": [{"type": "text", "text": "When does the ferry leave?"}],
    "metadata": {"mentions": ["@pilot"]},
}


def test_messages_are_read_one_by_one() -> None:
    batch = raw({"messages": [MESSAGE, {"messageId": "m2"}, "no", {**MESSAGE, "messageId": ""}]})
    first, second, third, fourth = channels.messages_in(batch)
    assert first == (
        "m-31",
        Incoming(
            *("irc:#quay", "m-31", said("When does the ferry leave?")),
            at=datetime(2026, 11, 2, 8, 30, tzinfo=UTC),
            thread="t-9",
            author_id="u-5",
            author="A visitor",
            metadata={"mentions": ["@pilot"]},
        ),
    )
    assert second[0] == "m2"
    assert all(isinstance(each[1], MalformedMessage) for each in (second, third, fourth))


def test_what_a_message_leaves_out_is_left_empty() -> None:
    plain = {"channelId": "c", "messageId": "m", "content": "hi", "author": None}
    ((_, found),) = channels.messages_in(raw({"messages": [plain]}))
    assert found == Incoming("c", "m", said("hi"))
    local = {**plain, "timestamp": "2026-11-02T08:30:00"}
    ((_, found),) = channels.messages_in(raw({"messages": [local]}))
    assert isinstance(found, Incoming)
    assert found.at == datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
    ((_, broken),) = channels.messages_in(raw({"messages": [{**plain, "timestamp": "now"}]}))
    assert isinstance(broken, MalformedMessage)


def test_too_many_messages_are_none() -> None:
    with pytest.raises(MalformedMessage):
        channels.messages_in(raw({"messages": [MESSAGE] * 501}))


def test_answers_of_a_connector_are_read_strictly() -> None:
    assert channels.published_in(raw({"delivered": True, "messageId": "x"})) == Published(
        delivered=True, message="x"
    )
    assert not channels.published_in(raw({"delivered": False})).delivered
    assert channels.closed_in(raw({"closed": True}))
    for wrong in ({}, {"delivered": "yes"}, {"delivered": True, "messageId": "x" * 300}):
        with pytest.raises(MalformedMessage):
            channels.published_in(raw(wrong))
    with pytest.raises(MalformedMessage):
        channels.closed_in(raw({}))
    with pytest.raises(MalformedMessage):
        channels.opened_in(raw({"channel": {"id": "a"}}))


def test_what_the_host_says_is_as_the_document_has_it() -> None:
    assert channels.opening("irc", {"network": "harbour"}, {}) == {
        "type": "irc",
        "address": {"network": "harbour"},
        "metadata": {},
    }
    told = channels.publication("conv", "c", said("hi"), is_streamed=True, id="p1")
    assert told == {
        "conversationId": "conv",
        "channelId": "c",
        "stream": True,
        "content": [{"type": "text", "text": "hi"}],
        "publishId": "p1",
    }


def test_results_are_accepted_where_no_reason_stands_against_it() -> None:
    assert channels.result_of("m", conversation="c") == {
        "messageId": "m",
        "accepted": True,
        "conversationId": "c",
    }
    assert channels.result_of("m", reason="no", code=-1) == {
        "messageId": "m",
        "accepted": False,
        "reason": "no",
        "code": -1,
    }
    assert channels.registration_of("a") == {"id": "a", "accepted": True}
    assert channels.registration_of("a", "no", -1) == {
        "id": "a",
        "accepted": False,
        "reason": "no",
        "code": -1,
    }
