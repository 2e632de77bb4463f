"""The engine against the oracle, on a great many worlds of grants that chance made."""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from comity.mcp.actors import Actor
from comity.policy.grants import DefaultPolicy, Effect, Grant, GrantSet, Guardrail, StaticRules
from comity.policy.visibility import (
    ServerVisibility,
    can_know_server,
    server_visibility,
    visible_servers,
)
from tests.support.cases import loop_over
from tests.support.oracle import verdict

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CASES = 100_000
ENOUGH_SECONDS = 120
PARTIES = ("agent:a", "agent:b", "person:c", "")
SUBJECTS = ("agent:a", "agent:b", "*", "person:c")
VERBS = ("tools/call", "prompts/get", "resources/read", "admin/write", "tools/read", "perm")
VERB_PATTERNS = (*VERBS, "tools/call", "tools/call", "*", "tools/*", "admin/*", "too*", "*/call")
SERVERS = ("files", "file", "web", "w.b", "")
NAMES = ("read", "read_all", "write", "r", "a/b", "", "*", "re\nad")
SERVER_PATTERNS = ("files", "files", "web", "*", "fi*", "*e*s", "f*e")
NAME_PATTERNS = ("read", "write", "*", "*", "re*", "*a*", "r*d", "**", "a/*", "*read*all*")
EXPIRIES = (None, None, None, NOW, NOW + timedelta(seconds=1), NOW - timedelta(days=1))


class World:
    """Grants, guardrails and defaults, and who asks what of them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        pick = chance.choice
        made = [self._grant() for _ in range(chance.choice((0, 1, 2, 3, 5, 9)))]
        fixed = tuple(self._grant() for _ in range(chance.choice((0, 0, 1))))
        forbids = tuple(
            Guardrail(pick(("agent:*", "*", "agent:a", "p*c")), pick(VERB_PATTERNS), self._target())
            for _ in range(chance.choice((0, 0, 0, 1, 2)))
        )
        policies = {pick(SERVERS): pick(tuple(DefaultPolicy)) for _ in range(chance.choice((0, 1)))}
        default = DefaultPolicy.DENY if chance.random() < 0.7 else DefaultPolicy.ALLOW
        self.grants = tuple(made)
        self.decided = StaticRules(fixed, forbids, policies, default)
        self.access = GrantSet.from_grants(self.grants, self.decided)

    def _target(self) -> str:
        pick = self._chance.choice
        return pick(("*", f"{pick(SERVER_PATTERNS)}/{pick(NAME_PATTERNS)}"))

    def _grant(self) -> Grant:
        pick = self._chance.choice
        return Grant(
            pick(SUBJECTS),
            pick(VERB_PATTERNS),
            self._target(),
            pick(tuple(Effect)),
            expires_at=pick(EXPIRIES),
        )

    def actor(self) -> Actor:
        pick = self._chance.choice
        bounds = tuple((pick(VERB_PATTERNS), self._target()) for _ in range(pick((0, 1, 2))))
        return Actor(pick(PARTIES), permissions=bounds if self._chance.random() < 0.2 else None)

    def asked(self) -> tuple[str, str, str, datetime]:
        pick = self._chance.choice
        return pick(VERBS), pick(SERVERS), pick(NAMES), NOW


def is_seen(
    found: ServerVisibility, access: GrantSet, actor: Actor, asked: tuple[str, str, str]
) -> bool:
    """As a list would show it: judged only where the outlook leaves that open."""
    verb, server, name = asked
    if found.has_patterns or any(name in names for names in found.exceptions):
        return access.authorize(actor, verb, server, name, NOW).effect is not Effect.DENY
    return found.is_visible_by_default


def check(world: World) -> None:
    actor, asked = world.actor(), world.asked()
    expected = verdict(world.grants, world.decided, actor, asked)
    verb, server, name, now = asked
    access = world.access
    found = access.authorize(actor, verb, server, name, now)
    told = (world.grants, world.decided, actor, asked, found)
    assert found.effect is expected, told
    sight = server_visibility(access, actor, verb, server, now)
    is_open = expected is not Effect.DENY
    assert is_seen(sight, access, actor, (verb, server, name)) is is_open, (told, sight)
    if is_open and verb in ("tools/call", "prompts/get", "resources/read"):
        assert can_know_server(access, actor, server, now), told
        horizon = visible_servers(access, actor)
        assert horizon is None or server in horizon, told


def worlds(seed: int) -> Iterator[World]:
    chance = random.Random(seed)  # noqa: S311  # no secret
    while True:
        yield World(chance)


def test_the_engine_equals_the_oracle_on_a_hundred_thousand_cases() -> None:
    done, ends = 0, time.monotonic() + ENOUGH_SECONDS
    for world in worlds(20261115):
        # Several questions to each world: making one costs more than judging in it.
        for _ in range(10):
            check(world)
        done += 10
        if done >= CASES:
            return
        assert time.monotonic() < ends, f"only {done} cases in {ENOUGH_SECONDS} seconds"


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_engine_equals_the_oracle_on_cases_that_shrink(chance: random.Random) -> None:
    check(World(chance))


@loop_over("seed", range(50))
def test_replacing_what_changed_gives_the_same_as_reading_everything_again(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    before, after = World(chance), World(chance)
    changed = {grant.subject for grant in (*before.grants, *after.grants)}
    moved = before.access.with_static_rules(after.decided).with_subjects(
        {subject: [g for g in after.grants if g.subject == subject] for subject in changed}
    )
    for _ in range(20):
        actor, (verb, server, name, now) = after.actor(), after.asked()
        found = moved.authorize(actor, verb, server, name, now)
        assert found == after.access.authorize(actor, verb, server, name, now)
    assert set(moved.subjects) == set(after.access.subjects)


@loop_over("seed", range(50))
def test_who_knows_of_a_server_may_use_something_of_it(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    known = 0
    for _ in range(100):
        world = World(chance)
        actor, server = world.actor(), chance.choice(SERVERS)
        if not can_know_server(world.access, actor, server, NOW):
            continue
        known += 1
        # What is left open to patterns may come to nothing; but something must have been granted.
        opened = [
            grant
            for grant in (*world.grants, *world.decided.grants)
            if grant.effect is not Effect.DENY and grant.subject in ("*", actor.party)
        ]
        is_opt_out = world.access.policy_of(server) is DefaultPolicy.ALLOW
        assert actor.party
        assert opened or is_opt_out
    assert known
