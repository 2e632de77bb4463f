"""Why somebody may do something, or may not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from comity.rules.access import Access, Decided
from comity.rules.explaining import Part, explain
from comity.wire.grants import CALL, Effect, Forbid, Grant
from comity.wire.parties import NOBODY, Actor

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CI = Actor("agent:ci")
READ = ("files", "read")


def grant(target: str, effect: Effect = Effect.ALLOW, subject: str = "agent:ci") -> Grant:
    return Grant(subject, CALL, target, effect)


def test_every_entry_that_was_considered_is_named_with_its_part() -> None:
    past = replace(grant("files/read", Effect.DENY), expires_at=NOW - timedelta(days=1))
    entries = [
        grant("*"),
        grant("files/*", Effect.ASK),
        grant("files/re*"),
        past,
        grant("web/*"),
        grant("files/*", Effect.DENY, "agent:other"),
    ]
    found = explain(Access.of(entries), CI, CALL, READ, NOW)
    assert found.judgement.effect is Effect.ASK
    parts = {(each.grant.target, each.part) for each in found.considered}
    assert parts == {
        ("files/read", Part.EXPIRED),
        ("files/*", Part.DECIDES),
        ("files/re*", Part.LESS_STRICT),
        ("*", Part.LESS_SPECIFIC),
    }
    assert found.considered[0].grant is past


def test_a_sentence_says_who_may_do_what_and_by_whom() -> None:
    entry = replace(
        grant("files/*", subject="*"),
        granted_by="person:ana",
        justification="the build",
        expires_at=NOW + timedelta(days=1),
    )
    assert explain(Access.of([entry]), CI, CALL, READ, NOW).sentence == (
        "agent:ci may call files/read: an entry about its server (files/*) says allow for "
        "everybody, by person:ana, until 2026-11-16 12:00 UTC (the build)."
    )


def test_a_guardrail_and_a_bounded_credential_override_every_entry() -> None:
    decided = Decided(forbids=(Forbid("agent:*", "*", "files/*"),))
    forbidden = explain(Access.of([grant("files/read")], decided), CI, CALL, READ, NOW)
    assert forbidden.sentence == (
        "agent:ci may not call files/read: a guardrail forbids * on files/* to agent:*, and "
        "nothing overrides it."
    )
    assert [each.part for each in forbidden.considered] == [Part.OVERRIDDEN]
    bounded = replace(CI, permissions=((CALL, "web/*"),))
    found = explain(Access.of([grant("files/read")]), bounded, CALL, READ, NOW)
    assert found.sentence.endswith("bounded, and this is outside of its bounds.")


def test_without_an_entry_the_default_is_told() -> None:
    said = explain(Access(), CI, "resources/read", ("files", "x:y"), NOW).sentence
    assert said == (
        "agent:ci may not read files/x:y: no entry is about it, and the default policy of files "
        "is opt-in."
    )
    nobody = explain(Access(), NOBODY, "admin/write", ("", ""), NOW).sentence
    assert nobody.startswith("whoever has shown no credentials may not do admin/write on *")


def test_what_needs_a_persons_yes_is_said_so() -> None:
    said = explain(Access.of([grant("files/read", Effect.ASK)]), CI, CALL, READ, NOW).sentence
    assert said.startswith("agent:ci may, once a person has said yes, call files/read")
