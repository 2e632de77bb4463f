"""The state of tools: kept by the host or by the server, patched, branched and rolled back."""

import asyncio
import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.sdk.harness import Failed, Harness
from comity.sdk.harness_line import Era
from comity.sdk.live_state import Lineage, State
from comity.sdk.server import CheckpointNotFound, Checkpoints, Feature, Misconfigured, Server

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
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
    kept = Checkpoints[list[str]](most)

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
        with pytest.raises(Failed) as gone:
            await host.rollback("git.commit", first.state["checkpoint"])
        with pytest.raises(Failed) as never:
            await host.rollback("git.commit", "chk_old")
        await host.call("commit", {"message": "pushed"})
        assert third.state is not None
        kept = await host.rollback("git.commit", third.state["checkpoint"])
    assert (gone.value.code, never.value.code) == (-32005, -32005)
    assert never.value.data == {"checkpoint": "chk_old"}
    assert (kept.success, kept.reason) == (False, "External API call cannot be undone")


@pytest.mark.parametrize(
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
        with pytest.raises(Failed) as refused:
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
    state = State(copy.deepcopy(before), "chk_1", is_kept=True)
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
    lineage = Lineage()
    for index, each in enumerate(data):
        lineage.note(f"chk_{index}", each)
    lineage.returned("chk_0")
    lineage.returned("never")
    assert lineage.holding(data[0]) == "chk_0"


def test_only_the_newest_few_checkpoints_are_kept() -> None:
    kept = Checkpoints[int](2)
    names = [kept.keep(each) for each in range(3)]
    assert (len(kept), kept[names[2]], names[1] in kept) == (2, 2, True)
    with pytest.raises(CheckpointNotFound):
        kept[names[0]]
