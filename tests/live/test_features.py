"""Which feature sets may be used, by whose word, for what, until when, and by which tools."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage, Unavailable
from comity.live.features import (
    DEFAULT_POLICY,
    WHOLE,
    LivePolicy,
    decide_feature_status,
    enabled_of,
    feature_of_tool,
    feature_set_in,
    require_feature_set,
)
from comity.live.host import FeatureSetDecisions, LiveServer
from comity.mcp.actors import Actor
from comity.mcp.mcpl import FeatureSet, FeatureUse
from comity.policy.grants import (
    FEATURE_VERB,
    Decision,
    Effect,
    Grant,
    GrantSet,
    Guardrail,
    StaticRules,
)
from comity.policy.snapshot import AllowAll, GrantSnapshot
from comity.toolkit.patterns import covers_feature
from tests.live.live_link import DECLARED, LinkRoom
from tests.support.cases import loop_over

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
    assert covers_feature(pattern, name) is does


@given(st.lists(PATTERNS), st.lists(PATTERNS), st.lists(NAMES))
def test_what_is_enabled_is_named_and_not_disabled(
    enabled: list[str], disabled: list[str], names: list[str]
) -> None:
    policy = LivePolicy(tuple(enabled), tuple(disabled))
    found = enabled_of(policy, names)
    for name in names:
        named = any(covers_feature(each, name) for each in enabled)
        denied = any(covers_feature(each, name) for each in disabled)
        assert (name in found) is (named and not denied)
        assert decide_feature_status(policy, name).is_enabled is (name in found)


def judged(effect: Effect, verb: str = FEATURE_VERB) -> Decision:
    grant = Grant("server:x", verb, "a", effect, granted_by="person:ana", expires_at=UNTIL)
    return Decision(effect, "", grant)


ON, OFF = LivePolicy(enabled=("a",)), LivePolicy(disabled=("a",))


@loop_over(
    ("policy", "found", "is_enabled", "by"),
    [
        (LivePolicy(), None, False, "default"),
        (LivePolicy(), Decision(Effect.ALLOW, "default"), False, "default"),
        (LivePolicy(), judged(Effect.ALLOW), True, "person:ana"),
        (LivePolicy(), judged(Effect.ALLOW, "*"), False, "default"),
        (LivePolicy(), judged(Effect.ASK), False, "person:ana"),
        (ON, None, True, "configuration"),
        (ON, judged(Effect.DENY), False, "person:ana"),
        (ON, judged(Effect.DENY, "*"), False, "person:ana"),
        (OFF, judged(Effect.ALLOW), False, "configuration"),
        (ON, Decision(Effect.DENY, "", guardrail=Guardrail("*", "*", "*")), False, "guardrail"),
    ],
)
def test_what_denies_outweighs_what_enables(
    policy: LivePolicy, found: Decision | None, is_enabled: bool, by: str
) -> None:
    stands = decide_feature_status(policy, "a", found)
    assert (stands.is_enabled, stands.by) == (is_enabled, by)


def test_a_set_is_required_to_be_declared_enabled_and_for_that_use() -> None:
    sets = {"a": FeatureSet("a", "", frozenset({FeatureUse.PUSH}))}
    assert require_feature_set(sets, {"a"}, "a", FeatureUse.PUSH).name == "a"
    for name, enabled, use, fault in (
        ("b", {"a", "b"}, FeatureUse.PUSH, FEATURE_UNKNOWN),
        ("a", set[str](), FeatureUse.PUSH, FEATURE_NOT_ENABLED),
        ("a", {"a"}, FeatureUse.INFERENCE, FEATURE_NOT_ENABLED),
    ):
        with pytest.raises(MalformedMessage) as refused:
            require_feature_set(sets, enabled, name, use)
        assert refused.value.fault is fault


NOTES = FeatureSet("notes.edit", "", frozenset({FeatureUse.TOOLS}))
GIT = FeatureSet("git.commit", "", frozenset({FeatureUse.TOOLS, FeatureUse.PUSH}))
PUSH = FeatureSet("push", "", frozenset({FeatureUse.PUSH}))
BOTH = {each.name: each for each in (NOTES, GIT, PUSH)}
ONE = {each.name: each for each in (NOTES, PUSH)}


def _tool(**meta: object) -> bytes:
    return msgspec.json.encode({"name": "add_note", "inputSchema": {}, "_meta": meta})


@loop_over(
    ("definition", "sets", "feature"),
    [
        (_tool(featureSet="git.commit"), BOTH, "git.commit"),
        (_tool(featureSet="notes.edit"), BOTH, "notes.edit"),
        (_tool(), ONE, "notes.edit"),
        (None, ONE, "notes.edit"),
        (_tool(), BOTH, WHOLE),
        (None, BOTH, WHOLE),
        (_tool(), {}, WHOLE),
    ],
)
def test_a_tool_is_of_the_set_it_names_or_of_the_only_one_for_tools(
    definition: bytes | None, sets: dict[str, FeatureSet], feature: str
) -> None:
    assert feature_of_tool(definition, sets) == feature


@pytest.mark.parametrize("named", ["git.nothing", "push", 7, None, ["notes.edit"], {}])
def test_a_tool_chooses_only_among_sets_that_are_declared_for_tools(named: object) -> None:
    assert feature_of_tool(_tool(featureSet=named), BOTH) == WHOLE
    assert feature_of_tool(_tool(featureSet=named), ONE) == "notes.edit"


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"[]",
        b'"featureSet"',
        b'{"featureSet":"notes.edit"}',
        b'{"_meta":"featureSet"}',
        b'{"_meta":{"featureSet":"notes.edit","featureSet":"git.commit"}}',
        b'{"_meta":[{"featureSet":"notes.edit"}]}',
    ],
)
def test_what_cannot_be_read_names_no_set(definition: bytes) -> None:
    assert feature_set_in(definition) == WHOLE
    assert feature_of_tool(definition, BOTH) == WHOLE


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def enabling(grants: GrantSnapshot, policy: LivePolicy = DEFAULT_POLICY) -> FeatureSetDecisions:
    return FeatureSetDecisions(lambda _: policy, grants, lambda: grants.latest, lambda: NOW)


def hosted() -> LiveServer:
    return LiveServer("srv", LinkRoom(), DECLARED, DEFAULT_POLICY, frozenset())


def grant(
    target: str, effect: Effect = Effect.ALLOW, verb: str = FEATURE_VERB, **more: object
) -> Grant:
    return Grant("server:srv", verb, target, effect, granted_by="person:ana", **more)  # type: ignore[arg-type]


def grants(*given: Grant, forbids: tuple[Guardrail, ...] = ()) -> GrantSnapshot:
    return GrantSnapshot(GrantSet.from_grants(given, StaticRules(guardrails=forbids)), lambda: NOW)


def test_what_a_guardrail_forbids_stays_off() -> None:
    server = hosted()
    never = Guardrail("server:*", "feature/*", "memory.*", "not here")
    found = enabling(grants(grant("*"), forbids=(never,)), LivePolicy(enabled=("*",)))
    found.decide(server)
    assert server.enabled == {"files"}
    assert server.feature_status("memory.push").reason == "not here"


def test_it_is_decided_anew_when_grants_are_others_or_one_has_ended() -> None:
    server, now = hosted(), [NOW]
    given = GrantSnapshot(
        GrantSet.from_grants([grant("files", expires_at=NOW + timedelta(minutes=1))]),
        lambda: now[0],
    )
    found = FeatureSetDecisions(
        lambda _: DEFAULT_POLICY, given, lambda: given.latest, lambda: now[0]
    )
    assert found.is_due(server)
    assert found.decide(server)
    assert not found.is_due(server)
    now[0] += timedelta(minutes=2)
    assert found.is_due(server)
    assert found.decide(server)
    assert server.enabled == frozenset()
    assert not found.is_due(server)
    given.replace(GrantSet.from_grants([grant("files")]))
    assert found.is_due(server)


class Away(AllowAll):
    """Nobody knows what is allowed."""

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        raise Unavailable("the store is away")


def test_while_it_is_not_known_nothing_is_enabled_and_it_is_looked_at_again() -> None:
    server = hosted()
    found = FeatureSetDecisions(
        lambda _: LivePolicy(enabled=("*",)), Away(), lambda: None, lambda: NOW
    )
    found.decide(server)
    assert server.enabled == frozenset()
    assert "not loaded" in server.feature_status("files").reason
    assert found.is_due(server)
