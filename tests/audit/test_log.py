"""The audit log: group commit, order, a store that fails, and what each domain records."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, override
from uuid import UUID

import pytest

from comity.audit import chain
from comity.audit import log as log_module
from comity.audit.chain import AuditRecord
from comity.audit.events import AuditEvent, AuditResult, AuditType, event_of
from comity.audit.log import (
    LEFT_OUT,
    MAX_EVENTS_AT_ONCE,
    MAX_NAMES_IN_EVENT,
    AuditLog,
    AuditRateLimit,
    CommitSettings,
)
from comity.catalog.catalog import Catalog
from comity.catalog.tool_reviews import AcceptedDefinitions, ToolReviewService
from comity.errors import AUDIT_LOG_AWAY, MalformedMessage, Unavailable
from comity.identity.keys import KeyAdmin
from comity.identity.principals import ApiKey
from comity.mcp.actors import GATEWAY, LOCAL, Actor, PrincipalKind, kind_of
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import to_json
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.policy import server_permissions
from comity.policy.administration import GrantAdmin
from comity.policy.grants import PERMISSION_VERB, Decision, Effect, Grant, GrantSet, Where
from comity.policy.risk import PermissionDecision, PermissionOutcome, ServerPolicy
from comity.policy.server_permissions import PermissionService
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerTransition
from tests.support.carriers import AnySchema
from tests.support.inline_store import inline_records
from tests.support.journals import QUICK, FailingStore, events, kept
from tests.support.noted import NOON, SECRET, Noted

AT = datetime(2026, 11, 15, tzinfo=UTC)


def happened(name: str, type: str = AuditType.TOOL_EXECUTED, call: str = "") -> AuditEvent:
    return AuditEvent(type, name, AT, call=call)


async def named(store: FailingStore) -> list[str]:
    return [each.actor for each in await events(store) if each.actor != "system:gateway"]


async def test_what_is_noted_is_kept_in_its_order_without_anybody_waiting() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(100):
            journal.enqueue(happened(f"agent:{number}"))
        assert journal.uncommitted_count == 101
        await journal.flush()
        assert journal.uncommitted_count == 0
    assert await named(store) == [f"agent:{number}" for number in range(100)]


async def test_every_entry_is_linked_to_the_one_before_it() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(10):
            await journal.write(happened(f"agent:{number}"))
    before = chain.GENESIS
    lines = await store.page("n-1")
    for seq, line in enumerate(lines, 1):
        assert line.seq == seq
        assert line.hash == chain.entry_hash(before, b"n-1", seq, line.body)
        before = line.hash
    types = [each.type for each in await events(store)]
    written = [AuditType.TOOL_EXECUTED] * 10
    assert types == [AuditType.AUDIT_LOG_OPENED, *written, AuditType.AUDIT_LOG_CLOSED]


async def test_those_who_come_while_a_commit_runs_share_the_next_one() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.commits.clear()
        store.gate.clear()
        first = journal.write(happened("agent:0"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [journal.write(happened(f"agent:{number}")) for number in range(1, 33)]
        store.gate.set()
        await asyncio.gather(first, *rest)
        assert len(store.commits) <= 2
        assert sum(store.commits) == 33


async def test_a_commit_takes_a_bounded_number_and_the_rest_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "AT_ONCE", 10)
    store = FailingStore()
    async with kept(store) as journal:
        waiters = [journal.write(happened(f"agent:{number}")) for number in range(35)]
        await asyncio.gather(*waiters)
    assert max(store.commits) <= 10
    assert await named(store) == [f"agent:{number}" for number in range(35)]


class LateReader(FailingStore):
    """Reads through a connection that still sees the log as it was when it was opened."""

    @override
    async def page(self, node: str, after: int = 0, limit: int = 1000) -> Sequence[AuditRecord]:
        return []

    async def stored(self) -> list[str]:
        records = await super().page("n-1", 0, 1000)
        return [event_of(record.body).actor for record in records]


async def test_an_unclear_commit_is_written_once_where_a_reader_is_behind() -> None:
    store = LateReader()
    async with kept(store) as journal:
        await journal.flush()
        store.lies = 1
        await journal.write(happened("agent:0"))
    assert (await store.stored()).count("agent:0") == 1


async def test_whoever_wrote_waits_until_the_store_is_back() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.failures = 3
        async with asyncio.timeout(10):
            await journal.write(happened("agent:late"))
    assert await named(store) == ["agent:late"]


async def test_a_commit_of_unknown_fate_is_looked_up_and_never_repeated() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.lies = 1
        async with asyncio.timeout(10):
            await journal.write(happened("agent:once"))
        async with asyncio.timeout(10):
            await journal.write(happened("agent:after"))
    assert await named(store) == ["agent:once", "agent:after"]


async def test_whoever_insists_is_told_when_the_store_stays_away_and_its_entry_stays() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.failures = 10**6
        with pytest.raises(Unavailable) as refused:
            async with asyncio.timeout(10):
                await journal.insist(happened("agent:refused"))
        assert refused.value.fault is AUDIT_LOG_AWAY
        assert refused.value.retry_after is not None
        # From now on nobody waits in vain.
        with pytest.raises(Unavailable):
            await asyncio.wait_for(journal.insist(happened("agent:at-once")), 1)
        store.failures = 0
        async with asyncio.timeout(10):
            await journal.flush()
            await journal.insist(happened("agent:back"))
    assert await named(store) == ["agent:refused", "agent:at-once", "agent:back"]


async def test_there_is_room_up_to_a_bound_while_the_store_is_away() -> None:
    store = FailingStore()
    store.failures = 10**6
    async with kept(store, CommitSettings(timedelta(0), timedelta(milliseconds=20), 5)) as journal:
        for number in range(3):
            journal.enqueue(happened(f"agent:{number}"))
        assert journal.has_room
        journal.enqueue(happened("agent:3"))
        assert not journal.has_room
        store.failures = 0
        await journal.flush()
        assert journal.has_room


async def test_what_is_told_to_listeners_was_kept_before() -> None:
    store, heard = FailingStore(), list[tuple[str, int]]()
    async with kept(store) as journal:

        def listen(event: AuditEvent) -> None:
            heard.append((event.actor, sum(store.commits)))

        def fail(event: AuditEvent) -> None:
            raise ValueError("a listener's bug")

        journal.listeners += [fail, listen]
        await journal.write(happened("agent:a"))
        assert next(count for actor, count in heard if actor == "agent:a") >= 2


async def test_what_an_earlier_run_left_in_doubt_is_unknown_before_anything_else() -> None:
    store = FailingStore()
    first = AuditLog(store, "n-1", QUICK)
    async with first.run():
        await first.insist(happened("agent:a", AuditType.CALL_INTENDED, "run-1"))
        await first.insist(happened("agent:b", AuditType.CALL_INTENDED, "run-2"))
        await first.write(happened("agent:b", call="run-2"))
    doubted = list[AuditEvent]()
    second = AuditLog(store, "n-1", QUICK)
    second.doubt_listeners.append(doubted.extend)
    async with second.run():
        await second.flush()
    assert [intent.call for intent in doubted] == ["run-1"]
    unknown = [each for each in await events(store) if each.type == AuditType.OUTCOME_UNKNOWN]
    assert [(each.call, each.actor, each.result) for each in unknown] == [
        ("run-1", "agent:a", AuditResult.UNKNOWN)
    ]
    third = AuditLog(store, "n-1", QUICK)
    async with third.run():
        await third.flush()
    found = [each for each in await events(store) if each.type == AuditType.OUTCOME_UNKNOWN]
    assert len(found) == 1


async def test_calls_under_way_are_not_in_doubt_when_the_store_comes_back() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.insist(happened("agent:a", AuditType.CALL_INTENDED, "run-1"))
        store.failures = 2
        await journal.write(happened("agent:b"))
        await journal.write(happened("agent:a", call="run-1"))
    assert AuditType.OUTCOME_UNKNOWN not in [each.type for each in await events(store)]
    assert store.opened >= 2


async def test_a_store_that_is_away_at_the_end_does_not_hold_up_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FailingStore()
    store.failures = 10**6
    async with asyncio.timeout(10):
        async with kept(store) as journal:
            journal.enqueue(happened("agent:lost"))
    assert "3 audit entries could not be written" in caplog.text


@pytest.mark.parametrize(
    "details", [{"half": "\ud800"}, {"what": object()}], ids=["half", "object"]
)
async def test_what_cannot_be_written_keeps_nothing_else_from_being_kept(
    details: dict[str, object],
) -> None:
    store = FailingStore()
    async with kept(store) as journal:
        journal.enqueue(AuditEvent(AuditType.TOOL_EXECUTED, "agent:\ud800", AT, details=details))
        async with asyncio.timeout(10):
            await journal.write(happened("agent:next"))
    found = [each for each in await events(store) if each.type == AuditType.TOOL_EXECUTED]
    assert [dict(each.details) for each in found] == [{"unreadable": True}, {}]


ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)


def step(
    previous: ServerLifecycleState, state: ServerLifecycleState, reason: str = "", **more: Any
) -> ServerTransition:
    return ServerTransition("files", previous, state, reason, NOON, **more)


class RecordedServers(Noted):
    def __init__(self) -> None:
        super().__init__()
        self.servers = ServerService(Catalog(), AnySchema())


def stepped(noted: RecordedServers, transition: ServerTransition) -> None:
    noted.servers.record_transition(noted.journal, transition)


def connected(noted: RecordedServers) -> None:
    stepped(noted, step(ServerLifecycleState.CONNECTING, ServerLifecycleState.CONNECTED))
    noted.take()


@pytest.mark.parametrize(
    ("party", "kind"),
    [
        *((LOCAL.party, PrincipalKind.PERSON), ("server:files", PrincipalKind.SERVER)),
        *(
            (GATEWAY, PrincipalKind.SYSTEM),
            ("agent:ci", PrincipalKind.AGENT),
            ("ci", PrincipalKind.AGENT),
        ),
    ],
)
def test_a_partys_name_says_what_it_is(party: str, kind: PrincipalKind) -> None:
    assert kind_of(party) is kind


def test_a_server_connects_by_itself_or_by_order() -> None:
    noted = RecordedServers()
    for state in (ServerLifecycleState.CONNECTING, ServerLifecycleState.CONNECTED):
        stepped(noted, step(ServerLifecycleState.REGISTERED, state))
    assert noted.told() == [(AuditType.SERVER_CONNECTED, GATEWAY, "files")]
    stepped(
        noted, step(ServerLifecycleState.CONNECTING, ServerLifecycleState.CONNECTED, by=ANA.party)
    )
    assert noted.told() == [(AuditType.SERVER_CONNECTED, ANA.party, "files")]


@pytest.mark.parametrize(
    ("state", "reason", "by", "actor"),
    [
        (ServerLifecycleState.ERROR, "exited with status 1", "", "server:files"),
        (ServerLifecycleState.DISCONNECTED, "exited with status 0", "", "server:files"),
        (ServerLifecycleState.DISCONNECTED, ShutdownReason.KERNEL_SHUTDOWN, "", GATEWAY),
        (ServerLifecycleState.DISCONNECTED, ShutdownReason.OPERATOR_REQUEST, ANA.party, ANA.party),
        (ServerLifecycleState.RESTARTING, ShutdownReason.OPERATOR_REQUEST, ANA.party, ANA.party),
    ],
)
def test_who_left_is_told_from_who_was_sent_away(
    state: ServerLifecycleState, reason: str, by: str, actor: str
) -> None:
    noted = RecordedServers()
    connected(noted)
    stepped(
        noted, step(ServerLifecycleState.CONNECTED, ServerLifecycleState.DRAINING, reason, by=by)
    )
    stepped(noted, step(ServerLifecycleState.DRAINING, state, reason, by=by))
    stepped(noted, step(state, ServerLifecycleState.CONNECTING, reason))
    (event,) = noted.take()
    assert (event.type, event.actor) == (AuditType.SERVER_DISCONNECTED, actor)
    assert event.details["reason"] == reason


def test_a_server_that_never_was_there_does_not_leave() -> None:
    noted = RecordedServers()
    stepped(
        noted, step(ServerLifecycleState.CONNECTING, ServerLifecycleState.ERROR, "no such file")
    )
    stepped(
        noted, step(ServerLifecycleState.ERROR, ServerLifecycleState.RESTARTING, "no such file")
    )
    assert not noted.take()


@pytest.mark.parametrize("was_there", [True, False])
def test_whoever_is_given_up_is_told_so_by_the_name_that_mgp_has_for_it(was_there: bool) -> None:
    noted = RecordedServers()
    if was_there:
        connected(noted)
    stepped(
        noted,
        step(
            ServerLifecycleState.CONNECTED,
            ServerLifecycleState.ERROR,
            f"died: {SECRET}",
            is_given_up=True,
        ),
    )
    left, given_up = noted.take()
    assert left.type == AuditType.SERVER_DISCONNECTED
    assert left.actor == ("server:files" if was_there else GATEWAY)
    assert left.details == {"reason": "died: [secret]", "restart_limit_exceeded": True}
    assert (given_up.type, given_up.actor) == (AuditType.RESTART_LIMIT_EXCEEDED, GATEWAY)


def policy(decision: PermissionOutcome) -> PermissionDecision:
    return PermissionDecision(decision, "policy auto_approve", "its server's policy approves")


def by_ana(decision: PermissionOutcome, seconds: float | None = None) -> PermissionDecision:
    ends = None if seconds is None else NOON + timedelta(seconds=seconds)
    return PermissionDecision(decision, ANA.party, "an operator decided it", ends)


APPROVED, DENIED, DEFERRED = (
    PermissionOutcome.APPROVED,
    PermissionOutcome.DENIED,
    PermissionOutcome.DEFERRED,
)


class RecordedPermissions(Noted):
    """The permissions of a server that needs a camera, and what is decided about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.decision = policy(DEFERRED)
        monkeypatch.setattr(server_permissions, "decide_permission", self._decided)
        # Each look finds other grants than the last.
        self.service = PermissionService(lambda _: ServerPolicy(), current_grants=object)
        self.service.audit_log = self.journal

    def _decided(self, *_: object) -> PermissionDecision:
        return self.decision

    def decide(self, decision: PermissionDecision) -> None:
        self.decision = decision
        self.service.add_tool_permissions("files", ("camera",))
        self.service.permissions_of("files")


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, policy(APPROVED), AuditType.PERMISSION_GRANTED),
        (None, policy(DENIED), AuditType.PERMISSION_DENIED),
        (None, policy(DEFERRED), None),
        (None, by_ana(APPROVED), None),
        (policy(DEFERRED), by_ana(APPROVED), None),
        (policy(DEFERRED), policy(APPROVED), AuditType.PERMISSION_GRANTED),
        (policy(APPROVED), policy(APPROVED), None),
        (policy(APPROVED), policy(DENIED), AuditType.PERMISSION_REVOKED),
        (policy(APPROVED), by_ana(DENIED), None),
        (by_ana(APPROVED), policy(DEFERRED), None),
        (by_ana(APPROVED, 3600), policy(DEFERRED), None),
        (by_ana(APPROVED, -1), policy(DEFERRED), AuditType.PERMISSION_REVOKED),
        (by_ana(DENIED), policy(APPROVED), AuditType.PERMISSION_GRANTED),
    ],
)
def test_what_follows_without_anybodys_word_is_the_gateways(
    before: PermissionDecision | None,
    now: PermissionDecision,
    told: AuditType | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = RecordedPermissions(monkeypatch)
    if before is not None:
        noted.decide(before)
        noted.take()
    noted.decide(now)
    events = noted.take()
    assert [event.type for event in events] == ([] if told is None else [told])
    for event in events:
        assert (event.actor, event.server) == (GATEWAY, "files")
        assert event.details["permission"] == "camera"
        assert ("expired" in event.details) is (before == by_ana(APPROVED, -1))


def test_what_cannot_be_known_for_a_while_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = RecordedPermissions(monkeypatch)
    noted.decide(policy(APPROVED))
    noted.take()
    unknown = PermissionDecision(DEFERRED, GATEWAY, "permissions are not loaded")
    for now in (unknown, policy(APPROVED)):
        noted.decide(now)
    assert not noted.take()
    noted.service.remove_server("files")
    noted.decide(policy(APPROVED))
    assert len(noted.take()) == 1


class RecordedGrants(Noted):
    """Grants that only ANA may change."""

    access = GrantSet.from_grants(())

    def __init__(self) -> None:
        super().__init__()
        self.admin = GrantAdmin(self, self, self.refresh, lambda: self.now)
        self.admin.audit_log = self.journal

    def authorize(self, actor: Actor, verb: str, server: str, name: str) -> Decision:
        return Decision(Effect.ALLOW if actor == ANA else Effect.DENY, "")

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        return grants

    async def extend(self, grant: Grant) -> Grant:
        return grant

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        return True

    async def page(self, after: str = "", limit: int = 0) -> Sequence[Grant]:
        return ()

    async def refresh(self) -> None:
        """The grants of this test are always the same."""


@pytest.mark.parametrize(
    ("target", "place"),
    [
        *(("files/read", ("files", "read")), ("files/*", ("files", ""))),
        *(("*", ("", "")), ("files/r*", ("files", ""))),
    ],
)
@pytest.mark.parametrize("effect", list(Effect))
async def test_a_grant_is_told_with_what_it_is_about(
    target: str, place: tuple[str, str], effect: Effect
) -> None:
    noted = RecordedGrants()
    grant = Grant("agent:ci", "tools/call", target, effect, justification=f"as {SECRET} said")
    await noted.admin.put(ANA, grant, "1f" * 16)
    await noted.admin.revoke(ANA, "agent:ci", "tools/call", target)
    granted, revoked = noted.take()
    assert (granted.type, granted.actor, granted.kind) == (
        AuditType.ACCESS_GRANTED,
        ANA.party,
        PrincipalKind.PERSON,
    )
    assert (granted.server, granted.tool) == (revoked.server, revoked.tool) == place
    assert granted.details["permission"] == effect
    assert granted.details["justification"] == "as [secret] said"
    assert granted.trace == "1f" * 16
    assert (revoked.type, revoked.result) == (AuditType.ACCESS_REVOKED, AuditResult.SUCCESS)
    assert UUID(revoked.trace)


async def test_what_a_person_decides_of_a_permission_is_the_persons() -> None:
    noted = RecordedGrants()
    for effect in (Effect.ALLOW, Effect.DENY, Effect.ASK):
        await noted.admin.put(ANA, Grant("server:files", PERMISSION_VERB, "camera", effect))
    await noted.admin.revoke(ANA, "server:files", PERMISSION_VERB, "camera")
    events = noted.take()
    assert [event.type for event in events] == [
        AuditType.PERMISSION_GRANTED,
        AuditType.PERMISSION_DENIED,
        AuditType.PERMISSION_REVOKED,
        AuditType.PERMISSION_REVOKED,
    ]
    assert {(event.actor, event.server, event.tool) for event in events} == {
        (ANA.party, "files", "")
    }
    assert {event.details["permission"] for event in events} == {"camera"}


async def test_who_was_not_let_is_told_as_blocked() -> None:
    noted = RecordedGrants()
    stranger = Actor("agent:ci")
    with pytest.raises(MalformedMessage):
        await noted.admin.put(stranger, Grant("agent:ci", "*", "*", Effect.ALLOW))
    with pytest.raises(MalformedMessage):
        await noted.admin.revoke(stranger, "agent:ci", "*", "*")
    assert [event.result for event in noted.take()] == [AuditResult.BLOCKED, AuditResult.BLOCKED]


async def test_keys_and_their_holders_are_told_and_never_what_opens_a_door() -> None:
    noted = Noted()
    keys = KeyAdmin(inline_records(), b"pepper", clock=lambda: noted.now)
    keys.audit = noted.journal
    ends = NOON + timedelta(hours=1)
    wanted = ApiKey("", "agent:ci", b"", f"for {SECRET}", ("AdminRead",), expires_at=ends)
    first = await keys.create(ANA.party, wanted)
    second = await keys.rotate(ANA.party, first.record.id, timedelta(minutes=1))
    await keys.disable(ANA.party, "agent:ci", True)
    added, issued, again, revoked, changed = events = noted.take()
    assert added.details == {"principal": "agent:ci", "kind": "agent", "change": "added"}
    assert issued.details == {
        "key": first.record.id,
        "principal": "agent:ci",
        "label": "for [secret]",
        "permissions": ["AdminRead"],
        "expires_at": "2026-01-01T13:00:00.000Z",
    }
    assert (again.type, again.details["replaces"]) == (AuditType.KEY_ISSUED, first.record.id)
    assert (revoked.type, revoked.details["key"]) == (AuditType.KEY_REVOKED, first.record.id)
    assert revoked.details["counts_until"] == "2026-01-01T12:01:00.000Z"
    assert changed.details == {"principal": "agent:ci", "kind": "agent", "change": "disabled"}
    assert {event.actor for event in events} == {ANA.party}
    for whole in (first.whole, second.whole):
        assert whole.rpartition("_")[2] not in str(events)


class RecordedTools(Noted):
    """The tools of one server, and what is recorded of their definitions."""

    def __init__(self) -> None:
        super().__init__()
        permissions = PermissionService(lambda _: ServerPolicy())
        pins = AcceptedDefinitions(inline_records().accepted_tools)
        self.tools = ToolReviewService(Catalog(), lambda _: ServerPolicy(), permissions, pins)
        self.tools.audit_log = self.journal

    async def lists(self, count: int, description: str) -> None:
        definition = {"description": description, "inputSchema": {"type": "object"}}
        await self.tools.review_list(
            "files",
            [
                CatalogEntry(
                    f"files__t{i}", "files", f"t{i}", to_json({"name": f"t{i}", **definition})
                )
                for i in range(count)
            ],
        )


async def test_many_tools_are_one_entry() -> None:
    noted = RecordedTools()
    await noted.lists(MAX_NAMES_IN_EVENT + 5, "Reads.")
    (event,) = noted.take()
    assert (event.details["number"], event.details["more"]) == (MAX_NAMES_IN_EVENT + 5, 5)
    assert event.type == AuditType.DEFINITION_ACCEPTED
    noted.tools.stop()


async def test_what_a_server_changes_without_end_is_counted() -> None:
    noted = RecordedTools()
    await noted.lists(1, "Reads.")
    noted.take()
    for number in range(MAX_EVENTS_AT_ONCE + 7):
        await noted.lists(1, f"Reads {number} times.")
    events = noted.take()
    assert len(events) == MAX_EVENTS_AT_ONCE
    assert {event.actor for event in events} == {"server:files"}
    noted.pass_time(10)
    await noted.lists(1, "Reads once more.")
    (event,) = noted.take()
    assert (event.type, event.details["left_out"]) == (AuditType.DEFINITION_CHANGED, 7)
    noted.tools.stop()


def test_only_untrusted_details_are_redacted_and_trusted_ones_win() -> None:
    noted = Noted()
    details, untrusted = {"key": SECRET, "both": 1}, {"said": SECRET, "both": 2}
    noted.journal.record(AuditType.KEY_ISSUED, "agent:ci", details=details, untrusted=untrusted)
    (event,) = noted.take()
    assert event.details == {"key": SECRET, "said": "[secret]", "both": 1}
    assert (event.kind, event.at) == (PrincipalKind.AGENT, NOON)


def test_each_source_type_and_result_has_its_own_rate() -> None:
    noted = Noted()
    blocked, success = AuditResult.BLOCKED, AuditResult.SUCCESS
    for _ in range(MAX_EVENTS_AT_ONCE + 1):
        noted.journal.record(AuditType.FEATURE_USED, "server:a", rate_key="a", result=blocked)
    noted.journal.record(AuditType.FEATURE_USED, "server:a", rate_key="a", result=success)
    noted.journal.record(AuditType.FEATURES_DECLARED, "server:a", rate_key="a", result=blocked)
    noted.journal.record(AuditType.FEATURE_USED, "server:b", rate_key="b", result=blocked)
    assert len(noted.take()) == MAX_EVENTS_AT_ONCE + 3
    noted.journal.forget_rate("a")
    noted.journal.record(AuditType.FEATURE_USED, "server:a", rate_key="a", result=blocked)
    (event,) = noted.take()
    assert LEFT_OUT not in event.details


def test_an_event_that_may_be_left_out_waits_for_no_room() -> None:
    noted = Noted()
    while noted.journal.has_room:
        noted.journal.record(AuditType.KEY_ISSUED, "agent:ci")
    noted.take()
    noted.journal.record(AuditType.TOPIC_MESSAGE, "agent:ci", if_room=True)
    noted.journal.record(AuditType.TOPIC_MESSAGE, "agent:ci", if_room=True, rate_key="agent:ci")
    assert not noted.take()
    noted.journal.record(AuditType.KEY_ISSUED, "agent:ci")
    assert len(noted.take()) == 1


def test_rate_limit_counts_each_name_by_itself() -> None:
    noted = Noted()
    limit = AuditRateLimit(noted.journal.clock, 1)
    assert (limit.admit("a"), limit.admit("a"), limit.admit("b")) == (0, None, 0)
    limit.count_omitted("a")
    noted.pass_time(10)
    assert limit.admit("a") == 2
    limit.forget("a")
    assert limit.admit("a") == 0
