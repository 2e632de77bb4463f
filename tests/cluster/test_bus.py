"""Subjects and patterns, the bus inside one process, and the bus that an address names."""

import asyncio
import sys
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cluster.bus import (
    MAX_LENGTH,
    BusMessage,
    compile_pattern,
    is_pattern,
    is_plain,
    is_subject,
)
from comity.cluster.connect import ClusterAddress, open_bus
from comity.cluster.in_process import MOST_WAITING, MemoryBus, MemoryBusHub
from comity.errors import Misconfigured, Unavailable

PARTS = st.text("abzAZ09_-", min_size=1, max_size=4)
SUBJECTS = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
WITHOUT_REST = st.lists(PARTS | st.just("*"), min_size=1, max_size=5).map(".".join)
PATTERNS = WITHOUT_REST | WITHOUT_REST.map("{}.>".format)


def _meet(pattern: list[str], subject: list[str]) -> bool:
    """The rule in other words, for comparison."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", subject[0]) and _meet(pattern[1:], subject[1:])


@given(SUBJECTS, PATTERNS)
def test_a_pattern_meets_the_subjects_that_it_says(subject: str, pattern: str) -> None:
    assert is_subject(subject)
    assert is_pattern(pattern)
    found = compile_pattern(pattern).fullmatch(subject) is not None
    assert found == _meet(pattern.split("."), subject.split("."))


@given(SUBJECTS)
def test_a_subject_is_a_pattern_that_meets_itself_alone(subject: str) -> None:
    assert is_plain(subject)
    assert compile_pattern(subject).fullmatch(subject)
    assert not compile_pattern(subject).fullmatch(f"{subject}.a")


@given(st.text(max_size=12))
def test_no_subject_holds_anything_that_a_protocol_could_read(text: str) -> None:
    if is_subject(text):
        assert text.isascii()
        assert not set(text) & set(" \t\r\n*>/")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "a*", "\u00e4", "a/b"])
def test_what_is_neither_is_refused(text: str) -> None:
    assert not is_subject(text)
    assert not is_pattern(text)


@pytest.mark.parametrize("text", ["a.>.b", ">.a", "a>", "**"])
def test_a_wildcard_stands_for_whole_parts_only(text: str) -> None:
    assert not is_pattern(text)


def test_a_subject_has_an_end() -> None:
    assert is_subject("a" * MAX_LENGTH)
    assert not is_subject("a" * (MAX_LENGTH + 1))
    assert not is_pattern("*." * MAX_LENGTH + "a")


async def _three() -> list[MemoryBus]:
    hub = MemoryBusHub()
    buses = [MemoryBus(hub) for _ in range(3)]
    for bus in buses:
        await bus.open()
    return buses


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_node_alone_talks_to_nobody_and_is_content() -> None:
    bus = MemoryBus()
    heard: list[BusMessage] = []
    with pytest.raises(Unavailable):
        bus.publish("a", b"")
    await bus.open()
    await bus.subscribe(">", heard.append)
    bus.publish("a", b"")
    await bus.wait_until_drained()
    await _turn()
    assert bus.is_connected
    assert heard == []


async def test_a_message_is_heard_after_it_was_said_and_not_meanwhile() -> None:
    one, other, _ = await _three()
    heard: list[BusMessage] = []
    await other.subscribe("a", heard.append)
    one.publish("a", b"1")
    assert heard == []
    await _turn()
    assert heard == [BusMessage("a", b"1")]


async def test_what_is_said_while_hearing_is_heard_in_a_later_turn() -> None:
    one, other, _ = await _three()
    counted: list[int] = []

    def back(heard: BusMessage) -> None:
        counted.append(len(heard.data))
        if len(heard.data) < 5:
            other.publish("a", heard.data + b"x")

    await other.subscribe("b", back)
    await one.subscribe("a", lambda heard: one.publish("b", heard.data + b"x"))
    one.publish("b", b"x")
    for _ in range(20):
        await asyncio.sleep(0)
    assert counted == [1, 3, 5]


async def test_a_node_that_is_cut_off_neither_says_nor_hears_anything() -> None:
    one, other, third = await _three()
    heard: dict[str, list[bytes]] = {"other": [], "third": []}
    told: list[bool] = []
    other.watch(told.append)
    await other.subscribe("a", lambda each: heard["other"].append(each.data))
    await third.subscribe("a", lambda each: heard["third"].append(each.data))
    one.publish("a", b"on its way")
    other.cut_off()
    one.publish("a", b"meanwhile")
    with pytest.raises(Unavailable):
        other.publish("a", b"")
    with pytest.raises(Unavailable):
        await other.wait_until_drained()
    await _turn()
    other.rejoin()
    one.publish("a", b"after")
    await _turn()
    assert heard == {"other": [b"after"], "third": [b"on its way", b"meanwhile", b"after"]}
    assert told == [False, True]


async def test_what_waits_for_another_node_is_bounded() -> None:
    one, other, _ = await _three()
    heard: list[BusMessage] = []
    await other.subscribe("a", heard.append)
    large = bytes(MOST_WAITING)
    one.publish("a", large)
    with pytest.raises(Unavailable, match="too much"):
        one.publish("a", b"")
    await one.wait_until_drained()
    one.publish("a", b"")
    await _turn()
    assert [len(each.data) for each in heard] == [MOST_WAITING, 0]


async def test_whoever_closes_is_heard_and_told_no_more() -> None:
    one, other, _ = await _three()
    heard: list[BusMessage] = []
    await other.subscribe("a", heard.append)
    one.publish("a", b"")
    await other.close()
    await other.close()
    await _turn()
    assert heard == []
    one.publish("a", b"")


LIFETIME = timedelta(seconds=7)
SECRET = b"s3cret of the nodes"


def test_an_address_opens_a_bus_and_the_leases_beside_it() -> None:
    bus, leases = open_bus(ClusterAddress("nats://s3cret@127.0.0.1:1", "test", LIFETIME, SECRET))
    assert not bus.is_connected
    assert leases.lifetime == LIFETIME
    assert "s3cret" not in repr(bus)


def test_without_what_it_needs_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comity.cluster.nats.jetstream", None)
    with pytest.raises(ModuleNotFoundError):
        open_bus(ClusterAddress("nats://127.0.0.1:1", "test", LIFETIME, SECRET))
    monkeypatch.delitem(sys.modules, "comity.cluster.nats.jetstream")
    monkeypatch.setitem(sys.modules, "nats.js", None)
    with pytest.raises(Misconfigured, match=r"comity\[nats\]"):
        open_bus(ClusterAddress("nats://127.0.0.1:1", "test", LIFETIME, SECRET))


def test_a_file_that_is_not_there_is_named_before_anything_is_connected_to() -> None:
    where = ClusterAddress(
        "tls://127.0.0.1:1", "test", LIFETIME, SECRET, authority_file="/nowhere/ca.pem"
    )
    with pytest.raises(Misconfigured, match="holds no certificate"):
        open_bus(where)
