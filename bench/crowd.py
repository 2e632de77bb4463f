"""Many members on raw sockets: one speaks, all are counted by the bytes that they are given.

Everything that is said has one length, so bytes tell how many envelopes a member was given and
nothing need be read of them. The crowd's own CPU is told beside the server's, to show that it is
not the bottleneck.
"""

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LENGTH = 1024
WITHIN_SECONDS = 60.0
_MARK = 24
_SIGN_OF_LIFE_SECONDS = 10.0


class Lost(Exception):
    """Not everything that was said came to everybody."""


class Door(Protocol):
    """How a member comes in, what it sends, and how many bytes it is given for that."""

    def join(self, order: int, *, is_directed: bool = False) -> socket.socket: ...
    def outgoing(self, text: bytes) -> bytes: ...
    def incoming(self, length: int) -> int: ...

    @property
    def sign_of_life(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What one stretch of talk cost, and how long each envelope took to each member."""

    said: int
    deliveries: int
    seconds: float
    server_cpu_seconds: float
    crowd_cpu_seconds: float
    latencies: tuple[float, ...] = ()


class Crowd:
    """Members of one topic; the first of them speaks."""

    def __init__(self, door: Door, cpu: "Clock") -> None:
        self._door = door
        self._cpu = cpu
        self._sockets: list[socket.socket] = []
        self._by_number: dict[int, int] = {}
        self._given: list[int] = []
        self._tails: list[bytes] = []
        self._poll = select.epoll()
        self._buffer = memoryview(bytearray(1 << 20))
        self._number = 0
        self._alive_at = time.monotonic()
        self._hears: list[bool] = []

    @property
    def said(self) -> int:
        """How many envelopes were said so far; the last one's id is this number."""
        return self._number

    def grow(self, members: int, *, is_directed: bool = False) -> None:
        """Have more members come, and wait until they are given what is said."""
        while len(self._sockets) < members:
            order = len(self._sockets)
            joined = self._door.join(order, is_directed=is_directed)
            joined.setblocking(False)
            self._by_number[joined.fileno()] = order
            self._sockets.append(joined)
            self._given.append(0)
            self._tails.append(b"")
            self._hears.append(not is_directed)
            self._poll.register(joined, select.EPOLLIN)
            if order % 50 == 0:
                self._take()
        self.settle()

    def close(self) -> None:
        self._poll.close()
        for each in self._sockets:
            each.close()

    def stay(self) -> None:
        """Have nobody be taken for dead that has nothing to say."""
        if time.monotonic() - self._alive_at > _SIGN_OF_LIFE_SECONDS:
            self._alive_at = time.monotonic()
            for each in self._sockets:
                each.send(self._door.sign_of_life)

    def settle(self) -> None:
        """Until everybody was given all that was said before, and nothing is on its way."""
        self.stay()
        mark = self._say(b"")
        waiting = {order for order, tail in enumerate(self._tails) if mark not in tail}
        until = time.monotonic() + WITHIN_SECONDS
        while waiting:
            if time.monotonic() > until:
                raise Lost(f"{len(waiting)} of {len(self._sockets)} members were not given {mark}")
            waiting -= {order for order in self._take(0.1) if mark in self._tails[order]}
        self._given = [0] * len(self._sockets)

    def saturate(self, seconds: float, at_once: int, to: bytes = b"") -> Turn:
        """Say so many at once, wait until all were given them, and so on."""
        self.settle()
        hearing = [order for order, hears in enumerate(self._hears) if hears]
        size = self._door.incoming(LENGTH)
        said, began = 0, time.perf_counter()
        server, crowd = self._cpu(), time.thread_time()
        while time.perf_counter() - began < seconds or not said:
            self._send([self._text(to) for _ in range(at_once)])
            said += at_once
            self._until_given(hearing, said * size)
        return Turn(
            said,
            said * len(hearing),
            time.perf_counter() - began,
            self._cpu() - server,
            time.thread_time() - crowd,
        )

    def talk(self, seconds: float, in_a_second: float) -> Turn:
        """Say one after the other at a steady pace, whether or not the last was given."""
        self.settle()
        size = self._door.incoming(LENGTH)
        most = max(1, round(seconds * in_a_second))
        sent: list[float] = []
        latencies: list[float] = []
        seen = [0] * len(self._sockets)
        began = time.perf_counter()
        server, crowd = self._cpu(), time.thread_time()
        until = began + seconds + WITHIN_SECONDS
        wanted = most * len(self._sockets)
        while len(latencies) < wanted:
            now = time.perf_counter()
            if now > until:
                raise Lost(f"{len(latencies)} of {wanted} envelopes were given")
            if len(sent) < most and now >= began + len(sent) / in_a_second:
                # When it was due, not when it went: a crowd that is late must not flatter.
                sent.append(began + len(sent) / in_a_second)
                self._send([self._text(b"")])
            due = began + len(sent) / in_a_second if len(sent) < most else now + 0.1
            for order in self._take(max(0.0, due - time.perf_counter())):
                now = time.perf_counter()
                whole = self._given[order] // size
                latencies += [now - sent[number] for number in range(seen[order], whole)]
                seen[order] = whole
        return Turn(
            most,
            wanted,
            time.perf_counter() - began,
            self._cpu() - server,
            time.thread_time() - crowd,
            tuple(latencies),
        )

    def _until_given(self, hearing: Sequence[int], size: int) -> None:
        until = time.monotonic() + WITHIN_SECONDS
        left = {order for order in hearing if self._given[order] < size}
        while left:
            if time.monotonic() > until:
                raise Lost(f"{len(left)} of {len(hearing)} members were not given everything")
            left -= {order for order in self._take(0.1) if self._given[order] >= size}

    def _take(self, seconds: float = 0.0) -> list[int]:
        """Read what there is; who was given something."""
        orders: list[int] = []
        for number, _ in self._poll.poll(seconds):
            order = self._by_number[number]
            size = self._sockets[order].recv_into(self._buffer)
            if not size:
                raise Lost(f"member {order} was cut off")
            self._given[order] += size
            tail = self._buffer[max(0, size - 2 * LENGTH) : size]
            # The end may have come in pieces.
            self._tails[order] = (self._tails[order] + bytes(tail))[-2 * LENGTH :]
            orders.append(order)
        return orders

    def _text(self, to: bytes) -> bytes:
        self._number += 1
        return envelope(self._number, to)

    def _say(self, to: bytes) -> bytes:
        text = self._text(to)
        self._send([text])
        return b'"%0*d"' % (_MARK, self._number)

    def _send(self, texts: Sequence[bytes]) -> None:
        data = memoryview(b"".join(map(self._door.outgoing, texts)))
        while data:
            try:
                data = data[self._sockets[0].send(data) :]
            except BlockingIOError:
                self._take(0.01)


class Clock(Protocol):
    """CPU seconds that the servers have spent so far."""

    def __call__(self) -> float: ...


def envelope(number: int, to: bytes = b"") -> bytes:
    """A chat of the first member's, as long as all others."""
    head = (
        b'{"protocol":"mcpx/v0.1","id":"%0*d","from":"local:m0","kind":"chat","payload":{"text":"'
    )
    tail = b'"},"to":["%b"]}' % to if to else b'"}}'
    begun = head % (_MARK, number)
    return begun + b"x" * (LENGTH - len(begun) - len(tail)) + tail
