"""MCP Events in the words of the draft."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.wire import jsonrpc, mcp_events
from comity.wire.errors import INVALID_PARAMS, MODE_UNSUPPORTED, MalformedMessage
from comity.wire.events import Channel, Event, Severity
from comity.wire.mcp_events import Named, Polling

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
URL = "https://hooks.example.org/comity"
EVENT = Event("evt_1", "tool.completed", NOW, Severity.INFO, {"tool": "read"}, source="files")


def said(**params: Any) -> dict[str, Raw]:
    return {name: jsonrpc.to_raw(value) for name, value in params.items()}


def subscribe(**params: Any) -> dict[str, Raw]:
    whole: dict[str, Any] = {"name": "tool.*", "delivery": {"mode": "webhook", "url": URL}}
    return said(**{**whole, **params})


def test_a_subscription_says_what_where_and_how_long() -> None:
    plain = mcp_events.subscribing(subscribe())
    assert (plain.named, plain.url) == (Named("tool.*"), URL)
    assert plain.secret is None
    assert plain.lasts is None
    place = {"url": URL, "secret": "whsec_x"}
    whole = mcp_events.subscribing(
        subscribe(
            name="*",
            arguments={"min_severity": "warning"},
            delivery=place,
            ttlMs=60_000,
            cursor=None,
            _meta={"any": 1},
        )
    )
    assert whole.named == Named("*", Severity.WARNING)
    assert whole.named.arguments == {"min_severity": "warning"}
    assert (whole.secret, whole.lasts) == ("whsec_x", timedelta(minutes=1))
    assert "whsec_x" not in repr(whole)
    assert mcp_events.subscribing(subscribe(ttlMs=None)).lasts is None
    assert mcp_events.subscribing(subscribe(ttlMs=10**15)).lasts == timedelta(
        days=11574.074074074074
    )


def test_it_ends_by_the_same_words() -> None:
    found = mcp_events.unsubscribing(said(name="tool.*", delivery={"url": URL}))
    assert found == (Named("tool.*"), URL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Tool"},
        {"name": 3},
        {"delivery": {"mode": "webhook"}},
        {"delivery": {"url": ""}},
        {"delivery": {"url": "https://" + "x" * 2048}},
        {"arguments": {"min_severity": "loud"}},
        {"arguments": {"other": 1}},
        {"ttlMs": 0},
        {"ttlMs": "1"},
    ],
)
def test_what_is_said_wrongly_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        mcp_events.subscribing(subscribe(**wrong))
    assert refused.value.fault is INVALID_PARAMS


def test_other_modes_have_methods_of_their_own() -> None:
    with pytest.raises(MalformedMessage, match="events/poll") as refused:
        mcp_events.subscribing(subscribe(delivery={"mode": "push", "url": URL}))
    assert refused.value.fault is MODE_UNSUPPORTED


def test_a_poll_says_from_where_and_how_many() -> None:
    assert mcp_events.polling(said(name="tool.*")) == Polling(Named("tool.*"), None, 100)
    found = mcp_events.polling(said(name="*", cursor="a.1", maxEvents=1_000_000))
    assert found == Polling(Named("*"), "a.1", 100)
    assert mcp_events.polling(said(name="*", maxEvents=-1)).most == 1
    with pytest.raises(MalformedMessage, match="cursor"):
        mcp_events.polling(said(name="*", cursor="x" * 200))


def test_a_channel_is_listed_with_what_can_be_asked_of_it() -> None:
    shape: dict[str, object] = {"type": "object"}
    listed = mcp_events.listed(Channel("tool.completed", "a tool ran", schema=shape))
    assert (listed["name"], listed["payloadSchema"]) == ("tool.completed", shape)
    assert listed["delivery"] == ["webhook", "poll"]
    assert mcp_events.listed(Channel("a.b", "x"))["payloadSchema"] == {"type": "object"}


def test_an_event_is_told_with_its_id_and_whose_word_it_is() -> None:
    assert mcp_events.occurrence(EVENT, "c.1") == {
        "eventId": "evt_1",
        "name": "tool.completed",
        "timestamp": "2026-07-28T12:00:00.000Z",
        "data": {"tool": "read"},
        "cursor": "c.1",
        "_meta": {"dev.comity/severity": "info", "dev.comity/server": "files"},
    }


def test_an_answer_says_until_when() -> None:
    assert mcp_events.subscribed("sub_1", NOW, {}) == {
        "id": "sub_1",
        "refreshBefore": "2026-07-28T12:00:00.000Z",
        "cursor": None,
        "truncated": False,
    }
    status = {"active": True}
    again = mcp_events.subscribed("sub_1", None, status)
    assert (again["refreshBefore"], again["deliveryStatus"]) == (None, status)


def test_a_poll_is_answered_with_where_to_go_on() -> None:
    found = mcp_events.polled([{"eventId": "evt_1"}], "r.1", is_truncated=True, has_more=False)
    assert found == {
        "events": [{"eventId": "evt_1"}],
        "cursor": "r.1",
        "truncated": True,
        "hasMore": False,
        "nextPollMs": 5000,
    }
