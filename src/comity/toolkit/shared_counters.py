"""Counters that the processes of one machine share: a file that each of them maps into memory.

`CallLimiter` uses them where several workers serve one port. The file holds no secret: each counter
is found by the digest of its key.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Hashable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from comity.errors import Misconfigured

SLOTS: Final = 131_072
PROBES: Final = 32
"""How many slots a key may take. If others hold all of them, the one unused for longest goes."""

_SLOT: Final = 4
"""The numbers of a slot: the digest of its key, the two of its state, and the time of its use."""


class SharedCounterFile:
    """A table of counters in a file. A process that dies releases its lock."""

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        self._slots = slots
        size = slots * _SLOT * 8
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # The file keeps its content, because another process may already count in it.
            os.ftruncate(self._file, size)
            memory = memoryview(mmap.mmap(self._file, size))
        except OSError as problem:
            raise Misconfigured(
                f"counters_file in [limits]: {path} cannot be used: {problem.strerror}"
            ) from None
        self._digests = memory.cast("q")
        self.numbers = memory.cast("d")

    def acquire(self) -> None:
        """Keep the other processes out. A holder must not wait for anything."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def state_of(self, key: Hashable) -> "SharedCounterState":
        """Return the state of a key, whose `repr` must be the same in every process."""
        digest = blake2b(repr(key).encode(), digest_size=8).digest()
        self.acquire()
        try:
            return SharedCounterState(self, struct.unpack("q", digest)[0] or 1)
        finally:
            self.release()

    def is_at(self, place: int, digest: int) -> bool:
        return self._digests[place] == digest

    def find_slot(self, digest: int) -> int:
        """Return the place of a slot, which is a new one if the digest had none."""
        oldest = first = digest % self._slots
        for step in range(PROBES):
            slot = (first + step) % self._slots
            place = slot * _SLOT
            if self._digests[place] in (digest, 0):
                self._digests[place] = digest
                return place
            if self.numbers[place + 3] < self.numbers[oldest * _SLOT + 3]:
                oldest = slot
        place = oldest * _SLOT
        self._digests[place] = digest
        self.numbers[place + 1] = self.numbers[place + 2] = 0.0
        return place


class SharedCounterState:
    """The state of one counter in the file. Only a process that holds the lock uses it."""

    __slots__ = ("_digest", "_file", "_place")

    def __init__(self, file: SharedCounterFile, digest: int) -> None:
        self._file = file
        self._digest = digest
        self._place = file.find_slot(digest)

    def _located(self) -> int:
        # Another process may have given the slot to another counter.
        if not self._file.is_at(self._place, self._digest):
            self._place = self._file.find_slot(self._digest)
        return self._place

    @property
    def value(self) -> float:
        return self._file.numbers[self._located() + 1]

    @value.setter
    def value(self, value: float) -> None:
        place, numbers = self._located(), self._file.numbers
        numbers[place + 1], numbers[place + 3] = value, time.monotonic()

    @property
    def until(self) -> float:
        return self._file.numbers[self._located() + 2]

    @until.setter
    def until(self, until: float) -> None:
        self._file.numbers[self._located() + 2] = until
