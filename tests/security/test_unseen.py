"""What somebody may not use is not there for it: no door, no notice, no other words. (attack 7)"""

import re
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from comity.app.settings import Settings
from comity.identity.settings import IdentitySettings
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import SERVERS, Governed, governed, refusal_of
from tests.support.carriers import until
from tests.support.credentials import bearer
from tests.support.visitor import request

CALLS_FILES = Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW)


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed() as scene:
        yield scene


@pytest.mark.parametrize("door", ["mcp", "sse", "messages"])
async def test_a_door_to_a_server_that_is_not_in_sight_is_not_there(
    scene: Governed, door: str
) -> None:
    await scene.grant(CALLS_FILES)
    guest = scene.guest("agent:ci")
    for method, body in (("POST", request(1, "tools/list", {})), ("GET", None), ("DELETE", None)):
        told = [
            _without_trace(await guest.http(method, f"/servers/{name}/{door}", body))
            for name in ("web", "nothing")
        ]
        assert told[0] == told[1]
        assert told[0].startswith("(404, ")
        assert "not found" in told[0]
    assert (await guest.http("DELETE", "/servers/files/mcp"))[1] is not None


async def test_a_door_opens_and_closes_with_the_grants(scene: Governed) -> None:
    guest = scene.guest("agent:ci")
    path = "/servers/files/mcp"
    assert (await guest.modern("tools/list", path=path))["error"]["data"]["error_type"] == (
        "nothing_here"
    )
    await scene.grant(CALLS_FILES)
    assert (await guest.modern("tools/list", path=path))["result"]["tools"]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
@pytest.mark.parametrize("name", ["web__read", "web__nothing", "nowhere__x"])
async def test_denied_and_absent_names_are_answered_alike(
    scene: Governed, method: str, name: str
) -> None:
    await scene.grant(CALLS_FILES)
    guest = scene.guest("agent:ci")
    told = [
        _without_trace(await guest.modern(method, {"name": asked, "arguments": {}}, named=1))
        for asked in ("web__write", name)
    ]
    assert told[0] == told[1]
    assert "access_denied" in told[0]


async def test_a_bare_name_is_unknown_whether_a_hidden_server_has_it_or_not(
    scene: Governed,
) -> None:
    await scene.grant(CALLS_FILES)
    guest = scene.guest("agent:ci")
    hidden = CatalogEntry("web__fetch", "web", "fetch", b"{}")
    scene.visitor.parts.catalog.put("web", EntryKind.TOOL, [hidden])
    answers = [
        _without_trace(
            await guest.modern("tools/call", {"name": name, "arguments": {}}, named=1)
        ).replace(repr(name), "NAME")
        for name in ("fetch", "nothing")
    ]
    assert answers[0] == answers[1]
    assert "tool_not_found" in answers[0]


def _without_trace(said: object) -> str:
    return re.sub(r"[0-9a-f]{32}", "TRACE", repr(said))


async def test_nobody_hears_that_something_changed_that_it_does_not_see() -> None:
    async with governed(grants=(CALLS_FILES,)) as scene:
        told_of = scene.visitor.parts.all_servers_endpoint.subscriptions
        # What changed while the servers started is told a moment later.
        await until(lambda: not told_of._changed)  # pyright: ignore[reportPrivateUsage]
        guest = await scene.guest("agent:ci").greet()
        guest.visitor.session = guest.session
        stream = await guest.visitor.get()
        catalog = scene.visitor.parts.catalog
        catalog.put("web", EntryKind.PROMPT, [CatalogEntry("web__new", "web", "new", b"{}")])
        catalog.put("files", EntryKind.TOOL, [CatalogEntry("files__new", "files", "new", b"{}")])
        told = (await stream.event()).frame
        assert told["method"] == "notifications/tools/list_changed"
        stream.leave()


async def test_a_resource_is_heard_of_only_by_whoever_may_read_it(scene: Governed) -> None:
    reads = Grant("agent:ci", "resources/read", "files/files://one", Effect.ALLOW)
    await scene.grant(CALLS_FILES, reads)
    guest = await scene.guest("agent:ci").greet()
    assert refusal_of(await guest.ask("resources/subscribe", {"uri": "web://one"}))
    assert refusal_of(await guest.ask("resources/subscribe", {"uri": "files://one"})) is None
    session = next(iter(scene.visitor.parts.sessions))
    assert session.may_read is not None
    assert session.may_read("files://one")
    assert not session.may_read("files://other")
    await scene.grant(replace(reads, effect=Effect.DENY))
    assert not session.may_read("files://one")


async def test_what_the_file_grants_is_followed_while_it_runs(scene: Governed) -> None:
    guest = scene.guest("agent:ci")
    governance = scene.visitor.parts.policy_components
    servers = scene.visitor.parts.upstream_registry.settings.servers
    assert set(SERVERS) == {server.id for server in servers}
    settings = Settings(
        servers=servers, grants=(CALLS_FILES,), identity=IdentitySettings(mode="required")
    )
    await governance.apply_settings(settings)
    assert len((await guest.modern("tools/list"))["result"]["tools"]) == 3
    await governance.apply_settings(replace(settings, grants=()))
    assert (await guest.modern("tools/list"))["result"]["tools"] == []


async def test_without_a_key_nothing_is_told_of_any_server(scene: Governed) -> None:
    for path in ("/mcp", "/servers/files/mcp", "/servers/nothing/mcp"):
        reply = await scene.visitor.other(path).post(request(1, "tools/list", {}))
        assert reply.status == 401
    strange = bearer("cmty_live_00000000000_" + "0" * 49)
    for path in ("/servers/files/mcp", "/servers/nothing/mcp"):
        visitor = scene.visitor.other(path)
        visitor.session = strange
        assert (await visitor.post(request(1, "tools/list", {}))).status == 401
