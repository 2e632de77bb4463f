"""Permissions: their names and risks, and who decides about each."""

from datetime import UTC, datetime

import pytest

from comity.rules.access import Judgement
from comity.rules.permissions import (
    MEANINGS,
    STANDARD,
    ApprovalPolicy,
    Decided,
    decide,
    full_names,
    is_custom,
    is_known,
    is_writable,
    meaning_of,
    risk_of,
)
from comity.wire.grants import PERMISSION, Effect, Forbid, Grant, Source
from comity.wire.security import Decision, Risk

SOON = datetime(2030, 1, 1, tzinfo=UTC)


def test_an_alias_stands_for_what_the_table_calls_it() -> None:
    assert full_names(["shell", "filesystem", "camera", "shell.execute"]) == (
        "shell.execute",
        "filesystem.read",
        "filesystem.write",
        "camera",
    )


@pytest.mark.parametrize("name", ["com.example.custom_permission", "org.acme.x", "io.x-y.Z9.a"])
def test_a_reverse_domain_is_somebodys_own(name: str) -> None:
    assert is_custom(name)
    assert is_known(name)
    assert risk_of(name) is Risk.DANGEROUS


@pytest.mark.parametrize(
    "name",
    [
        "root",
        "filesystem.delete",
        "filesystem.write.all",
        "shell.execute.safe",
        "com.example",
        "Com.Example.X",
        "com..x",
        "com.example.x y",
        "",
        "сom.example.x",  # noqa: RUF001  # the first letter is Cyrillic
    ],
)
def test_a_name_that_nobody_knows_is_nobodys(name: str) -> None:
    assert not is_known(name)
    assert risk_of(name) is Risk.DANGEROUS
    found = decide(name, None, ApprovalPolicy.AUTO_APPROVE, ())
    assert found.decision is Decision.DEFERRED


@pytest.mark.parametrize("name", ["a*", "a/b", "a b", "a\n", "", "x" * 201, "ä"])
def test_what_would_mean_more_than_itself_in_a_grant_cannot_stand_there(name: str) -> None:
    assert not is_writable(name)


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize(
    ("policy", "listed", "expected"),
    [
        (ApprovalPolicy.INTERACTIVE, False, Decision.DEFERRED),
        (ApprovalPolicy.INTERACTIVE, True, Decision.APPROVED),
        (ApprovalPolicy.AUTO_APPROVE, False, Decision.APPROVED),
        (ApprovalPolicy.DENY_ALL, False, Decision.DENIED),
        (ApprovalPolicy.DENY_ALL, True, Decision.APPROVED),
        (ApprovalPolicy.CONFIG_ONLY, False, Decision.DENIED),
        (ApprovalPolicy.CONFIG_ONLY, True, Decision.APPROVED),
    ],
)
def test_without_a_word_the_policy_decides(
    name: str, policy: ApprovalPolicy, listed: bool, expected: Decision
) -> None:
    silent = Judgement(Effect.DENY, "default opt-in")
    for judged in (None, silent):
        found = decide(name, judged, policy, (name,) if listed else ())
        assert found.decision is expected


def judged(effect: Effect, verb: str = PERMISSION, **rest: object) -> Judgement:
    grant = Grant("server:a", verb, "camera", effect, **rest)  # type: ignore[arg-type]
    return Judgement(effect, "granted", grant)


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (Effect.ALLOW, Decision.APPROVED),
        (Effect.ASK, Decision.DEFERRED),
        (Effect.DENY, Decision.DENIED),
    ],
)
@pytest.mark.parametrize("policy", list(ApprovalPolicy))
def test_what_an_operator_wrote_down_decides(
    effect: Effect, expected: Decision, policy: ApprovalPolicy
) -> None:
    written = judged(effect, granted_by="person:ana", justification="why", expires_at=SOON)
    found = decide("camera", written, policy, ("camera",))
    assert found == Decided(expected, "person:ana", "why", SOON)


def test_an_entry_without_a_name_is_its_sources() -> None:
    found = decide("camera", judged(Effect.ALLOW, source=Source.FILE), ApprovalPolicy.DENY_ALL, ())
    assert (found.by, found.decision) == ("file", Decision.APPROVED)


def test_who_may_do_everything_has_given_no_server_anything() -> None:
    for verb in ("*", "tools/*"):
        found = decide("camera", judged(Effect.ALLOW, verb), ApprovalPolicy.CONFIG_ONLY, ())
        assert found.decision is Decision.DENIED
    denied = decide("camera", judged(Effect.DENY, "*"), ApprovalPolicy.AUTO_APPROVE, ())
    assert denied.decision is Decision.DENIED


def test_a_guardrail_stands_over_the_configuration() -> None:
    forbid = Forbid("*", PERMISSION, "camera", "no cameras here")
    found = decide(
        "camera",
        Judgement(Effect.DENY, "guardrail", forbid=forbid),
        ApprovalPolicy.AUTO_APPROVE,
        ("camera",),
    )
    assert (found.decision, found.because) == (Decision.DENIED, "no cameras here")


def test_whoever_decides_reads_what_a_permission_means() -> None:
    assert MEANINGS.keys() == STANDARD.keys()
    assert meaning_of("camera") == "see through a camera"
    assert "its own documentation" in meaning_of("com.example.own")
    assert "nobody here knows" in meaning_of("odd")
