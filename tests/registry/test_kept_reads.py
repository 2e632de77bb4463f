"""What resources said is kept as long as their servers say, for whom they say, and no longer."""

from typing import Any

import pytest

from comity.mcp import jsonrpc
from comity.mcp.entries import EntryKind
from comity.registry import service
from comity.registry.service import MAX_MS_LENGTH, ResourceCache
from tests.support.carriers import Clock
from tests.support.cases import loop_over

PRIVATE: dict[str, Any] = {"ttlMs": 1000, "cacheScope": "private"}
PUBLIC: dict[str, Any] = {"ttlMs": 1000, "cacheScope": "public"}
SAID = jsonrpc.to_raw({"contents": []})


def kept(said: dict[str, Any], party: str = "agent:a") -> tuple[ResourceCache, Clock]:
    clock = Clock()
    reads = ResourceCache(clock)
    reads.keep(("srv", "u:1", party), SAID, said)
    return reads, clock


def test_an_answer_is_kept_until_its_time_has_passed() -> None:
    reads, clock = kept(PRIVATE)
    clock.passes(0.999)
    assert reads.find("srv", "u:1", "agent:a") == SAID
    clock.passes(0.001)
    assert reads.find("srv", "u:1", "agent:a") is None
    assert len(reads) == 0


def test_what_is_private_is_for_its_reader_alone() -> None:
    reads, _ = kept(PRIVATE)
    assert reads.find("srv", "u:1", "agent:b") is None
    assert reads.find("other", "u:1", "agent:a") is None
    assert kept(PUBLIC)[0].find("srv", "u:1", "agent:b") == SAID


@loop_over(
    "said",
    [
        {},
        {"ttlMs": 0, "cacheScope": "public"},
        {"ttlMs": -5},
        {"ttlMs": True},
        {"ttlMs": "1000"},
        {"ttlMs": 1e9},
    ],
)
def test_what_says_nothing_of_its_time_is_not_kept(said: dict[str, Any]) -> None:
    assert len(kept(said)[0]) == 0


def test_nothing_private_is_kept_of_somebody_without_a_name() -> None:
    assert len(kept(PRIVATE, party="")[0]) == 0


def test_nothing_is_kept_for_longer_than_an_hour() -> None:
    reads, clock = kept({"ttlMs": 10**12, "cacheScope": "public"})
    clock.passes(MAX_MS_LENGTH / 1000)
    assert reads.find("srv", "u:1", "agent:a") is None


def test_a_change_of_what_a_server_offers_makes_all_of_it_void() -> None:
    reads, _ = kept(PUBLIC)
    reads.forget("srv", EntryKind.TOOL)
    reads.forget("other", EntryKind.RESOURCE)
    assert len(reads) == 1
    reads.forget("srv", EntryKind.RESOURCE)
    assert len(reads) == 0


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_READS", 2)
    reads, _ = kept(PUBLIC)
    for number in (2, 3):
        reads.keep(("srv", f"u:{number}", "agent:a"), SAID, PUBLIC)
    assert [reads.find("srv", f"u:{number}", "x") for number in (1, 2, 3)] == [None, SAID, SAID]


def test_all_together_have_a_size_and_one_has_its_share_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MOST_BYTES", 20 * len(bytes(SAID)))
    reads, _ = kept(PUBLIC)
    for number in range(100):
        reads.keep(("srv", f"u:{number}", "agent:a"), SAID, PUBLIC)
    assert len(reads) == 20
    reads.keep(("srv", "u:big", "agent:a"), jsonrpc.to_raw({"contents": "x" * 100}), PUBLIC)
    assert reads.find("srv", "u:big", "agent:a") is None
