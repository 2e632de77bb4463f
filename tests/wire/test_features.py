"""What servers declare of MCPL, and what hosts say: strictly read, and never more than there is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.wire import features
from comity.wire.errors import MalformedMessage
from comity.wire.features import Bounds, Declared, FeatureSet, Scope, Use, declared_in

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


def said(mcpl: object, place: str = "experimental", key: str = "mcpl") -> Declared | None:
    return declared_in(raw({"tools": {}, place: {key: mcpl}}))


@pytest.mark.parametrize(
    "place", [("experimental", "mcpl"), ("extensions", "dev.comity/mcpl")], ids=str
)
def test_a_declaration_is_read_in_either_place(place: tuple[str, str]) -> None:
    found = said(WHOLE, *place)
    assert found == Declared(
        "0.4",
        *(True, True, True, True, True, True, True),
        frozenset({"register"}),
        {
            "memory.read": FeatureSet(
                "memory.read", "Reads", frozenset({Use.BEFORE}), is_scoped=True, has_rollback=True
            )
        },
    )


@pytest.mark.parametrize(
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


def test_who_says_nothing_of_it_is_plain() -> None:
    assert declared_in(None) is None
    assert declared_in(raw({"tools": {}})) is None
    assert declared_in(raw([])) is None
    assert declared_in(raw({"experimental": 7})) is None


def test_a_set_of_another_use_or_name_is_left_out_alone() -> None:
    sets = {"ok": SET, "other": {**SET, "uses": ["everything"]}, "not a name": SET, "a..b": SET}
    found = said({"version": "0.4", "featureSets": sets})
    assert found is not None
    assert list(found.sets) == ["ok"]


def test_there_are_no_more_sets_than_a_host_looks_at() -> None:
    found = said({"version": "0.4", "featureSets": {f"s{n}": SET for n in range(400)}})
    assert found is not None
    assert len(found.sets) == features.MOST_SETS


def test_a_change_names_what_is_new_and_what_is_gone() -> None:
    added, removed = features.changed_in(raw({"added": {"x": SET}, "removed": ["y"]}))
    assert (list(added), removed) == (["x"], ("y",))
    assert features.changed_in(raw({})) == ({}, ())
    with pytest.raises(MalformedMessage):
        features.changed_in(raw({"added": {"x": 7}}))


def test_an_update_says_scopes_only_where_there_are_any() -> None:
    assert features.update(["a"], ["b"], {}) == {"enabled": ["a"], "disabled": ["b"]}
    bounds = Bounds(("/p/**",), ("**/.env",))
    assert features.update([], [], {"a": bounds})["scopes"] == {
        "a": {"whitelist": ["/p/**"], "blacklist": ["**/.env"]}
    }


def test_an_elevation_has_a_set_and_a_scope() -> None:
    scope = {"label": "/x", "payload": {"path": "/x"}}
    found = features.elevation_in(raw({"featureSet": "files", "scope": scope}))
    assert found == ("files", Scope("/x", {"path": "/x"}))
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


@pytest.mark.parametrize(
    ("name", "is_one"), [("memory.read", True), ("a", True), ("", False), ("a.", False)]
)
def test_a_name_has_parts_with_dots_between(name: str, is_one: bool) -> None:
    assert features.is_set_name(name) is is_one
    assert not features.is_set_name("a" * (features.LONGEST_NAME + 1))
