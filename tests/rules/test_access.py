"""Who may do what, rule by rule."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.access import Access, Decided, DefaultPolicy, Judgement
from comity.rules.patterns import Level
from comity.wire.grants import CALL, Effect, Forbid, Grant, Source
from comity.wire.parties import LOCAL, LOCAL_OPERATOR, NOBODY, Actor

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")
ALLOW, ASK, DENY = Effect.ALLOW, Effect.ASK, Effect.DENY
OPT_OUT = Decided(default=DefaultPolicy.OPT_OUT)


def grant(
    target: str, effect: Effect = ALLOW, subject: str = "agent:ci", verb: str = CALL
) -> Grant:
    return Grant(subject, verb, target, effect)


def judged(access: Access, target: str, actor: Actor = CI, verb: str = CALL) -> Judgement:
    server, _, name = target.partition("/")
    return access.judge(actor, verb, server, name, NOW)


@pytest.mark.parametrize(
    ("entries", "effect", "level"),
    [
        ([("files/read", ALLOW), ("files/*", DENY), ("*", DENY)], ALLOW, Level.OFFER),
        ([("files/read", DENY), ("files/*", ALLOW), ("*", ALLOW)], DENY, Level.OFFER),
        ([("files/*", ASK), ("*", ALLOW)], ASK, Level.SERVER),
        ([("files/re*", DENY), ("files/*", ALLOW)], DENY, Level.SERVER),
        ([("files/re*", ALLOW), ("files/*", ASK)], ASK, Level.SERVER),
        ([("*/read", ALLOW)], ALLOW, Level.EVERYTHING),
        ([("*/read", ALLOW), ("*", DENY)], DENY, Level.EVERYTHING),
        ([("fi*/read", DENY), ("files/*", ALLOW)], ALLOW, Level.SERVER),
    ],
)
def test_the_most_specific_level_counts_alone_and_in_it_the_strictest(
    entries: list[tuple[str, Effect]], effect: Effect, level: Level
) -> None:
    found = judged(Access.of(grant(*each) for each in entries), "files/read")
    assert (found.effect, found.level) == (effect, level)


def test_what_has_expired_is_not_there() -> None:
    soon = replace(grant("files/read", DENY), expires_at=NOW + timedelta(microseconds=1))
    past = replace(grant("files/read", DENY), expires_at=NOW)
    assert judged(Access.of([soon, grant("files/*")]), "files/read").effect is DENY
    assert judged(Access.of([past, grant("files/*")]), "files/read").effect is ALLOW


def test_a_grant_is_for_its_subject_and_its_verb_alone() -> None:
    access = Access.of([grant("files/*")])
    assert judged(access, "files/read").effect is ALLOW
    assert judged(access, "files/read", Actor("agent:other")).effect is DENY
    assert judged(access, "files/read", verb="prompts/get").effect is DENY
    assert judged(access, "web/read").effect is DENY


def test_a_grant_to_everybody_counts_beside_ones_own_and_never_for_nobody() -> None:
    access = Access.of([grant("files/*", subject="*"), grant("files/*", DENY)])
    assert judged(access, "files/read").effect is DENY
    assert judged(access, "files/read", Actor("agent:other")).effect is ALLOW
    assert judged(access, "files/read", NOBODY).effect is DENY
    assert judged(Access.of([], OPT_OUT), "files/read", NOBODY).effect is DENY


def test_a_guardrail_denies_whatever_was_granted() -> None:
    decided = Decided(forbids=(Forbid("agent:*", "tools/*", "files/delete*", "it is gone then"),))
    access = Access.of([grant("files/delete_all"), grant("files/*")], decided)
    found = judged(access, "files/delete_all")
    assert (found.effect, found.source) == (DENY, "guardrail")
    assert found.forbid is not None
    assert found.forbid.why == "it is gone then"
    assert judged(access, "files/read").effect is ALLOW
    person = Actor("person:ana")
    open_to_her = access.with_subjects({"person:ana": [grant("*", subject="person:ana")]})
    assert judged(open_to_her, "files/delete_all", person).effect is ALLOW


def test_a_bounded_credential_may_do_no_more_than_its_bounds_and_its_party() -> None:
    access = Access.of([grant("files/*")])
    bounded = replace(CI, permissions=((CALL, "*/read"), (CALL, "web/*")))
    assert judged(access, "files/read", bounded).effect is ALLOW
    assert judged(access, "files/write", bounded).because == "credential"
    assert judged(access, "web/get", bounded).effect is DENY
    assert judged(access, "files/read", replace(CI, permissions=())).effect is DENY


def test_without_an_entry_the_default_policy_of_the_server_decides() -> None:
    decided = Decided(policies={"web": DefaultPolicy.OPT_OUT})
    access = Access.of([grant("web/delete", DENY)], decided)
    assert judged(access, "files/read").because == "default opt-in"
    found = judged(access, "web/get")
    assert (found.effect, found.source) == (ALLOW, "default_policy")
    assert judged(access, "web/delete").effect is DENY


@pytest.mark.parametrize("verb", ["admin/read", "admin/write", "ask/answer", "perm"])
def test_no_default_policy_opens_what_is_the_gateways_own(verb: str) -> None:
    assert judged(Access.of([], OPT_OUT), "files/x", verb=verb).effect is DENY


@pytest.mark.parametrize(
    ("target", "source"),
    [("files/read", "tool_grant"), ("files/*", "server_grant"), ("*", "server_grant")],
)
def test_a_judgement_names_its_source_in_the_words_of_mgp(target: str, source: str) -> None:
    assert judged(Access.of([grant(target)]), "files/read").source == source


def test_records_and_what_an_operator_wrote_stand_beside_each_other() -> None:
    fixed = replace(grant("files/*", DENY), source=Source.FILE)
    access = Access.of([grant("files/*")], Decided((fixed,)))
    assert judged(access, "files/read").grant == fixed
    emptied = access.with_subjects({"agent:ci": []})
    assert judged(emptied, "files/read").grant == fixed
    without = access.with_decided(Decided())
    assert judged(without, "files/read").effect is ALLOW
    assert emptied.with_decided(Decided()).subjects == {}


def test_whoever_is_granted_everything_may_do_everything() -> None:
    access = Access.of([grant("*", subject=LOCAL.party, verb="*")])
    for verb in ("tools/call", "admin/write", "tasks/get"):
        assert judged(access, "any/thing", LOCAL_OPERATOR, verb).effect is ALLOW


@pytest.mark.parametrize("verb", ["admin/read", "admin/write", "ask/answer", "ask/answer_own"])
def test_what_a_credential_excludes_is_denied_whatever_was_granted(verb: str) -> None:
    access = Access.of([grant("*", subject=LOCAL.party, verb="*"), grant("*", verb=verb)])
    assert judged(access, "any/thing", LOCAL, verb).because == "credential"
    assert judged(access, "any/thing", LOCAL, "tools/call").effect is ALLOW
