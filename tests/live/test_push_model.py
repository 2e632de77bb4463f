"""Pushes and incoming webhooks: how they are written and signed, and where they go."""

import base64
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.events.webhooks.model import build_signature_headers
from comity.inference.messages import to_text_content
from comity.live.pushes import model
from comity.live.pushes.model import (
    MAX_NAME_LENGTH,
    MAX_TEXT_LENGTH,
    InboundWebhookConfig,
    Push,
    PushRoute,
    PushRouteRule,
    PushTarget,
    StoredPush,
    WebhookKind,
    WebhookSignature,
    fill_template,
    is_signed,
    push_in,
    resolve_pointer,
    route_of,
    type_of,
)
from comity.toolkit.jobs import JobOutcome, JobState
from tests.support.cases import loop_over
from tests.support.writing import from_text

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
PUSH = Push(
    "ci",
    "evt-1",
    NOW,
    to_text_content("x"),
    "ci.builds",
    {"repo": {"name": "a/b"}, "n": [1, "two"]},
)
TURN = PushRoute(PushTarget.TURN, "", "ops")
EVENTS, NOTHING = PushRoute(PushTarget.EVENTS), PushRoute(PushTarget.NOTHING)


def test_the_first_row_that_names_a_push_counts() -> None:
    rows = [
        PushRouteRule("cd", "*", TURN),
        PushRouteRule("ci", "ci.*", EVENTS),
        PushRouteRule("*", "*", NOTHING),
    ]
    assert route_of(rows, PUSH) == EVENTS
    assert route_of(rows, replace(PUSH, feature="ci")) == NOTHING
    assert route_of(rows, replace(PUSH, server="cd")) == TURN
    assert route_of(rows[:1], PUSH) is None


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("ops", "ops"),
        ("{event}", "ci/evt-1"),
        ("{/repo/name}", "ci/a/b"),
        ("build {/n/1} of {feature}", "ci/build two of ci.builds"),
        ("{/missing}", "ci/evt-1"),
        ("{/n/7}{/repo/name/deeper}", "ci/evt-1"),
    ],
)
def test_a_conversation_is_named_by_an_operator_or_by_fields_within_the_server(
    written: str, named: str
) -> None:
    route = route_of([PushRouteRule("*", "*", PushRoute(PushTarget.TURN, "", written))], PUSH)
    assert route is not None
    assert route.conversation == named


@given(st.text(max_size=500))
def test_no_field_of_a_push_leads_into_a_conversation_of_others(word: str) -> None:
    push = replace(PUSH, origin={"thread": word})
    route = model.resolve_route(PushRoute(PushTarget.TURN, "", "{/thread}"), push, push.origin)
    assert route.conversation.startswith("ci/")
    assert len(route.conversation) <= MAX_NAME_LENGTH
    assert route.conversation.isprintable()


def test_two_long_names_stay_two_conversations() -> None:
    names = {
        model.resolve_route(
            PushRoute(PushTarget.TURN, "", "{/t}{/u}"), PUSH, {"t": "x" * 199, "u": u}
        )
        for u in ("a", "b" * 900, "b" * 901)
    }
    assert len(names) == 3
    route = model.resolve_route(PushRoute(PushTarget.TURN, "", "{/t}"), PUSH, {"t": "x" * 5000})
    assert len(route.conversation) == MAX_NAME_LENGTH


def test_a_template_takes_no_more_than_it_may() -> None:
    assert fill_template("{/a} {/b} {/c}", PUSH, {"a": "x", "b": 2, "c": {"d": [True, None]}}) == (
        'x 2 {"d":[true,null]}'
    )
    assert len(fill_template("{/a}" * 40, PUSH, {"a": "y" * 5000})) == MAX_TEXT_LENGTH
    # What a field says is no template itself.
    assert fill_template("{/a}", PUSH, {"a": "{/b}", "b": "secret"}) == "{/b}"


def test_a_template_that_means_nothing_is_told_so() -> None:
    for wrong in ("{name}", "{a/b}", "{/a}" * 51):
        assert model.template_problem(wrong) != ""
    for fine in ("", "plain", "{/a/b}", "{event} {server} {feature} {type}"):
        assert model.template_problem(fine) == ""


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/a/b", 1),
        ("/l/1", "y"),
        ("/l/-1", None),
        ("/l/01", "y"),
        ("/l/x", None),
        ("/s~1t", 2),
        ("/u~0v", 3),
        ("/a/b/c", None),
        ("/l/99999999999", None),
    ],
)
def test_a_pointer_finds_what_stands_there(pointer: str, found: object) -> None:
    value = {"a": {"b": 1}, "l": ["x", "y"], "s/t": 2, "u~v": 3}
    assert resolve_pointer(value, pointer) == found


def test_what_could_not_be_done_is_tried_ever_more_seldom_and_fails_at_last() -> None:
    kept, now, waits = StoredPush(PUSH, TURN, NOW, NOW), NOW, list[timedelta]()
    schedule = replace(model.RETRIES, give_up_after=timedelta(hours=1))
    outcome = JobOutcome(JobState.WAITING, NOW)
    while outcome.state is JobState.WAITING:
        kept = replace(kept, attempts=kept.attempts + 1)
        outcome = model.outcome_of_failure(kept, "away", now, schedule, 0.999)
        waits.append(outcome.at - now)
        now = max(outcome.at, now + timedelta(milliseconds=1))
    assert outcome.state is JobState.FAILED
    assert outcome.last_error == "away"
    assert waits[0] < waits[3] < waits[6]
    assert max(waits) <= timedelta(minutes=5)


GOOD: dict[str, Any] = {
    "featureSet": "ci.builds",
    "eventId": "evt_123",
    "timestamp": "2026-01-28T12:00:00Z",
    "origin": {"server": "github", "event": "push"},
    "payload": {"content": [{"type": "text", "text": "pushed"}]},
}


def raw(**changed: Any) -> Raw:
    return Raw(json.dumps({**GOOD, **changed}).encode())


def test_an_event_is_read_as_the_document_writes_it() -> None:
    push = push_in("ci", raw())
    assert (push.server, push.id, push.feature) == ("ci", "evt_123", "ci.builds")
    assert push.at.isoformat() == "2026-01-28T12:00:00+00:00"
    assert push.origin == {"server": "github", "event": "push"}
    assert [block.text for block in push.content] == ["pushed"]
    assert push.key == "push:ci/evt_123"


def test_a_time_without_a_zone_is_in_utc_and_an_origin_may_be_missing() -> None:
    push = push_in("ci", raw(timestamp="2026-01-28T12:00:00", origin=None))
    assert push.at.utcoffset() is not None
    assert push.origin == {}


@loop_over(
    "wrong",
    [
        {"eventId": ""},
        {"eventId": 7},
        {"eventId": "x" * 201},
        {"eventId": "x" * 1_000_000},
        {"eventId": "a\0b"},
        {"eventId": "a\nb"},
        {"eventId": None},
        {"timestamp": "yesterday"},
        {"timestamp": 12},
        {"timestamp": "x" * 100_000},
        {"origin": []},
        {"origin": "github"},
        {"payload": {}},
        {"payload": []},
        {"payload": {"content": 7}},
        {"payload": {"content": [{"type": "film"}]}},
        {"payload": {"content": [{"type": "text", "text": "x"}] * 300}},
        {"featureSet": 1},
    ],
)
def test_an_event_of_another_shape_is_refused_in_few_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        push_in("ci", raw(**wrong))
    assert refused.value.fault is INVALID_PARAMS
    assert len(str(refused.value)) < 500


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_whatever_an_event_holds_it_is_read_or_refused(anything: object) -> None:
    for name in GOOD:
        try:
            push_in("ci", Raw(json.dumps({**GOOD, name: anything}).encode()))
        except MalformedMessage:
            continue


def test_a_route_is_shown_as_it_is_written() -> None:
    assert str(PushRoute(PushTarget.TOPIC, "ops")) == "topic:ops"
    assert str(PushRoute(PushTarget.TURN, "", "ops")) == "turn"


HOOK = '[[inbound_webhooks]]\nname = "x"\nsecret_file = "s"\n'


def test_rows_say_whose_pushes_go_where(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        """
[[pushes]]
from = "ci/builds.*"
to = "turn"
conversation = "{/repo}"
principal = "agent:ops"
reply_to = ["topic:ops", "channel:chat/1"]
[[pushes]]
from = "ci"
to = "topic:ops"
[[pushes]]
from = "*/*"
to = "turn"
""",
    )
    say_in = ("topic:ops", "channel:chat/1")
    assert settings.pushes == (
        PushRouteRule(
            "ci", "builds.*", PushRoute(PushTarget.TURN, "", "{/repo}", "agent:ops", say_in)
        ),
        PushRouteRule("ci", "*", PushRoute(PushTarget.TOPIC, "ops")),
        PushRouteRule("*", "*", PushRoute(PushTarget.TURN, "", "{event}")),
    )


def test_webhooks_that_come_in_have_a_kind_a_secret_and_a_goal(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        f"""
{HOOK}kind = "github"
to = "events"
content = "{{type}}: {{/action}}"
[[inbound_webhooks]]
name = "sensor"
kind = "plain"
secret_file = "t"
header = "X-Sig"
algorithm = "sha512"
id = "/id"
to = "webhooks"
""",
    )
    github = InboundWebhookConfig(
        "x", WebhookKind.GITHUB, "s", PushRoute(PushTarget.EVENTS), content="{type}: {/action}"
    )
    where = ("X-Sig", "sha512", "/id")
    sensor = InboundWebhookConfig(
        "sensor", WebhookKind.PLAIN, "t", PushRoute(PushTarget.WEBHOOKS), *where
    )
    assert settings.inbound_webhooks == (github, sensor)


@loop_over(
    ("written", "told"),
    [
        ('[[pushes]]\nfrom = "ci"\n', "to"),
        ('[[pushes]]\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "ci/"\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "hook:x/*"\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "ci"\nto = "somewhere"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "topic:"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn:x"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "topic:a b"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "events"\nprincipal = "agent:x"\n', "which is for"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nconversation = "{x}"\n', "conversation"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nprincipal = "person:x"\n', "principal"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nreply_to = ["ops"]\n', "reply_to"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nelse = 1\n', "else"),
        (f'{HOOK}kind = "bitbucket"\nto = "turn"\n', "kind"),
        (f'{HOOK}kind = "github"\n', "to"),
        (f'{HOOK}kind = "plain"\nto = "turn"\n', "header"),
        (f'{HOOK}kind = "github"\nheader = "X"\nto = "turn"\n', "does not allow"),
        (f'{HOOK}kind = "github"\nto = "turn"\nid = "id"\n', "id"),
        (f'{HOOK}kind = "github"\nto = "turn"\n{HOOK}kind = "gitlab"\nto = "turn"\n', "twice"),
        (
            '[[inbound_webhooks]]\nname = "a/b"\nkind = "github"\nsecret_file = "s"\nto = "turn"\n',
            "name",
        ),
        ("[limits]\nmax_push_bytes = 1\n", "push_bytes"),
    ],
)
def test_what_is_wrong_in_a_row_is_told(tmp_path: Path, written: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, written)


BODY = b'{"action":"opened"}'


# The example of GitHub's own documentation.
GITHUBS = b"It's a Secret to Everybody"
GITHUBS_BODY = b"Hello, World!"
GITHUBS_SIGNATURE = b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
SECRET = b"a-secret-of-some-length"


def hex_of(secret: bytes, body: bytes = BODY, algorithm: str = "sha256") -> bytes:
    return hmac.digest(secret, body, algorithm).hex().encode()


def test_the_signature_in_githubs_documentation_is_right() -> None:
    signing = WebhookSignature(WebhookKind.GITHUB, (GITHUBS,))
    headers = {b"x-hub-signature-256": GITHUBS_SIGNATURE}
    assert is_signed(signing, headers, GITHUBS_BODY, NOW)
    assert not is_signed(signing, headers, GITHUBS_BODY + b" ", NOW)
    assert not is_signed(replace(signing, secrets=(SECRET,)), headers, GITHUBS_BODY, NOW)


@pytest.mark.parametrize(
    "shown", [b"", b"sha256=", GITHUBS_SIGNATURE[7:], b"sha1=" + b"0" * 40, b"\xff" * 71]
)
def test_what_is_no_signature_of_githubs_is_not_taken_for_one(shown: bytes) -> None:
    signing = WebhookSignature(WebhookKind.GITHUB, (GITHUBS,))
    assert not is_signed(signing, {b"x-hub-signature-256": shown}, GITHUBS_BODY, NOW)
    assert not is_signed(signing, {}, GITHUBS_BODY, NOW)


def test_gitlab_shows_the_secret_itself() -> None:
    signing = WebhookSignature(WebhookKind.GITLAB, (SECRET,))
    assert is_signed(signing, {b"x-gitlab-token": SECRET}, BODY, NOW)
    for wrong in (b"", SECRET[:-1], SECRET + b"x", b"\xff"):
        assert not is_signed(signing, {b"x-gitlab-token": wrong}, BODY, NOW)
    assert not is_signed(signing, {}, BODY, NOW)


def standard(secret: bytes, at: datetime = NOW, id: str = "msg_1") -> dict[bytes, bytes]:
    said = build_signature_headers([secret], "sub", id, at, BODY)
    return {name.lower().encode(): value.encode() for name, value in said.items()}


def test_what_this_gateway_posts_itself_it_would_take() -> None:
    written = b"whsec_" + base64.b64encode(SECRET)
    for secret in (SECRET, written):
        assert is_signed(
            WebhookSignature(WebhookKind.STANDARD, (secret,)), standard(SECRET), BODY, NOW
        )
    assert not is_signed(
        WebhookSignature(WebhookKind.STANDARD, (b"other",)), standard(SECRET), BODY, NOW
    )


def test_the_vector_of_standard_webhooks_is_right() -> None:
    """As its reference libraries test themselves."""
    secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body, at = b'{"test": 2432232314}', datetime.fromtimestamp(1614265330, UTC)
    headers = {
        b"webhook-id": b"msg_p5jXN8AQM9LWM0D4loKWxJek",
        b"webhook-timestamp": b"1614265330",
        b"webhook-signature": b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert is_signed(WebhookSignature(WebhookKind.STANDARD, (secret,)), headers, body, at)


@pytest.mark.parametrize(
    ("off", "counts"), [(0, True), (299, True), (-299, True), (301, False), (-301, False)]
)
def test_a_time_that_is_far_off_does_not_count(off: int, counts: bool) -> None:
    headers = standard(SECRET, NOW + timedelta(seconds=off))
    assert (
        is_signed(WebhookSignature(WebhookKind.STANDARD, (SECRET,)), headers, BODY, NOW) is counts
    )


def test_every_part_of_a_standard_webhook_is_signed() -> None:
    signing = WebhookSignature(WebhookKind.STANDARD, (SECRET,))
    good = standard(SECRET)
    for name, wrong in (
        (b"webhook-id", b"msg_2"),
        (b"webhook-timestamp", str(int(NOW.timestamp()) + 1).encode()),
        (b"webhook-timestamp", b"x"),
        (b"webhook-timestamp", b"9" * 40),
        (b"webhook-signature", b"v1a," + good[b"webhook-signature"][3:]),
        (b"webhook-signature", b""),
    ):
        assert not is_signed(signing, {**good, name: wrong}, BODY, NOW)
    several = b"v1,AAAA v2,BBBB " + good[b"webhook-signature"]
    assert is_signed(signing, {**good, b"webhook-signature": several}, BODY, NOW)


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_a_plain_signature_is_in_digits_or_in_base64(algorithm: str) -> None:
    signing = WebhookSignature(WebhookKind.PLAIN, (SECRET,), "x-signature", algorithm)
    made = hmac.digest(SECRET, BODY, algorithm)
    digits = made.hex().encode()
    for shown in (
        digits,
        digits.upper(),
        algorithm.encode() + b"=" + digits,
        base64.b64encode(made),
    ):
        assert is_signed(signing, {b"x-signature": shown}, BODY, NOW)
    assert not is_signed(signing, {b"x-signature": hex_of(b"other")}, BODY, NOW)
    assert not is_signed(signing, {b"x-other": digits}, BODY, NOW)


def test_while_a_secret_is_replaced_both_count() -> None:
    signing = WebhookSignature(WebhookKind.GITHUB, (b"the-newer-secret", SECRET))
    for secret in signing.secrets:
        assert is_signed(signing, {b"x-hub-signature-256": b"sha256=" + hex_of(secret)}, BODY, NOW)


def test_a_secret_is_never_shown() -> None:
    assert SECRET.decode() not in repr(WebhookSignature(WebhookKind.GITHUB, (SECRET,)))


def test_a_type_is_what_the_sender_calls_it() -> None:
    assert type_of(WebhookKind.GITHUB, {b"x-github-event": b"push"}) == "push"
    assert type_of(WebhookKind.GITLAB, {b"x-gitlab-event": b"Push Hook"}) == "Push Hook"
    assert type_of(WebhookKind.STANDARD, {b"x-github-event": b"push"}) == ""
    assert type_of(WebhookKind.GITHUB, {b"x-github-event": b"a\x00"}) == ""
