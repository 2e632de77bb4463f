"""Every event of MGP's audit trail, as it is written down and as it is told. (MGP §6, D-34)"""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from comity.audit.events import NOTICE
from comity.mcp.actors import PrincipalKind
from tests.conformance.audited import (
    ANA,
    AUDIT,
    CI,
    MEMBERS,
    METADATA,
    TOOLS,
    Scene,
    audited,
    described,
    listening,
    result,
    told,
)
from tests.conformance.governed import Guest
from tests.support.visitor import Frame

type Deed = Callable[[Scene, Guest], Awaitable[object]]

GATEWAY = "system:gateway"
FILES = {"server_id": "files"}
READ = {**FILES, "tool_name": "read"}
ENTRY: Frame = {
    "entry_type": "tool_grant",
    "agent_id": CI,
    "server_id": "files",
    "tool_name": "read",
}
MILLISECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def calls(tool: str, **arguments: object) -> Deed:
    async def deed(scene: Scene, ana: Guest) -> None:
        await ana.ask("tools/call", {"name": f"files__{tool}", "arguments": arguments})

    return deed


def orders(path: str, body: Frame | None = None, before: Deed | None = None) -> Deed:
    async def deed(scene: Scene, ana: Guest) -> Any:
        if before is not None:
            await before(scene, ana)
        status, found = await ana.http("POST", f"/api/{path}", body or {})
        assert status == 200, found
        return found

    return deed


def asks(method: str, before: Deed | None = None, **params: object) -> Deed:
    async def deed(scene: Scene, ana: Guest) -> None:
        if before is not None:
            await before(scene, ana)
        answer = await ana.ask(method, params)
        assert "result" in answer, answer

    return deed


async def restarts(scene: Scene, ana: Guest) -> None:
    await orders("servers/files/stop")(scene, ana)
    await orders("servers/files/start")(scene, ana)


async def is_refused(scene: Scene, ana: Guest) -> None:
    """Somebody without a grant calls, which the operator hears of."""
    stranger = await scene.guest(CI, PrincipalKind.AGENT).greet()
    await stranger.ask("tools/call", {"name": "files__read", "arguments": {}})


def decides(deed: str, before: Deed | None = None) -> Deed:
    body = {"server": "files", "permission": "shell.execute"}
    return orders(f"permissions/{deed}", body, before)


PERMISSION = {"permission": "shell.execute"}
EVENTS: list[tuple[str, Deed, str, Frame, str, Frame]] = [
    ("TOOL_EXECUTED", calls("read"), ANA, READ, "SUCCESS", {"risk_level": "safe"}),
    ("TOOL_BLOCKED", is_refused, CI, {"tool_name": "files__read"}, "BLOCKED", {}),
    ("PERMISSION_GRANTED", decides("approve"), ANA, FILES, "SUCCESS", PERMISSION),
    ("PERMISSION_DENIED", decides("deny"), ANA, FILES, "SUCCESS", PERMISSION),
    *(
        ("PERMISSION_REVOKED", decides("reset", decides(each)), ANA, FILES, "SUCCESS", PERMISSION)
        for each in ("approve", "deny")
    ),
    *(
        (
            "ACCESS_GRANTED",
            asks("mgp/access/grant", **ENTRY, permission=each),
            *(ANA, READ, "SUCCESS", {"permission": each, "subject": CI}),
        )
        for each in ("allow", "deny")
    ),
    (
        "ACCESS_REVOKED",
        asks("mgp/access/revoke", asks("mgp/access/grant", **ENTRY, permission="allow"), **ENTRY),
        *(ANA, READ, "SUCCESS", {"subject": CI}),
    ),
    ("SERVER_DISCONNECTED", restarts, ANA, FILES, "SUCCESS", {"reason": "operator_request"}),
    ("SERVER_CONNECTED", restarts, ANA, FILES, "SUCCESS", {"protocol_versions": ["2025-11-25"]}),
    (
        "VALIDATION_FAILED",
        calls("fetch", url=METADATA),
        *(ANA, {**FILES, "tool_name": "fetch"}, "BLOCKED"),
        {"validator_applied": "network_restricted", "risk_level": "dangerous"},
    ),
    (
        "CODE_REJECTED",
        calls("code", code="import os; os.system('true')"),
        *(ANA, {**FILES, "tool_name": "code"}, "BLOCKED"),
        {"validator_applied": "code_safety"},
    ),
    (
        "dev.comity.call_intended",
        calls("write"),
        *(ANA, {**FILES, "tool_name": "write"}, "PENDING", {"risk_level": "dangerous"}),
    ),
    (
        "dev.comity.key_issued",
        orders("keys", {"principal": CI}),
        ANA,
        {},
        "SUCCESS",
        {"principal": CI},
    ),
    (
        "dev.comity.principal_changed",
        orders("principals", {"id": "agent:new", "kind": "agent"}),
        *(ANA, {}, "SUCCESS", {"principal": "agent:new", "change": "added"}),
    ),
]


def proving(number: int, kind: str, *rest: object) -> Any:
    """A case that proves the row of its own type."""
    row = f"MGP-6.4-{kind}" if kind.isupper() else "MGP-6.4-custom"
    return pytest.param(kind, *rest, marks=pytest.mark.requirement(row), id=f"{number}-{kind}")


@pytest.mark.requirement("MGP-1.2-auditable", "MGP-6.3-details")
@pytest.mark.requirement("MGP-6.3-event_type", "MGP-6.3-actor", "MGP-6.3-target", "MGP-6.3-result")
@pytest.mark.parametrize(
    ("kind", "deed", "actor", "target", "outcome", "details"),
    [proving(number, *event) for number, event in enumerate(EVENTS)],
)
async def test_whatever_happens_is_written_down_and_told(
    kind: str, deed: Deed, actor: str, target: Frame, outcome: str, details: Frame
) -> None:
    async with audited() as scene:
        ana = scene.guest()
        stream = await listening(ana)
        await deed(scene, ana)
        entry = await scene.found(kind, lambda found: found["actor"]["id"] == actor)
        assert (entry["target"], entry["result"]) == (target, outcome)
        assert entry["actor"]["type"] == actor.partition(":")[0]
        assert {key: entry["details"].get(key) for key in details} == details
        notice = await told(stream, kind)
        while notice["params"]["trace_id"] != entry["trace_id"]:
            notice = await told(stream, kind)
        assert notice["params"] == {key: said for key, said in entry.items() if key in MEMBERS}


@pytest.mark.requirement("MGP-6.3-format", "MGP-6.3-method", "MGP-6.3-timestamp")
@pytest.mark.requirement("MGP-6.3-trace_id", "MGP-6.1-split")
async def test_every_event_has_the_one_form() -> None:
    before = datetime.now(UTC)
    async with audited() as scene:
        ana = scene.guest()
        stream = await listening(ana)
        for _, deed, *_ in EVENTS:
            await deed(scene, ana)
        entries = await scene.journal()
        (notice, *_) = [await told(stream, "TOOL_EXECUTED")]
    assert len({entry["event_type"] for entry in entries}) > len(EVENTS) // 2
    assert notice.keys() == {"jsonrpc", "method", "params"}
    assert (notice["jsonrpc"], notice["method"]) == ("2.0", NOTICE)
    for entry in (*entries, notice["params"]):
        assert entry.keys() - {"call_id"} == MEMBERS
        assert MILLISECONDS.fullmatch(entry["timestamp"])
        at = datetime.fromisoformat(entry["timestamp"])
        assert before - timedelta(seconds=1) <= at <= datetime.now(UTC) + timedelta(seconds=1)
        assert str(UUID(entry["trace_id"])) == entry["trace_id"]
        assert entry["actor"].keys() == {"type", "id"}
        assert entry["target"].keys() <= {"server_id", "tool_name"}
        assert entry["result"] in {"SUCCESS", "FAILURE", "BLOCKED", "PENDING", "UNKNOWN"}
        ours = entry["event_type"].startswith("dev.comity.")
        assert ours or re.fullmatch(r"[A-Z_]+", entry["event_type"])


@pytest.mark.requirement("MGP-6.3-details")
async def test_a_call_is_told_with_its_risk_its_validators_and_how_long_it_took() -> None:
    async with audited() as scene:
        ana = await scene.guest().greet(**AUDIT)
        await calls("fetch", url="https://93.184.216.34/")(scene, ana)
        entry = await scene.found("TOOL_EXECUTED")
        details = entry["details"]
        assert details["risk_level"] == "dangerous"
        assert details["validator_applied"] == "network_restricted"
        assert 0 < details["duration_ms"] < 60_000


@pytest.mark.requirement("MGP-6.4-PERMISSION_REVOKED", "MGP-6.4-PERMISSION_DENIED")
async def test_what_follows_by_itself_is_the_gateways_deed() -> None:
    """A policy that decides, and an approval that comes to its end. (D-11)"""
    async with audited() as scene:
        denied = await scene.found("PERMISSION_DENIED")
        assert denied["actor"] == {"type": "system", "id": GATEWAY}
        assert denied["details"]["by"] == "policy config_only"
        ana = await scene.guest().greet(**AUDIT)
        body = {"server": "files", "permission": "shell.execute", "expires_in_seconds": 1}
        await orders("permissions/approve", body)(scene, ana)
        ended = await scene.found("PERMISSION_REVOKED")
        assert ended["actor"]["id"] == GATEWAY
        assert (ended["details"]["expired"], ended["details"]["permission"]) == (
            True,
            "shell.execute",
        )


@pytest.mark.requirement("MGP-6.4-SERVER_DISCONNECTED")
async def test_a_server_that_leaves_did_so_itself() -> None:
    async with audited() as scene:
        server = scene.visitor.parts.servers.require("files")
        assert server.connections.own_connection is not None
        server.connections.own_connection.connection.on_closed("it hung up")
        entry = await scene.found("SERVER_DISCONNECTED")
        assert entry["actor"] == {"type": "server", "id": "server:files"}
        assert "it hung up" in entry["details"]["reason"]


@pytest.mark.requirement("MGP-1.2-auditable")
async def test_whoever_is_not_let_change_anything_is_written_down_too() -> None:
    async with audited() as scene:
        ci = await scene.guest(CI, PrincipalKind.AGENT).greet(**AUDIT)
        answer = await ci.ask("mgp/access/grant", {**ENTRY, "permission": "allow"})
        entry = await scene.found("ACCESS_GRANTED")
        assert (entry["actor"]["id"], entry["result"]) == (CI, "BLOCKED")
        assert UUID(entry["trace_id"]) == UUID(answer["error"]["data"]["trace_id"])


@pytest.mark.requirement("MGP-1.2-auditable")
async def test_a_definition_that_changes_is_its_servers_and_its_acceptance_an_operators() -> None:
    async with audited() as scene:
        accepted = await scene.found(
            "dev.comity.definition_accepted", lambda each: each["target"] == FILES
        )
        assert accepted["actor"]["id"] == GATEWAY
        assert accepted["details"]["number"] == len(TOOLS)
        ana = await scene.guest().greet(**AUDIT)
        other = [described(TOOLS[0], description="Another one."), *map(described, TOOLS[1:])]
        scene.files.acts["tools/list"] = result({"tools": other})
        await restarts(scene, ana)
        changed = await scene.found("dev.comity.definition_changed")
        assert changed["actor"] == {"type": "server", "id": "server:files"}
        digests = changed["details"]["tools"]
        assert digests.keys() == {"read"}
        await orders("definitions/accept", {"server": "files", "tools": digests})(scene, ana)
        entry = await scene.found(
            "dev.comity.definition_accepted", lambda each: each["actor"]["id"] == ANA
        )
        assert entry["details"]["tools"] == digests


@pytest.mark.requirement("MGP-1.2-auditable")
async def test_a_key_that_is_replaced_and_taken_back_leaves_its_way_in_the_journal() -> None:
    async with audited() as scene:
        ana = await scene.guest().greet(**AUDIT)
        made = await orders("keys", {"principal": CI, "label": "nightly"})(scene, ana)
        name = made["id"]  # type: ignore[index]
        again = await orders(f"keys/{name}/rotate", {"grace_seconds": 60})(scene, ana)
        await orders(f"keys/{again['id']}/revoke")(scene, ana)  # type: ignore[index]
        entries = [each for each in await scene.journal() if ".key_" in each["event_type"]]
        told_of = [(each["event_type"][11:], each["details"]["key"]) for each in entries]
        second = again["id"]  # type: ignore[index]
        assert told_of == [
            ("key_issued", name),
            ("key_issued", second),
            ("key_revoked", name),
            ("key_revoked", second),
        ]
        assert "counts_until" in entries[2]["details"]
        assert made["key"] not in str(entries)  # type: ignore[index]


@pytest.mark.requirement("MGP-6.3-details")
async def test_no_secret_that_an_operator_writes_is_told() -> None:
    secret = "sk-ant-api03-" + "x" * 40
    async with audited() as scene:
        ana = await scene.guest().greet(**AUDIT)
        given: Frame = {**ENTRY, "permission": "allow", "justification": f"he said {secret}"}
        await asks("mgp/access/grant", **given)(scene, ana)
        entry = await scene.found("ACCESS_GRANTED")
        assert secret not in str(entry)
        assert entry["details"]["justification"].startswith("he said ")


def test_every_event_of_the_document_has_a_deed_here() -> None:
    standard = {kind for kind, *_ in EVENTS if kind.isupper()}
    assert len(standard) == 11
