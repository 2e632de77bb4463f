"""State where the store fails, sets change, servers say too much, and at its bounds."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, override

import msgspec
import pytest
from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    CHECKPOINT_UNKNOWN,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    POLICY_UNKNOWN,
    MalformedMessage,
    Unavailable,
)
from comity.live.features import DEFAULT_POLICY
from comity.live.host import LiveServer
from comity.live.settings import StateSettings
from comity.live.state import service
from comity.live.state.json_patch import JsonPatches
from comity.live.state.model import (
    MAX_PATCH_CHAIN,
    CheckpointNode,
    CheckpointRemoval,
    CurrentState,
    NewCheckpoint,
    StateCheckpoint,
    StateForm,
    StateKey,
)
from comity.live.state.service import StateInterceptor, StateService
from comity.live.state.store import SqlStates
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import Frame
from comity.mcp.mcpl import FeatureSet, FeatureUse, McplDeclaration
from tests.live.live_link import LinkRoom, calling, params_of
from tests.support.inline_store import inline_parts, inline_records
from tests.support.noted import Noted

pytestmark = pytest.mark.integration
TOOLS = frozenset({FeatureUse.TOOLS})
NOTES = StateKey("srv", "notes")
SETS = {
    "notes": FeatureSet("notes", "", TOOLS, has_rollback=True),
    "fixed": FeatureSet("fixed", "", TOOLS),
    "off": FeatureSet("off", "", TOOLS, has_rollback=True),
    "pushes": FeatureSet("pushes", "", frozenset({FeatureUse.PUSH}), has_rollback=True),
}


def raw(said: object) -> Raw:
    return Raw(msgspec.json.encode(said))


def states_of(records: SqlStates | None = None, **options: Any) -> StateService:
    return StateService(records or inline_records().states, JsonPatches(), StateSettings(**options))


def hosted(link: LinkRoom) -> LiveServer:
    enabled = frozenset({"notes", "fixed", "pushes"})
    return LiveServer("srv", link, McplDeclaration("0.4", sets=SETS), DEFAULT_POLICY, enabled)


def answering(**said: Any) -> LinkRoom:
    link = LinkRoom()

    async def reply(method: str, params: object) -> Frame:
        assert method == "state/rollback"
        if "code" in said:
            body = jsonrpc.ErrorBody(said["code"], "Checkpoint not found", {"checkpoint": "a"})
            return Frame("2.0", 1, error=jsonrpc.to_raw(body))
        return jsonrpc.make_result(1, said)

    link.reply = reply
    return link


async def test_a_long_line_of_patches_is_broken_by_data() -> None:
    states = states_of()
    await states.keep(NOTES, StateCheckpoint("c0", None, raw({"pad": "x" * 200})))
    for number in range(1, 3 * MAX_PATCH_CHAIN):
        patch = raw([{"op": "add", "path": f"/{number}", "value": number}])
        await states.keep(NOTES, StateCheckpoint(f"c{number}", f"c{number - 1}", None, patch))
    tree = await states.tree(NOTES)
    forms = [each.form for each in tree.nodes.values()]
    assert 2 <= forms.count(StateForm.DATA) <= 4
    assert max(each.line for each in tree.nodes.values()) == MAX_PATCH_CHAIN
    current = await states.current(NOTES)
    assert current is not None
    assert current.data is not None
    assert len(msgspec.json.decode(current.data)) == 3 * MAX_PATCH_CHAIN


async def test_what_is_large_is_patched_beside_the_others() -> None:
    states = states_of()
    await states.keep(NOTES, StateCheckpoint("a", None, raw({"pad": "x" * 100_000, "n": 1})))
    patch = raw([{"op": "replace", "path": "/n", "value": 2}])
    node = await states.keep(NOTES, StateCheckpoint("b", "a", None, patch))
    state = await states.state_of(NOTES, node)
    assert state is not None
    assert (node.form, msgspec.json.decode(state)["n"]) == (StateForm.PATCH, 2)


async def test_what_was_let_in_by_other_settings_can_still_be_had() -> None:
    records = inline_records().states
    await states_of(records).keep(NOTES, StateCheckpoint("a", None, raw({"pad": "x" * 5_000})))
    node = await states_of(records).keep(
        NOTES, StateCheckpoint("b", "a", None, raw([{"op": "add", "path": "/n", "value": 1}]))
    )
    smaller = states_of(records, max_bytes=1_024)
    assert await smaller.state_of(NOTES, node) is not None
    later = StateCheckpoint("c", "b", None, raw([{"op": "add", "path": "/m", "value": 1}]))
    assert "longer" in (await smaller.keep(NOTES, later)).why


@pytest.mark.parametrize("name", ["a\n", "\u009f", "\x7f"])
async def test_a_name_that_cannot_be_written_down_is_refused(name: str) -> None:
    for said in (StateCheckpoint(name), StateCheckpoint("a", name)):
        with pytest.raises(MalformedMessage):
            await states_of().keep(NOTES, said)


@pytest.mark.parametrize(
    ("feature", "fault"),
    [
        ("", FEATURE_NOT_ENABLED),
        ("fixed", FEATURE_NOT_ENABLED),
        ("off", FEATURE_NOT_ENABLED),
        ("pushes", FEATURE_NOT_ENABLED),
        ("unknown", FEATURE_UNKNOWN),
    ],
)
async def test_only_a_set_that_declares_it_and_is_enabled_is_rolled_back(
    feature: str, fault: object
) -> None:
    states, link = states_of(), answering(checkpoint="a", success=True)
    await states.keep(StateKey("srv", feature), StateCheckpoint("a"))
    with pytest.raises(MalformedMessage) as caught:
        await states.roll_back(hosted(link), feature, "a")
    assert (caught.value.fault, link.asked) == (fault, [])


async def test_a_server_is_not_asked_for_what_is_not_kept() -> None:
    link = answering(checkpoint="a", success=True)
    with pytest.raises(MalformedMessage) as caught:
        await states_of().roll_back(hosted(link), "notes", "a")
    assert (caught.value.fault, link.asked) == (CHECKPOINT_UNKNOWN, [])


async def test_a_rollback_is_asked_as_printed_and_followed() -> None:
    states, link = states_of(), answering(checkpoint="a", success=True)
    for name in "ab":
        await states.keep(NOTES, StateCheckpoint(name, None, raw({"at": name})))
    assert (await states.roll_back(hosted(link), "notes", "a")).success
    assert link.asked == [("state/rollback", {"featureSet": "notes", "checkpoint": "a"})]
    current = await states.current(NOTES)
    assert current is not None
    assert (current.name, current.data) == ("a", b'{"at":"a"}')


@pytest.mark.parametrize(
    "said",
    [
        {"checkpoint": "a", "success": False, "reason": "it was sent"},
        {"checkpoint": "b", "success": True},
        {"checkpoint": "a", "success": 1},
        {"success": True},
    ],
)
async def test_a_server_that_does_not_confirm_it_is_not_followed(said: dict[str, Any]) -> None:
    states = states_of()
    for name in "ab":
        await states.keep(NOTES, StateCheckpoint(name))
    before = await states.tree(NOTES)
    if said.get("success") is False:
        told = await states.roll_back(hosted(answering(**said)), "notes", "a")
        assert (told.success, told.reason) == (False, "it was sent")
    else:
        with pytest.raises(MalformedMessage):
            await states.roll_back(hosted(answering(**said)), "notes", "a")
    assert await states.tree(NOTES) == before


async def test_what_its_server_lost_is_marked_until_it_is_back() -> None:
    states, link = states_of(), answering(code=CHECKPOINT_UNKNOWN.code)
    for name in "ab":
        await states.keep(NOTES, StateCheckpoint(name))
    with pytest.raises(MalformedMessage, match="Checkpoint not found") as caught:
        await states.roll_back(hosted(link), "notes", "a")
    assert caught.value.fault is CHECKPOINT_UNKNOWN
    node = (await states.tree(NOTES)).find("a")
    assert node is not None
    assert node.is_lost
    with pytest.raises(MalformedMessage) as other:
        await states.roll_back(hosted(answering(code=-32603)), "notes", "b")
    assert other.value.fault is not CHECKPOINT_UNKNOWN
    await states.keep(NOTES, StateCheckpoint("a"))
    node = (await states.tree(NOTES)).find("a")
    assert node is not None
    assert not node.is_lost


class Meddled(SqlStates):
    """A store in which somebody else is always quicker."""

    def __init__(self, meddles: int) -> None:
        super().__init__(*inline_parts())
        self.meddles = meddles

    @override
    async def add(
        self, state_key: StateKey, new: NewCheckpoint, instead: CheckpointRemoval | None = None
    ) -> CheckpointNode | None:
        if self.meddles and new.name != "theirs":
            self.meddles -= 1
            return None
        return await super().add(state_key, new, instead)


async def test_what_others_change_meanwhile_is_made_anew_within_bounds() -> None:
    assert (await states_of(Meddled(10)).keep(NOTES, StateCheckpoint("a"))).name == "a"
    with pytest.raises(Unavailable) as caught:
        await states_of(Meddled(1_000_000)).keep(NOTES, StateCheckpoint("a"))
    assert caught.value.fault is POLICY_UNKNOWN


async def test_a_server_is_followed_though_what_it_went_to_was_dropped_meanwhile() -> None:
    records = inline_records().states
    states, link = states_of(records), LinkRoom()
    await states.keep(NOTES, StateCheckpoint("a", None, raw({})))

    async def reply(method: str, params: object) -> Frame:
        await records.forget(NOTES)
        return jsonrpc.make_result(1, {"checkpoint": "a", "success": True})

    link.reply = reply
    assert (await states.roll_back(hosted(link), "notes", "a")).success
    current = await states.current(NOTES)
    assert current is not None
    assert (current.name, current.data) == ("a", None)


async def test_what_is_gone_cannot_be_looked_into() -> None:
    states = states_of()
    node = await states.keep(NOTES, StateCheckpoint("a", None, raw({})))
    assert await states.forget(NOTES) == 1
    with pytest.raises(MalformedMessage) as caught:
        await states.state_of(NOTES, node)
    assert caught.value.fault is CHECKPOINT_UNKNOWN


async def test_what_is_old_goes_though_nothing_new_comes() -> None:
    now = [datetime(2026, 7, 28, tzinfo=UTC)]
    options = StateSettings(max_checkpoints=100, retention=timedelta(days=2))
    states = StateService(inline_records().states, JsonPatches(), options, lambda: now[0])
    for name in "abc":
        now[0] += timedelta(days=1)
        await states.keep(NOTES, StateCheckpoint(name, None, raw({"at": name})))
    now[0] += timedelta(days=30)
    await states.prune_all()
    tree = await states.tree(NOTES)
    assert [each.name for each in tree.nodes.values()] == ["c"]


CALL_SETS = {name: FeatureSet(name, "", TOOLS, has_rollback=True) for name in ("notes", "git")}
ROOT = {"checkpoint": "root", "data": {"n": 1}}


class Unsteady(SqlStates):
    """A store that answers only now and then."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__(*inline_parts())
        self.fails = fails

    def _perhaps(self) -> None:
        if self.fails:
            self.fails -= 1
            raise Unavailable("the store does not answer", POLICY_UNKNOWN, timedelta(seconds=1))

    @override
    async def current(self, state_key: StateKey) -> CurrentState | None:
        self._perhaps()
        return await super().current(state_key)

    @override
    async def add(
        self, state_key: StateKey, new: NewCheckpoint, instead: CheckpointRemoval | None = None
    ) -> CheckpointNode | None:
        self._perhaps()
        return await super().add(state_key, new, instead)


class Scene:
    """One server, its calls, and what is kept of them."""

    def __init__(self, records: SqlStates | None = None) -> None:
        self.records = records or inline_records().states
        self.audit = Noted()
        self.states = StateService(self.records, JsonPatches(), StateSettings())
        self.bearer = StateInterceptor(self.states, self.audit.journal, self._definition)
        self.by = LiveServer(
            "srv",
            LinkRoom(),
            McplDeclaration("0.4", sets=CALL_SETS),
            DEFAULT_POLICY,
            frozenset(CALL_SETS),
        )

    def _definition(self, server: str, tool: str) -> bytes | None:
        feature = tool.partition("_")[0]
        said = {"name": tool, "_meta": {"featureSet": feature}}
        return msgspec.json.encode(said) if feature in CALL_SETS else None

    async def call(self, tool: str, answer: dict[str, Any]) -> tuple[Any, Any]:
        """What the server was sent, and what its client gets."""
        call, frame = calling(tool)
        sent = frame
        if self.bearer.has_data_for(self.by, call, frame):
            sent = await self.bearer.add_data(self.by, call, frame)
        got = await self.bearer.take_data(self.by, call, jsonrpc.make_result("c-1", answer))
        return params_of(sent), result_of(got)

    async def at(self, place: StateKey = NOTES) -> str | None:
        current = await self.records.current(place)
        return None if current is None else current.name


def result_of(frame: Frame) -> Any:
    return msgspec.json.decode(jsonrpc.encode_frame(frame))["result"]


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
    scene.by.enabled = frozenset(CALL_SETS)
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
            assert scene.bearer.has_data_for(scene.by, call, frame)
            sent = params_of(await scene.bearer.add_data(scene.by, call, frame))
            assert sent in ({"name": tool}, {"name": tool, "_meta": {}})


async def test_an_answer_belongs_to_the_set_that_its_call_went_out_by() -> None:
    scene = Scene()
    call, frame = calling("notes_add")
    assert scene.bearer.has_data_for(scene.by, call, frame)
    # Meanwhile the server says that it can do something else.
    scene.by.declared = replace(scene.by.declared, sets={"git": CALL_SETS["git"]})
    await scene.bearer.take_data(scene.by, call, jsonrpc.make_result("c-1", {"state": ROOT}))
    assert await scene.at() == "root"


async def test_an_answer_that_nobody_sent_for_is_left_alone() -> None:
    scene = Scene()
    call, _ = calling("notes_add")
    answer = jsonrpc.make_result("c-1", {"state": ROOT})
    assert await scene.bearer.take_data(scene.by, call, answer) is answer
    broken = jsonrpc.make_result("c-1", [1])
    assert await scene.bearer.take_data(scene.by, call, broken) is broken


async def test_a_call_does_not_go_without_the_state_that_it_should_have() -> None:
    scene = Scene(Unsteady(1))
    call, frame = calling("notes_add")
    assert scene.bearer.has_data_for(scene.by, call, frame)
    with pytest.raises(Unavailable) as caught:
        await scene.bearer.add_data(scene.by, call, frame)
    assert caught.value.fault.retryable


async def test_an_answer_waits_for_a_store_that_comes_back() -> None:
    records = Unsteady()
    scene = Scene(records)
    call, frame = calling("notes_add")
    assert scene.bearer.has_data_for(scene.by, call, frame)
    records.fails = 2
    answer = jsonrpc.make_result("c-1", {"state": ROOT, "content": []})
    got = await scene.bearer.take_data(scene.by, call, answer)
    assert result_of(got) == {"content": []}
    assert (await scene.at(), records.fails) == ("root", 0)


async def test_an_answer_whose_state_cannot_be_kept_fails_and_is_not_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "PATIENCE_SECONDS", 0.0)
    records = Unsteady()
    scene = Scene(records)
    call, frame = calling("notes_add")
    assert scene.bearer.has_data_for(scene.by, call, frame)
    records.fails = 1_000
    with pytest.raises(Unavailable, match="the tool ran") as caught:
        await scene.bearer.take_data(scene.by, call, jsonrpc.make_result("c-1", {"state": ROOT}))
    assert not caught.value.fault.retryable


async def test_what_is_kept_and_what_is_not_is_written_down() -> None:
    scene = Scene()
    patch = [{"op": "remove", "path": "/hunter2"}]
    for state in (ROOT, {"checkpoint": "next", "parent": "root", "patch": patch}, 7):
        await scene.call("notes_add", {"state": state})
    kept, dropped, unread = events = scene.audit.take()
    assert (kept.type, kept.result) == (AuditType.STATE_STORED, AuditResult.SUCCESS)
    said = {"checkpoint": "root", "parent": None, "stored_as": "data", "bytes": 7}
    assert said.items() <= kept.details.items()
    assert (kept.details["feature_set"], kept.tool) == ("notes", "notes_add")
    assert (dropped.type, dropped.result) == (AuditType.STATE_DROPPED, AuditResult.FAILURE)
    assert "does not fit" in str(dropped.details["reason"])
    assert (unread.type, unread.result) == (AuditType.STATE_DROPPED, AuditResult.FAILURE)
    assert "hunter2" not in str(events)


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
