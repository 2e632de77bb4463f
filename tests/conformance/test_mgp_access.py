"""Access as MGP asks after it, grants and revokes it, through the doors in both eras. (MGP §5)"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.mcp.actors import ADMIN_WRITE
from comity.policy.grants import DefaultPolicy, Effect, Grant, Guardrail
from tests.conformance.governed import ADMIN, MGP, Governed, Guest, governed, refusal_of

type Ask = Callable[..., Awaitable[dict[str, Any]]]

AGENT = "agent:ci"
WHERE = {"agent_id": AGENT, "server_id": "files"}
TOOL = {**WHERE, "tool_name": "read"}


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed() as scene:
        yield scene


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    return request.param


async def speaker(guest: Guest, era: str) -> Ask:
    """Somebody who has negotiated access_control in this era."""
    if era == "handshake":
        await guest.greet(**MGP)
        assert "access_control" in guest.hello["capabilities"]["mgp"]["extensions"]
        return guest.ask

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await guest.modern(method, params, **MGP)

    return ask


async def asked(scene: Governed, party: str, era: str) -> Ask:
    return await speaker(scene.guest(party), era)


def granted(kind: str = "server_grant", **more: Any) -> dict[str, Any]:
    named = {"tool_name": "read"} if kind == "tool_grant" else {"tool_name": None}
    return {**WHERE, **named, "entry_type": kind, "permission": "allow", **more}


async def may_call(scene: Governed, tool: str = "files__read") -> bool:
    answer = await scene.guest(AGENT).modern("tools/call", {"name": tool, "arguments": {}})
    return refusal_of(answer) is None


@pytest.mark.requirement(
    *("MGP-5.4-query", "MGP-5.4-query-permission", "MGP-5.4-query-source"),
    *("MGP-5.4-query-granted_by", "MGP-5.4-query-granted_at", "MGP-5.4-query-expires_at"),
    *("MGP-5.4-grant", "MGP-5.4-grant-entry_type", "MGP-5.4-grant-subject"),
    *("MGP-5.4-grant-permission", "MGP-5.4-grant-provenance", "MGP-2.2-ext-access_control"),
)
async def test_what_was_granted_is_answered_and_in_force_at_once(scene: Governed, era: str) -> None:
    admin = await asked(scene, ADMIN, era)
    assert not await may_call(scene)
    ends = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    wanted = granted(justification="for the build", expires_at=ends.isoformat(), granted_by=ADMIN)
    entry = (await admin("mgp/access/grant", wanted))["result"]
    assert entry["entry_type"] == entry["source"] == "server_grant"
    assert (entry["permission"], entry["granted_by"]) == ("allow", ADMIN)
    assert datetime.fromisoformat(entry["expires_at"]) == ends
    assert await may_call(scene)
    state = (await admin("mgp/access/query", TOOL))["result"]
    stored = {name: value for name, value in entry.items() if name != "entry_type"}
    for name, value in stored.items():
        assert state[name] == value
    at = datetime.fromisoformat(state["granted_at"])
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    (kept,) = await scene.visitor.parts.snapshot.records.grants.page()
    assert (kept.justification, kept.granted_by) == ("for the build", ADMIN)


@pytest.mark.requirement("MGP-5.4-grant-subject")
async def test_a_grant_reaches_the_agent_the_server_and_the_tool_that_it_names(
    scene: Governed, era: str
) -> None:
    admin = await asked(scene, ADMIN, era)
    entry = (await admin("mgp/access/grant", granted("tool_grant")))["result"]
    assert entry["entry_type"] == entry["source"] == "tool_grant"
    assert await may_call(scene)
    assert not await may_call(scene, "files__write")
    assert not await may_call(scene, "web__read")
    await admin("mgp/access/grant", granted("server_grant"))
    assert await may_call(scene, "files__write")
    assert not await may_call(scene, "web__read")
    other = await scene.guest("agent:other").modern("tools/call", {"name": "files__read"})
    assert refusal_of(other) is not None


@pytest.mark.requirement("MGP-5.4-revoke")
async def test_what_is_revoked_is_void_at_once_and_twice_is_no_mistake(
    scene: Governed, era: str
) -> None:
    admin = await asked(scene, ADMIN, era)
    for kind in ("server_grant", "tool_grant"):
        await admin("mgp/access/grant", granted(kind))
        assert await may_call(scene)
        gone = {**(TOOL if kind == "tool_grant" else WHERE), "entry_type": kind}
        assert (await admin("mgp/access/revoke", gone))["result"]["revoked"] is True
        assert not await may_call(scene)
        assert (await admin("mgp/access/revoke", gone))["result"]["revoked"] is False


@pytest.mark.requirement(
    *("MGP-5.2-tool_grant", "MGP-5.2-server_grant", "MGP-5.2-default_policy"),
    *("MGP-5.3-server_grant", "MGP-5.3-tool_grant", "MGP-5.5-opt-in"),
    *("MGP-5.4-query-permission", "MGP-5.4-query-source"),
)
async def test_a_tool_grant_counts_before_a_server_grant_and_that_before_the_default(
    scene: Governed, era: str
) -> None:
    admin = await asked(scene, ADMIN, era)

    async def state(**about: str) -> tuple[str, str]:
        found = (await admin("mgp/access/query", {**TOOL, **about}))["result"]
        return found["permission"], found["source"]

    assert await state() == ("deny", "default_policy")
    await admin("mgp/access/grant", granted())
    assert await state() == ("allow", "server_grant")
    await admin("mgp/access/grant", granted("tool_grant", permission="deny"))
    assert await state() == ("deny", "tool_grant")
    assert await state(tool_name="write") == ("allow", "server_grant")
    assert not await may_call(scene)
    assert await may_call(scene, "files__write")
    await admin("mgp/access/grant", granted(permission="deny"))
    await admin("mgp/access/grant", granted("tool_grant"))
    assert await state() == ("allow", "tool_grant")
    assert await may_call(scene)
    assert not await may_call(scene, "files__write")


@pytest.mark.requirement("MGP-5.5-opt-out", "MGP-5.2-default_policy")
async def test_a_server_of_opt_out_is_open_unless_denied() -> None:
    async with governed(policy_default_policy=DefaultPolicy.ALLOW) as scene:
        admin = await asked(scene, ADMIN, "modern")
        assert await may_call(scene)
        found = (await admin("mgp/access/query", TOOL))["result"]
        assert (found["permission"], found["source"]) == ("allow", "default_policy")
        assert (found["granted_by"], found["granted_at"], found["expires_at"]) == (None,) * 3
        await admin("mgp/access/grant", granted("tool_grant", permission="deny"))
        assert not await may_call(scene)
        assert await may_call(scene, "files__write")


async def test_a_guardrail_is_named_as_what_it_is() -> None:
    async with governed(forbid=(Guardrail("agent:*", "tools/call", "files/*"),)) as scene:
        admin = await asked(scene, ADMIN, "modern")
        await admin("mgp/access/grant", granted("tool_grant"))
        found = (await admin("mgp/access/query", TOOL))["result"]
        assert (found["permission"], found["source"]) == ("deny", "guardrail")
        assert not await may_call(scene)


async def test_an_entry_that_has_expired_is_not_there(scene: Governed) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    await scene.grant(Grant(AGENT, "tools/call", "files/*", Effect.ALLOW, expires_at=past))
    admin = await asked(scene, ADMIN, "modern")
    found = (await admin("mgp/access/query", TOOL))["result"]
    assert (found["permission"], found["source"]) == ("deny", "default_policy")
    assert not await may_call(scene)


async def test_everybody_may_ask_after_itself_and_only_operators_after_others(
    scene: Governed, era: str
) -> None:
    await scene.grant(Grant(AGENT, "tools/call", "files/*", Effect.ALLOW))
    agent = await asked(scene, AGENT, era)
    own = {"server_id": "files", "tool_name": "read"}
    assert (await agent("mgp/access/query", TOOL))["result"]["permission"] == "allow"
    assert (await agent("mgp/access/query", own))["result"]["permission"] == "allow"
    refused = await agent("mgp/access/query", {**TOOL, "agent_id": "agent:other"})
    assert refused["error"]["code"] == 1001


@pytest.mark.requirement("MGP-14.3-1001")
@pytest.mark.parametrize("method", ["mgp/access/grant", "mgp/access/revoke"])
async def test_only_operators_change_what_others_may_do(
    scene: Governed, era: str, method: str
) -> None:
    await scene.grant(Grant(AGENT, "tools/call", "*", Effect.ALLOW))
    agent = await asked(scene, AGENT, era)
    wanted = granted() if method.endswith("grant") else {**WHERE, "entry_type": "server_grant"}
    refused = await agent(method, wanted)
    assert refused["error"]["code"] == 1001
    assert refused["error"]["data"]["_mgp"]["retryable"] is False
    assert len(await scene.visitor.parts.snapshot.records.grants.page()) == 1


async def test_who_administers_one_server_administers_no_other(scene: Governed, era: str) -> None:
    await scene.grant(Grant("agent:lead", ADMIN_WRITE, "files/*", Effect.ALLOW))
    lead = await asked(scene, "agent:lead", era)
    assert "result" in await lead("mgp/access/grant", granted())
    refused = await lead("mgp/access/grant", {**granted(), "server_id": "web"})
    assert refused["error"]["code"] == 1001


@pytest.mark.requirement("MGP-5.4-grant-provenance")
async def test_the_grantor_is_the_sender_whomever_the_message_names(
    scene: Governed, era: str
) -> None:
    admin = await asked(scene, ADMIN, era)
    entry = (await admin("mgp/access/grant", granted(granted_by="person:somebody")))["result"]
    assert entry["granted_by"] == ADMIN
    assert (await admin("mgp/access/query", TOOL))["result"]["granted_by"] == ADMIN
    (stored,) = await scene.visitor.parts.snapshot.records.grants.page()
    assert stored.granted_by == ADMIN
    assert await may_call(scene)


@pytest.mark.parametrize(
    "wrong",
    [
        {"entry_type": "world_grant"},
        {"permission": "maybe"},
        {"agent_id": "*"},
        {"agent_id": None},
        {"server_id": "fi*"},
        {"server_id": "a/b"},
        {"tool_name": "read"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"expires_at": 7},
    ],
    ids=str,
)
async def test_an_entry_that_cannot_be_is_refused(scene: Governed, wrong: dict[str, Any]) -> None:
    admin = await asked(scene, ADMIN, "modern")
    refused = await admin("mgp/access/grant", {**granted(), **wrong})
    assert refused["error"]["code"] == -32602
    assert not await scene.visitor.parts.snapshot.records.grants.page()


async def test_without_the_extension_there_are_no_such_methods(scene: Governed) -> None:
    guest = scene.guest(ADMIN)
    others: dict[str, Any] = {"mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}}
    for spoken in ({}, others):
        refused = await guest.modern("mgp/access/query", TOOL, **spoken)
        assert refused["error"]["code"] == -32601
    await guest.greet()
    assert (await guest.ask("mgp/access/query", TOOL))["error"]["code"] == -32601


async def test_whoever_is_granted_more_is_told_that_its_lists_are_new(scene: Governed) -> None:
    guest = await scene.guest(AGENT).greet()
    guest.visitor.session = guest.session
    stream = await guest.visitor.get()
    await scene.grant(Grant(AGENT, "tools/call", "files/read", Effect.ALLOW))
    told = {(await stream.event()).frame["method"] for _ in range(3)}
    assert "notifications/tools/list_changed" in told
    stream.leave()
