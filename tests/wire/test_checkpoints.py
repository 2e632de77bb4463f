"""State as calls carry it: where the document has it, and once more where SDKs leave it alone."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from comity.wire import checkpoints, jsonrpc
from comity.wire.checkpoints import Checkpoint, RolledBack
from comity.wire.errors import MalformedMessage

type Said = dict[str, Any]


def _members(said: object) -> dict[str, Raw]:
    return jsonrpc.members(msgspec.json.encode(said))


def _plain(said: dict[str, Raw]) -> object:
    return msgspec.json.decode(jsonrpc.to_raw(said))


def test_a_checkpoint_is_read_where_the_document_has_it() -> None:
    said: Said = {"checkpoint": "chk_def", "parent": "chk_abc", "patch": []}
    found = checkpoints.checkpoint_in(_members({"content": [], "state": said}))
    assert found == Checkpoint("chk_def", "chk_abc", None, Raw(b"[]"))
    assert found is not None
    assert not found.is_opaque


def test_a_checkpoint_is_read_from_its_mirror() -> None:
    said: Said = {"checkpoint": "chk_abc", "parent": None, "data": {"notes": []}}
    found = checkpoints.checkpoint_in(_members({"_meta": {"dev.comity/state": said}}))
    assert found == Checkpoint("chk_abc", None, Raw(b'{"notes":[]}'))


def test_a_result_without_state_says_nothing() -> None:
    other: Said = {"_meta": {"other": {"checkpoint": "x"}}}
    results: list[Said] = [{}, {"_meta": {}}, {"_meta": 7}, other]
    for result in results:
        assert checkpoints.checkpoint_in(_members(result)) is None


def test_what_is_written_out_as_null_is_left_out() -> None:
    said = {"checkpoint": "c", "parent": None, "data": None, "patch": None}
    found = checkpoints.checkpoint_in(_members({"state": said}))
    assert found == Checkpoint("c")
    assert found is not None
    assert found.is_opaque


@pytest.mark.parametrize(
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
        checkpoints.checkpoint_in({"state": Raw(state)})


def test_a_call_carries_the_state_that_there_is() -> None:
    params = _members({"name": "add_note", "arguments": {}, "_meta": {"progressToken": 1}})
    carried = checkpoints.with_state(params, "chk_abc", b'{"notes":[]}')
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
    carried = checkpoints.with_state(_members({"name": "commit"}), "chk_def", None)
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
    assert checkpoints.bears_state(params)
    bare = checkpoints.without_state(params)
    assert not checkpoints.bears_state(bare)
    assert "x" not in str(_plain(bare)).replace("'name': 'x'", "")
    assert not checkpoints.bears_state(_members({"name": "x", "_meta": {"progressToken": 1}}))


def test_a_result_loses_its_state_and_nothing_else() -> None:
    state = {"checkpoint": "a"}
    result: Said = {"content": [], "state": state, "_meta": {"dev.comity/state": state, "other": 1}}
    bare = checkpoints.result_without_state(_members({**result, "checkpoint": "its own"}))
    assert _plain(bare) == {"content": [], "checkpoint": "its own", "_meta": {"other": 1}}


def test_a_rollback_is_asked_and_answered_as_printed() -> None:
    assert checkpoints.rollback("notes.edit", "chk_abc") == {
        "featureSet": "notes.edit",
        "checkpoint": "chk_abc",
    }
    said = Raw(b'{"checkpoint":"chk_abc","success":false,"reason":"no"}')
    assert checkpoints.rolled_back_in(said) == RolledBack("chk_abc", False, "no")
    with pytest.raises(MalformedMessage):
        checkpoints.rolled_back_in(Raw(b'{"checkpoint":"chk_abc","success":"yes"}'))
