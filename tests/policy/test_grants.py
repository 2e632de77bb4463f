"""How grants decide: patterns, specificity, guardrails, standing answers and explanations."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp.actors import ANONYMOUS, CALL, LOCAL, Actor
from comity.policy import grants
from comity.policy.explanations import EntryRole, explain_decision
from comity.policy.grants import (
    Decision,
    DefaultPolicy,
    Effect,
    Grant,
    GrantSet,
    GrantSource,
    Guardrail,
    StaticRules,
    TargetSpecificity,
    is_pattern_match,
    target_covers,
)
from comity.policy.visibility import visible_servers
from tests.pace import here
from tests.support import oracle
from tests.support.cases import loop_over
from tests.support.principals import INVISIBLE_NAMES

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")
ALLOW, ASKS, DENY = Effect.ALLOW, Effect.ASK, Effect.DENY
INVISIBLE = [f"{prefix}:{name}" for prefix in ("person", "group") for name in INVISIBLE_NAMES]
OPT_OUT = StaticRules(default=DefaultPolicy.ALLOW)


def grant(
    target: str, effect: Effect = ALLOW, subject: str = "agent:ci", verb: str = CALL
) -> Grant:
    return Grant(subject, verb, target, effect)


def judged(access: GrantSet, target: str, actor: Actor = CI, verb: str = CALL) -> Decision:
    server, _, name = target.partition("/")
    return access.authorize(actor, verb, server, name, NOW)


@loop_over(
    ("entries", "effect", "level"),
    [
        ([("files/read", ALLOW), ("files/*", DENY), ("*", DENY)], ALLOW, TargetSpecificity.OFFER),
        ([("files/read", DENY), ("files/*", ALLOW), ("*", ALLOW)], DENY, TargetSpecificity.OFFER),
        ([("files/*", ASKS), ("*", ALLOW)], ASKS, TargetSpecificity.SERVER),
        ([("files/re*", DENY), ("files/*", ALLOW)], DENY, TargetSpecificity.SERVER),
        ([("files/re*", ALLOW), ("files/*", ASKS)], ASKS, TargetSpecificity.SERVER),
        ([("*/read", ALLOW)], ALLOW, TargetSpecificity.EVERYTHING),
        ([("*/read", ALLOW), ("*", DENY)], DENY, TargetSpecificity.EVERYTHING),
        ([("fi*/read", DENY), ("files/*", ALLOW)], ALLOW, TargetSpecificity.SERVER),
    ],
)
def test_the_most_specific_level_counts_alone_and_in_it_the_strictest(
    entries: list[tuple[str, Effect]], effect: Effect, level: TargetSpecificity
) -> None:
    found = judged(GrantSet.from_grants(grant(*each) for each in entries), "files/read")
    assert (found.effect, found.level) == (effect, level)


def test_a_guardrail_denies_whatever_was_granted() -> None:
    decided = StaticRules(
        guardrails=(Guardrail("agent:*", "tools/*", "files/delete*", "it is gone then"),)
    )
    access = GrantSet.from_grants([grant("files/delete_all"), grant("files/*")], decided)
    found = judged(access, "files/delete_all")
    assert (found.effect, found.source) == (DENY, "guardrail")
    assert found.guardrail is not None
    assert found.guardrail.why == "it is gone then"
    assert judged(access, "files/read").effect is ALLOW
    person = Actor("person:ana")
    open_to_her = access.with_subjects({"person:ana": [grant("*", subject="person:ana")]})
    assert judged(open_to_her, "files/delete_all", person).effect is ALLOW


def test_a_bounded_credential_may_do_no_more_than_its_bounds_and_its_party() -> None:
    access = GrantSet.from_grants([grant("files/*")])
    bounded = replace(CI, permissions=((CALL, "*/read"), (CALL, "web/*")))
    assert judged(access, "files/read", bounded).effect is ALLOW
    assert judged(access, "files/write", bounded).reason == "credential"
    assert judged(access, "web/get", bounded).effect is DENY
    assert judged(access, "files/read", replace(CI, permissions=())).effect is DENY


def test_without_an_entry_the_default_policy_of_the_server_decides() -> None:
    decided = StaticRules(policies={"web": DefaultPolicy.ALLOW})
    access = GrantSet.from_grants([grant("web/delete", DENY)], decided)
    assert judged(access, "files/read").reason == "default deny"
    found = judged(access, "web/get")
    assert (found.effect, found.source) == (ALLOW, "default_policy")
    assert judged(access, "web/delete").effect is DENY


@loop_over("verb", ["admin/read", "admin/write", "approval/answer", "perm"])
def test_no_default_policy_opens_what_is_the_gateways_own(verb: str) -> None:
    assert judged(GrantSet.from_grants([], OPT_OUT), "files/x", verb=verb).effect is DENY


@loop_over(
    ("target", "source"),
    [("files/read", "tool_grant"), ("files/*", "server_grant"), ("*", "server_grant")],
)
def test_a_judgement_names_its_source_in_the_words_of_mgp(target: str, source: str) -> None:
    assert judged(GrantSet.from_grants([grant(target)]), "files/read").source == source


def test_records_and_what_an_operator_wrote_stand_beside_each_other() -> None:
    fixed = replace(grant("files/*", DENY), source=GrantSource.FILE)
    access = GrantSet.from_grants([grant("files/*")], StaticRules((fixed,)))
    assert judged(access, "files/read").grant == fixed
    emptied = access.with_subjects({"agent:ci": []})
    assert judged(emptied, "files/read").grant == fixed
    without = access.with_static_rules(StaticRules())
    assert judged(without, "files/read").effect is ALLOW
    assert emptied.with_static_rules(StaticRules()).subjects == {}


@loop_over("verb", ["admin/read", "admin/write", "approval/answer", "approval/answer_own"])
def test_what_a_credential_excludes_is_denied_whatever_was_granted(verb: str) -> None:
    access = GrantSet.from_grants(
        [grant("*", subject=LOCAL.party, verb="*"), grant("*", verb=verb)]
    )
    assert judged(access, "any/thing", LOCAL, verb).reason == "credential"
    assert judged(access, "any/thing", LOCAL, "tools/call").effect is ALLOW


TEXTS = st.text("ab*/", max_size=8)


@given(TEXTS, TEXTS)
def test_a_pattern_covers_what_the_same_regular_expression_would(pattern: str, text: str) -> None:
    assert is_pattern_match(pattern, text) is oracle.fits(pattern, text)


@given(TEXTS, TEXTS, TEXTS)
def test_a_target_covers_an_offer_part_by_part(target: str, server: str, name: str) -> None:
    assert target_covers(target, server, name) is oracle.target_fits(target, server, name)


def test_a_hostile_name_does_not_make_a_pattern_slow() -> None:
    began = time.process_time()
    assert not is_pattern_match("*a*a*a*a*a*a*b", "a" * 8192)
    assert not is_pattern_match("*aab*aab*aab*c", "aab" * 2730)
    assert time.process_time() - began < here(0.1)


parse_permission = partial(grants.parse_target, verb="perm")


@loop_over(
    ("parse", "written", "kept"),
    [
        (grants.parse_target, "files", "files/*"),
        (grants.parse_target, "files/*", "files/*"),
        (grants.parse_target, "files/read", "files/read"),
        (grants.parse_target, "files__read", "files/read"),
        (grants.parse_target, "files__read__all", "files/read__all"),
        (grants.parse_target, "files/read__all", "files/read__all"),
        (grants.parse_target, "*", "*"),
        (grants.parse_target, "*/*", "*"),
        (grants.parse_target, "*/search", "*/search"),
        (grants.parse_target, "team.*/read_*", "team.*/read_*"),
        (grants.parse_target, "files/file:///docs/a b", "files/file:///docs/a b"),
        *(
            (parse_permission, each, each)
            for each in ("network.outbound", "*", "com.example.thing", "filesystem.*")
        ),
        *(
            (grants.parse_subject, each, each)
            for each in ("agent:ci", "*", "person:ana@example.org", "agent.x", "A b")
        ),
        (grants.parse_subject_pattern, "agent:*", "agent:*"),
        *(
            (grants.parse_verb, each, each)
            for each in ("tools/call", "*", "tools/*", "perm", "admin/write", "a.b/c")
        ),
    ],
)
def test_part_of_a_grant_is_kept_in_one_form(
    parse: Callable[[str], str], written: str, kept: str
) -> None:
    assert parse(written) == kept
    assert parse(kept) == kept


@loop_over(
    ("parse", "texts"),
    [
        (
            grants.parse_target,
            ["", "/", "files/", "/read", " files", "fi les/read", "\u00fcnder/x"],
        ),
        (grants.parse_target, ["__x", "files__", "a" * 65, "files/a\0b", "f" * 1001, "files/\n"]),
        (grants.parse_target, ["-x/y", "a/" + "*a" * 9, "f/\ud800"]),
        (parse_permission, ["", " x", "x ", "a\tb"]),
        (grants.parse_subject, ["", "agent:*", "**", " x", "x\n", "a" * 257, "\x85", *INVISIBLE]),
        (grants.parse_subject_pattern, ["*a" * 9, *INVISIBLE]),
        (grants.parse_verb, ["", "tools/", "/call", "*/list", "to*", "tools/*/x", "a b"]),
        (grants.parse_verb, ["tools//x", "x" * 129]),
    ],
)
def test_malformed_part_of_a_grant_is_refused(
    parse: Callable[[str], str], texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(MalformedMessage) as refused:
            parse(text)
        assert refused.value.fault is INVALID_PARAMS, text


@given(st.text(max_size=40))
def test_whatever_is_accepted_stays_as_it_is_kept(written: str) -> None:
    for read in (grants.parse_target, grants.parse_subject, grants.parse_verb):
        try:
            kept = read(written)
        except MalformedMessage:
            continue
        assert read(kept) == kept


READ = ("files", "read")


def entry(target: str, effect: Effect = Effect.ALLOW, subject: str = "agent:ci") -> Grant:
    return Grant(subject, CALL, target, effect)


def test_every_entry_that_was_considered_is_named_with_its_part() -> None:
    past = replace(entry("files/read", Effect.DENY), expires_at=NOW - timedelta(days=1))
    entries = [
        entry("*"),
        entry("files/*", Effect.ASK),
        entry("files/re*"),
        past,
        entry("web/*"),
        entry("files/*", Effect.DENY, "agent:other"),
    ]
    found = explain_decision(GrantSet.from_grants(entries), CI, CALL, READ, NOW)
    assert found.decision.effect is Effect.ASK
    parts = {(each.grant.target, each.role) for each in found.considered}
    assert parts == {
        ("files/read", EntryRole.EXPIRED),
        ("files/*", EntryRole.DECIDES),
        ("files/re*", EntryRole.LESS_STRICT),
        ("*", EntryRole.LESS_SPECIFIC),
    }
    assert found.considered[0].grant is past


def test_a_sentence_says_who_may_do_what_and_by_whom() -> None:
    granted = replace(
        entry("files/*", subject="*"),
        granted_by="person:ana",
        justification="the build",
        expires_at=NOW + timedelta(days=1),
    )
    assert explain_decision(GrantSet.from_grants([granted]), CI, CALL, READ, NOW).sentence == (
        "agent:ci may call files/read: an entry about its server (files/*) says allow for "
        "everybody, by person:ana, until 2026-11-16 12:00 UTC (the build)."
    )


def test_a_guardrail_and_a_bounded_credential_override_every_entry() -> None:
    decided = StaticRules(guardrails=(Guardrail("agent:*", "*", "files/*"),))
    forbidden = explain_decision(
        GrantSet.from_grants([entry("files/read")], decided), CI, CALL, READ, NOW
    )
    assert forbidden.sentence == (
        "agent:ci may not call files/read: a guardrail forbids * on files/* to agent:*, and "
        "nothing overrides it."
    )
    assert [each.role for each in forbidden.considered] == [EntryRole.OVERRIDDEN]
    bounded = replace(CI, permissions=((CALL, "web/*"),))
    found = explain_decision(GrantSet.from_grants([entry("files/read")]), bounded, CALL, READ, NOW)
    assert found.sentence.endswith("bounded, and this is outside of its bounds.")


def test_explanation_names_the_default_and_the_need_of_approval() -> None:
    said = explain_decision(GrantSet(), CI, "resources/read", ("files", "x:y"), NOW).sentence
    assert said == (
        "agent:ci may not read files/x:y: no entry is about it, and the default policy of files "
        "is deny."
    )
    nobody = explain_decision(GrantSet(), ANONYMOUS, "admin/write", ("", ""), NOW).sentence
    assert nobody.startswith("an unauthenticated client may not do admin/write on *")
    asks = GrantSet.from_grants([entry("files/read", Effect.ASK)])
    said = explain_decision(asks, CI, CALL, READ, NOW).sentence
    assert said.startswith("agent:ci may, after approval, call files/read")


WHERE: dict[str, Any] = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
STANDING = Grant("agent:ci", CALL, "files/read", Effect.ALLOW, where=WHERE)
ASK = Grant("agent:ci", CALL, "files/*", Effect.ASK)
INSIDE, OUTSIDE = {"path": "/project/a"}, {"path": "/etc/passwd"}


def standing_answer(
    *grants: Grant,
    actor: Actor = CI,
    arguments: object = INSIDE,
    decided: StaticRules | None = None,
) -> Grant | None:
    access = GrantSet.from_grants(grants, decided or StaticRules())
    return access.standing_answer(actor, READ, arguments, "d1", NOW)


def test_standing_answer_covers_calls_that_meet_its_condition() -> None:
    assert standing_answer(STANDING, ASK) is STANDING
    assert standing_answer(STANDING, ASK, arguments=OUTSIDE) is None
    everybody = replace(STANDING, subject="*")
    assert standing_answer(everybody, ASK) is everybody
    assert standing_answer(everybody, replace(ASK, subject="*"), actor=ANONYMOUS) is None
    bound = replace(STANDING, where={**WHERE, "definition": "d1"})
    assert standing_answer(bound, ASK) is bound
    other = replace(STANDING, where={"paths": {"/path": {"is": "/etc/passwd"}}, "only": ["path"]})
    assert standing_answer(STANDING, other, ASK, arguments=OUTSIDE) is other


@loop_over(
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
    assert standing_answer(standing, ASK) is None
    assert GrantSet.from_grants([standing]).authorize(CI, CALL, *READ, NOW).effect is Effect.DENY
    assert GrantSet.from_grants([standing, ASK]).authorize(CI, CALL, *READ, NOW).grant is ASK


def test_it_never_allows_what_is_denied() -> None:
    assert standing_answer(STANDING) is None
    assert standing_answer(STANDING, replace(ASK, effect=Effect.DENY)) is None
    assert standing_answer(STANDING, ASK, Grant("*", CALL, "files/read", Effect.DENY)) is None
    forbidden = StaticRules(guardrails=(Guardrail("agent:*", CALL, "files/*"),))
    assert standing_answer(STANDING, ASK, decided=forbidden) is None
    assert (
        standing_answer(STANDING, ASK, actor=replace(CI, permissions=(("tools/call", "web/*"),)))
        is None
    )


def test_it_does_not_make_a_server_known() -> None:
    access = GrantSet.from_grants([STANDING])
    assert visible_servers(access, CI) == set()
    assert (
        access.with_static_rules(StaticRules(default=DefaultPolicy.DENY))
        .index_of("agent:ci")
        .standing_answers
    )


def test_it_is_named_in_an_explanation_by_what_it_is() -> None:
    found = explain_decision(GrantSet.from_grants([STANDING, ASK]), CI, CALL, READ, NOW)
    assert {each.role for each in found.considered} == {EntryRole.DECIDES, EntryRole.STANDING}
    past = replace(STANDING, expires_at=NOW - timedelta(days=1))
    found = explain_decision(GrantSet.from_grants([past, ASK]), CI, CALL, READ, NOW)
    assert {each.role for each in found.considered} == {EntryRole.DECIDES, EntryRole.EXPIRED}


def test_each_condition_makes_a_record_of_its_own_and_none_the_plain_ones() -> None:
    plain, one = (
        grants.checked_grant(replace(STANDING, where=None)),
        grants.checked_grant(STANDING),
    )
    turned = {name: WHERE[name] for name in reversed(WHERE)}
    other = grants.checked_grant(replace(STANDING, where={**WHERE, "definition": "d1"}))
    assert len({plain.id, one.id, other.id}) == 3
    assert grants.checked_grant(replace(STANDING, where=turned)).id == one.id
    assert plain.id == grants.grant_id("agent:ci", CALL, "files/read")


@loop_over(
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
    for refuse in (grants.normalise_condition, grants.checked_grant):
        with pytest.raises(MalformedMessage):
            refuse(grant)
