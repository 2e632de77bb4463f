"""Feature sets in the hands of an author: events, scopes, and what a host decides of them."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp.types import ImageContent

from comity.sdk import live_features
from comity.sdk.harness import Failed, Harness
from comity.sdk.harness_line import Era
from comity.sdk.server import Block, Feature, Misconfigured, Scope, Server
from tests.pace import here

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


def reminding() -> tuple[Server, Feature]:
    server = Server("memory")
    return server, server.feature(
        "memory.proactive", "Reminds when it is time", uses=["pushEvents"]
    )


@pytest.mark.requirement(
    *("MCPL-4.1-push", "MCPL-6.5-servertag", "MCPL-9.1-event", "MCPL-9.2-featureSet"),
    *("MCPL-9.2-eventId", "MCPL-9.2-timestamp", "MCPL-9.2-origin", "MCPL-9.2-payload"),
    *("MCPL-4-jsonrpc",),
)
@ERAS
async def test_an_event_is_told_with_all_that_belongs_to_it(era: Era) -> None:
    server, proactive = reminding()
    async with Harness(server, ["memory.*"], era=era) as host:
        await proactive.enabled()
        at = datetime(2026, 1, 23, 14, tzinfo=UTC)
        origin = {"server": "memory", "memoryId": "mem_printer"}
        pushed = await proactive.push("evt_001", "Call the printer", origin=origin, at=at)
        (told,) = host.said("push/event")
    assert (pushed.accepted, pushed.inference, pushed.reason) == (True, "inf-evt_001", "")
    assert told == {
        "featureSet": "memory.proactive",
        "eventId": "evt_001",
        "timestamp": "2026-01-23T14:00:00.000Z",
        "origin": origin,
        "payload": {"content": [{"type": "text", "text": "Call the printer"}]},
    }


@pytest.mark.requirement(
    *("MCPL-B.1-text", "MCPL-B.1-image", "MCPL-B.1-audio", "MCPL-B.1-resource"),
    *("MCPL-10.3-blocks", "MCPL-10.3-media"),
)
async def test_content_is_blocks_of_four_kinds_however_it_is_written() -> None:
    server, proactive = reminding()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        await proactive.push(
            "evt-1",
            [
                "A text",
                Block("image", data="aGk=", mime="image/png"),
                ImageContent(type="image", data="aGk=", mime_type="image/png"),
                {"type": "image", "uri": "https://a.example/b.png"},
                {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
                {"type": "audio", "uri": "https://a.example/b.wav"},
                {"type": "resource", "uri": "memory://facts/1"},
            ],
        )
        (told,) = host.said("push/event")
    assert told["payload"]["content"] == [
        {"type": "text", "text": "A text"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "image", "uri": "https://a.example/b.png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "audio", "uri": "https://a.example/b.wav"},
        {"type": "resource", "uri": "memory://facts/1"},
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"type": "text"},
        {"type": "image", "data": "aGk="},
        {"type": "image", "mimeType": "image/png"},
        {"type": "audio"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "uri": "a:b"},
        {"type": "resource"},
        {"type": "video", "uri": "a:b"},
        {"text": "of no type"},
        [7],
        7,
    ],
)
@pytest.mark.requirement("MCPL-B.1-text", "MCPL-B.1-image", "MCPL-B.1-audio", "MCPL-B.1-resource")
async def test_what_is_no_content_is_refused_before_it_is_sent(content: Any) -> None:
    server, proactive = reminding()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        with pytest.raises(Misconfigured):
            await proactive.push("evt-1", content)
        assert host.said("push/event") == []


@pytest.mark.parametrize("event", ["", "a" * 300, "a\nb"])
async def test_an_event_without_a_proper_id_is_refused(event: str) -> None:
    _, proactive = reminding()
    with pytest.raises(Misconfigured, match="eventId"):
        await proactive.push(event, "Hello")


async def test_a_set_that_does_not_say_so_pushes_and_asks_nothing() -> None:
    server = Server("memory")
    other = server.feature("memory.other", "Other", uses=["tools"])
    with pytest.raises(Misconfigured, match="pushEvents"):
        await other.push("evt-1", "Hello")
    with pytest.raises(Misconfigured, match="inferenceRequest"):
        await other.infer("Hello")
    with pytest.raises(Misconfigured, match="scoped"):
        await other.elevate(Scope("/etc"))


@pytest.mark.requirement("MCPL-6.7-respect")
@ERAS
async def test_what_a_host_disables_ends_at_once(era: Era) -> None:
    server, proactive = reminding()
    async with Harness(server, ["memory.*"], era=era) as host:
        await proactive.enabled()
        assert (await proactive.push("evt-1", "One")).accepted
        await host.disable("memory.proactive")
        # Whatever was said before on the same line has been heard when this is answered.
        await host.tools()
        assert not proactive.is_enabled
        refused = await proactive.push("evt-2", "Two")
        assert not refused.accepted
        await host.enable("memory.proactive")
        await host.tools()
        assert (await proactive.push("evt-3", "Three")).accepted
        told = [each["eventId"] for each in host.said("push/event")]
    assert told == ["evt-1", "evt-3"]
    assert host.refused == []


async def test_nothing_is_enabled_before_a_host_says_so() -> None:
    server, proactive = reminding()
    async with Harness(server) as host:
        assert not (await proactive.push("evt-1", "One")).accepted
        assert host.said("push/event") == []


@pytest.mark.requirement("MCPL-9.4-stable")
async def test_an_event_keeps_its_id_when_its_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_features, "PUSH_SECONDS", here(0.5))
    server, proactive = reminding()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        answer, silent = host.line.answer, asyncio.Event()

        async def deaf(method: str, params: Any, id: Any) -> Any:
            told = await answer(method, params, id)
            if len(host.said("push/event")) == 1:
                await silent.wait()
            return told

        host.line.answer = deaf
        pushed = await proactive.push("evt-1", "Once")
        told = host.said("push/event")
        silent.set()
    # The host had it the first time, and says so.
    assert (pushed.accepted, pushed.reason) == (False, "duplicate")
    assert [each["eventId"] for each in told] == ["evt-1", "evt-1"]
    assert told[0] == told[1]
    assert [each.id for each in host.pushes] == ["evt-1"]


async def test_a_refusal_of_the_host_is_no_exception() -> None:
    server, proactive = reminding()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        host.policy = host.policy.__class__()
        pushed = await proactive.push("evt-1", "Hello")
    assert (pushed.accepted, pushed.reason) == (False, "Feature set not enabled")
    assert host.refused == [("push/event", "Feature set not enabled")]


@pytest.mark.requirement(
    "MCPL-7.3-label", "MCPL-7.3-payload", "MCPL-7.4-elevate", "MCPL-4.1-elevate"
)
@ERAS
async def test_a_scope_is_asked_for_within_the_call_that_needs_it(era: Era) -> None:
    server = Server("files")
    edit = server.feature("files.edit", "Edit files", scoped=True)

    @edit.tool()
    async def append(path: str) -> str:
        """Append."""
        label = edit.scope.label if edit.scope else "-"
        asked = await edit.elevate(Scope(path, {"path": path, "how": "append"}))
        return f"{label} {asked.approved} {dict(asked.payload)} {asked.reason}"

    async with Harness(server, ["files.edit"], era=era) as host:
        host.approve("/srv/menu")
        yes = await host.call("append", {"path": "/srv/menu"}, scope={"label": "/project/a"})
        no = await host.call("append", {"path": "/etc/passwd"})
        first, _ = host.said("scope/elevate")
    assert yes.text == "/project/a True {'path': '/srv/menu', 'how': 'append'} "
    assert no.text.startswith("- False {} ")
    assert first == {
        "featureSet": "files.edit",
        "scope": {"label": "/srv/menu", "payload": {"path": "/srv/menu", "how": "append"}},
    }
    with pytest.raises(Misconfigured, match="label"):
        await edit.elevate(Scope(""))


async def test_what_a_set_may_reach_is_known_to_it() -> None:
    server = Server("files")
    edit = server.feature("files.edit", "Edit files", scoped=True, uses=["tools"])
    async with Harness(server, ["files.edit"]) as host:
        await host.bound("files.edit", allow=["/project/**"], deny=["**/.env"])
        await host.tools()
        assert edit.bounds.whitelist == ("/project/**",)
        assert edit.bounds.blacklist == ("**/.env",)


@ERAS
async def test_tools_of_a_disabled_set_are_not_there_for_its_host(era: Era) -> None:
    server = Server("notes")
    notes = server.feature("notes.edit", "Manage notes")

    @notes.tool()
    async def add(text: str) -> str:
        """Add."""
        return text

    async with Harness(server, era=era) as host:
        assert (await host.tools())["add"]["_meta"] == {"featureSet": "notes.edit"}
        with pytest.raises(Failed) as refused:
            await host.call("add", {"text": "a"})
        await host.enable("notes.*")
        assert (await host.call("add", {"text": "a"})).text == "a"
    assert refused.value.code == -32001
    assert refused.value.data == {"featureSet": "notes.edit", "canEnable": True}


@pytest.mark.requirement("MCPL-6.7-changed", "MCPL-4.1-fschanged")
@ERAS
async def test_sets_that_come_and_go_are_announced(era: Era) -> None:
    server, _ = reminding()
    legacy = server.feature("memory.legacy", "Old", uses=["pushEvents"])
    async with Harness(server, ["memory.*"], era=era) as host:
        await legacy.enabled()
        semantic = server.feature("memory.semantic", "Semantic search", uses=["pushEvents"])
        server.drop("memory.legacy")
        await server.announce()
        await host.until(lambda: host.said("featureSets/changed"))
        (told,) = host.said("featureSets/changed")
        await asyncio.wait_for(semantic.enabled(), here(10))
        assert (await semantic.push("evt-1", "New")).accepted
        await server.announce()
        assert len(host.said("featureSets/changed")) == 1
    assert told == {
        "added": {"memory.semantic": {"description": "Semantic search", "uses": ["pushEvents"]}},
        "removed": ["memory.legacy"],
    }


@pytest.mark.requirement("MCPL-8-tolerate-s")
@ERAS
async def test_members_that_nobody_knows_are_passed_over(era: Era) -> None:
    server, proactive = reminding()
    notes = server.feature("notes.edit", "Manage notes")

    @notes.tool()
    async def add(text: str) -> str:
        """Add."""
        return text

    async with Harness(server, ["memory.*", "notes.*"], era=era) as host:
        strange = {"enabled": ["memory.*", 7], "disabled": None, "zones": {"a": 1}, "scopes": [1]}
        await host.tell("featureSets/update", strange)
        await host.tell("inference/chunk", {"requestId": {"a": 1}, "index": "x", "novel": True})
        called = await host.call("add", {"text": "a"}, novel={"a": 1}, state=1, checkpoint=["x"])
        assert called.text == "a"
        assert (await proactive.push("evt-1", "Still here")).accepted
