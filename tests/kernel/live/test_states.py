"""What the keeper of state does where the model of it looks away: bounds, ways back, retries."""

from datetime import UTC, datetime, timedelta
from typing import Any, override

import msgspec
import pytest
from msgspec import Raw

from comity.adapters.json_patches import JsonPatches
from comity.adapters.memory.states import MemoryStates
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.states import StateOptions, States
from comity.ports.states import Dropped, New, Place
from comity.rules.live_policy import NOTHING
from comity.rules.states import LONGEST_LINE, Retention
from comity.wire import jsonrpc
from comity.wire.checkpoints import Checkpoint
from comity.wire.errors import (
    CHECKPOINT_UNKNOWN,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    POLICY_UNKNOWN,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import Declared, FeatureSet, Use
from comity.wire.jsonrpc import Frame
from comity.wire.state_trees import Form, Node
from tests.kernel.live.live_link import LinkRoom

TOOLS = frozenset({Use.TOOLS})
NOTES = Place("srv", "notes")
SETS = {
    "notes": FeatureSet("notes", "", TOOLS, has_rollback=True),
    "fixed": FeatureSet("fixed", "", TOOLS),
    "off": FeatureSet("off", "", TOOLS, has_rollback=True),
    "pushes": FeatureSet("pushes", "", frozenset({Use.PUSH}), has_rollback=True),
}


def raw(said: object) -> Raw:
    return Raw(msgspec.json.encode(said))


def states_of(records: MemoryStates | None = None, **options: Any) -> States:
    return States(records or MemoryStates(), JsonPatches(), StateOptions(**options))


def hosted(link: LinkRoom) -> Hosted:
    enabled = frozenset({"notes", "fixed", "pushes"})
    return Hosted("srv", link, Declared("0.4", sets=SETS), NOTHING, enabled)


def answering(**said: Any) -> LinkRoom:
    link = LinkRoom()

    async def reply(method: str, params: object) -> Frame:
        assert method == "state/rollback"
        if "code" in said:
            body = jsonrpc.ErrorBody(said["code"], "Checkpoint not found", {"checkpoint": "a"})
            return Frame("2.0", 1, error=jsonrpc.to_raw(body))
        return jsonrpc.result(1, said)

    link.reply = reply
    return link


async def test_a_long_line_of_patches_is_broken_by_data() -> None:
    states = states_of()
    await states.keep(NOTES, Checkpoint("c0", None, raw({"pad": "x" * 200})))
    for number in range(1, 3 * LONGEST_LINE):
        patch = raw([{"op": "add", "path": f"/{number}", "value": number}])
        await states.keep(NOTES, Checkpoint(f"c{number}", f"c{number - 1}", None, patch))
    tree = await states.tree(NOTES)
    forms = [each.form for each in tree.nodes.values()]
    assert 2 <= forms.count(Form.DATA) <= 4
    assert max(each.line for each in tree.nodes.values()) == LONGEST_LINE
    current = await states.current(NOTES)
    assert current is not None
    assert current.data is not None
    assert len(msgspec.json.decode(current.data)) == 3 * LONGEST_LINE


async def test_what_is_large_is_patched_beside_the_others() -> None:
    states = states_of()
    await states.keep(NOTES, Checkpoint("a", None, raw({"pad": "x" * 100_000, "n": 1})))
    patch = raw([{"op": "replace", "path": "/n", "value": 2}])
    node = await states.keep(NOTES, Checkpoint("b", "a", None, patch))
    state = await states.state_of(NOTES, node)
    assert state is not None
    assert (node.form, msgspec.json.decode(state)["n"]) == (Form.PATCH, 2)


async def test_what_was_let_in_by_other_settings_can_still_be_had() -> None:
    records = MemoryStates()
    await states_of(records).keep(NOTES, Checkpoint("a", None, raw({"pad": "x" * 5_000})))
    node = await states_of(records).keep(
        NOTES, Checkpoint("b", "a", None, raw([{"op": "add", "path": "/n", "value": 1}]))
    )
    smaller = states_of(records, most_bytes=1_024)
    assert await smaller.state_of(NOTES, node) is not None
    later = Checkpoint("c", "b", None, raw([{"op": "add", "path": "/m", "value": 1}]))
    assert "longer" in (await smaller.keep(NOTES, later)).why


@pytest.mark.parametrize("name", ["a\n", "\u009f", "\x7f"])
async def test_a_name_that_cannot_be_written_down_is_refused(name: str) -> None:
    for said in (Checkpoint(name), Checkpoint("a", name)):
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
    await states.keep(Place("srv", feature), Checkpoint("a"))
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
        await states.keep(NOTES, Checkpoint(name, None, raw({"at": name})))
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
        await states.keep(NOTES, Checkpoint(name))
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
        await states.keep(NOTES, Checkpoint(name))
    with pytest.raises(MalformedMessage, match="Checkpoint not found") as caught:
        await states.roll_back(hosted(link), "notes", "a")
    assert caught.value.fault is CHECKPOINT_UNKNOWN
    node = (await states.tree(NOTES)).named("a")
    assert node is not None
    assert node.is_lost
    with pytest.raises(MalformedMessage) as other:
        await states.roll_back(hosted(answering(code=-32603)), "notes", "b")
    assert other.value.fault is not CHECKPOINT_UNKNOWN
    await states.keep(NOTES, Checkpoint("a"))
    node = (await states.tree(NOTES)).named("a")
    assert node is not None
    assert not node.is_lost


class Meddled(MemoryStates):
    """A store in which somebody else is always quicker."""

    def __init__(self, meddles: int) -> None:
        super().__init__()
        self.meddles = meddles

    @override
    async def add(self, place: Place, new: New, instead: Dropped | None = None) -> Node | None:
        if self.meddles and new.name != "theirs":
            self.meddles -= 1
            return None
        return await super().add(place, new, instead)


async def test_what_others_change_meanwhile_is_made_anew_within_bounds() -> None:
    assert (await states_of(Meddled(10)).keep(NOTES, Checkpoint("a"))).name == "a"
    with pytest.raises(Unavailable) as caught:
        await states_of(Meddled(1_000_000)).keep(NOTES, Checkpoint("a"))
    assert caught.value.fault is POLICY_UNKNOWN


async def test_a_server_is_followed_though_what_it_went_to_was_dropped_meanwhile() -> None:
    records = MemoryStates()
    states, link = states_of(records), LinkRoom()
    await states.keep(NOTES, Checkpoint("a", None, raw({})))

    async def reply(method: str, params: object) -> Frame:
        await records.forget(NOTES)
        return jsonrpc.result(1, {"checkpoint": "a", "success": True})

    link.reply = reply
    assert (await states.roll_back(hosted(link), "notes", "a")).success
    current = await states.current(NOTES)
    assert current is not None
    assert (current.name, current.data) == ("a", None)


async def test_what_is_gone_cannot_be_looked_into() -> None:
    states = states_of()
    node = await states.keep(NOTES, Checkpoint("a", None, raw({})))
    assert await states.forget(NOTES) == 1
    with pytest.raises(MalformedMessage) as caught:
        await states.state_of(NOTES, node)
    assert caught.value.fault is CHECKPOINT_UNKNOWN


async def test_what_is_old_goes_though_nothing_new_comes() -> None:
    now = [datetime(2026, 7, 28, tzinfo=UTC)]
    options = StateOptions(retention=Retention(100, timedelta(days=2)))
    states = States(MemoryStates(), JsonPatches(), options, lambda: now[0])
    for name in "abc":
        now[0] += timedelta(days=1)
        await states.keep(NOTES, Checkpoint(name, None, raw({"at": name})))
    now[0] += timedelta(days=30)
    await states.tend()
    tree = await states.tree(NOTES)
    assert [each.name for each in tree.nodes.values()] == ["c"]
