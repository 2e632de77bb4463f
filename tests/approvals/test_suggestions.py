"""Suggested grants: from the records, through the API, and who may decide about them."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.app.records import GatewaySnapshot, RecordStores
from comity.approvals.model import ANSWER_OWN_VERB, ApprovalDecision, ApprovalState
from comity.approvals.suggestion_rules import CallOutcome, CurrentTool, SuggestionThreshold
from comity.approvals.suggestions import ApprovalHistory, SuggestionService
from comity.audit.chain import AuditFilter
from comity.audit.events import AuditEvent, AuditResult, AuditType, event_of
from comity.audit.log import AuditLog, CommitSettings
from comity.errors import ACCESS_DENIED, NOTHING_HERE, MalformedMessage
from comity.identity.principals import Principal
from comity.mcp.actors import CALL, Actor, PrincipalKind
from comity.mcp.entries import EntryKind
from comity.policy.administration import GrantAdmin
from comity.policy.grants import Effect, Grant, Guardrail, StaticRules
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from tests.conformance.governed import ADMIN, ADMINISTERS, UNHINDERED, Governed, Guest
from tests.support.credentials import GivenOut
from tests.support.decisions import ANA, BEN, Decisions
from tests.support.inline_store import inline_records
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import at, visiting

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
OPERATOR = Actor("person:ops@example.org", PrincipalKind.PERSON)
ADMIN_GRANTS = tuple(
    Grant(OPERATOR.party, verb, "*", Effect.ALLOW) for verb in ("admin/read", "admin/write")
)
ASKS = Grant("agent:x", CALL, "fs/*", Effect.ASK)
DECIDED = Decisions(now=NOW, days=9)


@dataclass
class Scene:
    """Records, the grants in force, and the suggestions that follow from them."""

    records: RecordStores = field(default_factory=inline_records)
    known: CurrentTool | None = field(default_factory=lambda: CurrentTool("d1"))
    now: datetime = NOW
    journal: AuditLog = field(init=False)
    precedents: SuggestionService = field(init=False)
    snapshot: GatewaySnapshot = field(init=False)

    async def open(self, decided: StaticRules) -> None:
        certainty = SnapshotFreshness()
        grants = GrantSnapshot(clock=lambda: self.now, freshness=certainty)
        self.snapshot = PolicySnapshot(self.records, grants, certainty, decided)
        await self.snapshot.refresh()
        administration = GrantAdmin(
            self.records.grants, grants, self.snapshot.refresh, lambda: self.now
        )
        pace = CommitSettings(timedelta(milliseconds=1))
        self.journal = AuditLog(self.records.audit_log, "n-1", pace, lambda: self.now)
        past = ApprovalHistory(
            self.records.approval_requests, self.records.audit_log, lambda server, tool: self.known
        )
        self.precedents = SuggestionService(
            past, administration, self.journal, SuggestionThreshold(), lambda: self.now
        )

    async def told(self, *types: str) -> list[AuditEvent]:
        lines = await self.records.audit_log.find(AuditFilter(types=types))
        return [event_of(line.body) for line in lines]

    async def blocked(self, path: str, trace: str = "f" * 32) -> None:
        """A call that was refused, in the journal."""
        await self.journal.write(
            AuditEvent(
                *(
                    AuditType.TOOL_BLOCKED,
                    "agent:x",
                    self.now,
                    PrincipalKind.AGENT,
                    "fs",
                    "read_file",
                ),
                *(AuditResult.BLOCKED, trace, "", {"arguments": {"path": path}}),
            )
        )


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    made = Scene()
    await made.open(StaticRules((*ADMIN_GRANTS, ASKS)))
    async with made.journal.run():
        yield made


async def _ids(scene: Scene) -> list[str]:
    return [
        each.suggestion.id for each in (await scene.precedents.list_suggestions(OPERATOR)).previews
    ]


async def test_decisions_of_the_records_become_a_suggestion_with_a_dry_run(scene: Scene) -> None:
    await DECIDED.put(scene.records, 23)
    for number in range(4):
        await scene.blocked(f"/project/refused/{number}", f"{number:032x}")
    await scene.blocked("/etc/passwd")
    (shown,) = (await scene.precedents.list_suggestions(OPERATOR)).previews
    assert shown.suggestion.words == (
        "always allow `fs__read_file` under /project for agent:x: 23 of 23 approved by two people "
        "in 9 days"
    )
    assert shown.is_complete
    assert shown.dry_run.sentence == (
        "would have allowed 23; would also have allowed 4 that were never asked; would not have "
        "covered 1"
    )
    assert [each.arguments for each in shown.dry_run.listed] == [{"path": "/etc/passwd"}]


async def test_a_refused_call_that_was_asked_about_is_counted_once(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (silent,) = await Decisions(now=NOW, days=0.5).put(scene.records, 1, verdict=None)
    await scene.blocked("/project/0.txt", silent.trace)
    (shown,) = (await scene.precedents.list_suggestions(OPERATOR)).previews
    assert shown.dry_run.covered == {CallOutcome.APPROVED: 12, CallOutcome.UNANSWERED: 1}


async def test_what_is_older_than_the_window_does_not_count(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    scene.now = NOW + timedelta(days=40)
    assert await _ids(scene) == []


async def test_what_is_accepted_is_granted_in_the_persons_name_and_answers(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    grant = await scene.precedents.accept(OPERATOR, id, "they only read")
    assert (grant.subject, grant.target, grant.effect) == ("agent:x", "fs/read_file", Effect.ALLOW)
    assert grant.granted_by == OPERATOR.party
    assert grant.justification.startswith("always allow `fs__read_file` under /project for agent:x")
    assert grant.justification.endswith("(they only read)")
    answers = scene.snapshot.grants.standing_answer
    called = (Actor("agent:x"), "fs", "read_file")
    assert answers(*called, {"path": "/project/new.txt"}, "d1") == grant
    assert answers(*called, {"path": "/project/new.txt"}, "d2") is None
    assert answers(*called, {"path": "/etc/passwd"}, "d1") is None
    assert answers(Actor("agent:y"), *called[1:], {"path": "/project/new.txt"}, "d1") is None
    (event,) = await scene.told(AuditType.SUGGESTION_ACCEPTED)
    assert (event.actor, event.server, event.tool) == (OPERATOR.party, "fs", "read_file")
    assert event.details["grant"] == grant.id
    assert event.details["people"] == [ANA, BEN]
    # What is granted is not suggested once more.
    assert await _ids(scene) == []


async def test_a_dismissed_one_comes_back_with_twice_the_evidence(scene: Scene) -> None:
    await DECIDED.put(scene.records, 10)
    (id,) = await _ids(scene)
    await scene.precedents.dismiss(OPERATOR, id, "not yet")
    (event,) = await scene.told(AuditType.SUGGESTION_DISMISSED)
    assert (event.details["reason"], event.details["decisions"]) == ("not yet", 10)
    assert await _ids(scene) == []
    await replace(DECIDED, days=4.5).put(scene.records, 9)
    assert await _ids(scene) == []
    # Also where nothing is remembered but what the journal tells.
    forgetful = Scene(scene.records)
    await forgetful.open(StaticRules((*ADMIN_GRANTS, ASKS)))
    assert await _ids(forgetful) == []
    await replace(DECIDED, days=1.3).put(scene.records, 1)
    assert len(await _ids(scene)) == len(await _ids(forgetful)) == 1


@pytest.mark.parametrize(
    "actor",
    [
        Actor(OPERATOR.party, PrincipalKind.AGENT),
        Actor(OPERATOR.party, PrincipalKind.SERVER),
        Actor(OPERATOR.party, PrincipalKind.SYSTEM),
        Actor("person:eve@example.org", PrincipalKind.PERSON),
        Actor("", PrincipalKind.PERSON),
        replace(OPERATOR, permissions=(("admin/read", "*"),)),
        replace(OPERATOR, permissions=()),
    ],
)
async def test_only_a_person_who_may_write_grants_decides(scene: Scene, actor: Actor) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    for decide in (scene.precedents.accept, scene.precedents.dismiss):
        with pytest.raises(MalformedMessage) as refused:
            await decide(actor, id)
        assert refused.value.fault is ACCESS_DENIED
    assert await scene.records.grants.page() == []
    assert await _ids(scene) == [id]


async def test_nobody_accepts_what_it_asked_for_itself_unless_that_was_granted() -> None:
    asker = replace(DECIDED, asker=OPERATOR.party)
    own = Grant(OPERATOR.party, ANSWER_OWN_VERB, "*", Effect.ALLOW)
    everything = Grant(OPERATOR.party, "*", "*", Effect.ALLOW)
    asks = replace(ASKS, subject=OPERATOR.party)
    for grants, may in (
        ((*ADMIN_GRANTS, asks), False),
        ((everything, asks), False),
        ((*ADMIN_GRANTS, asks, own), True),
    ):
        scene = Scene()
        await scene.open(StaticRules(grants))
        async with scene.journal.run():
            await asker.put(scene.records, 12)
            (id,) = await _ids(scene)
            if may:
                assert (await scene.precedents.accept(OPERATOR, id)).where is not None
            else:
                with pytest.raises(MalformedMessage, match="for yourself"):
                    await scene.precedents.accept(OPERATOR, id)


async def test_only_what_is_suggested_now_can_be_accepted(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    for wrong in ("", "nope", id.upper(), id[:-1]):
        with pytest.raises(MalformedMessage) as refused:
            await scene.precedents.accept(OPERATOR, wrong)
        assert refused.value.fault is NOTHING_HERE
    # Somebody has said no in the meantime.
    await Decisions(now=NOW, days=0.01).put(scene.records, 1, verdict=ApprovalDecision.DECLINE)
    with pytest.raises(MalformedMessage, match="not suggested"):
        await scene.precedents.accept(OPERATOR, id)


async def test_another_condition_has_another_id(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)

    def elsewhere(number: int) -> dict[str, Any]:
        return {"path": f"/project2/{number}.txt"}

    await replace(DECIDED, days=3).put(scene.records, 3, elsewhere)
    # Both trees have only the root in common.
    assert await _ids(scene) == []
    with pytest.raises(MalformedMessage):
        await scene.precedents.accept(OPERATOR, id)


@pytest.mark.parametrize(
    "decided",
    [
        StaticRules(ADMIN_GRANTS),
        StaticRules((*ADMIN_GRANTS, replace(ASKS, effect=Effect.DENY))),
        StaticRules((*ADMIN_GRANTS, replace(ASKS, target="fs/read_file", effect=Effect.ALLOW))),
        StaticRules((*ADMIN_GRANTS, ASKS), (Guardrail("agent:*", CALL, "fs/*"),)),
    ],
)
async def test_what_is_denied_or_granted_already_is_not_suggested(decided: StaticRules) -> None:
    scene = Scene()
    await scene.open(decided)
    await DECIDED.put(scene.records, 12)
    assert await _ids(scene) == []


async def test_whoever_may_not_read_grants_is_told_nothing(scene: Scene) -> None:
    with pytest.raises(MalformedMessage):
        await scene.precedents.list_suggestions(Actor("agent:x"))


# The API.


PATH = "/api/grant-suggestions"
ASKED = Grant("agent:x", CALL, "files/*", Effect.ASK)
TOOLS: list[dict[str, Any]] = [
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "delete", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}},
]


@pytest.fixture
async def gateway() -> AsyncGenerator[Governed]:
    given_out = GivenOut()
    given_out.parties[ADMIN] = Principal(ADMIN, PrincipalKind.PERSON)
    chosen: dict[str, Any] = {**UNHINDERED, "grants": (*ADMINISTERS, ASKED)}
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(scripted())

        @upstream.act("tools/list")
        async def _(exchange: Exchange) -> None:
            await exchange.result({"tools": TOOLS})

        @upstream.act("tools/call")
        async def _(exchange: Exchange) -> None:
            await exchange.text("done")

        visitor = await stack.enter_async_context(
            visiting(
                at(upstream.url, "files"),
                register=given_out.register,
                approvals_client_wait=timedelta(milliseconds=1),
                **chosen,
            )
        )
        yield Governed(visitor, given_out, {"files": upstream})


async def _decide(gateway: Governed, count: int, tool: str = "read") -> None:
    parts = gateway.visitor.parts
    offer = parts.catalog.find_own("files", EntryKind.TOOL, tool)
    assert offer is not None
    digest = parts.server_policies.tool_reviews.review_of(offer).digest
    records = parts.snapshot.records
    await Decisions(server="files", tool=tool, definition=digest).put(records, count)


async def _call(guest: Guest, path: str, tool: str = "read") -> bool:
    """Whether the call was made; else it waits for a person."""
    _, answer = await guest.http("POST", f"/tools/files__{tool}", {"path": path})
    return answer.get("content") == [{"type": "text", "text": "done"}] and not answer.get("isError")


async def _open_asks(gateway: Governed) -> int:
    return await gateway.visitor.parts.snapshot.records.approval_requests.count(
        [ApprovalState.PENDING]
    )


async def test_a_suggestion_is_listed_with_words_evidence_and_a_dry_run(
    gateway: Governed,
) -> None:
    await _decide(gateway, 12)
    await _decide(gateway, 12, "delete")
    status, told = await gateway.guest(ADMIN).http("GET", PATH)
    assert status == 200
    (found,) = told["suggestions"]
    assert found["description"] == (
        "always allow `files__read` under /project for agent:x: 12 of 12 approved by two people "
        "within a day"
    )
    assert found["where"]["paths"] == {"/path": {"under": "/project"}}
    assert found["evidence"]["approved"] == 12
    assert found["evidence"]["people"] == [ANA, BEN]
    assert found["dry_run"]["sentence"] == "would have allowed 12; would not have covered 0"
    (held,) = told["withheld"]
    assert (held["name"], held["approved"]) == ("files__delete", 12)
    assert "may destroy" in held["reason"]


async def test_what_was_accepted_lets_calls_go_and_asks_about_the_rest(
    gateway: Governed,
) -> None:
    await _decide(gateway, 12)
    agent, admin = gateway.guest("agent:x"), gateway.guest(ADMIN)
    assert not await _call(agent, "/project/new.txt")
    assert await _open_asks(gateway) == 1
    _, told = await admin.http("GET", PATH)
    order = {"id": told["suggestions"][0]["id"], "decision": "accept", "reason": "they only read"}
    status, done = await admin.http("POST", PATH, order)
    assert status == 200
    assert (done["grant"]["granted_by"], done["grant"]["where_text"]) == (ADMIN, "under /project")
    assert await _call(agent, "/project/other.txt")
    assert await _call(agent, "/project/deep/er.txt")
    assert await _open_asks(gateway) == 1
    for hostile in ("/etc/passwd", "/project/../etc/passwd", "/project/.env", "/project2/x"):
        assert not await _call(agent, hostile)
    assert not await _call(agent, "/project/x", "delete")
    assert await _open_asks(gateway) == 6
    assert (await admin.http("GET", PATH))[1]["suggestions"] == []
    gone = {"subject": "agent:x", "target": "files/read", "conditional": True}
    assert (await admin.http("POST", "/api/grants/delete", gone))[1]["deleted"]
    assert not await _call(agent, "/project/once more.txt")


async def test_a_standing_answer_is_no_answer_for_a_tool_that_destroys(
    gateway: Governed,
) -> None:
    where = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
    await gateway.grant(Grant("agent:x", CALL, "files/delete", Effect.ALLOW, where=where))
    assert not await _call(gateway.guest("agent:x"), "/project/x", "delete")
    assert await _open_asks(gateway) == 1


async def test_one_that_was_dismissed_is_not_listed_again(gateway: Governed) -> None:
    await _decide(gateway, 12)
    admin = gateway.guest(ADMIN)
    id = (await admin.http("GET", PATH))[1]["suggestions"][0]["id"]
    order = {"id": id, "decision": "dismiss", "reason": "not yet"}
    assert await admin.http("POST", PATH, order) == (
        200,
        {"id": id, "decision": "dismiss", "suggested_again_at": 24},
    )
    assert (await admin.http("GET", PATH))[1]["suggestions"] == []
    assert (await admin.http("POST", PATH, order))[0] == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "x"}, 400),
        ({"id": "x", "decision": "perhaps"}, 400),
        ({"id": 3, "decision": "accept"}, 400),
        ({"id": "x", "decision": "accept", "reason": "x" * 2000}, 400),
        ({"id": "x", "decision": "accept", "more": 1}, 400),
        ({"id": "x", "decision": "accept"}, 404),
    ],
)
async def test_an_order_that_says_nothing_known_is_refused(
    gateway: Governed, body: dict[str, Any], status: int
) -> None:
    assert (await gateway.guest(ADMIN).http("POST", PATH, body))[0] == status


async def test_only_people_who_administer_decide(gateway: Governed) -> None:
    await _decide(gateway, 12)
    id = (await gateway.guest(ADMIN).http("GET", PATH))[1]["suggestions"][0]["id"]
    order = {"id": id, "decision": "accept"}
    # An agent that may write grants is an agent all the same.
    await gateway.grant(Grant("agent:op", "admin/*", "*", Effect.ALLOW))
    assert (await gateway.guest("agent:op").http("GET", PATH))[0] == 200
    status, refused = await gateway.guest("agent:op").http("POST", PATH, order)
    assert (status, refused["error"]["message"]) == (400, "only people decide about suggestions")
    assert (await gateway.guest("agent:x").http("GET", PATH))[0] == 403
    assert (await gateway.guest("agent:x").http("POST", PATH, order))[0] == 403
    assert (await gateway.guest(ADMIN).http("DELETE", PATH))[0] == 404
    claimed = {**order, "actor": "person:else"}
    assert (await gateway.guest(ADMIN).http("POST", PATH, claimed))[0] != 200
