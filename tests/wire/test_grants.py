"""Grants and guardrails as they are written down."""

from dataclasses import FrozenInstanceError, replace

import pytest

from comity.wire.grants import CALL, Effect, Forbid, Grant, Source


def test_an_entry_is_of_the_records_unless_said_otherwise() -> None:
    grant = Grant("agent:ci", CALL, "files/*", Effect.ALLOW)
    assert (grant.source, grant.expires_at, grant.granted_by) == (Source.RECORDS, None, "")


def test_an_entry_is_never_changed_in_place() -> None:
    grant = Grant("agent:ci", CALL, "files/*", Effect.ALLOW)
    with pytest.raises(FrozenInstanceError):
        grant.effect = Effect.DENY  # type: ignore[misc]
    assert replace(grant, effect=Effect.DENY) != grant


def test_a_guardrail_has_no_effect_but_to_deny() -> None:
    assert not hasattr(Forbid("*", "*", "*"), "effect")


def test_an_effect_is_its_word_on_the_wire() -> None:
    assert [*Effect] == ["allow", "ask", "deny"]
