"""What a server says of its own health: shown as it is, within bounds, and tolerated whatever."""

from typing import Any

import pytest

from comity.kernel.accounts import LONGEST, MOST_BYTES, MOST_NAMED, read
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage


def said(**members: object) -> Any:
    return read(jsonrpc.result(1, members))


def test_what_it_says_is_shown_by_its_own_names() -> None:
    shown = said(status="degraded", uptime_secs=7, resources={"bees": 3}, checks={"hive": False})
    assert shown == {
        "status": "degraded",
        "uptime_secs": 7,
        "resources": {"bees": 3},
        "checks": {"hive": False},
    }


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"status": "splendid", "uptime_secs": "long", "resources": [1], "checks": "all"},
        {"status": 7, "tools_total": True, "pending_requests": None, "resources": None},
    ],
)
def test_what_cannot_be_understood_is_left_out(odd: dict[str, object]) -> None:
    assert said(**odd) == {"status": None, "resources": {}, "checks": {}}


def test_much_and_long_and_deep_is_cut() -> None:
    resources: dict[str, object] = {f"r{n}": n for n in range(MOST_NAMED * 2)}
    checks = {"x" * LONGEST * 2: "y" * LONGEST * 2, "deep": {"a": [1]}}
    shown = said(resources=resources, checks=checks)
    assert len(shown["resources"]) == MOST_NAMED
    assert shown["checks"] == {"x" * LONGEST: "y" * LONGEST, "deep": "…"}
    with pytest.raises(MalformedMessage):
        said(resources={"r": "z" * MOST_BYTES})


def test_a_server_that_refuses_is_shown_to_refuse() -> None:
    assert read(jsonrpc.failure(1, METHOD_NOT_FOUND, "no such thing")) == {
        "problem": "no such thing"
    }
