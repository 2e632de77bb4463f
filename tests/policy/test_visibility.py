"""What an actor sees of a server, without a look at each of its offers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from comity.mcp.actors import ANONYMOUS, CALL, Actor
from comity.policy.grants import DefaultPolicy, Effect, Grant, GrantSet, Guardrail, StaticRules
from comity.policy.visibility import (
    ALL_VISIBLE,
    NOTHING_VISIBLE,
    can_know_server,
    server_visibility,
    visibility_basis,
    visibility_basis_and_expiry,
    visible_servers,
)
from tests.support.cases import loop_over

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")


def access(*entries: tuple[str, Effect], decided: StaticRules | None = None) -> GrantSet:
    grants = [Grant("agent:ci", CALL, target, effect) for target, effect in entries]
    return GrantSet.from_grants(grants, decided or StaticRules())


def test_a_server_is_seen_as_a_whole_or_not_at_all_where_no_name_is_named() -> None:
    assert server_visibility(access(), CI, CALL, "files", NOW) == NOTHING_VISIBLE
    assert (
        server_visibility(access(("files/*", Effect.ALLOW)), CI, CALL, "files", NOW) == ALL_VISIBLE
    )
    assert server_visibility(access(("*", Effect.ASK)), CI, CALL, "files", NOW) == ALL_VISIBLE
    shut = access(("*", Effect.ALLOW), ("files/*", Effect.DENY))
    assert server_visibility(shut, CI, CALL, "files", NOW) == NOTHING_VISIBLE


def test_only_named_offers_are_judged_one_by_one() -> None:
    found = server_visibility(access(("files/read", Effect.ALLOW)), CI, CALL, "files", NOW)
    assert (found.is_visible_by_default, found.has_patterns) == (False, False)
    assert [set(names) for names in found.exceptions] == [{"read"}]
    assert server_visibility(
        access(("files/re*", Effect.ALLOW)), CI, CALL, "files", NOW
    ).has_patterns


def test_a_guardrail_over_a_server_hides_all_of_it() -> None:
    decided = StaticRules(guardrails=(Guardrail("*", "*", "files/*"),))
    shut = access(("files/read", Effect.ALLOW), decided=decided)
    assert server_visibility(shut, CI, CALL, "files", NOW) == NOTHING_VISIBLE
    assert not can_know_server(shut, CI, "files", NOW)


@loop_over(
    ("entries", "is_known"),
    [
        ([], False),
        ([("files/read", Effect.ALLOW)], True),
        ([("files/read", Effect.DENY)], False),
        ([("files/re*", Effect.DENY)], False),
        ([("files/re*", Effect.ASK)], True),
        ([("*/re*", Effect.ALLOW)], True),
        ([("*", Effect.ALLOW), ("files/*", Effect.DENY)], False),
        ([("*", Effect.ALLOW), ("files/*", Effect.DENY), ("files/read", Effect.ALLOW)], True),
    ],
)
def test_a_server_is_known_to_whom_something_of_it_is_open(
    entries: list[tuple[str, Effect]], is_known: bool
) -> None:
    assert can_know_server(access(*entries), CI, "files", NOW) is is_known


def test_the_bounds_of_a_credential_bound_its_sight() -> None:
    open_to_all = access(("*", Effect.ALLOW))
    bounded = replace(CI, permissions=((CALL, "files/read"),))
    assert can_know_server(open_to_all, bounded, "files", NOW)
    assert not can_know_server(open_to_all, bounded, "web", NOW)
    assert not can_know_server(access(), bounded, "files", NOW)
    assert (
        server_visibility(open_to_all, replace(CI, permissions=((CALL, "*"),)), CALL, "web", NOW)
        == ALL_VISIBLE
    )


def test_the_servers_in_sight_are_few_unless_something_is_open_everywhere() -> None:
    assert visible_servers(access(("files/read", Effect.ALLOW)), CI) == {"files"}
    assert visible_servers(access(("*/read", Effect.ALLOW)), CI) is None
    assert visible_servers(access(), ANONYMOUS) == set()
    opted_out = StaticRules(policies={"web": DefaultPolicy.ALLOW})
    assert visible_servers(access(decided=opted_out), CI) == {"web"}
    assert visible_servers(access(decided=StaticRules(default=DefaultPolicy.ALLOW)), CI) is None


def test_what_is_judged_by_stays_the_same_while_only_others_are_granted_something() -> None:
    before = access(("files/*", Effect.ALLOW))
    other = Grant("agent:other", CALL, "mail/*", Effect.ALLOW)
    after = before.with_subjects({"agent:other": [other]})
    same = zip(visibility_basis(before, CI), visibility_basis(after, CI), strict=True)
    assert all(one is another for one, another in same)
    mine = before.with_subjects({"agent:ci": [replace(other, subject="agent:ci")]})
    differ = zip(visibility_basis(before, CI), visibility_basis(mine, CI), strict=True)
    assert not all(one is another for one, another in differ)


def test_the_first_entry_that_ends_ends_what_was_judged_by_it() -> None:
    grants = [
        Grant("agent:ci", CALL, f"files/{days}", Effect.ALLOW, expires_at=NOW + timedelta(days))
        for days in (-1, 3, 2)
    ]
    forever = Grant("agent:ci", CALL, "mail/*", Effect.ALLOW)
    assert visibility_basis_and_expiry(GrantSet.from_grants([*grants, forever]), CI, NOW)[
        1
    ] == NOW + timedelta(2)
    assert visibility_basis_and_expiry(GrantSet.from_grants([forever]), CI, NOW)[1] is None
