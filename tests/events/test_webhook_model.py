"""Webhooks: how they are asked for, where is posted to, how, and what follows from an answer."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import INVALID_PARAMS, MODE_UNSUPPORTED, MalformedMessage
from comity.events.model import EventChannel, GatewayEvent, Severity
from comity.events.webhooks import model
from comity.events.webhooks.model import (
    AllowedHosts,
    AttemptHistory,
    DeliveryProblem,
    DeliveryVerdict,
    EventSelector,
    PollParams,
    WebhookState,
    WebhookSubscription,
    WebhookTarget,
)
from comity.mcp import jsonrpc
from comity.toolkit.resilience import RetrySchedule
from tests.support.cases import loop_over

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PLACES = AllowedHosts(
    frozenset({"127.0.0.1", "hooks.internal", ".lab.example"}), frozenset({443, 8443})
)
SECRET = b"s" * 24


def test_a_place_is_read_in_one_way() -> None:
    found = model.parse_target("https://Hooks.Example.org:8443/a/b?c=d", PLACES)
    assert found == WebhookTarget("https", "hooks.example.org", 8443, "/a/b?c=d", is_named=False)
    assert found.origin == "https://hooks.example.org:8443"
    assert model.parse_target("https://hooks.example.org", PLACES).path == "/"
    assert model.parse_target("https://[2606:4700::1]/", PLACES).authority == "[2606:4700::1]"


@loop_over(
    ("url", "host"),
    [
        ("http://127.0.0.1:9000/x", "127.0.0.1"),
        ("http://hooks.internal/", "hooks.internal"),
        ("https://a.lab.example:1/", "a.lab.example"),
    ],
)
def test_an_operator_names_what_else_may_be_posted_to(url: str, host: str) -> None:
    found = model.parse_target(url, PLACES)
    assert (found.host, found.is_named) == (host, True)
    assert model.address_problem(found, ["10.0.0.1"]) is None
    assert model.address_problem(found, []) == "its host cannot be resolved"


@loop_over(
    "url",
    [
        "http://hooks.example.org/",
        "ftp://hooks.example.org/",
        "https://user:secret@hooks.example.org/",
        "https://hooks.example.org:22/",
        "https://hooks.example.org:99999/",
        "https:///nowhere",
        "https://localhost/",
        "https://127.0.0.2/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://metadata.google.internal/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fd00::1]/",
        "https://224.0.0.1/",
        "https://a.nip.io/",
        "https://hooks.example.org/ x",
        "https://hooks.example.org\\@10.0.0.1/",
        "https://hooks.example.org/\r\nX: y",
        "https://exämple.org/",
        "https://hooks.example.org/#part",
        "https://hooks.example.org/" + "x" * 2048,
        "https://[nonsense/",
    ],
)
def test_attack_9_a_place_that_is_not_public_is_refused_with_words(url: str) -> None:
    with pytest.raises(MalformedMessage, match="cannot be posted to"):
        model.parse_target(url, PLACES)


def test_a_secret_is_read_and_written_as_others_do() -> None:
    text = model.secret_text(SECRET)
    assert text == "whsec_" + base64.b64encode(SECRET).decode()
    assert model.secret_of(text) == SECRET
    for wrong in ("", "whsec_", "whsec_!", text.removeprefix("whsec_"), "whsec_" + "QUFB" * 40):
        with pytest.raises(MalformedMessage, match="whsec_"):
            model.secret_of(wrong)


def test_a_post_is_signed_with_each_secret() -> None:
    found = model.build_signature_headers([SECRET, b"old" * 8], "sub_1", "evt_1", NOW, b"{}")
    signed = b"evt_1.%d.{}" % NOW.timestamp()
    made = [
        "v1," + base64.b64encode(hmac.digest(each, signed, hashlib.sha256)).decode()
        for each in (SECRET, b"old" * 8)
    ]
    assert found == {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(int(NOW.timestamp())),
        "webhook-signature": " ".join(made),
        "x-mcp-subscription-id": "sub_1",
    }


def test_an_id_follows_from_party_place_and_events() -> None:
    one = model.subscription_id("a", "https://x.example", EventSelector("tool.*"))
    assert one == model.subscription_id("a", "https://x.example", EventSelector("tool.*"))
    others = {
        model.subscription_id("b", "https://x.example", EventSelector("tool.*")),
        model.subscription_id("a", "https://y.example", EventSelector("tool.*")),
        model.subscription_id("a", "https://x.example", EventSelector("*")),
        model.subscription_id("a", "https://x.example", EventSelector("tool.*", Severity.ERROR)),
    }
    assert len(others | {one}) == 5


def test_a_subscription_lasts_as_long_as_wanted_within_bounds() -> None:
    day = timedelta(days=1)
    assert model.subscription_expiry(None, NOW, day) == NOW + day
    assert model.subscription_expiry(10 * day, NOW, day) == NOW + day
    assert model.subscription_expiry(day / 2, NOW, day) == NOW + day / 2
    assert model.subscription_expiry(SECOND, NOW, day) == NOW + model.SHORTEST


def test_what_an_answer_means() -> None:
    meant = {
        status: model.delivery_verdict(status) for status in (200, 204, 302, 404, 410, 413, 500)
    }
    again, done = DeliveryVerdict.AGAIN, DeliveryVerdict.DELIVERED
    gone, never = DeliveryVerdict.GONE, DeliveryVerdict.NEVER
    assert list(meant.values()) == [done, done, again, again, gone, never, again]
    named = [model.problem_of(status) for status in (301, 404, 503, 101)]
    assert named == [
        DeliveryProblem.STATUS_3XX,
        DeliveryProblem.STATUS_4XX,
        DeliveryProblem.STATUS_5XX,
        DeliveryProblem.NO_HTTP,
    ]


def test_only_the_challenge_itself_is_an_echo() -> None:
    assert model.is_challenge_echo(b'{"challenge":"abc"}', "abc")
    for wrong in (b"", b"abc", b'"abc"', b'{"challenge":"abd"}', b'{"challenge":1}', b"\xff", b"["):
        assert not model.is_challenge_echo(wrong, "abc")


SCHEDULE = RetrySchedule(SECOND, 60 * SECOND, give_up_after=timedelta(hours=1))
DISABLE_AFTER = timedelta(hours=2)


def test_a_failing_place_is_left_alone_ever_longer() -> None:
    rests = [
        model.after_failure(SCHEDULE, AttemptHistory(1, failures, NOW), NOW, 0.999).rest_until - NOW
        for failures in range(1, 10)
    ]
    assert rests == sorted(rests)
    assert SECOND / 2 < rests[0] < SECOND
    assert rests[-1] < 60 * SECOND


def test_the_first_is_tried_again_before_the_others_until_it_was_three_times() -> None:
    for attempts in (1, 2):
        found = model.after_failure(SCHEDULE, AttemptHistory(attempts, attempts, NOW), NOW, 0)
        assert found.due_at == found.rest_until
    third = model.after_failure(SCHEDULE, AttemptHistory(3, 3, NOW), NOW, 0)
    assert third.due_at is not None
    assert third.due_at > third.rest_until


def test_a_place_may_ask_to_be_left_alone_but_not_for_ever() -> None:
    asked = model.after_failure(SCHEDULE, AttemptHistory(1, 1, NOW), NOW, 0, 30 * SECOND)
    assert asked.rest_until == NOW + 30 * SECOND
    greedy = model.after_failure(SCHEDULE, AttemptHistory(1, 1, NOW), NOW, 0, timedelta(days=9))
    assert greedy.rest_until == NOW + 60 * SECOND


def test_what_was_tried_for_the_whole_span_has_failed() -> None:
    long_ago = NOW - timedelta(hours=1)
    assert model.after_failure(SCHEDULE, AttemptHistory(9, 9, long_ago), NOW, 0).due_at is None
    assert not model.is_given_up(DISABLE_AFTER, None, NOW)
    assert not model.is_given_up(DISABLE_AFTER, long_ago, NOW)
    assert model.is_given_up(DISABLE_AFTER, NOW - timedelta(hours=2), NOW)


def test_a_subscription_begins_active_and_shows_no_secret() -> None:
    found = WebhookSubscription(
        *("sub_1", "agent:ci", "key:1", "https://hooks.example.org/?token=s3cret", "tool.*"),
        *(Severity.INFO, NOW, None, (b"sealed secret",)),
    )
    assert found.state is WebhookState.ACTIVE
    assert repr(found) == "Subscription('sub_1' of 'agent:ci')"


def test_a_place_is_named_as_its_host_expects() -> None:
    assert WebhookTarget("https", "::1", 8443, "/", is_named=True).origin == "https://[::1]:8443"
    assert WebhookTarget("http", "127.0.0.1", 80, "/", is_named=True).authority == "127.0.0.1"


URL = "https://hooks.example.org/comity"
COMPLETED = GatewayEvent(
    "evt_1", "tool.completed", NOW, Severity.INFO, {"tool": "read"}, source="files"
)


def said(**params: Any) -> dict[str, Raw]:
    return {name: jsonrpc.to_raw(value) for name, value in params.items()}


def subscribe(**params: Any) -> dict[str, Raw]:
    whole: dict[str, Any] = {"name": "tool.*", "delivery": {"mode": "webhook", "url": URL}}
    return said(**{**whole, **params})


def test_a_subscription_says_what_where_and_how_long() -> None:
    plain = model.decode_subscribe_params(subscribe())
    assert (plain.named, plain.url) == (EventSelector("tool.*"), URL)
    assert plain.secret is None
    assert plain.lasts is None
    place = {"url": URL, "secret": "whsec_x"}
    whole = model.decode_subscribe_params(
        subscribe(
            name="*",
            arguments={"min_severity": "warning"},
            delivery=place,
            ttlMs=60_000,
            cursor=None,
            _meta={"any": 1},
        )
    )
    assert whole.named == EventSelector("*", Severity.WARNING)
    assert whole.named.arguments == {"min_severity": "warning"}
    assert (whole.secret, whole.lasts) == ("whsec_x", timedelta(minutes=1))
    assert "whsec_x" not in repr(whole)
    assert model.decode_subscribe_params(subscribe(ttlMs=None)).lasts is None
    assert model.decode_subscribe_params(subscribe(ttlMs=10**15)).lasts == timedelta(
        days=11574.074074074074
    )


@loop_over(
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
        model.decode_subscribe_params(subscribe(**wrong))
    assert refused.value.fault is INVALID_PARAMS


def test_other_modes_have_methods_of_their_own() -> None:
    with pytest.raises(MalformedMessage, match="events/poll") as refused:
        model.decode_subscribe_params(subscribe(delivery={"mode": "push", "url": URL}))
    assert refused.value.fault is MODE_UNSUPPORTED


def test_a_poll_says_from_where_and_how_many() -> None:
    assert model.decode_poll_params(said(name="tool.*")) == PollParams(
        EventSelector("tool.*"), None, 100
    )
    found = model.decode_poll_params(said(name="*", cursor="a.1", maxEvents=1_000_000))
    assert found == PollParams(EventSelector("*"), "a.1", 100)
    assert model.decode_poll_params(said(name="*", maxEvents=-1)).most == 1
    with pytest.raises(MalformedMessage, match="cursor"):
        model.decode_poll_params(said(name="*", cursor="x" * 200))


def test_a_channel_is_listed_with_what_can_be_asked_of_it() -> None:
    shape: dict[str, object] = {"type": "object"}
    listed = model.describe_channel(EventChannel("tool.completed", "a tool ran", schema=shape))
    assert (listed["name"], listed["payloadSchema"]) == ("tool.completed", shape)
    assert listed["delivery"] == ["webhook", "poll"]
    assert model.describe_channel(EventChannel("a.b", "x"))["payloadSchema"] == {"type": "object"}


def test_an_event_is_told_with_its_id_and_whose_word_it_is() -> None:
    assert model.to_occurrence(COMPLETED, "c.1") == {
        "eventId": "evt_1",
        "name": "tool.completed",
        "timestamp": "2026-07-28T12:00:00.000Z",
        "data": {"tool": "read"},
        "cursor": "c.1",
        "_meta": {"dev.comity/severity": "info", "dev.comity/server": "files"},
    }
