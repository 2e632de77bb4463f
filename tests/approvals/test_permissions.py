"""A permission that waits is one ask; who answers it grants or denies, and any door ends it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import (
    ANSWER_VERB,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.permissions import PermissionApprovals
from comity.approvals.service import ApprovalService
from comity.errors import MalformedMessage, Unavailable
from comity.mcp.actors import ADMIN_WRITE, Actor, PrincipalKind
from comity.mcp.mgp import MgpStatement
from comity.policy.administration import GrantAdmin
from comity.policy.grants import PERMISSION_VERB, Effect, Grant, GrantSet, Where
from comity.policy.risk import ApprovalPolicy, PermissionOutcome, ServerPolicy
from comity.policy.server_permissions import PermissionService, ServerIntroduction
from comity.policy.snapshot import GrantSnapshot
from tests.support.inline_store import inline_records

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
OPEN_FOR = RULES_BY_KIND[ApprovalKind.PERMISSION].min_open_for
ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)
READS = Actor("person:bea@example.org", PrincipalKind.PERSON)
AGENT = Actor("agent:ci")
ASKING = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)
GIVEN = (
    Grant(ANA.party, ANSWER_VERB, "*", Effect.ALLOW),
    Grant(ANA.party, ADMIN_WRITE, "*", Effect.ALLOW),
    Grant(READS.party, ANSWER_VERB, "*", Effect.ALLOW),
    Grant(AGENT.party, ADMIN_WRITE, "*", Effect.ALLOW),
)


class Office:
    """One server, the grants that its permissions follow from, and the inbox."""

    def __init__(self, policy: ServerPolicy = ASKING) -> None:
        self.now = NOW
        self.policy = policy
        self.written: dict[tuple[str, str, str], Grant] = {}
        self.grants = GrantSnapshot(GrantSet.from_grants(GIVEN), self.clock)
        self.asks = inline_records().approval_requests
        self.is_away = False
        self.begin()

    def begin(self) -> None:
        """Start, or start anew with the same records."""
        latest = self.grants
        self.approvals = ApprovalService(self.asks, self.grants, clock=self.clock)
        self.permits = PermissionService(
            lambda _: self.policy, self.grants, lambda: latest.latest, self.clock
        )
        admin = GrantAdmin(self, self.grants, self.refresh, self.clock)
        self.asked = PermissionApprovals(self.approvals, self.permits, admin)

    def clock(self) -> datetime:
        return self.now

    # As the records of grants.

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        if self.is_away:
            raise Unavailable("the store is away")
        self.written |= {(each.subject, each.verb, each.target): each for each in grants}
        return grants

    async def extend(self, grant: Grant) -> Grant:
        return (await self.put(grant))[0]

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        return self.written.pop((subject, verb, target), None) is not None

    async def page(self, after: str = "", limit: int = 0) -> list[Grant]:
        return []

    async def refresh(self) -> None:
        self.grants.replace(GrantSet.from_grants([*GIVEN, *self.written.values()]))

    # What happens.

    async def meet(self, *needs: str) -> None:
        said = MgpStatement("0.3.0", frozenset({"security"}), needs, None)
        await self.permits.decide_introduction(ServerIntroduction("srv", said))
        await self.asked.wait_until_idle()

    async def decide(self, name: str, effect: Effect | None, by: str = ANA.party) -> None:
        """At another door than the inbox."""
        key = ("server:srv", PERMISSION_VERB, name)
        if effect is None:
            self.written.pop(key)
        else:
            self.written[key] = Grant(*key, effect, granted_by=by, justification="by hand")
        await self.refresh()
        await self.look()

    async def look(self) -> None:
        self.permits.renew_due_decisions()
        self.asked.retry_failed()
        await self.asked.wait_until_idle()

    async def open(self) -> dict[str, ApprovalRequest]:
        found = await self.asks.page([ApprovalState.PENDING])
        return {str(ask.about["permission"]): ask for ask in found}

    async def answer(
        self,
        ask: ApprovalRequest,
        verdict: ApprovalDecision = ApprovalDecision.ACCEPT,
        content: Mapping[str, object] = {},
    ) -> ApprovalRequest:
        answered = await self.approvals.answer(ANA, ask.id, verdict, "why", content)
        await self.asked.wait_until_idle()
        return answered

    async def state(self, ask: ApprovalRequest) -> ApprovalState:
        found = await self.asks.get(ask.id)
        assert found is not None
        return found.state

    def decision(self, name: str) -> PermissionOutcome:
        return self.permits.permissions_of("srv").decision_by_name[name].decision


async def camera_request() -> tuple[Office, ApprovalRequest]:
    """A server that waits for one permission, and the request for it."""
    office = Office()
    await office.meet("camera")
    return office, (await office.open())["camera"]


async def test_each_permission_that_waits_is_one_ask_in_words() -> None:
    office = Office()
    await office.meet("camera", "com.example.own", "odd")
    found = await office.open()
    assert found.keys() == {"camera", "com.example.own", "odd"}
    ask = found["camera"]
    assert (ask.kind, ask.asker, ask.server, ask.tool) == (
        ApprovalKind.PERMISSION,
        "server:srv",
        "srv",
        "",
    )
    assert ask.message == (
        "Server srv needs the permission camera (dangerous): to see through a camera"
    )
    assert ask.expires_at == NOW + OPEN_FOR
    assert "unknown permission" in found["odd"].message
    assert "its own documentation" in found["com.example.own"].message


@pytest.mark.parametrize("policy", [ApprovalPolicy.DENY_ALL, ApprovalPolicy.AUTO_APPROVE])
async def test_what_is_decided_already_is_not_asked(policy: ApprovalPolicy) -> None:
    office = Office(ServerPolicy(approval=policy))
    await office.meet("camera")
    assert await office.open() == {}


async def test_a_name_that_no_grant_can_have_is_not_asked_for() -> None:
    office = Office()
    await office.meet("a*", "b\nc", "camera")
    assert (await office.open()).keys() == {"camera"}


async def test_neither_a_start_anew_nor_a_gateway_anew_asks_twice() -> None:
    office = Office()
    await office.meet("camera")
    first = await office.open()
    await office.meet("camera")
    office.begin()
    await office.meet("camera")
    assert await office.open() == first
    assert len(await office.asks.page()) == 1


async def test_who_accepts_grants_it_in_its_own_name() -> None:
    office, ask = await camera_request()
    assert (await office.answer(ask)).state is ApprovalState.APPROVED
    grant = office.written["server:srv", PERMISSION_VERB, "camera"]
    assert (grant.effect, grant.granted_by, grant.justification) == (
        Effect.ALLOW,
        ANA.party,
        "why",
    )
    assert (grant.expires_at, office.decision("camera")) == (None, PermissionOutcome.APPROVED)
    assert await office.state(ask) is ApprovalState.CONSUMED
    await office.look()
    assert await office.open() == {}


async def test_for_a_while_if_so_said_and_then_it_is_asked_again() -> None:
    office, ask = await camera_request()
    until = NOW + timedelta(hours=1)
    await office.answer(ask, content={"expires_at": until.isoformat()})
    assert office.written["server:srv", PERMISSION_VERB, "camera"].expires_at == until
    assert await office.open() == {}
    office.now = until
    await office.look()
    assert (await office.open())["camera"].id != ask.id


@pytest.mark.parametrize("wrong", [{"expires_at": NOW.isoformat()}, {"target": "*"}])
async def test_what_widens_the_question_is_refused(wrong: dict[str, object]) -> None:
    office, ask = await camera_request()
    with pytest.raises(MalformedMessage):
        await office.answer(ask, content=wrong)
    assert (await office.state(ask), office.written) == (ApprovalState.PENDING, {})


async def test_who_declines_denies_it() -> None:
    office, ask = await camera_request()
    await office.answer(ask, ApprovalDecision.DECLINE)
    assert office.written["server:srv", PERMISSION_VERB, "camera"].effect is Effect.DENY
    assert office.decision("camera") is PermissionOutcome.DENIED
    await office.look()
    assert await office.open() == {}


@pytest.mark.parametrize("verdict", [ApprovalDecision.DEFER, ApprovalDecision.CANCEL])
async def test_who_decides_nothing_changes_nothing(verdict: ApprovalDecision) -> None:
    office, ask = await camera_request()
    await office.answer(ask, verdict)
    assert (office.written, office.decision("camera")) == ({}, PermissionOutcome.DEFERRED)


@pytest.mark.parametrize("actor", [READS, AGENT, Actor("server:srv", PrincipalKind.SERVER)])
async def test_only_a_person_who_administers_answers(actor: Actor) -> None:
    office, ask = await camera_request()
    assert office.approvals.refusal_reason(ask, actor) is not None
    with pytest.raises(MalformedMessage):
        await office.approvals.answer(actor, ask.id, ApprovalDecision.ACCEPT)
    assert (await office.state(ask), office.written) == (ApprovalState.PENDING, {})


# What others do.


@pytest.mark.parametrize(
    ("effect", "state"),
    [(Effect.ALLOW, ApprovalState.CONSUMED), (Effect.DENY, ApprovalState.DENIED)],
)
async def test_another_door_ends_the_ask_as_it_decided(
    effect: Effect, state: ApprovalState
) -> None:
    office = Office()
    await office.meet("camera", "notification")
    ask = (await office.open())["camera"]
    await office.decide("camera", effect)
    found = await office.asks.get(ask.id)
    assert found is not None
    assert (found.state, found.answers[0].by) == (state, ANA.party)
    assert (await office.open()).keys() == {"notification"}
    await office.decide("camera", None)
    assert (await office.open())["camera"].id != ask.id


async def test_what_no_person_decided_is_withdrawn() -> None:
    office = Office()
    await office.meet("camera", "notification")
    asks = await office.open()
    await office.decide("camera", Effect.ALLOW, AGENT.party)
    assert await office.state(asks["camera"]) is ApprovalState.WITHDRAWN
    office.policy = replace(ASKING, approval=ApprovalPolicy.DENY_ALL)
    await office.meet("notification")
    assert await office.state(asks["notification"]) is ApprovalState.WITHDRAWN


async def test_what_is_needed_no_longer_is_withdrawn() -> None:
    office, ask = await camera_request()
    await office.meet("notification")
    assert await office.state(ask) is ApprovalState.WITHDRAWN
    assert (await office.open()).keys() == {"notification"}


async def test_a_server_that_is_removed_takes_its_asks_with_it() -> None:
    office = Office()
    await office.meet("camera", "notification")
    asks = await office.open()
    office.permits.remove_server("srv")
    office.asked.on_server_removed("srv")
    await office.asked.wait_until_idle()
    assert {await office.state(ask) for ask in asks.values()} == {ApprovalState.WITHDRAWN}


async def test_one_that_nobody_answered_is_asked_anew() -> None:
    office, ask = await camera_request()
    office.now += OPEN_FOR
    await office.approvals.expire_overdue()
    await office.look()
    assert (await office.open())["camera"].id != ask.id


async def test_while_nobody_knows_what_is_allowed_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    office = Office()

    def away(*_: object) -> None:
        raise Unavailable("the records are away")

    monkeypatch.setattr(office.grants, "authorize", away)
    await office.meet("camera")
    assert await office.open() == {}
    monkeypatch.undo()
    await office.look()
    assert (await office.open()).keys() == {"camera"}


async def test_what_was_accepted_before_an_end_is_written_down_after_it() -> None:
    """Somebody accepted, and the gateway ended before the grant was written."""
    office, ask = await camera_request()
    await office.asks.answer(
        ask.id, ApprovalAnswer(ANA.party, ApprovalDecision.ACCEPT, NOW), NOW + OPEN_FOR
    )
    office.begin()
    await office.meet("camera")
    assert office.written["server:srv", PERMISSION_VERB, "camera"].granted_by == ANA.party
    assert await office.state(ask) is ApprovalState.CONSUMED


async def test_where_the_grant_cannot_be_written_it_is_tried_again() -> None:
    office, ask = await camera_request()
    office.is_away = True
    with pytest.raises(Unavailable):
        await office.answer(ask)
    assert await office.state(ask) is ApprovalState.APPROVED
    await office.look()
    office.is_away = False
    await office.look()
    assert office.decision("camera") is PermissionOutcome.APPROVED
    assert await office.state(ask) is ApprovalState.CONSUMED
