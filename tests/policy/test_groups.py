"""Grants and guardrails that name groups: which of several grants decides, and for whom."""

import itertools
from datetime import UTC, datetime

import pytest

from comity.mcp.actors import ANONYMOUS, CALL, Actor
from comity.policy import grants
from comity.policy.explanations import EntryRole, explain_decision
from comity.policy.grants import DefaultPolicy, Effect, Grant, GrantSet, Guardrail, StaticRules
from comity.policy.snapshot import GrantSnapshot
from comity.policy.visibility import can_know_server, server_visibility, visible_servers
from tests.support.cases import loop_over

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
ALLOW, ASKS, DENY = Effect.ALLOW, Effect.ASK, Effect.DENY
ANA = Actor("person:ana", groups=("on call", "sre"))


def grant(subject: str, effect: Effect, target: str = "files/read", verb: str = CALL) -> Grant:
    return Grant(subject, verb, target, effect)


def effect_of(access: GrantSet, actor: Actor = ANA, target: str = "files/read") -> Effect:
    server, _, name = target.partition("/")
    return access.authorize(actor, CALL, server, name, NOW).effect


@loop_over("effect", [ALLOW, ASKS, DENY])
def test_a_grant_of_a_group_decides_for_its_members(effect: Effect) -> None:
    access = GrantSet.from_grants(
        [grant("group:sre", effect)], StaticRules(default=DefaultPolicy.ALLOW)
    )
    assert effect_of(access) is effect
    assert effect_of(access, Actor("person:ana", groups=("qa",))) is ALLOW
    assert effect_of(access, Actor("person:ana")) is ALLOW


def test_the_strictest_of_own_group_and_common_grants_applies() -> None:
    subjects = ("person:ana", "group:sre", "group:on call", "*")
    for effects in itertools.product((None, ALLOW, ASKS, DENY), repeat=len(subjects)):
        given = [
            grant(subject, effect)
            for subject, effect in zip(subjects, effects, strict=True)
            if effect is not None
        ]
        found = [each.effect for each in given]
        strictest = max(found, key=grants.STRICTNESS_BY_EFFECT.__getitem__, default=DENY)
        for order in (given, given[::-1]):
            assert effect_of(GrantSet.from_grants(order)) is strictest


def test_a_more_specific_grant_of_a_group_wins_over_a_wider_own_grant() -> None:
    access = GrantSet.from_grants(
        [grant("person:ana", DENY, "files/*"), grant("group:sre", ALLOW, "files/read")]
    )
    assert effect_of(access) is ALLOW
    assert effect_of(access, target="files/write") is DENY


@loop_over(
    "group",
    [
        "SRE",
        "Sre",
        " sre",
        "sre ",
        "\u0455re",
        "sre\u200b",
        "\u017fre",
        "*",
        "s*",
        "group:sre",
        "person:ana",
    ],
)
def test_a_name_that_looks_alike_is_another_group(group: str) -> None:
    access = GrantSet.from_grants([grant("group:sre", ALLOW), grant("person:ana", ALLOW)])
    assert effect_of(access, Actor("person:eve", groups=(group,))) is DENY


def test_both_forms_of_a_character_name_one_group() -> None:
    subject = grants.parse_subject("group:sre\u0301")
    access = GrantSet.from_grants([grant(subject, ALLOW)])
    assert effect_of(access, Actor("person:ana", groups=("sr\u00e9",))) is ALLOW


def test_a_principal_without_an_id_has_no_groups() -> None:
    access = GrantSet.from_grants([grant("group:sre", ALLOW)])
    assert effect_of(access, Actor("", groups=("sre",))) is DENY
    assert effect_of(access, ANONYMOUS) is DENY


@loop_over("subject", ["group:sre", "group:*", "*", "*:sre"])
def test_a_guardrail_denies_the_members_of_a_group(subject: str) -> None:
    guardrail = Guardrail(subject, CALL, "files/*", "incident 7")
    rules = StaticRules(guardrails=(guardrail,))
    access = GrantSet.from_grants([grant("person:ana", ALLOW), grant("group:sre", ALLOW)], rules)
    assert access.authorize(ANA, CALL, "files", "read", NOW).guardrail is guardrail
    assert not can_know_server(access, ANA, "files", NOW)
    other = effect_of(access, Actor("person:ana", groups=("qa",)))
    assert other is (DENY if subject in ("*", "group:*") else ALLOW)


def test_a_member_sees_the_servers_of_its_groups() -> None:
    access = GrantSet.from_grants(
        [grant("group:sre", ALLOW), grant("group:on call", ALLOW, "mail/*")]
    )
    assert visible_servers(access, ANA) == {"files", "mail"}
    assert visible_servers(access, Actor("person:ana")) == set()
    assert server_visibility(access, ANA, CALL, "mail", NOW).is_visible_by_default
    assert can_know_server(access, ANA, "files", NOW)
    assert not can_know_server(access, Actor("person:ana"), "files", NOW)


def test_a_standing_answer_of_a_group_covers_its_members() -> None:
    where = {"paths": {"/path": {"is": "/a"}}, "only": ["path"]}
    conditional = Grant("group:sre", CALL, "files/read", ALLOW, where=where)
    access = GrantSet.from_grants([conditional, grant("group:sre", ASKS)])
    arguments, place = {"path": "/a"}, ("files", "read")
    assert access.standing_answer(ANA, place, arguments, "", NOW) is conditional
    assert access.standing_answer(Actor("person:ana"), place, arguments, "", NOW) is None


def test_a_cached_decision_is_never_shared_between_different_groups() -> None:
    snapshot = GrantSnapshot(GrantSet.from_grants([grant("group:sre", ALLOW)]))
    for _ in range(2):
        assert snapshot.authorize(ANA, CALL, "files", "read").effect is ALLOW
        assert snapshot.authorize(Actor("person:ana"), CALL, "files", "read").effect is DENY
        other = Actor("person:ana", groups=("qa",))
        assert snapshot.authorize(other, CALL, "files", "read").effect is DENY


def test_a_grant_of_a_group_that_expires_is_not_cached() -> None:
    now = NOW
    ends = Grant("group:sre", CALL, "files/read", ALLOW, expires_at=NOW.replace(hour=13))
    snapshot = GrantSnapshot(GrantSet.from_grants([ends]), lambda: now)
    assert not snapshot.never_expires(ANA, "files", "read")
    holds = snapshot.visibility_check(ANA)
    assert snapshot.authorize(ANA, CALL, "files", "read").effect is ALLOW
    assert holds()
    now = NOW.replace(hour=14)
    assert snapshot.authorize(ANA, CALL, "files", "read").effect is DENY
    assert not holds()


def test_the_explanation_names_the_group_that_decides() -> None:
    access = GrantSet.from_grants([grant("person:ana", ALLOW), grant("group:sre", DENY)])
    found = explain_decision(access, ANA, CALL, ("files", "read"), NOW)
    assert "says deny for group:sre" in found.sentence
    assert [(each.grant.subject, each.role) for each in found.considered] == [
        ("group:sre", EntryRole.DECIDES),
        ("person:ana", EntryRole.LESS_STRICT),
    ]


@pytest.mark.parametrize("subject", ["group:*", "group:s*"])
def test_a_grant_names_no_pattern_of_groups(subject: str) -> None:
    with pytest.raises(grants.MalformedMessage, match="group:sre"):
        grants.parse_subject(subject)
