"""The approvals service: similar requests, links, and who may approve its own requests."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.approvals.model import (
    ANSWER_VERB,
    OWN_REQUEST_TEXT,
    ApprovalDecision,
    ApprovalDraft,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.presentation import ApprovalLinks
from comity.approvals.service import ApprovalInbox, ApprovalService
from comity.errors import MalformedMessage
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from tests.support.inline_store import inline_records

ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)
BEN = Actor("person:ben@example.org", PrincipalKind.PERSON)
BEGAN = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class House:
    """An inbox over asks in memory, at a time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = BEGAN
        access = GrantSet.from_grants([Grant(ANA.party, ANSWER_VERB, "files/*", Effect.ALLOW)])
        self.approvals = ApprovalService(
            inline_records().approval_requests, GrantSnapshot(access), clock=lambda: self.now
        )
        self.approvals.public_url = "https://comity.example.org"
        self.known = {ANA.party: ANA, BEN.party: BEN, "agent:ci": Actor("agent:ci")}
        self.inbox = ApprovalInbox(
            self.approvals, ApprovalLinks(b"pepper"), lambda party, _: self.known.get(party)
        )

    async def ask(self, number: int, **changed: Any) -> ApprovalRequest:
        draft = ApprovalDraft(
            kind=ApprovalKind.CONFIRM,
            asker="agent:ci",
            server="files",
            tool="write",
            digest=f"digest {number}",
            message="",
            about={"tool": "files__write", "risk": "dangerous", "arguments": {"n": number}},
        )
        return await self.approvals.open(replace(self.approvals.create(draft), **changed))

    async def approve(self, number: int) -> None:
        ask = await self.ask(number)
        await self.approvals.answer(ANA, ask.id, ApprovalDecision.ACCEPT)


@pytest.fixture
def house() -> House:
    return House()


async def test_what_was_decided_in_a_day_is_counted_and_no_longer(house: House) -> None:
    for number in range(3):
        await house.approve(number)
    house.now += timedelta(minutes=1)
    ask = await house.ask(10)
    assert (await house.inbox.describe_similar(ask)).startswith(
        "same tool and principal approved 3 times"
    )
    house.now += timedelta(days=1)
    assert (await house.inbox.describe_similar(ask)).startswith("No earlier decisions")


async def test_what_was_decided_is_looked_up_only_now_and_then(house: House) -> None:
    ask = await house.ask(10)
    await house.inbox.describe_similar(ask)
    await house.approve(1)
    assert (await house.inbox.describe_similar(ask)).startswith("No earlier decisions")
    house.now += timedelta(seconds=6)
    assert "approved 1 time" in await house.inbox.describe_similar(ask)


async def test_a_link_ends_with_its_ask_and_is_for_who_may_answer(house: House) -> None:
    ask = await house.ask(1)
    url = await house.inbox.create_link(BEN, ask, ANA.party)
    page, _, token = url.partition("?t=")
    assert page == f"https://comity.example.org/approvals/{ask.id}"
    link = ApprovalLinks(b"pepper").unseal(token, ask.id, house.now)
    assert link is not None
    assert link.expires_at == ask.expires_at
    for party in (BEN.party, "agent:ci", "person:nobody"):
        assert house.inbox.link_problem(ask, party) is not None
        with pytest.raises(MalformedMessage):
            await house.inbox.create_link(ANA, ask, party)
    with pytest.raises(MalformedMessage):
        await house.inbox.create_link(ANA, replace(ask, state=ApprovalState.EXPIRED), ANA.party)
    assert house.inbox.page_url(ask) == page


# Own requests.


ME = Actor("person:me", PrincipalKind.PERSON)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
FULL = Grant(ME.party, "*", "*", Effect.ALLOW)


def asked_by(actor: Actor) -> ApprovalRequest:
    return ApprovalRequest(
        *("0a", ApprovalKind.CONFIRM, actor.party, "files", "wipe", "digest", ""),
        about={},
        created_at=NOW,
        expires_at=NOW + timedelta(minutes=15),
        own=actor.kind is PrincipalKind.PERSON,
    )


def approvals(*grants: Grant, approve_own: bool) -> ApprovalService:
    judge = GrantSnapshot(GrantSet.from_grants(grants))
    return ApprovalService(inline_records().approval_requests, judge, approve_own=approve_own)


@pytest.mark.parametrize(
    ("grants", "without", "with_it"),
    [
        ((FULL,), False, True),
        ((Grant(ME.party, "approval/answer_own", "*", Effect.ALLOW),), True, True),
        ((Grant(ME.party, "approval/*", "*", Effect.ALLOW),), False, False),
        ((Grant(ME.party, "*", "files/*", Effect.ALLOW),), False, False),
        # Everybody's grant makes nobody an operator.
        ((Grant("*", "*", "*", Effect.ALLOW),), False, False),
        ((FULL, Grant(ME.party, "approval/answer_own", "*", Effect.DENY)), False, False),
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
        assert found.refusal_reason(ask, ME) == (None if may else OWN_REQUEST_TEXT)
        assert (found.describe_approvers(ask, ME) == "you") is may


@pytest.mark.parametrize(
    "kind", [kind for kind in PrincipalKind if kind is not PrincipalKind.PERSON]
)
def test_no_program_approves_its_own_whatever_it_was_granted(kind: PrincipalKind) -> None:
    agent = Actor("agent:ci", kind)
    found = approvals(Grant(agent.party, "*", "*", Effect.ALLOW), approve_own=True)
    assert found.refusal_reason(asked_by(agent), agent) == "only a person can answer this"


def test_who_could_approve_it_for_others_is_told_why_not_for_itself() -> None:
    found = approvals(FULL, approve_own=False)
    assert found.own_refusal_reason(asked_by(ME), ME) == OWN_REQUEST_TEXT
    assert found.own_refusal_reason(asked_by(Actor("agent:ci")), ME) == ""
    assert approvals(approve_own=False).own_refusal_reason(asked_by(ME), ME) == ""
