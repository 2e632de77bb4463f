"""Grants at /api/grants: who reads and changes them, and what is told of each."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.mcp.actors import ADMIN_WRITE
from comity.policy.grants import Effect, Grant, GrantSource, Guardrail
from tests.conformance.governed import ADMIN, ADMINISTERS, Governed, governed
from tests.support.cases import loop_over

OF_FILE = Grant("*", "tools/call", "web/read", Effect.ALLOW, source=GrantSource.FILE)
FORBIDDEN = Guardrail("agent:*", "tools/call", "mail/*", "no mail")


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed(grants=(*ADMINISTERS, OF_FILE), forbid=(FORBIDDEN,)) as scene:
        yield scene


def wanted(**said: Any) -> dict[str, Any]:
    return {"subject": "agent:ci", "target": "files__read", **said}


async def test_an_operator_adds_lists_and_revokes(scene: Governed) -> None:
    admin = scene.guest(ADMIN)
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    status, made = await admin.http("POST", "/api/grants", wanted(expires_at=ends, effect="ask"))
    assert status == 200
    assert (made["target"], made["effect"], made["granted_by"]) == ("files/read", "ask", ADMIN)
    _, listed = await admin.http("GET", "/api/grants")
    sources = [(each["target"], each["source"]) for each in listed["grants"]]
    assert ("web/read", "file") in sources
    assert ("files/read", "records") in sources
    assert listed["forbid"][0]["reason"] == "no mail"
    assert (listed["default_policy"], listed["policies"]) == ("deny", {})
    _, own = await admin.http("GET", "/api/grants?subject=agent:ci")
    assert [each["target"] for each in own["grants"]] == ["files/read"]
    gone = {"subject": "agent:ci", "target": "files/read"}
    assert (await admin.http("POST", "/api/grants/delete", gone))[1]["deleted"] is True
    assert (await admin.http("POST", "/api/grants/delete", gone))[1]["deleted"] is False
    fixed = {"subject": "*", "target": "web/read"}
    _, told = await admin.http("POST", "/api/grants/delete", fixed)
    assert told == {"deleted": False, "is_in_file": True, "conditional_grants": 0}


async def test_a_grant_with_a_condition_stands_beside_the_plain_one(scene: Governed) -> None:
    admin = scene.guest(ADMIN)
    where = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
    other: dict[str, Any] = {"paths": {}, "only": []}
    _, made = await admin.http("POST", "/api/grants", wanted(where=where))
    assert (made["where"], made["where_text"]) == (where, "under /project")
    assert (await admin.http("POST", "/api/grants", wanted(effect="ask")))[0] == 200
    assert (await admin.http("POST", "/api/grants", wanted(where=other)))[0] == 200
    _, own = await admin.http("GET", "/api/grants?subject=agent:ci")
    assert len(own["grants"]) == 3
    _, told = await admin.http("GET", "/api/grants/explain?principal=agent:ci&tool=files__read")
    assert told["effect"] == "ask"
    parts = [entry["role"] for entry in told["entries"]]
    assert sorted(parts) == ["conditional", "conditional", "decides"]
    _, gone = await admin.http("POST", "/api/grants/delete", wanted())
    assert gone == {"deleted": True, "is_in_file": False, "conditional_grants": 2}
    _, gone = await admin.http("POST", "/api/grants/delete", wanted(where=where))
    assert gone == {"deleted": True, "is_in_file": False, "conditional_grants": 1}
    _, gone = await admin.http("POST", "/api/grants/delete", wanted(conditional=True))
    assert gone == {"deleted": True, "is_in_file": False, "conditional_grants": 0}


async def test_a_long_list_comes_page_by_page(scene: Governed) -> None:
    many = [Grant("agent:x", "tools/call", f"s{n}/*", Effect.ALLOW) for n in range(700)]
    await scene.grant(*many)
    admin = scene.guest(ADMIN)
    found: list[str] = []
    query, count = "", 0
    while count == 0 or query:
        _, page = await admin.http("GET", f"/api/grants{query}")
        found += [each["target"] for each in page["grants"] if each["id"]]
        query, count = f"?cursor={page['next']}" if "next" in page else "", count + 1
    assert count > 1
    assert sorted(found) == sorted(grant.target for grant in many)


async def test_it_is_explained_what_decides(scene: Governed) -> None:
    admin = scene.guest(ADMIN)
    await scene.grant(Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW))
    _, told = await admin.http("GET", "/api/grants/explain?principal=agent:ci&tool=files__read")
    assert (told["effect"], told["source"]) == ("allow", "server_grant")
    assert told["entries"][0]["role"] == "decides"
    assert told["tool"]["refusal"] is None
    _, denied = await admin.http("GET", "/api/grants/explain?principal=agent:ci&tool=mail__read")
    assert (denied["source"], denied["guardrail"]["target"]) == ("guardrail", "mail/*")
    status, _ = await admin.http("GET", "/api/grants/explain?principal=agent:ci&tool=nope")
    assert status == 400


async def test_grants_are_for_operators_alone(scene: Governed) -> None:
    await scene.grant(Grant("agent:ci", "tools/*", "*", Effect.ALLOW))
    for method, path, body in (
        ("GET", "/api/grants", None),
        ("GET", "/api/grants/explain?principal=agent:ci&tool=files__read", None),
        ("POST", "/api/grants", wanted()),
        ("POST", "/api/grants/delete", wanted()),
    ):
        assert (await scene.guest("agent:ci").http(method, path, body))[0] == 403
        bound = scene.guest(ADMIN, "ToolInvoke(read)")
        assert (await bound.http(method, path, body))[0] == 403


@pytest.mark.requirement("REG-perm-AdminRead", "REG-perm-AdminWrite")
async def test_who_may_only_read_changes_nothing(scene: Governed) -> None:
    reader = scene.guest(ADMIN, "AdminRead")
    assert (await reader.http("GET", "/api/grants"))[0] == 200
    assert (await reader.http("POST", "/api/grants", wanted()))[0] == 403
    writer = scene.guest("agent:writer")
    await scene.grant(Grant("agent:writer", ADMIN_WRITE, "*", Effect.ALLOW))
    assert (await writer.http("GET", "/api/grants"))[0] == 403
    assert (await writer.http("POST", "/api/grants", wanted()))[0] == 200


ANY_ARGUMENTS: dict[str, object] = {"paths": {}, "only": []}


@loop_over(
    ("wrong", "because"),
    [
        ({"subject": "agent:*"}, ""),
        ({"target": "a b"}, ""),
        ({"verb": "*/x"}, ""),
        ({"effect": "maybe"}, ""),
        ({"expires_at": "soon"}, ""),
        ({"expires_at": "2020-01-01T00:00:00Z"}, ""),
        ({"granted_by": "person:other"}, ""),
        ({"tool": "x"}, ""),
        ({"subject": 7}, ""),
        ({"justification": "x" * 5000}, ""),
        ({"where": 3}, "must be an object"),
        ({"where": {}}, "needs paths"),
        ({"where": {"paths": {"/path": {"under": "/"}}, "only": ["path"]}}, "too wide"),
        ({"where": ANY_ARGUMENTS, "effect": "deny"}, "goes with allowing"),
        ({"where": ANY_ARGUMENTS, "target": "files/*"}, "goes with allowing"),
        ({"where": ANY_ARGUMENTS, "verb": "prompts/get"}, "goes with allowing"),
    ],
)
async def test_malformed_grant_is_refused(
    scene: Governed, wrong: dict[str, Any], because: str
) -> None:
    status, told = await scene.guest(ADMIN).http("POST", "/api/grants", wanted(**wrong))
    assert status == 400, told
    assert because in told["error"]["message"]
    assert not await scene.visitor.parts.snapshot.records.grants.page()
