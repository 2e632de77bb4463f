"""Feature sets of a live server: events, scopes and state."""

import asyncio
import copy
import json
from datetime import UTC, datetime
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import ImageContent

from comity.sdk import live_features
from comity.sdk.live_features import CheckpointLineage, FeatureState
from comity.sdk.server import (
    ContentBlock,
    Feature,
    Misconfigured,
    MissingCheckpointError,
    ScopeClaim,
    Server,
    ServerCheckpointStore,
)
from comity.sdk.testing import Era, Harness, HarnessServerError
from tests.pace import here
from tests.support.cases import loop_over

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
                ContentBlock("image", data="aGk=", mime="image/png"),
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


@loop_over(
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


@loop_over("event", ["", "a" * 300, "a\nb"])
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
        await other.elevate(ScopeClaim("/etc"))


@pytest.mark.requirement("MCPL-6.7-respect")
@ERAS
async def test_only_enabled_features_push_events(era: Era) -> None:
    server, proactive = reminding()
    async with Harness(server, era=era) as host:
        assert not (await proactive.push("evt-0", "None")).accepted
        await host.enable("memory.proactive")
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
        asked = await edit.elevate(ScopeClaim(path, {"path": path, "how": "append"}))
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
        await edit.elevate(ScopeClaim(""))


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
        with pytest.raises(HarnessServerError) as refused:
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


LONG = "Remember to water the plants, feed the cat and call the garden centre about the hedge."


def noting() -> tuple[Server, Feature]:
    server = Server("notes")
    notes = server.feature("notes.edit", "Manage notes", rollback=True, initial={"notes": []})

    @notes.tool()
    async def add(text: str) -> int:
        """Add a note."""
        notes.state.data["notes"].append({"text": text})
        if text == "boom":
            raise RuntimeError(text)
        return len(notes.state.data["notes"])

    @notes.tool()
    async def count() -> int:
        """How many."""
        return len(notes.state.data["notes"])

    return server, notes


@pytest.mark.requirement(
    "MCPL-8.2-checkpoint", "MCPL-8.2-tree", "MCPL-8.3-data", "MCPL-8.3-patch", "MCPL-8.6-result"
)
@ERAS
async def test_each_change_is_a_checkpoint_and_a_rollback_makes_a_branch(era: Era) -> None:
    server, _ = noting()
    async with Harness(server, ["notes.*"], era=era) as host:
        first = await host.call("add", {"text": LONG})
        second = await host.call("add", {"text": "b"})
        assert first.state is not None
        assert second.state is not None
        assert (await host.call("count")).state is None
        rolled = await host.rollback("notes.edit", first.state["checkpoint"])
        branch = await host.call("add", {"text": "c"})
        assert branch.state is not None
        assert (await host.call("count")).text == "2"
    assert (rolled.checkpoint, rolled.success) == (first.state["checkpoint"], True)
    assert first.state["parent"] is None
    assert first.state["data"] == {"notes": [{"text": LONG}]}
    # What is shorter is sent: a patch of what the host has.
    assert second.state["patch"] == [{"op": "add", "path": "/notes/1", "value": {"text": "b"}}]
    assert "data" not in second.state
    assert second.state["parent"] == branch.state["parent"] == first.state["checkpoint"]
    assert host.state.data["notes.edit", branch.state["checkpoint"]] == {
        "notes": [{"text": LONG}, {"text": "c"}]
    }


async def test_a_tool_that_fails_leaves_nothing_behind() -> None:
    server, _ = noting()
    for speaks in (True, False):
        async with Harness(server, ["notes.*"], mcpl=speaks) as host:
            await host.call("add", {"text": "a"})
            failed = await host.call("add", {"text": "boom"})
            assert (failed.is_error, failed.state) == (True, None)
            assert (await host.call("count")).text == "1"


@pytest.mark.requirement("MCPL-8.3-data")
async def test_data_without_a_known_checkpoint_begin_a_tree_of_their_own() -> None:
    """As after a restart: the host has the state, and the server has forgotten its names."""
    server, _ = noting()
    async with Harness(server, ["notes.*"]) as host:
        kept = {"notes": [{"text": LONG}]}
        alone = await host.call("add", {"text": "b"}, state=kept)
        named = await host.call("add", {"text": "b"}, state=kept, checkpoint="chk_from_before")
        host.problems.clear()
    assert alone.state is not None
    assert named.state is not None
    assert (alone.state["parent"], len(alone.state["data"]["notes"])) == (None, 2)
    assert named.state["parent"] == "chk_from_before"
    assert "patch" in named.state


def committing(most: int = 100) -> tuple[Server, list[str]]:
    server, log = Server("git"), list[str]()
    git = server.feature("git.commit", "Git operations", rollback=True)
    kept = ServerCheckpointStore[list[str]](most)

    @git.tool()
    async def commit(message: str) -> str:
        """Commit."""
        log.append(message)
        git.state.mark(kept.keep([*log]))
        return git.state.checkpoint or "-"

    @git.on_rollback
    async def back(checkpoint: str) -> str | None:
        if "pushed" in log:
            return "External API call cannot be undone"
        log[:] = kept[checkpoint]
        return None

    return server, log


@pytest.mark.requirement(
    *("MCPL-8.3-opaque", "MCPL-4.1-rollback", "MCPL-8.6-result", "MCPL-8.6-besteffort"),
    *("MCPL-8.7-retention", "MCPL-8.7-notfound", "MCPL-A-32005"),
)
@ERAS
async def test_a_server_may_keep_its_state_itself(era: Era) -> None:
    server, log = committing(most=2)
    async with Harness(server, ["git.*"], era=era) as host:
        first = await host.call("commit", {"message": "a"})
        second = await host.call("commit", {"message": "b"})
        assert first.state is not None
        assert second.state is not None
        assert second.state.keys() == {"checkpoint", "parent"}
        assert second.state["parent"] == second.text == first.state["checkpoint"]
        assert (await host.rollback("git.commit", first.state["checkpoint"])).success
        assert log == ["a"]
        third = await host.call("commit", {"message": "c"})
        assert third.text == first.state["checkpoint"]
        with pytest.raises(HarnessServerError) as gone:
            await host.rollback("git.commit", first.state["checkpoint"])
        with pytest.raises(HarnessServerError) as never:
            await host.rollback("git.commit", "chk_old")
        await host.call("commit", {"message": "pushed"})
        assert third.state is not None
        kept = await host.rollback("git.commit", third.state["checkpoint"])
    assert (gone.value.code, never.value.code) == (-32005, -32005)
    assert never.value.data == {"checkpoint": "chk_old"}
    assert (kept.success, kept.reason) == (False, "External API call cannot be undone")


@loop_over(
    ("params", "code"),
    [
        ({"featureSet": "notes.edit"}, -32602),
        ({"featureSet": "notes.other", "checkpoint": "c"}, -32003),
        ({"featureSet": "notes.off", "checkpoint": "c"}, -32001),
        ({"featureSet": ["notes"], "checkpoint": "c"}, -32003),
    ],
)
async def test_a_rollback_of_what_is_not_there_is_refused(params: Any, code: int) -> None:
    server, _ = noting()
    server.feature("notes.off", "Off", rollback=True, uses=["tools"])
    async with Harness(server, ["notes.edit"]) as host:
        with pytest.raises(HarnessServerError) as refused:
            await host.request("state/rollback", params)
    assert refused.value.code == code


async def test_a_rollback_that_breaks_or_has_nobody_is_told_so() -> None:
    server = Server("odd")
    broken = server.feature("odd.broken", "Breaks", uses=["tools"])
    opaque = server.feature("odd.opaque", "Keeps to itself", rollback=True)

    @broken.on_rollback
    async def back(checkpoint: str) -> bool:
        if checkpoint == "no":
            return False
        raise RuntimeError("secret")

    @opaque.tool()
    async def act() -> str:
        """Act."""
        return opaque.state.mark()

    async with Harness(server, ["odd.*"]) as host:
        for checkpoint in ("no", "boom"):
            rolled = await host.rollback("odd.broken", checkpoint)
            assert (rolled.success, "secret" in rolled.reason) == (False, False)
        made = (await host.call("act")).text
        assert not (await host.rollback("odd.opaque", made)).success


def test_state_is_asked_for_within_a_call_of_a_set_that_has_one() -> None:
    _, notes = noting()
    with pytest.raises(Misconfigured, match="running"):
        assert notes.state


async def test_calls_at_once_have_each_their_own_state() -> None:
    server = Server("notes")
    notes = server.feature("notes.edit", "Notes", rollback=True, initial=[])
    both = asyncio.Barrier(2)

    @notes.tool()
    async def add(text: str) -> str:
        """Add."""
        notes.state.data.append(text)
        await both.wait()
        return ",".join(notes.state.data)

    async with Harness(server, ["notes.*"]) as host:
        a, b = await asyncio.gather(
            host.call("add", {"text": "a"}), host.call("add", {"text": "b"})
        )
    assert (a.text, b.text) == ("a", "b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def spelled(data: Any) -> str:
    """As JSON has it: there true is not 1."""
    return json.dumps(data, sort_keys=True)


@given(before=JSON, after=JSON)
def test_what_is_told_of_a_change_gives_the_same_at_the_host(before: Any, after: Any) -> None:
    state = FeatureState(copy.deepcopy(before), "chk_1", is_kept=True)
    state.data = after
    told = state.told()
    if told is None:
        assert spelled(before) == spelled(after)
    elif "patch" in told:
        assert spelled(jsonpatch.apply_patch(before, told["patch"])) == spelled(after)
    else:
        assert told["data"] is after
    assert told is None or told["parent"] == "chk_1"


@given(data=st.lists(JSON, min_size=1, max_size=6))
def test_the_newest_checkpoint_of_equal_data_is_the_parent(data: list[Any]) -> None:
    lineage = CheckpointLineage()
    for index, each in enumerate(data):
        lineage.note(f"chk_{index}", each)
    lineage.returned("chk_0")
    lineage.returned("never")
    assert lineage.holding(data[0]) == "chk_0"


def test_only_the_newest_few_checkpoints_are_kept() -> None:
    kept = ServerCheckpointStore[int](2)
    names = [kept.keep(each) for each in range(3)]
    assert (len(kept), kept[names[2]], names[1] in kept) == (2, 2, True)
    with pytest.raises(MissingCheckpointError):
        kept[names[0]]
