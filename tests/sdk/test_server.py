"""A live server as its author writes it: what it declares, refuses, and is to plain clients."""

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from comity.sdk.harness import Harness
from comity.sdk.harness_line import Era
from comity.sdk.live_features import Feature
from comity.sdk.server import (
    Absent,
    Descriptor,
    Injection,
    Message,
    Misconfigured,
    Post,
    Scope,
    Security,
    Server,
    Turn,
    Use,
)

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


def live() -> Server:
    server = Server("memory", version="1", instructions="Ask.")
    retrieval = server.feature("memory.retrieval", "Recalls what was said before")
    guard = server.feature("guard.redaction", "Redact secrets")
    extraction = server.feature("memory.extraction", "Remembers what is said")
    server.feature("memory.proactive", "Reminds when it is time", uses=["pushEvents"])
    server.feature("memory.consolidation", "Summarize", uses=["inferenceRequest"])
    notes = server.feature("notes.edit", "Manage notes", scoped=True, rollback=True)
    server.feature("chat.post", "Post", uses=["channels.publish"])
    server.feature("chat.read", "Read along", uses=["channels.observe"])

    @retrieval.before_inference
    async def recall(turn: Turn) -> str:
        return f"You asked: {turn.user}"

    @extraction.after_inference
    async def learn(turn: Turn) -> None:
        return None

    @guard.after_inference(blocking=True)
    async def redact(turn: Turn) -> str:
        return (turn.answer or "").replace("sk-1", "[REDACTED]")

    @notes.tool(Security("moderate"))
    async def add_note(text: str) -> int:
        """Add a note."""
        kept = notes.state.data.setdefault("notes", [])
        kept.append(text)
        return len(kept)

    @server.tool()
    async def count(words: int) -> AsyncIterator[str]:
        """Count."""
        for word in range(words):
            yield f"{word} "

    @server.tool()
    async def plain(text: str) -> str:
        """Say it back."""
        return text

    return server


@pytest.mark.requirement(
    *("MCPL-3.1-experimental", "MCPL-3.1-version", "MCPL-5.1-pushEvents", "MCPL-5.1-hooks"),
    *("MCPL-5.1-inferenceRequest", "MCPL-5.1-modelInfo", "MCPL-5.1-featureSets"),
    *("MCPL-6.1-declare", "MCPL-6.2-description", "MCPL-6.2-uses", "MCPL-6.2-u-pushEvents"),
    *("MCPL-6.2-u-before", "MCPL-6.2-u-after", "MCPL-6.2-u-inference", "MCPL-6.2-u-tools"),
    *("MCPL-6.2-u-publish", "MCPL-6.2-u-observe", "MCPL-6.3-dotted", "MCPL-7.1-scoped"),
    *("MCPL-8.1-rollback", "MCPL-14.1-caps", "MCPL-14.1-gate", "MCPL-B.2-featureset"),
)
@ERAS
async def test_it_declares_all_that_it_would_do(era: Era) -> None:
    async with Harness(live(), era=era) as host:
        capabilities = host.welcome["capabilities"]
    place = capabilities["extensions"] if era == "modern" else capabilities["experimental"]
    assert place["dev.comity/mcpl" if era == "modern" else "mcpl"] == {
        "version": "0.4",
        "pushEvents": True,
        "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
        "inferenceRequest": {"streaming": True},
        "modelInfo": True,
        "channels": {
            "register": True,
            "publish": True,
            "observe": True,
            "lifecycle": False,
            "streaming": False,
        },
        "featureSets": {
            "memory.retrieval": {
                "description": "Recalls what was said before",
                "uses": ["contextHooks.beforeInference"],
            },
            "guard.redaction": {
                "description": "Redact secrets",
                "uses": ["contextHooks.afterInference"],
            },
            "memory.extraction": {
                "description": "Remembers what is said",
                "uses": ["contextHooks.afterInference"],
            },
            "memory.proactive": {"description": "Reminds when it is time", "uses": ["pushEvents"]},
            "memory.consolidation": {"description": "Summarize", "uses": ["inferenceRequest"]},
            "notes.edit": {
                "description": "Manage notes",
                "uses": ["tools"],
                "scoped": True,
                "rollback": True,
            },
            "chat.post": {"description": "Post", "uses": ["channels.publish"]},
            "chat.read": {"description": "Read along", "uses": ["channels.observe"]},
        },
    }
    if era == "handshake":
        assert host.welcome["protocolVersion"] == "2025-11-25"


async def test_what_it_does_not_do_it_does_not_declare() -> None:
    server = Server("small")
    server.feature("small.tools", "A tool", uses=["tools"])
    async with Harness(server) as host:
        told = host.welcome["capabilities"]["experimental"]["mcpl"]
    assert told["pushEvents"] is False
    assert not {"contextHooks", "inferenceRequest", "channels"} & told.keys()


@pytest.mark.requirement("MCPL-3.2-ignored", "MCPL-2-compat", "MCPL-2-orthogonal")
@ERAS
async def test_a_plain_client_sees_the_plain_server(era: Era) -> None:
    bare = MCPServer("memory", version="1", instructions="Ask.")
    async with Harness(live(), era=era, mcpl=False) as host:
        greeting, tools = host.welcome, await host.tools()
        refused: list[str] = []
        for method in ("context/beforeInference", "state/rollback", "mcpl/listen", "channels/list"):
            try:
                await host.request(method, {})
            except Exception as error:
                refused.append(f"{error}")
        first = await host.call("add_note", {"text": "a"})
        second = await host.call("add_note", {"text": "b"})
        counted = await host.call("count", {"words": 2})
        said = host.said
        assert not any(said(method) for method in ("push/event", "channels/register"))
    mode = "auto" if era == "modern" else "legacy"
    async with Client(bare, mode=mode) as client:
        direct = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)
    assert greeting["capabilities"] == direct
    assert all("Method not found" in each for each in refused), refused
    assert len(refused) == 4
    assert "_meta" not in tools["add_note"]
    assert "security" not in tools["add_note"]
    assert first.state is None
    # On a connection that lasts, a tool keeps its state without anybody's help.
    assert (first.text, second.text) == ("1", "2" if era == "handshake" else "1")
    assert counted.text == "0 1 "


@ERAS
async def test_to_plain_clients_nothing_is_sent_and_authors_hear_why(era: Era) -> None:
    server = live()
    proactive = server.live.sets["memory.proactive"]
    consolidation = server.live.sets["memory.consolidation"]
    async with Harness(server, era=era, mcpl=False):
        pushed = await proactive.push("evt-1", "Hello")
        assert (pushed.accepted, pushed.inference) == (False, "")
        assert "memory.proactive" in pushed.reason
        with pytest.raises(Absent, match=r"memory\.consolidation"):
            await consolidation.infer("Summarize this.")
        with pytest.raises(Absent):
            await server.model()
        elevated = await server.live.sets["notes.edit"].elevate(Scope("/etc/hosts"))
        assert not elevated
        await server.channels.register(Descriptor("chat:#a", "chat"))
        arrived = await server.channels.incoming(Message("chat:#a", "m1", "Hi"))
        assert [each.accepted for each in arrived] == [False]


@pytest.mark.parametrize(
    ("name", "description", "more", "why"),
    [
        ("memory.x", "", {}, "description"),
        ("memory.x", "   ", {}, "description"),
        ("memory x", "Words", {}, "dots"),
        ("", "Words", {}, "dots"),
        (".memory", "Words", {}, "dots"),
        ("a" * 200, "Words", {}, "dots"),
        ("memory.x", "Words", {"uses": ["everything"]}, "everything"),
        ("memory.x", "Words", {"uses": ["pushEvents", "costHint"]}, "costHint"),
    ],
)
@pytest.mark.requirement("MCPL-6.2-description", "MCPL-6.2-uses", "MCPL-B.2-featureset")
def test_a_set_that_no_host_could_read_is_refused_when_declared(
    name: str, description: str, more: dict[str, list[str]], why: str
) -> None:
    with pytest.raises(Misconfigured, match=why):
        Server("memory").feature(name, description, uses=more.get("uses", ()))


@pytest.mark.requirement("MCPL-6.2-uses")
def test_a_set_that_is_for_nothing_keeps_the_server_from_starting() -> None:
    server = Server("memory")
    server.feature("memory.x", "Nothing yet")
    with pytest.raises(Misconfigured, match="uses nothing"):
        server.running()


def test_no_two_sets_have_one_name_and_channels_need_a_set_of_their_own() -> None:
    server = Server("memory")
    server.feature("memory.x", "Words", uses=[Use.PUSH])
    with pytest.raises(Misconfigured, match="already"):
        server.feature("memory.x", "Words")

    @server.channels.on_publish
    async def deliver(post: Post) -> None:
        return None

    with pytest.raises(Misconfigured, match=r"channels\.publish"):
        server.running()


@pytest.mark.requirement("MCPL-C-nopolicy")
async def test_there_is_no_place_for_what_a_host_decides() -> None:
    forbidden = {"priority", "summary", "suggestedAction", "suggested_action", "type", "required"}
    forbidden |= {"costHint", "cost_hint", "costTier", "positionHint", "position_hint", "purpose"}
    for function in (Feature.push, Feature.infer, Server.feature, Injection, Feature.elevate):
        taken = inspect.signature(function).parameters
        assert not forbidden & taken.keys()
        assert not any(each.kind is each.VAR_KEYWORD for each in taken.values()), function
    server = Server("memory")
    proactive = server.feature("memory.proactive", "Remind", uses=["pushEvents"])
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        # What stands in a block beside its own members does not get through either.
        await proactive.push("e-1", {"type": "text", "text": "Hello", "priority": 9})
        (told,) = host.said("push/event")
    assert told.keys() == {"featureSet", "eventId", "timestamp", "payload"}
    assert told["payload"] == {"content": [{"type": "text", "text": "Hello"}]}


async def test_what_runs_beside_the_requests_begins_and_ends_with_the_server() -> None:
    server = Server("memory")
    proactive = server.feature("memory.proactive", "Remind", uses=["pushEvents"])
    ended: list[str] = []

    @server.background
    async def remind() -> None:
        await proactive.enabled()
        await proactive.push("due-1", "It is time")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("remind")

    for _ in range(2):
        async with Harness(server, ["memory.*"]) as host:
            await host.until(lambda: host.pushes)
            assert host.pushes[0].id == "due-1"
    assert ended == ["remind", "remind"]


async def test_what_fails_beside_the_requests_is_told_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("memory")

    @server.background
    async def fail() -> None:
        raise ConnectionError("the feed is gone")

    @server.tool()
    async def say(text: str) -> str:
        """Say it back."""
        return text

    async with Harness(server) as host:
        assert (await host.call("say", {"text": "a"})).text == "a"
    assert "the feed is gone" in caplog.text
