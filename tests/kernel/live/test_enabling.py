"""Which feature sets are enabled: by the configuration, by grants, until when, and when unknown."""

from datetime import UTC, datetime, timedelta

from comity.kernel.grants import AllowAll, Grants
from comity.kernel.live.enabling import Enabling
from comity.kernel.live.hosted import Hosted
from comity.rules.access import Access, Decided, Judgement
from comity.rules.live_policy import NOTHING, LivePolicy
from comity.wire.errors import Unavailable
from comity.wire.grants import FEATURE, Effect, Forbid, Grant
from comity.wire.parties import Actor
from tests.kernel.live.live_link import DECLARED, LinkRoom

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def enabling(grants: Grants, policy: LivePolicy = NOTHING) -> Enabling:
    return Enabling(lambda _: policy, grants, lambda: grants.latest, lambda: NOW)


def hosted() -> Hosted:
    return Hosted("srv", LinkRoom(), DECLARED, NOTHING, frozenset())


def grant(target: str, effect: Effect = Effect.ALLOW, verb: str = FEATURE, **more: object) -> Grant:
    return Grant("server:srv", verb, target, effect, granted_by="person:ana", **more)  # type: ignore[arg-type]


def grants(*given: Grant, forbids: tuple[Forbid, ...] = ()) -> Grants:
    return Grants(Access.of(given, Decided(forbids=forbids)), lambda: NOW)


def test_a_grant_enables_a_family_and_one_that_denies_outweighs_the_file() -> None:
    server = hosted()
    given = grants(grant("memory.*"), grant("memory.read", Effect.DENY))
    assert enabling(given, LivePolicy(enabled=("memory.read",))).decide(server)
    assert server.enabled == {"memory.push"}
    assert server.standing("memory.push").by == "person:ana"


def test_whoever_may_do_everything_is_not_let_do_more_by_that() -> None:
    server = hosted()
    assert not enabling(grants(grant("*", verb="*"))).decide(server)
    assert server.enabled == frozenset()
    enabling(grants(grant("*", Effect.DENY, "*")), LivePolicy(enabled=("*",))).decide(server)
    assert server.enabled == frozenset()


def test_what_a_guardrail_forbids_stays_off() -> None:
    server = hosted()
    never = Forbid("server:*", "feature/*", "memory.*", "not here")
    found = enabling(grants(grant("*"), forbids=(never,)), LivePolicy(enabled=("*",)))
    found.decide(server)
    assert server.enabled == {"files"}
    assert server.standing("memory.push").because == "not here"


def test_it_is_decided_anew_when_grants_are_others_or_one_has_ended() -> None:
    server, now = hosted(), [NOW]
    given = Grants(
        Access.of([grant("files", expires_at=NOW + timedelta(minutes=1))]), lambda: now[0]
    )
    found = Enabling(lambda _: NOTHING, given, lambda: given.latest, lambda: now[0])
    assert found.is_due(server)
    assert found.decide(server)
    assert not found.is_due(server)
    now[0] += timedelta(minutes=2)
    assert found.is_due(server)
    assert found.decide(server)
    assert server.enabled == frozenset()
    assert not found.is_due(server)
    given.replace(Access.of([grant("files")]))
    assert found.is_due(server)


class Away(AllowAll):
    """Nobody knows what is allowed."""

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        raise Unavailable("the store is away")


def test_while_it_is_not_known_nothing_is_enabled_and_it_is_looked_at_again() -> None:
    server = hosted()
    found = Enabling(lambda _: LivePolicy(enabled=("*",)), Away(), lambda: None, lambda: NOW)
    found.decide(server)
    assert server.enabled == frozenset()
    assert "not known" in server.standing("files").because
    assert found.is_due(server)
