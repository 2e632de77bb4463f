"""What resources said, kept for as long as their servers allow it and no longer. (REG, 2026-07-28)

A server says of each answer how long it holds, and whether it is the same for everybody. Nothing is
kept of one that says neither, and nothing is given without the gate having let its reader through.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw

from comity.kernel.catalog import Kind

MOST_READS: Final = 1000
MOST_BYTES: Final = 32 * 1024 * 1024
LONGEST_MS: Final = 3_600_000
FOR_EVERYBODY: Final = ""
"""The reader of what is the same for all; no party has an empty name."""

type Key = tuple[str, str, str]
"""The server, the URI, and whose it is."""


@dataclass(frozen=True, slots=True)
class Read:
    result: Raw
    until: float


class KeptReads:
    """The newest answers, up to a number and a size."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reads: OrderedDict[Key, Read] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def find(self, server: str, uri: str, party: str) -> Raw | None:
        """What this party was told there, or everybody; None where it has to be read."""
        for who in (party, FOR_EVERYBODY):
            key = (server, uri, who)
            read = self._reads.get(key)
            if read is not None and read.until > self._now():
                return read.result
            if read is not None:
                self._drop(key)
        return None

    def keep(self, key: Key, result: Raw, said: Mapping[str, Any]) -> None:
        """Keep an answer, as far as it says that it may be kept."""
        lasting = said.get("ttlMs")
        if isinstance(lasting, bool) or not isinstance(lasting, int) or lasting <= 0:
            return
        if len(memoryview(result)) * 8 > MOST_BYTES:
            return
        server, uri, party = key
        reader = FOR_EVERYBODY if said.get("cacheScope") == "public" else party
        if not reader and said.get("cacheScope") != "public":
            return
        self._drop((server, uri, reader))
        self._reads[server, uri, reader] = Read(
            result, self._now() + min(lasting, LONGEST_MS) / 1000
        )
        self._size += len(memoryview(result))
        while len(self._reads) > MOST_READS or self._size > MOST_BYTES:
            self._drop(next(iter(self._reads)))

    def forget(self, server: str, kind: Kind) -> None:
        """What a server offers has changed: nothing that it said counts any more."""
        if kind in (Kind.RESOURCE, Kind.TEMPLATE):
            for key in [key for key in self._reads if key[0] == server]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        read = self._reads.pop(key, None)
        if read is not None:
            self._size -= len(memoryview(read.result))
