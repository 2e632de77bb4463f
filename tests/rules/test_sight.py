"""What an actor sees of a server, without a look at each of its offers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.access import Access, Decided, DefaultPolicy
from comity.rules.sight import ALL, NOTHING, basis, ground, knows, outlook, servers_in_sight
from comity.wire.grants import CALL, Effect, Forbid, Grant
from comity.wire.parties import NOBODY, Actor

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")


def access(*entries: tuple[str, Effect], decided: Decided | None = None) -> Access:
    grants = [Grant("agent:ci", CALL, target, effect) for target, effect in entries]
    return Access.of(grants, decided or Decided())


def test_a_server_is_seen_as_a_whole_or_not_at_all_where_no_name_is_named() -> None:
    assert outlook(access(), CI, CALL, "files", NOW) == NOTHING
    assert outlook(access(("files/*", Effect.ALLOW)), CI, CALL, "files", NOW) == ALL
    assert outlook(access(("*", Effect.ASK)), CI, CALL, "files", NOW) == ALL
    shut = access(("*", Effect.ALLOW), ("files/*", Effect.DENY))
    assert outlook(shut, CI, CALL, "files", NOW) == NOTHING


def test_only_named_offers_are_judged_one_by_one() -> None:
    found = outlook(access(("files/read", Effect.ALLOW)), CI, CALL, "files", NOW)
    assert (found.all_else, found.patterned) == (False, False)
    assert [set(names) for names in found.named] == [{"read"}]
    assert outlook(access(("files/re*", Effect.ALLOW)), CI, CALL, "files", NOW).patterned


def test_a_guardrail_over_a_server_hides_all_of_it() -> None:
    decided = Decided(forbids=(Forbid("*", "*", "files/*"),))
    shut = access(("files/read", Effect.ALLOW), decided=decided)
    assert outlook(shut, CI, CALL, "files", NOW) == NOTHING
    assert not knows(shut, CI, "files", NOW)


@pytest.mark.parametrize(
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
    assert knows(access(*entries), CI, "files", NOW) is is_known


def test_what_has_expired_makes_no_server_known() -> None:
    past = Grant("agent:ci", CALL, "files/*", Effect.ALLOW, expires_at=NOW - timedelta(seconds=1))
    assert not knows(Access.of([past]), CI, "files", NOW)


def test_the_bounds_of_a_credential_bound_its_sight() -> None:
    open_to_all = access(("*", Effect.ALLOW))
    bounded = replace(CI, permissions=((CALL, "files/read"),))
    assert knows(open_to_all, bounded, "files", NOW)
    assert not knows(open_to_all, bounded, "web", NOW)
    assert not knows(access(), bounded, "files", NOW)
    assert outlook(open_to_all, replace(CI, permissions=((CALL, "*"),)), CALL, "web", NOW) == ALL


def test_the_servers_in_sight_are_few_unless_something_is_open_everywhere() -> None:
    assert servers_in_sight(access(("files/read", Effect.ALLOW)), CI) == {"files"}
    assert servers_in_sight(access(("*/read", Effect.ALLOW)), CI) is None
    assert servers_in_sight(access(), NOBODY) == set()
    opted_out = Decided(policies={"web": DefaultPolicy.OPT_OUT})
    assert servers_in_sight(access(decided=opted_out), CI) == {"web"}
    assert servers_in_sight(access(decided=Decided(default=DefaultPolicy.OPT_OUT)), CI) is None


def test_what_is_judged_by_stays_the_same_while_only_others_are_granted_something() -> None:
    before = access(("files/*", Effect.ALLOW))
    other = Grant("agent:other", CALL, "mail/*", Effect.ALLOW)
    after = before.with_subjects({"agent:other": [other]})
    same = zip(basis(before, CI), basis(after, CI), strict=True)
    assert all(one is another for one, another in same)
    mine = before.with_subjects({"agent:ci": [replace(other, subject="agent:ci")]})
    differ = zip(basis(before, CI), basis(mine, CI), strict=True)
    assert not all(one is another for one, another in differ)


def test_the_first_entry_that_ends_ends_what_was_judged_by_it() -> None:
    grants = [
        Grant("agent:ci", CALL, f"files/{days}", Effect.ALLOW, expires_at=NOW + timedelta(days))
        for days in (-1, 3, 2)
    ]
    forever = Grant("agent:ci", CALL, "mail/*", Effect.ALLOW)
    assert ground(Access.of([*grants, forever]), CI, NOW)[1] == NOW + timedelta(2)
    assert ground(Access.of([forever]), CI, NOW)[1] is None
