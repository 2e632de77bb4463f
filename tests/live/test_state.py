"""State as calls carry it, which form it is kept in, and what is dropped."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from comity.errors import MalformedMessage
from comity.live.state import model
from comity.live.state.model import (
    CheckpointNode,
    CheckpointTree,
    StateCheckpoint,
    StateForm,
    StateRetention,
    find_outdated,
    form_of,
    patches_of_dropped,
)
from comity.mcp import jsonrpc
from tests.support.cases import loop_over

type Said = dict[str, Any]


def _members(said: object) -> dict[str, Raw]:
    return jsonrpc.decode_members(msgspec.json.encode(said))


def _plain(said: dict[str, Raw]) -> object:
    return msgspec.json.decode(jsonrpc.to_raw(said))


NOTES: Said = {"checkpoint": "b", "parent": None, "data": {"notes": []}}
NULLS: Said = {"checkpoint": "c", "parent": None, "data": None, "patch": None}


@loop_over(
    ("result", "checkpoint"),
    [
        (
            {"content": [], "state": {"checkpoint": "b", "parent": "a", "patch": []}},
            StateCheckpoint("b", "a", None, Raw(b"[]")),
        ),
        # Where an SDK would drop what it does not know.
        (
            {"_meta": {"dev.comity/state": NOTES}},
            StateCheckpoint("b", None, Raw(b'{"notes":[]}')),
        ),
        ({"state": NULLS}, StateCheckpoint("c")),
        ({}, None),
        ({"_meta": {}}, None),
        ({"_meta": 7}, None),
        ({"_meta": {"other": {"checkpoint": "x"}}}, None),
    ],
)
def test_a_checkpoint_is_read_where_the_document_has_it(
    result: Said, checkpoint: StateCheckpoint | None
) -> None:
    assert model.checkpoint_in(_members(result)) == checkpoint


@loop_over(
    "state",
    [
        *(b"7", b"null", b"[]", b"{}", b'"chk"', b'{"checkpoint":7}', b'{"checkpoint":""}'),
        *(b'{"checkpoint":"a","parent":""}', b'{"checkpoint":"a","parent":3}'),
        *(b'{"checkpoint":"%s"}' % (b"x" * 257), b'{"checkpoint":"a","checkpoint":"b"}'),
        b'{"checkpoint":"a","data":{"b":1,"b":2}}',
    ],
)
def test_what_is_no_checkpoint_is_refused(state: bytes) -> None:
    with pytest.raises(MalformedMessage):
        model.checkpoint_in({"state": Raw(state)})


def test_a_call_carries_the_state_that_there_is() -> None:
    params = _members({"name": "add_note", "arguments": {}, "_meta": {"progressToken": 1}})
    carried = model.with_state(params, "chk_abc", b'{"notes":[]}')
    assert _plain(carried) == {
        "name": "add_note",
        "arguments": {},
        "state": {"notes": []},
        "_meta": {
            "progressToken": 1,
            "dev.comity/state": {"notes": []},
            "dev.comity/checkpoint": "chk_abc",
        },
    }


def test_a_call_carries_the_name_where_there_is_no_more() -> None:
    carried = model.with_state(_members({"name": "commit"}), "chk_def", None)
    assert _plain(carried) == {
        "name": "commit",
        "checkpoint": "chk_def",
        "_meta": {"dev.comity/checkpoint": "chk_def"},
    }


@pytest.mark.parametrize(
    "forged",
    [
        {"state": {}},
        {"checkpoint": "x"},
        {"_meta": {"dev.comity/state": {}}},
        {"_meta": {"dev.comity/checkpoint": "x", "kept": 1}},
    ],
)
def test_what_a_client_says_of_state_is_taken_away(forged: dict[str, object]) -> None:
    params = _members({"name": "x", **forged})
    assert model.has_state(params)
    bare = model.without_state(params)
    assert not model.has_state(bare)
    assert "x" not in str(_plain(bare)).replace("'name': 'x'", "")
    assert not model.has_state(_members({"name": "x", "_meta": {"progressToken": 1}}))


def test_a_result_loses_its_state_and_nothing_else() -> None:
    state = {"checkpoint": "a"}
    result: Said = {"content": [], "state": state, "_meta": {"dev.comity/state": state, "other": 1}}
    bare = model.result_without_state(_members({**result, "checkpoint": "its own"}))
    assert _plain(bare) == {"content": [], "checkpoint": "its own", "_meta": {"other": 1}}


NOW = datetime(2026, 7, 28, tzinfo=UTC)
DAY = timedelta(days=1)
BASE = CheckpointNode(1, "chk_1", NOW, form=StateForm.DATA)


def a_line(length: int, head: int | None = None) -> CheckpointTree:
    """Patches one after the other, a day between them, the last one now."""
    nodes = {
        number: CheckpointNode(
            number,
            f"chk_{number}",
            NOW - (length - number) * DAY,
            f"chk_{number - 1}",
            number - 1 or None,
            StateForm.PATCH if number > 1 else StateForm.DATA,
        )
        for number in range(1, length + 1)
    }
    return CheckpointTree(length, length if head is None else head, nodes)


def test_a_state_that_is_not_known_is_opaque() -> None:
    assert form_of(None, b"[]", BASE) == (StateForm.OPAQUE, 0)
    assert form_of(None, None, None) == (StateForm.OPAQUE, 0)


def test_a_patch_is_kept_where_it_is_shorter_than_what_it_makes() -> None:
    assert form_of(b'{"notes":[]}', b"[]", BASE) == (StateForm.PATCH, 1)
    assert form_of(b"{}", b"[]", BASE) == (StateForm.DATA, 0)
    assert form_of(b'{"notes":[]}', b"[]", None) == (StateForm.DATA, 0)
    assert form_of(b'{"notes":[]}', None, BASE) == (StateForm.DATA, 0)


def test_more_than_may_be_kept_goes_the_oldest_first() -> None:
    assert find_outdated(a_line(4), StateRetention(4), NOW) == frozenset()
    assert find_outdated(a_line(7), StateRetention(4), NOW) == {1, 2, 3}
    # A few too many stay for a while.
    assert find_outdated(a_line(18), StateRetention(16), NOW) == frozenset()
    assert find_outdated(a_line(19), StateRetention(16), NOW) == {1, 2, 3}


def test_what_is_older_than_it_may_be_goes() -> None:
    assert find_outdated(a_line(5), StateRetention(100, 2 * DAY), NOW) == {1, 2}
    assert find_outdated(a_line(5), StateRetention(100, None), NOW) == frozenset()


@pytest.mark.parametrize("head", [1, 2, 7])
def test_what_counts_is_never_dropped(head: int) -> None:
    for retention in (StateRetention(1), StateRetention(100, timedelta()), StateRetention(2, DAY)):
        dropped = find_outdated(a_line(7, head), retention, NOW + DAY)
        assert head not in dropped
        assert len(dropped) >= 5


def test_what_rests_on_what_goes_is_found() -> None:
    tree = a_line(4)
    branch = CheckpointNode(5, "branch", NOW, "chk_1", 1, StateForm.PATCH)
    whole = CheckpointNode(6, "whole", NOW, "chk_1", 1, StateForm.DATA)
    grown = CheckpointTree(6, 4, {**tree.nodes, 5: branch, 6: whole})
    assert [each.number for each in patches_of_dropped(grown, {1})] == [2, 5]
    assert [each.number for each in patches_of_dropped(grown, {1, 2})] == [3, 5]
    assert patches_of_dropped(grown, {4}) == []
