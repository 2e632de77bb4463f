"""What servers say of risk is read from both of its places, and garbled words help nobody."""

import json

import pytest
from msgspec import Raw

from comity.wire.security import MIRROR, UNREADABLE, Hints, Label, Risk, hints_of, label_of

WHOLE = {
    "risk_level": "moderate",
    "permissions_required": ["network.outbound"],
    "side_effects": ["network"],
    "validator": "network_restricted",
    "reversible": True,
    "confirmation_required": True,
}
READ = Label(
    Risk.MODERATE, ("network.outbound",), ("network_restricted",), ("network",), True, True
)


def definition(**members: object) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in members.items()}


@pytest.mark.parametrize(
    "said", [{"security": WHOLE}, {"_meta": {MIRROR: WHOLE}}, {"security": WHOLE, "_meta": {}}]
)
def test_a_label_is_read_where_it_stands(said: dict[str, object]) -> None:
    assert label_of(definition(**said)) == READ


def test_a_tool_without_a_label_has_none() -> None:
    assert label_of(definition(name="a", _meta={"other": 1})) is None
    assert label_of(definition(name="a", _meta=[1])) is None


def test_the_same_label_in_both_places_is_one() -> None:
    assert label_of(definition(security=WHOLE, _meta={MIRROR: WHOLE})) == READ


def test_of_two_labels_that_disagree_all_warnings_count() -> None:
    other = {"risk_level": "dangerous", "validator": ["sandbox"], "reversible": False}
    found = label_of(definition(security=WHOLE, _meta={MIRROR: other}))
    assert found == Label(
        Risk.DANGEROUS,
        ("network.outbound",),
        ("network_restricted", "sandbox"),
        ("network",),
        False,
        True,
    )
    bare = label_of(definition(security={"risk_level": "safe"}, _meta={MIRROR: {}}))
    assert bare == Label(Risk.SAFE, None, reversible=False)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "safe",
        [],
        {"risk_level": "harmless"},
        {"risk_level": 1},
        {"permissions_required": "shell"},
        {"permissions_required": [1]},
        {"validator": 7},
        {"confirmation_required": "no"},
        {"permissions_required": ["a"] * 65},
        {"validator": "x" * 201},
    ],
    ids=str,
)
def test_a_garbled_label_counts_as_the_worst(said: object) -> None:
    assert label_of(definition(security=said)) == UNREADABLE


def test_a_key_that_stands_twice_garbles_a_label() -> None:
    twice = Raw(b'{"risk_level": "safe", "risk_level": "dangerous"}')
    assert label_of({"security": twice}) == UNREADABLE


def test_hints_are_booleans_or_nothing() -> None:
    said = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": "yes"}
    assert hints_of(definition(annotations=said)) == Hints(True, False, None)
    assert hints_of(definition(annotations="readOnlyHint")) == Hints()
    assert hints_of(definition()) == Hints()
