"""The harness of live servers: as strict as Comity, and plain about what is wrong."""

import sys
from pathlib import Path
from typing import Any

import pytest

from comity.sdk.harness import Failed, Harness, text_of
from comity.sdk.harness_line import Era
from comity.sdk.live_hosts import Host
from comity.sdk.server import Feature, Refused, Scope, Server, Turn
from tests.interop.peers import ROOT
from tests.pace import here

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
KIT = [sys.executable, "-m", "tests.sdk.live_kit"]


def small() -> tuple[Server, Feature]:
    server = Server("small")
    feature = server.feature("small.push", "Pushes", uses=["pushEvents", "inferenceRequest"])

    @server.tool()
    async def say(text: str) -> str:
        """Say it back."""
        return text

    return server, feature


async def host_of(server: Server, feature: Feature) -> Host:
    """How the server sees the harness, to say what the kit would never let it say."""
    await feature.enabled()
    return server.live.hosts.all[-1]


@pytest.mark.parametrize(
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
            with pytest.raises(Refused):
                await host.ask(method, params, here(30))
            assert harness.pushes == []
            assert harness.problems[0].startswith(method)

    with pytest.raises(AssertionError, match="what no host takes"):
        await drive()


@pytest.mark.parametrize(
    ("feature", "code"), [("small.push", -32001), ("small.unknown", -32003), ("small.tool", -32001)]
)
async def test_what_is_not_enabled_is_refused_and_is_no_mistake(feature: str, code: int) -> None:
    server, pushes = small()
    server.feature("small.tool", "Has tools", uses=["tools"])
    async with Harness(server, ["small.*"]) as harness:
        host = await host_of(server, pushes)
        await harness.disable("small.push")
        told = {"featureSet": feature, "eventId": "e", "timestamp": "2026-01-01T00:00:00Z"}
        with pytest.raises(Refused) as refused:
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
    with pytest.raises((OSError, Failed)):
        async with Harness(["no-such-program-anywhere"]):
            pass
    with pytest.raises((Failed, TimeoutError)):
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


async def test_what_may_be_reached_is_what_the_test_approves() -> None:
    server = Server("files")
    edit = server.feature("files.edit", "Edits", scoped=True, uses=["tools"])
    async with Harness(server, ["files.*"]) as harness:
        harness.approve("/tmp/*")
        await edit.enabled()
        assert await edit.elevate(Scope("/tmp/a"))
        assert not await edit.elevate(Scope("/etc/a"))
        assert [each.label for each in harness.elevations] == ["/tmp/a", "/etc/a"]


async def test_a_model_says_what_it_was_told_to_and_nothing_by_itself() -> None:
    server, feature = small()

    async def drive() -> None:
        async with Harness(server, ["small.*"]):
            await feature.enabled()
            with pytest.raises(Refused, match=r"models\.say"):
                await feature.infer("Hm?")

    with pytest.raises(AssertionError, match="nothing to say"):
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
        from comity.sdk.harness import Harness
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
