"""MCPL: what servers declare, what hosts say, and requests inside notifications."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.mcp import jsonrpc, mcpl
from comity.mcp import mcpl as features
from comity.mcp.jsonrpc import UNSET
from comity.mcp.mcpl import (
    FeatureSet,
    FeatureUse,
    McplDeclaration,
    ScopeBounds,
    ScopeClaim,
    declared_in,
)
from tests.support.cases import loop_over

SET = {"description": "Reads", "uses": ["contextHooks.beforeInference"]}
WHOLE: dict[str, Any] = {
    "version": "0.4",
    "pushEvents": True,
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
    "inferenceRequest": {"streaming": True},
    "modelInfo": True,
    "channels": {"register": True, "publish": False},
    "featureSets": {"memory.read": {**SET, "scoped": True, "rollback": True, "later": 1}},
    "somethingNew": {"x": 1},
}


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def said(mcpl: object, place: str = "experimental", key: str = "mcpl") -> McplDeclaration | None:
    return declared_in(raw({"tools": {}, place: {key: mcpl}}))


@loop_over("place", [("experimental", "mcpl"), ("extensions", "dev.comity/mcpl")], ids=str)
def test_a_declaration_is_read_in_either_place(place: tuple[str, str]) -> None:
    found = said(WHOLE, *place)
    assert found == McplDeclaration(
        "0.4",
        *(True, True, True, True, True, True, True),
        frozenset({"register"}),
        {
            "memory.read": FeatureSet(
                "memory.read",
                "Reads",
                frozenset({FeatureUse.BEFORE}),
                is_scoped=True,
                has_rollback=True,
            )
        },
    )


@loop_over(
    "mcpl",
    [
        *(None, 7, [], {}, {"version": 4}, {"version": "1.0"}, {"version": "0.4", "pushEvents": 1}),
        {"version": "0.4", "featureSets": {"x": {"uses": []}}},
        {"version": "0.4", "featureSets": {"x": {"description": "no uses"}}},
        {"version": "0.4", "featureSets": [SET]},
        {"version": "0.4", "featureSets": {"x": {**SET, "description": "x" * 300_000}}},
    ],
)
def test_what_cannot_be_read_is_plain_mcp(mcpl: object) -> None:
    assert said(mcpl) is None
    assert declared_in(None) is None
    for capabilities in (b'{"tools":{}}', b"[]", b'{"experimental":7}'):
        assert declared_in(Raw(capabilities)) is None


def test_a_set_of_another_use_or_name_is_left_out_alone() -> None:
    sets = {"ok": SET, "other": {**SET, "uses": ["everything"]}, "not a name": SET, "a..b": SET}
    found = said({"version": "0.4", "featureSets": sets})
    assert found is not None
    assert list(found.sets) == ["ok"]


def test_there_are_no_more_sets_than_a_host_looks_at() -> None:
    found = said({"version": "0.4", "featureSets": {f"s{n}": SET for n in range(400)}})
    assert found is not None
    assert len(found.sets) == features.MAX_SETS


def test_a_change_names_what_is_new_and_what_is_gone() -> None:
    added, removed = features.changed_in(raw({"added": {"x": SET}, "removed": ["y"]}))
    assert (list(added), removed) == (["x"], ("y",))
    assert features.changed_in(raw({})) == ({}, ())
    with pytest.raises(MalformedMessage):
        features.changed_in(raw({"added": {"x": 7}}))


def test_an_update_says_scopes_only_where_there_are_any() -> None:
    assert features.feature_update_params(["a"], ["b"], {}) == {"enabled": ["a"], "disabled": ["b"]}
    bounds = ScopeBounds(("/p/**",), ("**/.env",))
    assert features.feature_update_params([], [], {"a": bounds})["scopes"] == {
        "a": {"whitelist": ["/p/**"], "blacklist": ["**/.env"]}
    }


def test_an_elevation_has_a_set_and_a_scope() -> None:
    scope = {"label": "/x", "payload": {"path": "/x"}}
    found = features.elevation_in(raw({"featureSet": "files", "scope": scope}))
    assert found == ("files", ScopeClaim("/x", {"path": "/x"}))
    assert features.scope_on_wire(found[1]) == scope
    unlabelled: dict[str, Any] = {"featureSet": "x", "scope": {"payload": {}}}
    for broken in ({}, {"featureSet": "x"}, unlabelled):
        with pytest.raises(MalformedMessage):
            features.elevation_in(raw(broken))


def test_a_message_bears_its_feature_set() -> None:
    assert features.set_named_in({"featureSet": raw("x")}) == "x"
    for broken in ({}, {"featureSet": raw(7)}):
        with pytest.raises(MalformedMessage):
            features.set_named_in(broken)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists) | st.none())
def test_whatever_stands_there_is_read_or_not_and_nothing_is_raised(value: object) -> None:
    assert said(value) is None
    assert said({"version": "0.4", "featureSets": {"x": value}}) is None or value is None


@loop_over(("name", "is_one"), [("memory.read", True), ("a", True), ("", False), ("a.", False)])
def test_a_name_has_parts_with_dots_between(name: str, is_one: bool) -> None:
    assert features.is_set_name(name) is is_one
    assert not features.is_set_name("a" * (features.MAX_NAME_LENGTH + 1))


def carried(kind: str, **said: object) -> jsonrpc.Frame:
    return mcpl.embedded_message_in(jsonrpc.make_notification(kind, said))


def test_a_request_keeps_its_own_id_and_parameters() -> None:
    found = carried(mcpl.REVERSE_REQUEST, id="q-1", method="push/event", params={"x": [1]})
    assert (found.id, found.method) == ("q-1", "push/event")
    assert found.params is not UNSET
    assert jsonrpc.decode_value(found.params) == {"x": [1]}


def test_a_notice_has_no_id_whatever_it_says() -> None:
    found = carried(mcpl.REVERSE_NOTIFICATION, id=7, method="featureSets/changed")
    assert found.id is UNSET
    assert found.params is UNSET


@loop_over("said", [{}, {"method": 7, "id": 1}, {"method": "x"}, {"method": "x", "id": [1]}])
def test_what_is_no_request_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        carried(mcpl.REVERSE_REQUEST, **said)
    with pytest.raises(MalformedMessage):
        mcpl.embedded_message_in(jsonrpc.make_notification(mcpl.REVERSE_REQUEST))


def test_an_answer_goes_back_with_the_id_it_was_asked_under() -> None:
    well = mcpl.embed_response(jsonrpc.make_result("q-1", {"accepted": True}))
    assert well["id"] == "q-1"
    assert "error" not in well
    failed = mcpl.embed_response(jsonrpc.make_error(7, METHOD_NOT_FOUND, "no"))
    assert failed["id"] == 7
    assert "result" not in failed
