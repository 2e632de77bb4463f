"""How the outcomes of a cell are judged, beside the matrix itself, which needs all its peers."""

from pathlib import Path

import pytest

from tests.interop.matrix.cells import Cell
from tests.interop.matrix.parties import CLIENTS, FEATURES, servers
from tests.interop.matrix.table import is_shown, remarks, tables

SERVERS = servers(Path())
REFUSED = "fail: error -32601: Method not found"


def _cell(through: str, directly: str) -> Cell:
    """All features pass both ways, but the last."""
    passed = dict.fromkeys(FEATURES, "pass")
    through_all = {**passed, "list_changed": through}
    return Cell(
        CLIENTS[0], SERVERS[0], "server address", through_all, {**passed, "list_changed": directly}
    )


@pytest.mark.parametrize(
    ("through", "directly"),
    [
        ("pass", "pass"),
        ("pass", REFUSED),
        (REFUSED, "fail: error -32601: no such method at /servers/x"),
        ("fail: silence: ", "fail: silence: list_changed"),
        ("fail: wrong: new_0a1b2c3d is not among 3", "fail: wrong: new_99999999 is not among 17"),
    ],
)
def test_what_passes_or_fails_the_same_way_without_comity_is_no_difference(
    through: str, directly: str
) -> None:
    assert _cell(through, directly).differences() == []


@pytest.mark.parametrize(
    ("through", "directly"),
    [
        (REFUSED, "pass"),
        (REFUSED, "fail: error -32602: Invalid params"),
        ("fail: silence: ", REFUSED),
        ("fail: wrong: 'Nobody is there.' None", "fail: wrong: 'Hello!' None"),
    ],
)
def test_what_fails_in_another_way_or_alone_is_a_difference(through: str, directly: str) -> None:
    (difference,) = _cell(through, directly).differences()
    assert difference.feature == "list_changed"


def test_the_table_tells_both_ways_apart() -> None:
    assert "| 8/8  " in tables([_cell("pass", "pass")])
    assert "8/8 (7)" in tables([_cell("pass", REFUSED)])
    assert "**7/8 (8)**" in tables([_cell(REFUSED, "pass")])


def test_only_what_does_not_pass_both_ways_is_remarked_on() -> None:
    assert remarks([_cell("pass", "pass")]) == ""
    assert remarks([_cell(REFUSED, "pass")]).startswith("FAILS THROUGH COMITY ALONE")
    assert remarks([_cell(REFUSED, REFUSED)]).startswith("Fails with and without Comity")


def test_a_feature_that_a_server_does_not_have_is_not_counted() -> None:
    had = {"list": "pass", "call": "pass"}
    assert "2/2" in tables([Cell(CLIENTS[0], SERVERS[0], "server address", had, had)])


def test_a_reason_excuses_a_difference_and_is_outdated_without_one() -> None:
    passed = dict.fromkeys(FEATURES, "pass")
    (server,) = [each for each in SERVERS if each.id == "everything-http"]
    silent = {**passed, "list_changed": "fail: silence: "}
    known = Cell(CLIENTS[0], server, "all servers", silent, passed)
    assert (known.differences(), known.outdated()) == ([], [])
    assert "on purpose" in remarks([known])
    assert Cell(CLIENTS[0], server, "all servers", passed, passed).outdated() == ["list_changed"]


def test_a_client_is_shown_as_played_whatever_columns_others_need() -> None:
    first, other = CLIENTS[0], CLIENTS[1]
    passed = dict.fromkeys(FEATURES, "pass")
    here = Cell(first, SERVERS[1], "server address", passed, passed)
    there = Cell(other, SERVERS[0], "server address", passed, passed)
    page = tables([there, here])
    assert is_shown([here], page)
    assert not is_shown([Cell(first, SERVERS[0], "server address", passed, passed)], page)
    failed = {**passed, FEATURES[0]: REFUSED}
    assert not is_shown([Cell(first, SERVERS[1], "server address", failed, passed)], page)
