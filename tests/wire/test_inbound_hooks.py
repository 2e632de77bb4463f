"""Webhooks of others: signatures as GitHub, GitLab, Standard Webhooks and sensors make them."""

import base64
import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.webhooks import heading
from comity.wire.inbound_hooks import (
    HookKind,
    Signing,
    digest_of,
    header_of,
    is_signed,
    type_of,
    usual_ids,
)

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
BODY = b'{"action":"opened"}'
# The example of GitHub's own documentation.
GITHUBS = b"It's a Secret to Everybody"
GITHUBS_BODY = b"Hello, World!"
GITHUBS_SIGNATURE = b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
SECRET = b"a-secret-of-some-length"


def hex_of(secret: bytes, body: bytes = BODY, algorithm: str = "sha256") -> bytes:
    return hmac.digest(secret, body, algorithm).hex().encode()


def test_the_signature_in_githubs_documentation_is_right() -> None:
    signing = Signing(HookKind.GITHUB, (GITHUBS,))
    headers = {b"x-hub-signature-256": GITHUBS_SIGNATURE}
    assert is_signed(signing, headers, GITHUBS_BODY, NOW)
    assert not is_signed(signing, headers, GITHUBS_BODY + b" ", NOW)
    assert not is_signed(replace(signing, secrets=(SECRET,)), headers, GITHUBS_BODY, NOW)


@pytest.mark.parametrize(
    "shown", [b"", b"sha256=", GITHUBS_SIGNATURE[7:], b"sha1=" + b"0" * 40, b"\xff" * 71]
)
def test_what_is_no_signature_of_githubs_is_not_taken_for_one(shown: bytes) -> None:
    signing = Signing(HookKind.GITHUB, (GITHUBS,))
    assert not is_signed(signing, {b"x-hub-signature-256": shown}, GITHUBS_BODY, NOW)
    assert not is_signed(signing, {}, GITHUBS_BODY, NOW)


def test_gitlab_shows_the_secret_itself() -> None:
    signing = Signing(HookKind.GITLAB, (SECRET,))
    assert is_signed(signing, {b"x-gitlab-token": SECRET}, BODY, NOW)
    for wrong in (b"", SECRET[:-1], SECRET + b"x", b"\xff"):
        assert not is_signed(signing, {b"x-gitlab-token": wrong}, BODY, NOW)
    assert not is_signed(signing, {}, BODY, NOW)


def standard(secret: bytes, at: datetime = NOW, id: str = "msg_1") -> dict[bytes, bytes]:
    said = heading([secret], "sub", id, at, BODY)
    return {name.lower().encode(): value.encode() for name, value in said.items()}


def test_what_this_gateway_posts_itself_it_would_take() -> None:
    written = b"whsec_" + base64.b64encode(SECRET)
    for secret in (SECRET, written):
        assert is_signed(Signing(HookKind.STANDARD, (secret,)), standard(SECRET), BODY, NOW)
    assert not is_signed(Signing(HookKind.STANDARD, (b"other",)), standard(SECRET), BODY, NOW)


def test_the_vector_of_standard_webhooks_is_right() -> None:
    """As its reference libraries test themselves."""
    secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body, at = b'{"test": 2432232314}', datetime.fromtimestamp(1614265330, UTC)
    headers = {
        b"webhook-id": b"msg_p5jXN8AQM9LWM0D4loKWxJek",
        b"webhook-timestamp": b"1614265330",
        b"webhook-signature": b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert is_signed(Signing(HookKind.STANDARD, (secret,)), headers, body, at)


@pytest.mark.parametrize(
    ("off", "counts"), [(0, True), (299, True), (-299, True), (301, False), (-301, False)]
)
def test_a_time_that_is_far_off_does_not_count(off: int, counts: bool) -> None:
    headers = standard(SECRET, NOW + timedelta(seconds=off))
    assert is_signed(Signing(HookKind.STANDARD, (SECRET,)), headers, BODY, NOW) is counts


def test_every_part_of_a_standard_webhook_is_signed() -> None:
    signing = Signing(HookKind.STANDARD, (SECRET,))
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
    signing = Signing(HookKind.PLAIN, (SECRET,), "x-signature", algorithm)
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
    signing = Signing(HookKind.GITHUB, (b"the-newer-secret", SECRET))
    for secret in signing.secrets:
        assert is_signed(signing, {b"x-hub-signature-256": b"sha256=" + hex_of(secret)}, BODY, NOW)


def test_a_secret_is_never_shown() -> None:
    assert SECRET.decode() not in repr(Signing(HookKind.GITHUB, (SECRET,)))


def test_each_kind_says_somewhere_which_event_it_is() -> None:
    assert usual_ids(HookKind.GITHUB) == ("header:x-github-delivery",)
    assert usual_ids(HookKind.GITLAB) == (
        "header:idempotency-key",
        "header:x-gitlab-event-uuid",
        "body",
    )
    assert header_of({b"x-id": b" 7 "}, "X-Id") == "7"
    assert header_of({}, "x-id") == ""
    assert digest_of(b"x") == f"sha256-{hashlib.sha256(b'x').hexdigest()}"


def test_a_type_is_what_the_sender_calls_it() -> None:
    assert type_of(HookKind.GITHUB, {b"x-github-event": b"push"}) == "push"
    assert type_of(HookKind.GITLAB, {b"x-gitlab-event": b"Push Hook"}) == "Push Hook"
    assert type_of(HookKind.STANDARD, {b"x-github-event": b"push"}) == ""
    assert type_of(HookKind.GITHUB, {b"x-github-event": b"a\x00"}) == ""
