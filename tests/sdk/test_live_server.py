"""A live server, its hosts, and the harness that tests it."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from comity.errors import INVALID_REQUEST, MalformedMessage
from comity.sdk.live_hosts import McplHost, ModernHostConnection
from comity.sdk.server import (
    ChannelDescriptor,
    Feature,
    FeatureUse,
    HostRefusal,
    HostRequestFailure,
    HostUnavailable,
    Injection,
    Message,
    Misconfigured,
    Post,
    ScopeClaim,
    Security,
    Server,
    Turn,
)
from comity.sdk.testing import Era, Harness, HarnessServerError, text_of
from tests.interop.peers import ROOT
from tests.pace import here
from tests.support.cases import loop_over

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
        with pytest.raises(HostUnavailable, match=r"memory\.consolidation"):
            await consolidation.infer("Summarize this.")
        with pytest.raises(HostUnavailable):
            await server.model()
        elevated = await server.live.sets["notes.edit"].elevate(ScopeClaim("/etc/hosts"))
        assert not elevated
        await server.channels.register(ChannelDescriptor("chat:#a", "chat"))
        arrived = await server.channels.incoming(Message("chat:#a", "m1", "Hi"))
        assert [each.accepted for each in arrived] == [False]


@loop_over(
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
    server.feature("memory.x", "Words", uses=[FeatureUse.PUSH])
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


def pushing() -> tuple[Server, Feature]:
    server = Server("memory")
    uses = ["pushEvents", "inferenceRequest"]
    return server, server.feature("memory.proactive", "Reminds when it is time", uses=uses)


@ERAS
async def test_a_request_of_the_server_keeps_the_id_that_it_was_given(era: Era) -> None:
    """A chunk names its request by it: under an id of the SDK's no piece would find its way."""
    server, proactive = pushing()
    async with Harness(server, ["memory.*"], era=era) as host:
        await proactive.enabled()
        await asyncio.gather(*(proactive.push(f"evt-{n}", "Hi") for n in range(3)))
        ids = [each["id"] for each in host.line.said]
    assert len(set(ids)) == 3
    assert all(isinstance(id, str) and id.startswith("live-") and len(id) > 20 for id in ids)


@ERAS
async def test_methods_and_notices_that_the_sdk_does_not_know_reach_the_kit(era: Era) -> None:
    server, proactive = pushing()
    async with Harness(server, era=era) as host:
        await host.tell("featureSets/update", {"enabled": ["memory.*"]})
        await asyncio.wait_for(proactive.enabled(), here(30))
        with pytest.raises(HarnessServerError) as unknown:
            await host.request("context/duringInference", {})
    assert unknown.value.code == -32601


async def test_every_host_hears_of_an_event_and_one_is_asked_for_a_model() -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]) as first, Harness(server, ["memory.*"]) as second:
        for host in (first, second):
            host.models.say("Yes")
            await host.tools()
        await proactive.enabled()
        assert (await proactive.push("evt-1", "Hi")).accepted
        assert (await proactive.infer("Hm?")).text == "Yes"
        assert [len(host.pushes) for host in (first, second)] == [1, 1]
        assert [len(host.models.asked) for host in (first, second)] == [0, 1]
        await second.disable("memory.proactive")
        await second.tools()
        assert (await proactive.push("evt-2", "Hi")).accepted
        assert (await proactive.infer("Hm?")).text == "Yes"
        assert [len(host.pushes) for host in (first, second)] == [2, 1]


@ERAS
async def test_a_host_that_has_gone_is_asked_nothing(era: Era) -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]):
        async with Harness(server, ["memory.*"], era=era) as host:
            await host.tools()
        assert (await proactive.push("evt-1", "Hi")).accepted
    assert not (await proactive.push("evt-2", "Hi")).accepted


async def test_a_request_that_meets_a_hook_on_its_way_is_asked_again() -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        host.models.say("At last")
        answer, tries = host.line.answer, list[str]()

        async def hooked(method: str, params: Any, id: Any) -> Any:
            tries.append(method)
            # Other servers that ask at the same time bring one hook after another.
            if len(tries) < 8:
                raise MalformedMessage("hook_loop: a hook is pending", INVALID_REQUEST)
            return await answer(method, params, id)

        host.line.answer = hooked
        assert (await proactive.infer("Hm?")).text == "At last"
        tries.clear()

        async def never(method: str, params: Any, id: Any) -> Any:
            tries.append(method)
            raise MalformedMessage("no", INVALID_REQUEST)

        host.line.answer = never
        with pytest.raises(HostRefusal):
            await proactive.infer("Hm?")
        assert len(tries) == 1


@loop_over(
    "params", [{}, {"id": 1}, {"id": None}, {"id": "live-guessed", "result": {}}, {"id": ["x"]}]
)
async def test_nobody_answers_what_was_not_asked(params: Any) -> None:
    server, _ = pushing()
    async with Harness(server, ["memory.*"], era="modern") as host:
        with pytest.raises(HarnessServerError) as refused:
            await host.request("mcpl/respond", params)
    assert refused.value.code == -32602


async def test_the_way_back_is_of_the_modern_era_alone() -> None:
    server, _ = pushing()
    async with Harness(server, ["memory.*"]) as host:
        for method in ("mcpl/listen", "mcpl/respond"):
            with pytest.raises(HarnessServerError) as refused:
                await host.request(method, {})
            assert refused.value.code == -32601


async def test_an_answer_may_be_an_error_of_any_make() -> None:
    class Session:
        async def send_notification(self, note: Any, id: Any) -> None:
            asked.append(note.params["id"])

    class Asked:
        session, request_id = Session(), 1

    asked: list[str] = []
    way = ModernHostConnection(Asked())  # type: ignore[arg-type]  # as much of it as is used
    answers: list[Any] = [
        {"error": {"code": -32001, "message": "no", "data": {"a": 1}}},
        {"error": {"code": "x"}},
        {"result": [1]},
        {},
    ]
    for answer in answers:
        waiting = asyncio.ensure_future(way.ask("push/event", {}, f"live-{len(asked)}", here(10)))
        await asyncio.sleep(0)
        assert way.answered({"id": asked[-1], **answer})
        assert not way.answered({"id": asked[-1], **answer})
        if "error" in answer:
            with pytest.raises(HostRefusal):
                await waiting
        else:
            assert await waiting == {}
    waiting = asyncio.ensure_future(way.ask("push/event", {}, "live-last", here(10)))
    await asyncio.sleep(0)
    way.end()
    with pytest.raises(HostRequestFailure):
        await waiting
    with pytest.raises(HostRequestFailure):
        await way.ask("push/event", {}, "live-late", 0.01)


KIT = [sys.executable, "-m", "tests.sdk.live_kit"]


def small() -> tuple[Server, Feature]:
    server = Server("small")
    feature = server.feature("small.push", "Pushes", uses=["pushEvents", "inferenceRequest"])

    @server.tool()
    async def say(text: str) -> str:
        """Say it back."""
        return text

    return server, feature


async def host_of(server: Server, feature: Feature) -> McplHost:
    """How the server sees the harness, to say what the kit would never let it say."""
    await feature.enabled()
    return server.live.hosts.all[-1]


@loop_over(
    ("method", "params"),
    [
        ("push/event", {"featureSet": "small.push", "eventId": "e"}),
        ("push/event", {"eventId": "e", "timestamp": "now", "payload": {"content": []}}),
        ("inference/request", {"featureSet": "small.push", "messages": []}),
        ("scope/elevate", {"featureSet": "small.push"}),
        ("no/method", {}),
    ],
)
async def test_what_no_host_takes_fails_the_test(method: str, params: Any) -> None:
    server, feature = small()

    async def drive() -> None:
        async with Harness(server, ["small.*"]) as harness:
            host = await host_of(server, feature)
            with pytest.raises(HostRefusal):
                await host.ask(method, params, here(30))
            assert harness.pushes == []
            assert harness.problems[0].startswith(method)

    with pytest.raises(AssertionError, match="that no host accepts"):
        await drive()


@loop_over(
    ("feature", "code"), [("small.push", -32001), ("small.unknown", -32003), ("small.tool", -32001)]
)
async def test_what_is_not_enabled_is_refused_and_is_no_mistake(feature: str, code: int) -> None:
    server, pushes = small()
    server.feature("small.tool", "Has tools", uses=["tools"])
    async with Harness(server, ["small.*"]) as harness:
        host = await host_of(server, pushes)
        await harness.disable("small.push")
        told = {"featureSet": feature, "eventId": "e", "timestamp": "2026-01-01T00:00:00Z"}
        with pytest.raises(HostRefusal) as refused:
            await host.ask("push/event", {**told, "payload": {"content": "x"}}, here(30))
        assert refused.value.code == code
        assert harness.refused[0][0] == "push/event"
        assert harness.problems == []


async def test_an_exception_of_the_test_itself_is_not_hidden() -> None:
    server, feature = small()

    async def drive() -> None:
        async with Harness(server, ["small.*"]) as harness:
            await feature.enabled()
            harness.problems.append("something")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await drive()


@ERAS
async def test_a_command_is_driven_over_its_pipes(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["env", f"PYTHONPATH={ROOT}", *KIT]
    async with Harness(command, ["kit.*"], ["kit.off"], era=era, seconds=here(60)) as harness:
        harness.models.say("A song")
        injections = await harness.before("What is there?")
        assert text_of(injections[0].content) == "The kit remembers tea."
        assert await harness.after("The key?", "sk-1") == "[REDACTED]"
        thought = await harness.call("think", {"text": "Sing", "stream": True})
        assert "A song" in thought.text
        assert harness.models.last == "Sing"
        await harness.call("push", {"event": "e1", "text": "Hello"})
        assert [each.id for each in harness.pushes] == ["e1"]
        await harness.call("add_note", {"text": "a"})
        second = await harness.call("add_note", {"text": "b"})
        assert second.state is not None
        assert (await harness.rollback("kit.notes", second.state["parent"])).success
        assert (await harness.call("add_note", {"text": "c"})).text == "2"
        await harness.until(lambda: "kit:#lobby" in harness.places.known)
        assert await harness.publish("kit:#lobby", "Hello lobby")
        await harness.call("hear", {"id": "m1", "text": "Hi"})
        assert text_of(harness.places.heard[0].content) == "Hi"


async def test_a_command_that_does_not_start_is_told_at_once() -> None:
    with pytest.raises((OSError, HarnessServerError)):
        async with Harness(["no-such-program-anywhere"]):
            pass
    with pytest.raises((HarnessServerError, TimeoutError)):
        async with Harness([sys.executable, "-c", "pass"], seconds=here(5)):
            pass


async def test_a_server_that_stays_silent_is_not_waited_for_without_end() -> None:
    server, _ = small()
    hook = server.feature("small.hook", "Sleeps")

    @hook.before_inference
    async def sleep(turn: Turn) -> None:
        await harness.until(lambda: False, 600)

    async with Harness(server, ["small.*"], seconds=0.5) as harness:
        with pytest.raises(TimeoutError):
            await harness.before("Hm?")
        with pytest.raises(TimeoutError):
            await harness.until(lambda: False, 0.01)


async def test_a_model_says_what_it_was_told_to_and_nothing_by_itself() -> None:
    server, feature = small()

    async def drive() -> None:
        async with Harness(server, ["small.*"]):
            await feature.enabled()
            with pytest.raises(HostRefusal, match=r"models\.say"):
                await feature.infer("Hm?")

    with pytest.raises(AssertionError, match="has no reply"):
        await drive()
    async with Harness(server, ["small.*"]) as harness:
        await feature.enabled()
        harness.models.say("one", "two")
        said = [(await feature.infer("Hm?")).text for _ in range(3)]
    assert said == ["one", "two", "two"]


async def test_a_patch_that_cannot_be_applied_fails_the_test() -> None:
    server = Server("notes")
    notes = server.feature("notes.edit", "Notes", rollback=True)

    @notes.tool()
    async def lie() -> str:
        """Names a parent that nobody has."""
        notes.state.checkpoint = "chk_of_nobody"
        notes.state.data["a"] = 1
        return "lied"

    with pytest.raises(AssertionError, match="chk_of_nobody"):
        async with Harness(server, ["notes.*"]) as harness:
            await harness.call("lie")


def test_a_strangers_test_needs_nothing_but_pytest(
    tmp_path: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_mine="""
        import asyncio
        from comity.sdk.testing import Harness
        from comity.sdk.server import Server

        server = Server("mine")
        feature = server.feature("mine.push", "Pushes", uses=["pushEvents"])

        def test_it_pushes():
            async def go():
                async with Harness(server, enabled=["mine.*"]) as host:
                    await feature.enabled()
                    assert (await feature.push("e", "x")).accepted
                    assert host.pushes[0].id == "e"
            asyncio.run(go())
            asyncio.run(go())
        """
    )
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=1)
