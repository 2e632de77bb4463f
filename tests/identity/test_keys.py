"""The form of API keys, their checksum, and whether one that is shown counts."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import CREDENTIAL_EXPIRED, UNAUTHENTICATED, MalformedMessage
from comity.identity import keys
from comity.identity.principals import ApiKey
from tests.support.cases import loop_over

PEPPER = b"p" * 32
NOW = datetime(2026, 11, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)
WHOLE = keys.format_key("live", "a" * 11, "S" * 43).encode()

base62 = st.sampled_from(keys.ALPHABET)


def known(**changed: object) -> ApiKey:
    return ApiKey("a" * 11, "agent:ci", keys.mac_of_key(PEPPER, WHOLE), **changed)  # type: ignore[arg-type]


def shown(whole: bytes = WHOLE) -> keys.PresentedKey:
    found = keys.parse_key(whole)
    assert found is not None
    return found


@given(st.text(base62, min_size=11, max_size=11), st.text(base62, min_size=43, max_size=43))
def test_what_is_written_is_read_again(key_id: str, secret: str) -> None:
    whole = keys.format_key("live", key_id, secret)
    assert keys.parse_key(whole.encode()) == (key_id, whole.encode())
    assert whole.startswith("cmty_live_")
    assert len(whole) == len("cmty_live__") + 11 + 43 + 6


@given(st.integers(0, len(WHOLE) - 1), base62)
def test_one_slip_of_the_hand_is_found_by_the_checksum(place: int, letter: str) -> None:
    slipped = WHOLE[:place] + letter.encode() + WHOLE[place + 1 :]
    assert slipped == WHOLE or keys.parse_key(slipped) is None


@given(st.integers(0, len(WHOLE) - 2))
def test_two_letters_that_changed_places_are_found_by_the_checksum(place: int) -> None:
    turned = bytearray(WHOLE)
    turned[place], turned[place + 1] = turned[place + 1], turned[place]
    assert bytes(turned) == WHOLE or keys.parse_key(bytes(turned)) is None


@given(st.binary(max_size=120))
def test_anything_else_is_no_key(credential: bytes) -> None:
    assert keys.parse_key(credential) is None


@loop_over("tail", [b"\n", b" ", b"\0", b"0"])
def test_nothing_may_follow_a_key(tail: bytes) -> None:
    assert keys.parse_key(WHOLE + tail) is None


@loop_over("environment", ["", "LIVE", "a_b", "x" * 17])
def test_an_environment_is_a_few_small_letters_and_digits(environment: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        keys.format_key(environment, "a" * 11, "S" * 43)


def test_the_key_that_was_given_out_counts() -> None:
    assert keys.verify_key(PEPPER, shown(), known(), NOW) == known()


@loop_over(
    ("changed", "fault"),
    [
        ({"expires_at": NOW}, CREDENTIAL_EXPIRED),
        ({"expires_at": NOW - HOUR}, CREDENTIAL_EXPIRED),
        ({"revoked_at": NOW - HOUR}, UNAUTHENTICATED),
        ({"revoked_at": NOW - HOUR, "expires_at": NOW - HOUR}, UNAUTHENTICATED),
        ({"not_before": NOW + HOUR}, UNAUTHENTICATED),
        ({"mac": bytes(32)}, UNAUTHENTICATED),
        ({"mac": b""}, UNAUTHENTICATED),
    ],
)
def test_a_key_that_does_not_count_is_refused(changed: dict[str, object], fault: object) -> None:
    members = {"id": "a" * 11, "party": "agent:ci", "mac": keys.mac_of_key(PEPPER, WHOLE)}
    key = ApiKey(**{**members, **changed})  # type: ignore[arg-type]
    with pytest.raises(MalformedMessage) as refused:
        keys.verify_key(PEPPER, shown(), key, NOW)
    assert refused.value.fault is fault


@loop_over("changed", [{"expires_at": NOW + HOUR}, {"not_before": NOW}, {"revoked_at": NOW + HOUR}])
def test_a_key_counts_between_its_times(changed: dict[str, object]) -> None:
    assert keys.verify_key(PEPPER, shown(), known(**changed), NOW).party == "agent:ci"


def test_who_guesses_is_not_told_whether_the_id_exists_or_its_key_has_expired() -> None:
    other = keys.parse_key(keys.format_key("live", "a" * 11, "T" * 43).encode())
    assert other is not None
    told: list[str] = []
    for key in (None, known(), known(expires_at=NOW - HOUR), known(revoked_at=NOW - HOUR)):
        with pytest.raises(MalformedMessage) as refused:
            keys.verify_key(PEPPER, other, key, NOW)
        assert refused.value.fault is UNAUTHENTICATED
        told.append(str(refused.value))
    assert len(set(told)) == 1


def test_a_mac_is_compared_for_an_id_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    with pytest.raises(MalformedMessage):
        keys.verify_key(PEPPER, shown(), None, NOW)
    assert [len(other) for _, other in compared] == [32]


def test_another_pepper_knows_no_key() -> None:
    with pytest.raises(MalformedMessage):
        keys.verify_key(b"q" * 32, shown(), known(), NOW)


def test_neither_a_shown_nor_a_known_key_can_be_read_from_its_repr() -> None:
    assert "SSS" not in repr(shown())
    assert repr(known().mac) not in repr(known())


@loop_over(
    ("permission", "bound"),
    [
        ("ToolInvoke(files/read)", ("tools/call", "files/read")),
        ("ToolInvoke(files__read)", ("tools/call", "files/read")),
        ("ToolInvoke(read)", ("tools/call", "*/read")),
        ("ToolInvoke(*)", ("tools/call", "*")),
        ("ToolRead(files/*)", ("tools/read", "files/*")),
        ("ToolsListAll", ("tools/list", "*")),
        ("AdminRead", ("admin/read", "*")),
        ("AdminWrite", ("admin/write", "*")),
        ("resources/read files/*", ("resources/read", "files/*")),
        ("ToolInvoke()", None),
        ("ToolInvoke", None),
        ("toolinvoke(read)", None),
        ("ToolInvoke(a b)", None),
        ("", None),
        ("AdminWrite ", None),
        ("*", None),
    ],
)
def test_a_permission_of_the_registry_is_a_verb_and_a_target(
    permission: str, bound: tuple[str, str] | None
) -> None:
    assert keys.bound_in(permission) == bound


def test_a_key_without_permissions_is_bound_to_nothing() -> None:
    assert keys.bounds_of(()) is None


def test_a_permission_that_nobody_understands_permits_nothing() -> None:
    assert keys.bounds_of(("Everything",)) == ()
    assert keys.bounds_of(("Everything", "AdminRead")) == (("admin/read", "*"),)
