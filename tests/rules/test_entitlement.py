"""What a party may send into a topic: grants, denials, guardrails and bounds together."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.access import Access, Decided
from comity.rules.capabilities import FULL, PROPOSE
from comity.rules.entitlement import SEND, Entitled, entitled
from comity.rules.topics import Access as Entrance
from comity.wire.grants import Effect, Forbid, Grant
from comity.wire.parties import LOCAL, Actor

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CI = Actor("agent:ci")
RESTRICTED, PUBLIC = (Entrance.RESTRICTED, PROPOSE), (Entrance.PUBLIC, PROPOSE)


def found(
    *grants: Grant,
    actor: Actor = CI,
    topic: str = "ops",
    terms: tuple[Entrance, tuple[str, ...]] = RESTRICTED,
    forbids: tuple[Forbid, ...] = (),
) -> Entitled:
    access = Access.of((), Decided(grants, forbids))
    return entitled(access, actor, topic, NOW, terms)


def allow(target: str, party: str = CI.party, verb: str = SEND) -> Grant:
    return Grant(party, verb, target, Effect.ALLOW)


def deny(target: str) -> Grant:
    return Grant(CI.party, SEND, target, Effect.DENY)


def bound(*permissions: tuple[str, str]) -> Actor:
    return Actor(CI.party, permissions=permissions)


def test_who_was_granted_nothing_may_nothing_and_is_not_let_in() -> None:
    assert found() == Entitled(found().may, is_admitted=False)
    assert found().may.listed == ()


@pytest.mark.parametrize("target", ["ops/mcp/proposal:*", "*/mcp/proposal:*", "o*/mcp/proposal:*"])
def test_a_capability_is_granted_in_a_topic_or_in_many(target: str) -> None:
    assert found(allow(target)).may.listed == ("mcp/proposal:*",)
    assert found(allow(target)).is_admitted


def test_a_grant_of_another_topic_or_verb_is_about_something_else() -> None:
    others = allow("dev/chat"), allow("ops/chat", verb="tools/call"), allow("ops/chat", "agent:x")
    assert not found(*others).is_admitted


@pytest.mark.parametrize("target", ["ops/*", "*"])
@pytest.mark.parametrize("verb", [SEND, "topic/*", "*"])
def test_a_whole_topic_is_all_that_members_say(target: str, verb: str) -> None:
    assert found(allow(target, verb=verb)).may.listed == FULL


def test_everybody_has_what_everybody_was_granted() -> None:
    both = found(allow("ops/chat", "*"), allow("ops/mcp/proposal:*"))
    assert set(both.may.listed) == {"chat", "mcp/proposal:*"}


def test_denying_comes_first() -> None:
    may = found(allow("ops/mcp/*"), allow("ops/chat"), deny("ops/mcp/request:*")).may
    assert may.cover("mcp/proposal:tools/call")
    assert not may.cover("mcp/request:tools/call")
    assert found(allow("ops/chat"), deny("ops/chat")).may.listed == ()


@pytest.mark.parametrize("terms", [RESTRICTED, PUBLIC])
def test_who_was_denied_everything_is_not_let_in(
    terms: tuple[Entrance, tuple[str, ...]],
) -> None:
    shut = found(allow("ops/chat"), deny("ops/*"), terms=terms)
    assert not shut.is_admitted
    assert shut.may.listed == ()
    assert found(allow("ops/chat"), deny("dev/*"), terms=terms).is_admitted


def test_what_would_ask_allows_nothing() -> None:
    asks = Grant(CI.party, SEND, "ops/mcp/request:*", Effect.ASK)
    assert not found(asks).is_admitted
    assert not found(asks, allow("ops/chat")).may.cover("mcp/request:tools/call")


def test_a_grant_with_a_condition_is_no_entry() -> None:
    conditional = Grant(CI.party, SEND, "ops/chat", Effect.ALLOW, where={"paths": {}, "only": []})
    assert not found(conditional).is_admitted


def test_a_guardrail_denies_whatever_was_granted() -> None:
    forbid = Forbid("agent:*", SEND, "*/mcp/request:*", "agents propose")
    may = found(allow("ops/*"), forbids=(forbid,)).may
    assert may.cover("mcp/proposal:tools/call")
    assert not may.cover("mcp/request:tools/call")
    person = Actor("person:ana@example.org")
    allowed = allow("ops/*", person.party)
    assert found(allowed, actor=person, forbids=(forbid,)).may.cover("mcp/request:tools/call")


def test_in_a_public_topic_everybody_has_what_is_usual() -> None:
    assert found(terms=PUBLIC).may.listed == PROPOSE
    assert found(terms=PUBLIC).is_admitted
    more = found(allow("ops/mcp/request:*"), terms=PUBLIC).may
    assert more.listed == (*PROPOSE, "mcp/request:*")


def test_whoever_runs_the_gateway_alone_is_at_home_in_every_topic() -> None:
    alias = Actor("local:worker", LOCAL.kind, LOCAL.credential)
    assert found(actor=alias).may.listed == PROPOSE
    assert found(actor=alias, terms=(Entrance.PRIVATE, PROPOSE)).is_admitted


def test_what_has_expired_is_not_there_and_the_first_end_is_told() -> None:
    soon, later = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    grants = [
        Grant(CI.party, SEND, "ops/chat", Effect.ALLOW, expires_at=later),
        Grant(CI.party, SEND, "ops/mcp/*", Effect.ALLOW, expires_at=soon),
        Grant(CI.party, SEND, "ops/x", Effect.ALLOW, expires_at=NOW),
    ]
    entitlement = found(*grants)
    assert set(entitlement.may.listed) == {"chat", "mcp/*"}
    assert entitlement.until == soon


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ((SEND, "ops/mcp/proposal:*"), ("mcp/proposal:*",)),
        ((SEND, "*/chat"), ("chat",)),
        (("topic/*", "ops/*"), ("mcp/*", "chat")),
        (("*", "*"), ("mcp/*", "chat")),
        ((SEND, "ops/unheard"), ()),
    ],
)
def test_a_bounded_credential_allows_no_more_than_its_bounds(
    bounds: tuple[str, str], left: tuple[str, ...]
) -> None:
    within = found(allow("ops/*"), actor=bound(bounds))
    assert within.may.listed == left
    assert within.is_admitted


@pytest.mark.parametrize("terms", [RESTRICTED, PUBLIC])
def test_a_credential_that_is_bound_to_other_things_opens_no_topic(
    terms: tuple[Entrance, tuple[str, ...]],
) -> None:
    for bounds in ((SEND, "dev/*"), ("tools/call", "*")):
        assert not found(allow("ops/*"), actor=bound(bounds), terms=terms).is_admitted


def test_what_is_no_capability_gives_none() -> None:
    assert found(allow("ops/with space"), allow("ops/chat")).may.listed == ("chat",)


def test_nobody_has_nothing() -> None:
    assert not found(allow("ops/*", "*"), actor=Actor("")).is_admitted
