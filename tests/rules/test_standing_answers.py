"""A grant with a condition answers in a person's place, and is no entry of the resolution."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.rules import granting, keeping
from comity.rules.access import Access, Decided, DefaultPolicy
from comity.rules.explaining import Part, explain
from comity.rules.sight import servers_in_sight
from comity.wire.errors import MalformedMessage
from comity.wire.grants import CALL, Effect, Forbid, Grant
from comity.wire.parties import NOBODY, Actor

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")
READ = ("files", "read")
WHERE: dict[str, Any] = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
STANDING = Grant("agent:ci", CALL, "files/read", Effect.ALLOW, where=WHERE)
ASK = Grant("agent:ci", CALL, "files/*", Effect.ASK)
INSIDE, OUTSIDE = {"path": "/project/a"}, {"path": "/etc/passwd"}


def _answer(
    *grants: Grant, actor: Actor = CI, arguments: object = INSIDE, decided: Decided | None = None
) -> Grant | None:
    access = Access.of(grants, decided or Decided())
    return access.standing_answer(actor, READ, arguments, "d1", NOW)


def test_a_call_that_it_covers_is_answered() -> None:
    assert _answer(STANDING, ASK) is STANDING
    assert _answer(STANDING, ASK, arguments=OUTSIDE) is None


def test_it_can_be_for_everybody_who_is_known() -> None:
    everybody = replace(STANDING, subject="*")
    assert _answer(everybody, ASK) is everybody
    assert _answer(everybody, replace(ASK, subject="*"), actor=NOBODY) is None


@pytest.mark.parametrize(
    "standing",
    [
        replace(STANDING, subject="agent:other"),
        replace(STANDING, target="files/write"),
        replace(STANDING, target="files/*"),
        replace(STANDING, target="*/read"),
        replace(STANDING, target="*"),
        replace(STANDING, verb="*"),
        replace(STANDING, verb="tools/*"),
        replace(STANDING, effect=Effect.ASK),
        replace(STANDING, effect=Effect.DENY),
        replace(STANDING, expires_at=NOW),
        replace(STANDING, where={}),
        replace(STANDING, where={"paths": {}, "only": []}),
        replace(STANDING, where={**WHERE, "definition": "d0"}),
    ],
)
def test_any_other_is_no_answer_and_no_entry_either(standing: Grant) -> None:
    assert _answer(standing, ASK) is None
    assert Access.of([standing]).judge(CI, CALL, *READ, NOW).effect is Effect.DENY
    assert Access.of([standing, ASK]).judge(CI, CALL, *READ, NOW).grant is ASK


def test_one_that_is_bound_to_a_definition_holds_for_that_one() -> None:
    bound = replace(STANDING, where={**WHERE, "definition": "d1"})
    assert _answer(bound, ASK) is bound


def test_it_never_allows_what_is_denied() -> None:
    assert _answer(STANDING) is None
    assert _answer(STANDING, replace(ASK, effect=Effect.DENY)) is None
    assert _answer(STANDING, ASK, Grant("*", CALL, "files/read", Effect.DENY)) is None
    forbidden = Decided(forbids=(Forbid("agent:*", CALL, "files/*"),))
    assert _answer(STANDING, ASK, decided=forbidden) is None
    assert _answer(STANDING, ASK, actor=replace(CI, permissions=(("tools/call", "web/*"),))) is None


def test_it_does_not_make_a_server_known() -> None:
    access = Access.of([STANDING])
    assert servers_in_sight(access, CI) == set()
    assert access.with_decided(Decided(default=DefaultPolicy.OPT_IN)).entries("agent:ci").answers


def test_several_for_one_tool_are_each_looked_at() -> None:
    other = replace(STANDING, where={"paths": {"/path": {"is": "/etc/passwd"}}, "only": ["path"]})
    assert _answer(STANDING, other, ASK, arguments=OUTSIDE) is other


def test_it_is_named_in_an_explanation_by_what_it_is() -> None:
    found = explain(Access.of([STANDING, ASK]), CI, CALL, READ, NOW)
    assert {each.part for each in found.considered} == {Part.DECIDES, Part.STANDING}
    past = replace(STANDING, expires_at=NOW - timedelta(days=1))
    found = explain(Access.of([past, ASK]), CI, CALL, READ, NOW)
    assert {each.part for each in found.considered} == {Part.DECIDES, Part.EXPIRED}


def test_each_condition_makes_a_record_of_its_own_and_none_the_plain_ones() -> None:
    plain, one = keeping.grant(replace(STANDING, where=None)), keeping.grant(STANDING)
    turned = {name: WHERE[name] for name in reversed(WHERE)}
    other = keeping.grant(replace(STANDING, where={**WHERE, "definition": "d1"}))
    assert len({plain.id, one.id, other.id}) == 3
    assert keeping.grant(replace(STANDING, where=turned)).id == one.id
    assert plain.id == keeping.grant_id("agent:ci", CALL, "files/read")


@pytest.mark.parametrize(
    "grant",
    [
        replace(STANDING, target="files/*"),
        replace(STANDING, target="*"),
        replace(STANDING, verb="prompts/get"),
        replace(STANDING, effect=Effect.DENY),
        replace(STANDING, where={"paths": {"/path": {"under": "/"}}, "only": ["path"]}),
        replace(STANDING, where={"paths": {"/path": {"is": "\ud800"}}, "only": ["path"]}),
    ],
)
def test_what_could_not_be_an_answer_is_refused_before_it_is_kept(grant: Grant) -> None:
    for refuse in (granting.condition, keeping.grant):
        with pytest.raises(MalformedMessage):
            refuse(grant)
