"""Which feature sets may be used, by whose word, and for what."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.access import Judgement
from comity.rules.live_policy import (
    UNDECIDED,
    LivePolicy,
    covers,
    enabled_of,
    required,
    standing_of,
)
from comity.wire.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage
from comity.wire.features import FeatureSet, Use
from comity.wire.grants import FEATURE, Effect, Forbid, Grant

NAMES = st.from_regex(r"[a-c]{1,2}(\.[a-c]{1,2}){0,2}", fullmatch=True)
PATTERNS = NAMES | NAMES.map(lambda name: f"{name}.*") | st.just("*")
UNTIL = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("memory.*", "memory.read", True),
        ("memory.*", "memory.read.deep", True),
        ("memory.*", "memory", False),
        ("memory.*", "memoryless.read", False),
        ("*", "anything", True),
        ("memory.read", "memory.read", True),
        ("memory.read", "memory.reader", False),
    ],
)
def test_a_family_is_all_below_its_dot(pattern: str, name: str, does: bool) -> None:
    assert covers(pattern, name) is does


@given(st.lists(PATTERNS), st.lists(PATTERNS), st.lists(NAMES))
def test_what_is_enabled_is_named_and_not_disabled(
    enabled: list[str], disabled: list[str], names: list[str]
) -> None:
    policy = LivePolicy(tuple(enabled), tuple(disabled))
    found = enabled_of(policy, names)
    for name in names:
        named = any(covers(each, name) for each in enabled)
        denied = any(covers(each, name) for each in disabled)
        assert (name in found) is (named and not denied)
        assert standing_of(policy, name).is_enabled is (name in found)


def judged(effect: Effect, verb: str = FEATURE) -> Judgement:
    grant = Grant("server:x", verb, "a", effect, granted_by="person:ana", expires_at=UNTIL)
    return Judgement(effect, "", grant)


ON, OFF = LivePolicy(enabled=("a",)), LivePolicy(disabled=("a",))


@pytest.mark.parametrize(
    ("policy", "found", "is_enabled", "by"),
    [
        (LivePolicy(), None, False, "default"),
        (LivePolicy(), Judgement(Effect.ALLOW, "default"), False, "default"),
        (LivePolicy(), judged(Effect.ALLOW), True, "person:ana"),
        (LivePolicy(), judged(Effect.ALLOW, "*"), False, "default"),
        (LivePolicy(), judged(Effect.ASK), False, "person:ana"),
        (ON, None, True, "configuration"),
        (ON, judged(Effect.DENY), False, "person:ana"),
        (ON, judged(Effect.DENY, "*"), False, "person:ana"),
        (OFF, judged(Effect.ALLOW), False, "configuration"),
        (ON, Judgement(Effect.DENY, "", forbid=Forbid("*", "*", "*")), False, "guardrail"),
    ],
)
def test_what_denies_outweighs_what_enables(
    policy: LivePolicy, found: Judgement | None, is_enabled: bool, by: str
) -> None:
    stands = standing_of(policy, "a", found)
    assert (stands.is_enabled, stands.by) == (is_enabled, by)


def test_a_grant_that_ends_says_when_and_nobodys_word_is_told_as_such() -> None:
    assert standing_of(LivePolicy(), "a", judged(Effect.ALLOW)).until == UNTIL
    assert standing_of(LivePolicy(), "a") is UNDECIDED


def test_a_set_is_required_to_be_declared_enabled_and_for_that_use() -> None:
    sets = {"a": FeatureSet("a", "", frozenset({Use.PUSH}))}
    assert required(sets, {"a"}, "a", Use.PUSH).name == "a"
    for name, enabled, use, fault in (
        ("b", {"a", "b"}, Use.PUSH, FEATURE_UNKNOWN),
        ("a", set[str](), Use.PUSH, FEATURE_NOT_ENABLED),
        ("a", {"a"}, Use.INFERENCE, FEATURE_NOT_ENABLED),
    ):
        with pytest.raises(MalformedMessage) as refused:
            required(sets, enabled, name, use)
        assert refused.value.fault is fault
