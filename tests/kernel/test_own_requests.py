"""Whether a person may approve its own requests: by grants, and by the operator's setting."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.adapters.memory.asks import MemoryAsks
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.grants import Grants
from comity.rules.access import Access
from comity.rules.asks import OWN
from comity.wire.asks import Ask, Kind
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor, PartyKind

ME = Actor("person:me", PartyKind.PERSON)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
FULL = Grant(ME.party, "*", "*", Effect.ALLOW)


def asked_by(actor: Actor) -> Ask:
    return Ask(
        *("0a", Kind.CONFIRM, actor.party, "files", "wipe", "digest", ""),
        about={},
        created_at=NOW,
        expires_at=NOW + timedelta(minutes=15),
        own=actor.kind is PartyKind.PERSON,
    )


def approvals(*grants: Grant, approve_own: bool) -> Approvals:
    options = AskOptions(approve_own=approve_own)
    return Approvals(
        MemoryAsks(lambda _what, _whose: None), Grants(Access.of(grants)), None, options
    )


@pytest.mark.parametrize(
    ("grants", "without", "with_it"),
    [
        ((FULL,), False, True),
        ((Grant(ME.party, "ask/answer_own", "*", Effect.ALLOW),), True, True),
        ((Grant(ME.party, "ask/*", "*", Effect.ALLOW),), False, False),
        ((Grant(ME.party, "*", "files/*", Effect.ALLOW),), False, False),
        # Everybody's grant makes nobody an operator.
        ((Grant("*", "*", "*", Effect.ALLOW),), False, False),
        ((FULL, Grant(ME.party, "ask/answer_own", "*", Effect.DENY)), False, False),
        ((), False, False),
    ],
    ids=["everything", "just that", "all of asks", "one server", "everybody", "denied", "nothing"],
)
def test_only_who_may_do_everything_approves_its_own_by_the_setting(
    grants: tuple[Grant, ...], without: bool, with_it: bool
) -> None:
    ask = asked_by(ME)
    for approve_own, may in ((False, without), (True, with_it)):
        found = approvals(*grants, approve_own=approve_own)
        assert found.why_not(ask, ME) == (None if may else OWN)
        assert (found.approvers(ask, ME) == "you") is may


@pytest.mark.parametrize("kind", [kind for kind in PartyKind if kind is not PartyKind.PERSON])
def test_no_program_approves_its_own_whatever_it_was_granted(kind: PartyKind) -> None:
    agent = Actor("agent:ci", kind)
    found = approvals(Grant(agent.party, "*", "*", Effect.ALLOW), approve_own=True)
    assert found.why_not(asked_by(agent), agent) == "only a person can answer this"


def test_who_could_approve_it_for_others_is_told_why_not_for_itself() -> None:
    found = approvals(FULL, approve_own=False)
    assert found.why_not_own(asked_by(ME), ME) == OWN
    assert found.why_not_own(asked_by(Actor("agent:ci")), ME) == ""
    assert approvals(approve_own=False).why_not_own(asked_by(ME), ME) == ""
