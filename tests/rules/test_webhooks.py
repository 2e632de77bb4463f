"""Where is posted to, how it is signed, and what follows from an answer."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from comity.rules import webhooks
from comity.rules.backoff import Backoff
from comity.rules.webhooks import Places, Schedule, Tried, Verdict
from comity.wire.errors import MalformedMessage
from comity.wire.events import Severity
from comity.wire.mcp_events import Named
from comity.wire.webhooks import Place, Problem

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PLACES = Places(frozenset({"127.0.0.1", "hooks.internal", ".lab.example"}), frozenset({443, 8443}))
SECRET = b"s" * 24


def test_a_place_is_read_in_one_way() -> None:
    found = webhooks.place("https://Hooks.Example.org:8443/a/b?c=d", PLACES)
    assert found == Place("https", "hooks.example.org", 8443, "/a/b?c=d", is_named=False)
    assert found.origin == "https://hooks.example.org:8443"
    assert webhooks.place("https://hooks.example.org", PLACES).path == "/"
    assert webhooks.place("https://[2606:4700::1]/", PLACES).authority == "[2606:4700::1]"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:9000/x", "127.0.0.1"),
        ("http://hooks.internal/", "hooks.internal"),
        ("https://a.lab.example:1/", "a.lab.example"),
    ],
)
def test_an_operator_names_what_else_may_be_posted_to(url: str, host: str) -> None:
    found = webhooks.place(url, PLACES)
    assert (found.host, found.is_named) == (host, True)
    assert webhooks.address_problem(found, ["10.0.0.1"]) is None
    assert webhooks.address_problem(found, []) == "its host cannot be resolved"


@pytest.mark.parametrize(
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
        webhooks.place(url, PLACES)


def test_every_address_of_a_public_name_must_be_public() -> None:
    public = webhooks.place("https://hooks.example.org/", PLACES)
    assert webhooks.address_problem(public, ["93.184.215.14"]) is None
    assert webhooks.address_problem(public, ["93.184.215.14", "127.0.0.1"]) is not None
    assert webhooks.address_problem(public, []) is not None


def test_a_secret_is_read_and_written_as_others_do() -> None:
    text = webhooks.secret_text(SECRET)
    assert text == "whsec_" + base64.b64encode(SECRET).decode()
    assert webhooks.secret_of(text) == SECRET
    for wrong in ("", "whsec_", "whsec_!", text.removeprefix("whsec_"), "whsec_" + "QUFB" * 40):
        with pytest.raises(MalformedMessage, match="whsec_"):
            webhooks.secret_of(wrong)


def test_a_post_is_signed_with_each_secret() -> None:
    found = webhooks.heading([SECRET, b"old" * 8], "sub_1", "evt_1", NOW, b"{}")
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
    one = webhooks.subscription_id("a", "https://x.example", Named("tool.*"))
    assert one == webhooks.subscription_id("a", "https://x.example", Named("tool.*"))
    others = {
        webhooks.subscription_id("b", "https://x.example", Named("tool.*")),
        webhooks.subscription_id("a", "https://y.example", Named("tool.*")),
        webhooks.subscription_id("a", "https://x.example", Named("*")),
        webhooks.subscription_id("a", "https://x.example", Named("tool.*", Severity.ERROR)),
    }
    assert len(others | {one}) == 5


def test_a_subscription_lasts_as_long_as_wanted_within_bounds() -> None:
    day = timedelta(days=1)
    assert webhooks.until(None, NOW, day) == NOW + day
    assert webhooks.until(10 * day, NOW, day) == NOW + day
    assert webhooks.until(day / 2, NOW, day) == NOW + day / 2
    assert webhooks.until(SECOND, NOW, day) == NOW + webhooks.SHORTEST


def test_what_an_answer_means() -> None:
    meant = {status: webhooks.verdict(status) for status in (200, 204, 302, 404, 410, 413, 500)}
    again, done = Verdict.AGAIN, Verdict.DELIVERED
    gone, never = Verdict.GONE, Verdict.NEVER
    assert list(meant.values()) == [done, done, again, again, gone, never, again]
    named = [webhooks.problem_of(status) for status in (301, 404, 503, 101)]
    assert named == [Problem.STATUS_3XX, Problem.STATUS_4XX, Problem.STATUS_5XX, Problem.NO_HTTP]


def test_only_the_challenge_itself_is_an_echo() -> None:
    assert webhooks.echoes(b'{"challenge":"abc"}', "abc")
    for wrong in (b"", b"abc", b'"abc"', b'{"challenge":"abd"}', b'{"challenge":1}', b"\xff", b"["):
        assert not webhooks.echoes(wrong, "abc")


SCHEDULE = Schedule(Backoff(SECOND, 60 * SECOND), timedelta(hours=1), timedelta(hours=2))


def test_a_failing_place_is_left_alone_ever_longer() -> None:
    rests = [
        webhooks.after_failure(SCHEDULE, Tried(1, failures, NOW), NOW, 0.999).rest_until - NOW
        for failures in range(1, 10)
    ]
    assert rests == sorted(rests)
    assert SECOND / 2 < rests[0] < SECOND
    assert rests[-1] < 60 * SECOND


def test_the_first_is_tried_again_before_the_others_until_it_was_three_times() -> None:
    for attempts in (1, 2):
        found = webhooks.after_failure(SCHEDULE, Tried(attempts, attempts, NOW), NOW, 0)
        assert found.due_at == found.rest_until
    third = webhooks.after_failure(SCHEDULE, Tried(3, 3, NOW), NOW, 0)
    assert third.due_at is not None
    assert third.due_at > third.rest_until


def test_a_place_may_ask_to_be_left_alone_but_not_for_ever() -> None:
    asked = webhooks.after_failure(SCHEDULE, Tried(1, 1, NOW), NOW, 0, 30 * SECOND)
    assert asked.rest_until == NOW + 30 * SECOND
    greedy = webhooks.after_failure(SCHEDULE, Tried(1, 1, NOW), NOW, 0, timedelta(days=9))
    assert greedy.rest_until == NOW + 60 * SECOND


def test_what_was_tried_for_the_whole_span_has_failed() -> None:
    long_ago = NOW - timedelta(hours=1)
    assert webhooks.after_failure(SCHEDULE, Tried(9, 9, long_ago), NOW, 0).due_at is None
    assert not webhooks.is_given_up(SCHEDULE, None, NOW)
    assert not webhooks.is_given_up(SCHEDULE, long_ago, NOW)
    assert webhooks.is_given_up(SCHEDULE, NOW - timedelta(hours=2), NOW)
