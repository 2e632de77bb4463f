"""What is listed is exactly what may be used: in both eras, at every door, at the registry's."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.policy.grants import Effect, Grant
from tests.conformance.governed import (
    ADMIN,
    SERVERS,
    TOOLS,
    Governed,
    Guest,
    governed,
    refusal_of,
)

ROUNDS = 8
PARTIES = ("agent:a", "agent:b", "agent:c")
EVERY_TOOL = tuple((server, tool) for server in SERVERS for tool in TOOLS)


def drawn(chance: random.Random) -> Iterable[Grant]:
    now = datetime.now(UTC)
    servers, names = (*SERVERS, "*", "*i*"), (*TOOLS, "*", "*e*", "re*")
    for _ in range(chance.randint(2, 12)):
        target = f"{chance.choice(servers)}/{chance.choice(names)}"
        effect = chance.choice((Effect.ALLOW, Effect.ALLOW, Effect.DENY))
        ends = chance.choice((None, None, now + timedelta(hours=1), now - timedelta(hours=1)))
        subject = chance.choice((*PARTIES, "*"))
        yield Grant(subject, "tools/call", target, effect, expires_at=ends)


async def listed_modern(guest: Guest, path: str = "/mcp") -> set[str]:
    answer = await guest.modern("tools/list", path=path)
    return {tool["name"] for tool in answer["result"]["tools"]}


async def accepted_modern(guest: Guest) -> set[str]:
    found: set[str] = set()
    for server, tool in EVERY_TOOL:
        name = f"{server}__{tool}"
        answer = await guest.modern("tools/call", {"name": name, "arguments": {}})
        assert refusal_of(answer) in (None, "access_denied")
        if refusal_of(answer) is None:
            found.add(name)
    return found


async def accepted_in_session(guest: Guest) -> set[str]:
    found: set[str] = set()
    for server, tool in EVERY_TOOL:
        name = f"{server}__{tool}"
        answer = await guest.ask("tools/call", {"name": name, "arguments": {}})
        if refusal_of(answer) is None:
            found.add(name)
    return found


async def accepted_at_registry(guest: Guest) -> tuple[set[str], set[str]]:
    """What the registry's face lists, and what it lets be called."""
    status, catalogue = await guest.http("GET", "/tools")
    assert status == 200
    listed = {tool["name"] for tool in catalogue["tools"]}
    called: set[str] = set()
    for server, tool in EVERY_TOOL:
        status, _ = await guest.http("POST", f"/tools/{server}__{tool}", {})
        assert status in (200, 403, 404)
        if status == 200:
            called.add(f"{server}__{tool}")
    return listed, called


async def seen_at_own_doors(guest: Guest) -> set[str]:
    found: set[str] = set()
    for server in SERVERS:
        path = f"/servers/{server}/mcp"
        answer = await guest.modern("tools/list", path=path)
        if "error" in answer:
            assert answer["error"]["data"]["error_type"] == "nothing_here"
            continue
        names = {tool["name"] for tool in answer["result"]["tools"]}
        for tool in TOOLS:
            said = await guest.modern("tools/call", {"name": tool, "arguments": {}}, path=path)
            assert (refusal_of(said) is None) == (tool in names)
        found |= {f"{server}__{name}" for name in names}
    return found


async def check(scene: Governed, guest: Guest, expected: set[str]) -> None:
    assert await listed_modern(guest) == expected
    assert await accepted_modern(guest) == expected
    await guest.greet()
    answer = await guest.ask("tools/list")
    assert {tool["name"] for tool in answer["result"]["tools"]} == expected
    assert await accepted_in_session(guest) == expected
    assert await accepted_at_registry(guest) == (expected, expected)
    assert await seen_at_own_doors(guest) == expected


@pytest.mark.requirement("MGP-5.1-protocol", "MGP-14.3-1001")
async def test_what_is_listed_is_exactly_what_may_be_called() -> None:
    chance = random.Random(4)  # noqa: S311  # no secret
    sizes: set[int] = set()
    async with governed() as scene:
        access = scene.visitor.parts.snapshot.grants
        guests = {party: scene.guest(party) for party in PARTIES}
        for _ in range(ROUNDS):
            await scene.grant_only(drawn(chance))
            party = chance.choice(PARTIES)
            guest = Guest(scene.visitor.other("/mcp"), guests[party].key)
            actor = scene.visitor.parts.authenticator
            judged = access.access
            who = await actor.authenticate(guest.key.encode())
            now = datetime.now(UTC)
            expected = {
                f"{server}__{tool}"
                for server, tool in EVERY_TOOL
                if judged.authorize(who, "tools/call", server, tool, now).effect is Effect.ALLOW
            }
            sizes.add(len(expected))
            await check(scene, guest, expected)
    assert len(sizes) > 2


@pytest.mark.requirement("REG-perm-ToolInvoke")
async def test_a_key_shows_and_calls_no_more_than_it_is_bound_to() -> None:
    async with governed() as scene:
        await scene.grant(Grant("agent:a", "tools/call", "*", Effect.ALLOW))
        await check(
            scene, scene.guest("agent:a", "ToolInvoke(read)"), {f"{s}__read" for s in SERVERS}
        )
        await check(scene, scene.guest("agent:a", "ToolInvoke(files__write)"), {"files__write"})
        await check(scene, scene.guest("agent:b", "ToolInvoke(read)"), set())


@pytest.mark.requirement("REG-perm-ToolRead", "REG-perm-ToolsListAll")
async def test_what_may_be_read_is_read_and_not_called() -> None:
    async with governed() as scene:
        await scene.grant(
            Grant("agent:reader", "tools/read", "files/read", Effect.ALLOW),
            Grant("agent:lister", "tools/list", "*", Effect.ALLOW),
        )
        reader, lister = scene.guest("agent:reader"), scene.guest("agent:lister", "ToolsListAll")
        assert (await reader.http("GET", "/tools/files__read"))[0] == 200
        assert (await reader.http("GET", "/tools/files__write"))[0] == 403
        assert (await reader.http("POST", "/tools/files__read", {}))[0] == 403
        assert (await reader.http("GET", "/tools"))[1]["tools"] == []
        status, catalogue = await lister.http("GET", "/tools")
        assert (status, len(catalogue["tools"])) == (200, len(EVERY_TOOL))
        assert (await lister.http("POST", "/tools/files__read", {}))[0] == 403
        bound = scene.guest("agent:reader", "ToolRead(files__write)")
        assert (await bound.http("GET", "/tools/files__read"))[0] == 403
        for guest in (reader, lister):
            assert await listed_modern(guest) == set()


async def test_prompts_resources_and_templates_are_listed_where_they_may_be_used() -> None:
    async with governed() as scene:
        await scene.grant(
            Grant("agent:a", "prompts/get", "files/*", Effect.ALLOW),
            Grant("agent:a", "resources/read", "web/*", Effect.ALLOW),
            Grant("agent:a", "resources/read", "web/web://docs/secret", Effect.DENY),
        )
        guest = scene.guest("agent:a")
        prompts = await guest.modern("prompts/list")
        assert [each["name"] for each in prompts["result"]["prompts"]] == ["files__review"]
        resources = await guest.modern("resources/list")
        uris = [each["uri"] for each in resources["result"]["resources"]]
        assert uris == ["shared://one", "web://one"]
        templates = await guest.modern("resources/templates/list")
        (template,) = templates["result"]["resourceTemplates"]
        assert template["uriTemplate"] == "web://docs/{page}"
        assert (await guest.modern("tools/list"))["result"]["tools"] == []
        used = await guest.modern("prompts/get", {"name": "files__review"})
        assert refusal_of(used) is None
        assert refusal_of(await guest.modern("prompts/get", {"name": "mail__review"}))
        # A resource that two servers list is read at the one that is in sight.
        read = await guest.modern("resources/read", {"uri": "shared://one"})
        assert read["result"]["contents"][0]["text"] == "web"
        for uri, is_read in {
            "web://docs/page": True,
            "web://docs/secret": False,
            "files://one": False,
            "files://docs/page": False,
        }.items():
            answer = await guest.modern("resources/read", {"uri": uri})
            assert (refusal_of(answer) is None) is is_read, uri


async def test_arguments_are_completed_only_for_what_may_be_used() -> None:
    async with governed() as scene:
        await scene.grant(Grant("agent:a", "prompts/get", "files/*", Effect.ALLOW))
        guest = scene.guest("agent:a")
        for name, is_completed in {"files__review": True, "mail__review": False}.items():
            params = {
                "ref": {"type": "ref/prompt", "name": name},
                "argument": {"name": "language", "value": "p"},
            }
            answer = await guest.modern("completion/complete", params)
            assert (refusal_of(answer) is None) is is_completed


async def test_servers_are_known_to_whoever_may_use_something_of_them() -> None:
    spoken: dict[str, Any] = {"mgp": {"version": "0.3.0", "extensions": ["discovery", "lifecycle"]}}
    async with governed() as scene:
        await scene.grant(Grant("agent:a", "tools/call", "web/read", Effect.ALLOW))
        guest = scene.guest("agent:a")
        listed = await guest.modern("mgp/discovery/list", **spoken)
        (server,) = listed["result"]["servers"]
        assert (server["id"], server["tools"]) == ("web", ["read"])
        status = (await guest.modern("mgp/health/status", **spoken))["result"]
        assert (status["checks"], status["tools_total"]) == ({"web": True}, 1)
        nobody = scene.guest("agent:nobody")
        assert (await nobody.modern("mgp/discovery/list", **spoken))["result"]["servers"] == []


async def test_an_operator_without_grants_of_its_own_sees_no_tools() -> None:
    async with governed() as scene:
        assert await listed_modern(scene.guest(ADMIN)) == set()
