"""One member that reads 1 KB in a second, among 200 who read: nobody else notices.

How long envelopes take is compared in turns: in a topic with the slow one, and in one without it,
at the same gateway. A busy machine is slow for both; turns are added until noise decides nothing.
"""

import contextlib
import json
import socket
import statistics
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench.crowd import LENGTH, Crowd
from bench.topic_figures import p99
from bench.topic_servers import Server, comity
from tests.support.figures import Tell

pytestmark = pytest.mark.timeout(180)

MEMBERS = 200
QUEUE_BYTES = 16_384
IN_A_SECOND = 25
FEWEST_TURNS, MOST_TURNS = 5, 30
MOST_RATIO = 1.2
FLOOD = 10_240
AT_ONCE = 64
MOST_GROWTH = 4 * 1024 * 1024
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("slow")
    with comity(folder, f"max_queue_bytes = {QUEUE_BYTES}\n") as found:
        yield found


@dataclass
class SlowMember:
    """Reads 1 KB in a second, until it is let to read as fast as it can."""

    joined: socket.socket
    _read: bytearray = field(default_factory=bytearray)
    _hurry: threading.Event = field(default_factory=threading.Event)

    def dawdle(self) -> None:
        while not self._hurry.wait(1.0):
            self._read += self.joined.recv(1024)

    def hurry(self) -> None:
        self._hurry.set()

    def envelopes(self) -> Iterator[dict[str, Any]]:
        """All that it is given, from the first."""
        while True:
            while (frame := self._frame()) is None:
                self._read += self.joined.recv(65_536)
            yield json.loads(frame)

    def _frame(self) -> bytes | None:
        data = self._read
        if len(data) < 4:
            return None
        length, start = data[1], 2
        if length == 126:
            length, start = int.from_bytes(data[2:4]), 4
        if len(data) < start + length:
            return None
        text = bytes(data[start : start + length])
        del data[: start + length]
        return text


@contextlib.contextmanager
def slow_member(server: Server, topic: str, order: int) -> Generator[SlowMember]:
    slow = SlowMember(server.to(topic, receive_bytes=4_096).join(order))
    slow.joined.settimeout(SECONDS)
    reading = threading.Thread(target=slow.dawdle, daemon=True)
    reading.start()
    try:
        yield slow
    finally:
        slow.hurry()
        reading.join(SECONDS)
        slow.joined.close()


@contextlib.contextmanager
def crowd_in(server: Server, topic: str, members: int) -> Generator[Crowd]:
    crowd = Crowd(server.to(topic), server.cpu)
    try:
        crowd.grow(members)
        yield crowd
    finally:
        crowd.close()


def test_the_others_are_given_everything_as_soon_as_without_it(server: Server, tell: Tell) -> None:
    with (
        crowd_in(server, "calm", MEMBERS) as calm,
        crowd_in(server, "slowed", MEMBERS) as slowed,
        slow_member(server, "slowed", MEMBERS) as slow,
    ):
        # It is behind from the beginning: its queue, and what the system keeps for it, are full.
        for _ in range(8):
            slowed.saturate(0.0, AT_ONCE)
        calm.saturate(0.0, AT_ONCE)
        found: list[float] = []
        slowest: list[float] = []
        while len(found) < FEWEST_TURNS or (
            statistics.median(found) > MOST_RATIO and len(found) < MOST_TURNS
        ):
            without, beside = calm.talk(0.4, IN_A_SECOND), slowed.talk(0.4, IN_A_SECOND)
            found.append(p99(beside) / p99(without))
            slowest.append(p99(beside) * 1000)
        ratio = statistics.median(found)
        tell(
            f"p99 of {MEMBERS} members beside a slow one is {ratio:.2f} times that without it "
            f"({statistics.median(slowest):.1f} ms), over {len(found)} turns"
        )
        assert ratio <= MOST_RATIO
        slow.hurry()
        assert _accounted(slow, slowed.said) > 0


def test_what_waits_for_it_is_bounded_and_it_is_told_what_it_missed(
    server: Server, tell: Tell
) -> None:
    with crowd_in(server, "flood", 1) as crowd, slow_member(server, "flood", 1) as slow:
        crowd.saturate(0.0, AT_ONCE)
        before = server.memory()
        for _ in range(FLOOD // AT_ONCE):
            crowd.saturate(0.0, AT_ONCE)
        grown = server.memory() - before
        slow.hurry()
        missed = _accounted(slow, crowd.said)
    tell(f"of {FLOOD * LENGTH >> 20} MB a slow member missed {missed} envelopes; {grown >> 10} KB")
    assert missed > FLOOD // 2
    assert grown < MOST_GROWTH


def _accounted(slow: SlowMember, last: int) -> int:
    """Everything that was said came, or it is told that it did not: in order, and nothing twice.

    Gives how many envelopes it missed.
    """
    expected, missed = 0, 0
    for envelope in slow.envelopes():
        if envelope["kind"] == "chat":
            number = int(envelope["id"])
            assert number == expected or not expected
            expected = number + 1
        elif envelope["kind"] == "system/missed":
            told = envelope["payload"]
            assert int(told["first"]) == expected
            assert told["count"] == int(told["last"]) - int(told["first"]) + 1
            missed += told["count"]
            expected = int(told["last"]) + 1
        if expected > last:
            return missed
    raise AssertionError("it was cut off")
