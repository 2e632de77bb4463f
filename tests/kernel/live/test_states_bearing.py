"""State with calls and answers where the store fails, sets change, and servers say too much."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, override

import msgspec
import pytest

from comity.adapters.json_patches import JsonPatches
from comity.adapters.memory.states import MemoryStates
from comity.kernel.live import states_bearing
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.live.states import StateOptions, States
from comity.kernel.live.states_bearing import StateBearer
from comity.ports.states import Current, Dropped, New, Place
from comity.rules.live_policy import NOTHING
from comity.wire import jsonrpc
from comity.wire.audit import Result, Type
from comity.wire.errors import POLICY_UNKNOWN, Unavailable
from comity.wire.features import Declared, FeatureSet, Use
from comity.wire.jsonrpc import Frame
from comity.wire.state_trees import Node
from tests.kernel.live.live_link import LinkRoom, calling, params_of

TOOLS = frozenset({Use.TOOLS})
SETS = {name: FeatureSet(name, "", TOOLS, has_rollback=True) for name in ("notes", "git")}
NOTES = Place("srv", "notes")
ROOT = {"checkpoint": "root", "data": {"n": 1}}


class Unsteady(MemoryStates):
    """A store that answers only now and then."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__()
        self.fails = fails

    def _perhaps(self) -> None:
        if self.fails:
            self.fails -= 1
            raise Unavailable("the store does not answer", POLICY_UNKNOWN, timedelta(seconds=1))

    @override
    async def current(self, place: Place) -> Current | None:
        self._perhaps()
        return await super().current(place)

    @override
    async def add(self, place: Place, new: New, instead: Dropped | None = None) -> Node | None:
        self._perhaps()
        return await super().add(place, new, instead)


class Notes(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Type, Deed, Result]] = []

    @override
    def note(self, type: Type, deed: Deed, result: Result = Result.SUCCESS) -> None:
        self.noted.append((type, deed, result))


class Scene:
    """One server, its calls, and what is kept of them."""

    def __init__(self, records: MemoryStates | None = None) -> None:
        self.records = records or MemoryStates()
        self.noting = Notes()
        self.states = States(self.records, JsonPatches(), StateOptions())
        self.bearer = StateBearer(self.states, self.noting, self._definition)
        self.by = Hosted("srv", LinkRoom(), Declared("0.4", sets=SETS), NOTHING, frozenset(SETS))

    def _definition(self, server: str, tool: str) -> bytes | None:
        feature = tool.partition("_")[0]
        said = {"name": tool, "_meta": {"featureSet": feature}}
        return msgspec.json.encode(said) if feature in SETS else None

    async def call(self, tool: str, answer: dict[str, Any]) -> tuple[Any, Any]:
        """What the server was sent, and what its client gets."""
        call, frame = calling(tool)
        sent = frame
        if self.bearer.carries(self.by, call, frame):
            sent = await self.bearer.bring(self.by, call, frame)
        got = await self.bearer.take(self.by, call, jsonrpc.result("c-1", answer))
        return params_of(sent), result_of(got)

    async def at(self, place: Place = NOTES) -> str | None:
        current = await self.records.current(place)
        return None if current is None else current.name


def result_of(frame: Frame) -> Any:
    return msgspec.json.decode(jsonrpc.encode(frame))["result"]


async def test_the_set_is_that_of_the_tool_and_sets_are_apart() -> None:
    scene = Scene()
    await scene.call("notes_add", {"state": ROOT})
    sent, got = await scene.call("git_commit", {"state": {"checkpoint": "c1"}, "content": []})
    assert ("state" in sent, got) == (False, {"content": []})
    assert (await scene.call("notes_add", {}))[0]["state"] == {"n": 1}
    assert (await scene.call("git_commit", {}))[0]["checkpoint"] == "c1"
    assert (await scene.call("unlisted", {}))[0] == {"name": "unlisted"}


async def test_a_set_that_is_no_longer_enabled_carries_nothing_and_keeps_what_it_had() -> None:
    scene = Scene()
    await scene.call("notes_add", {"state": ROOT})
    scene.by.enabled = frozenset({"git"})
    left: dict[str, Any] = {"state": {"checkpoint": "x"}, "content": []}
    assert await scene.call("notes_add", left) == ({"name": "notes_add"}, left)
    scene.by.enabled = frozenset()
    assert await scene.call("unlisted", left) == ({"name": "unlisted"}, left)
    assert await scene.at() == "root"
    scene.by.enabled = frozenset(SETS)
    assert (await scene.call("notes_add", {}))[0]["state"] == {"n": 1}


async def test_what_a_client_says_of_state_goes_nowhere() -> None:
    scene = Scene()
    for tool in ("notes_add", "unlisted"):
        for forged in (
            {"state": 1},
            {"checkpoint": "x"},
            {"_meta": {"dev.comity/state": 1, "dev.comity/checkpoint": "x"}},
        ):
            call, frame = calling(tool, **forged)
            assert scene.bearer.carries(scene.by, call, frame)
            sent = params_of(await scene.bearer.bring(scene.by, call, frame))
            assert sent in ({"name": tool}, {"name": tool, "_meta": {}})


async def test_an_answer_belongs_to_the_set_that_its_call_went_out_by() -> None:
    scene = Scene()
    call, frame = calling("notes_add")
    assert scene.bearer.carries(scene.by, call, frame)
    # Meanwhile the server says that it can do something else.
    scene.by.declared = replace(scene.by.declared, sets={"git": SETS["git"]})
    await scene.bearer.take(scene.by, call, jsonrpc.result("c-1", {"state": ROOT}))
    assert await scene.at() == "root"


async def test_an_answer_that_nobody_sent_for_is_left_alone() -> None:
    scene = Scene()
    call, _ = calling("notes_add")
    answer = jsonrpc.result("c-1", {"state": ROOT})
    assert await scene.bearer.take(scene.by, call, answer) is answer
    broken = jsonrpc.result("c-1", [1])
    assert await scene.bearer.take(scene.by, call, broken) is broken


async def test_a_call_does_not_go_without_the_state_that_it_should_have() -> None:
    scene = Scene(Unsteady(1))
    call, frame = calling("notes_add")
    assert scene.bearer.carries(scene.by, call, frame)
    with pytest.raises(Unavailable) as caught:
        await scene.bearer.bring(scene.by, call, frame)
    assert caught.value.fault.retryable


async def test_an_answer_waits_for_a_store_that_comes_back() -> None:
    records = Unsteady()
    scene = Scene(records)
    call, frame = calling("notes_add")
    assert scene.bearer.carries(scene.by, call, frame)
    records.fails = 2
    answer = jsonrpc.result("c-1", {"state": ROOT, "content": []})
    got = await scene.bearer.take(scene.by, call, answer)
    assert result_of(got) == {"content": []}
    assert (await scene.at(), records.fails) == ("root", 0)


async def test_an_answer_whose_state_cannot_be_kept_fails_and_is_not_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states_bearing, "PATIENCE_SECONDS", 0.0)
    records = Unsteady()
    scene = Scene(records)
    call, frame = calling("notes_add")
    assert scene.bearer.carries(scene.by, call, frame)
    records.fails = 1_000
    with pytest.raises(Unavailable, match="the tool ran") as caught:
        await scene.bearer.take(scene.by, call, jsonrpc.result("c-1", {"state": ROOT}))
    assert not caught.value.fault.retryable


async def test_what_is_kept_and_what_is_not_is_written_down() -> None:
    scene = Scene()
    patch = [{"op": "remove", "path": "/hunter2"}]
    for state in (ROOT, {"checkpoint": "next", "parent": "root", "patch": patch}, 7):
        await scene.call("notes_add", {"state": state})
    kept, dropped, unread = scene.noting.noted
    assert (kept[0], kept[2]) == (Type.STATE_KEPT, Result.SUCCESS)
    assert kept[1].details == {"checkpoint": "root", "parent": None, "kept_as": "data", "bytes": 7}
    assert (kept[1].feature, kept[1].tool) == ("notes", "notes_add")
    assert (dropped[0], dropped[2]) == (Type.STATE_DROPPED, Result.FAILURE)
    assert "does not fit" in str(dropped[1].details["reason"])
    assert (unread[0], unread[2]) == (Type.STATE_DROPPED, Result.FAILURE)
    assert "hunter2" not in str(scene.noting.noted)


async def test_many_answers_at_once_are_kept_one_after_the_other() -> None:
    scene = Scene()
    await scene.call("notes_add", {"state": ROOT})
    answers = [
        {"state": {"checkpoint": "root", "parent": "root", "patch": [_put(number)]}}
        for number in range(50)
    ]
    await asyncio.gather(*(scene.call("notes_add", answer) for answer in answers))
    current = await scene.records.current(NOTES)
    assert current is not None
    assert current.data is not None
    assert len(msgspec.json.decode(current.data)) == 51


def _put(number: int) -> dict[str, Any]:
    return {"op": "add", "path": f"/{number}", "value": number}
