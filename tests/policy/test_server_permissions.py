"""What a server may do is decided before it begins, told to it, and made anew when that is due."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.errors import METHOD_NOT_FOUND, POLICY_UNKNOWN, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import MgpStatement
from comity.policy.grants import PERMISSION_VERB, Decision, Effect, Grant, GrantSet
from comity.policy.risk import (
    ApprovalPolicy,
    PermissionDenialAction,
    PermissionOutcome,
    ServerPolicy,
)
from comity.policy.server_permissions import PermissionService, ServerIntroduction
from comity.policy.snapshot import GrantSnapshot
from tests.support.cases import loop_over
from tests.support.clock import ManualClock

ASKING = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)
LISTED = ServerPolicy(approval=ApprovalPolicy.CONFIG_ONLY, permissions=("memory.read",))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Office:
    """Permissions of one server, the grants they follow from, and all that the server is told."""

    def __init__(self, policy: ServerPolicy = ASKING) -> None:
        self.day = ManualClock(NOW)
        self.grants = GrantSnapshot(GrantSet.from_grants(()), self.day)
        self.permits = PermissionService(
            lambda _: policy, self.grants, lambda: self.grants.latest, self.day
        )
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.answer: Callable[[str], Frame] = lambda _: jsonrpc.make_result(1, {})

    def grant(self, *entries: tuple[str, Effect], expires: datetime | None = None) -> None:
        subject = "server:srv"
        grants = [
            Grant(
                subject, PERMISSION_VERB, name, effect, granted_by="person:ana", expires_at=expires
            )
            for name, effect in entries
        ]
        self.grants.replace(GrantSet.from_grants(grants))

    async def speak(self, method: str, params: Mapping[str, object]) -> Frame:
        self.told.append((method, dict(params)))
        return self.answer(method)

    async def meet(self, *needs: str, trust: str | None = None) -> None:
        said = MgpStatement("0.3.0", frozenset({"security"}), needs, trust)
        await self.permits.decide_introduction(ServerIntroduction("srv", said, self.speak))

    async def look(self) -> None:
        self.permits.renew_due_decisions()
        async with asyncio.timeout(10):
            await self.permits.wait_until_told()

    def decisions(self) -> dict[str, str]:
        return {
            name: str(each.decision)
            for name, each in self.permits.permissions_of("srv").decision_by_name.items()
        }


async def test_where_somebody_is_asked_the_server_is_told_to_wait() -> None:
    office = Office()
    await office.meet("shell", "network.outbound")
    assert office.decisions() == {"shell.execute": "deferred", "network.outbound": "deferred"}
    assert office.told == [
        (
            "mgp/permission/request",
            {
                "request_id": "perm-001",
                "permissions": ["shell.execute", "network.outbound"],
                "policy": "interactive",
                "message": "Waiting for operator approval",
            },
        )
    ]


async def test_a_decision_is_told_under_the_number_of_the_question() -> None:
    office = Office()
    await office.meet("shell.execute", "camera")
    ends = NOW + timedelta(hours=8)
    office.grant(("shell.execute", Effect.ALLOW), ("camera", Effect.DENY), expires=ends)
    await office.look()
    assert office.told[1:] == [
        (
            "mgp/permission/response",
            {
                "request_id": "perm-001",
                "grants": {"shell.execute": "approved", "camera": "denied"},
                "approved_by": "person:ana",
                "expires_at": "2026-01-01T08:00:00.000Z",
            },
        )
    ]
    await office.look()
    assert len(office.told) == 2


async def test_after_its_end_a_grant_is_not_there_and_somebody_is_asked_anew() -> None:
    office = Office()
    office.grant(("camera", Effect.ALLOW), expires=NOW + timedelta(hours=1))
    await office.meet("camera")
    assert office.decisions() == {"camera": "approved"}
    before = office.permits.permissions_of("srv").generation
    office.day.now += timedelta(hours=1)
    assert office.decisions() == {"camera": "deferred"}
    assert office.permits.permissions_of("srv").generation == before + 1
    await office.look()
    methods = [method for method, _ in office.told]
    assert methods == ["mgp/permission/response", "mgp/permission/request"]


async def test_what_a_server_answers_grants_nothing(caplog: pytest.LogCaptureFixture) -> None:
    office = Office()
    grants = {"grants": {"camera": "approved"}, "approved_by": "admin"}
    office.answer = lambda _: jsonrpc.make_result(1, grants)
    with caplog.at_level(logging.WARNING):
        await office.meet("camera")
    assert office.decisions() == {"camera": "deferred"}
    assert "Comity ignores them" in caplog.text


async def test_a_server_that_knows_only_the_later_names_is_told_by_them() -> None:
    office = Office()
    later = ("mgp/permission/await", "mgp/permission/grant")
    office.answer = lambda method: (
        jsonrpc.make_result(1, {})
        if method in later
        else jsonrpc.make_error(1, METHOD_NOT_FOUND, "no")
    )
    await office.meet("camera")
    office.grant(("camera", Effect.ALLOW))
    await office.look()
    assert [method for method, _ in office.told] == [
        "mgp/permission/request",
        "mgp/permission/await",
        "mgp/permission/response",
        "mgp/permission/grant",
    ]


@loop_over("broken", [b"[]", b"7", b'"x"'])
async def test_a_server_that_answers_nonsense_or_not_at_all_is_no_matter(broken: bytes) -> None:
    office = Office()
    office.answer = lambda _: Frame("2.0", 1, result=jsonrpc.Raw(broken))
    await office.meet("camera")

    def fail(_: str) -> Frame:
        raise Unavailable("gone")

    office.answer = fail
    await office.meet("camera")
    assert office.decisions() == {"camera": "deferred"}


async def test_where_nobody_is_asked_a_server_hears_only_of_what_it_does_not_get() -> None:
    office = Office(LISTED)
    await office.meet("memory.read", "camera")
    assert office.told == [
        (
            "mgp/permission/response",
            {
                "request_id": "perm-001",
                "grants": {"camera": "denied"},
                "approved_by": "policy config_only",
            },
        )
    ]
    content = Office(ServerPolicy())
    await content.meet("memory.read", "camera")
    assert (content.told, set(content.decisions().values())) == ([], {"approved"})


async def test_a_server_that_cannot_be_told_is_decided_about_all_the_same() -> None:
    office = Office()
    said = MgpStatement("", frozenset(), ("camera",))
    await office.permits.decide_introduction(ServerIntroduction("srv", said))
    office.grant(("camera", Effect.ALLOW))
    await office.look()
    assert (office.told, office.decisions()) == ([], {"camera": "approved"})
    await office.permits.decide_introduction(ServerIntroduction("srv", None))
    assert office.decisions() == {}


async def test_a_server_may_be_rejected_for_what_it_was_not_given() -> None:
    strict = ServerPolicy(approval=ApprovalPolicy.DENY_ALL, on_denied=PermissionDenialAction.REJECT)
    office = Office(strict)
    with pytest.raises(Unavailable, match=r"lacks permissions: camera \(denied\)"):
        await office.meet("camera")
    office.grant(("camera", Effect.ALLOW))
    await office.meet("camera")
    assert office.decisions() == {"camera": "approved"}


async def test_what_only_a_tool_needs_is_decided_too_and_once() -> None:
    office = Office()
    heard: list[str] = []
    office.permits.watch(heard.append)
    await office.meet("camera")
    office.permits.add_tool_permissions("srv", ["camera", "shell.execute", "shell.execute"])
    assert office.decisions() == {"camera": "deferred", "shell.execute": "deferred"}
    office.permits.add_tool_permissions("srv", ["camera", "shell.execute"])
    assert heard == ["srv", "srv"]
    await office.look()
    assert office.told[-1][1]["permissions"] == ["camera", "shell.execute"]


async def test_while_nobody_knows_what_is_allowed_nothing_is() -> None:
    office = Office(ServerPolicy())

    class Nowhere(GrantSnapshot):
        known = False

        def authorize(
            self, actor: Actor, verb: str, server: str, name: str, view: str = ""
        ) -> Decision:
            if not self.known:
                raise Unavailable("not known yet", POLICY_UNKNOWN)
            return super().authorize(actor, verb, server, name)

    nowhere = Nowhere(GrantSet.from_grants(()))
    permits = PermissionService(
        lambda _: ServerPolicy(), nowhere, lambda: nowhere.latest, office.day
    )
    await permits.decide_introduction(
        ServerIntroduction("srv", MgpStatement("", frozenset(), ("camera",)))
    )
    assert (
        permits.permissions_of("srv").missing(["camera"])["camera"].decision
        is PermissionOutcome.DEFERRED
    )
    nowhere.known = True
    assert permits.permissions_of("srv").missing(["camera"]) == {}


async def test_what_nobody_has_heard_of_is_missing() -> None:
    office = Office()
    assert list(office.permits.permissions_of("srv").missing(["camera"])) == ["camera"]
    office.permits.remove_server("srv")
    office.permits.stop()
    assert office.decisions() == {}
