"""Whose answer a turn awaits: what such a server brings about meanwhile is its doing. (D-69)"""

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager


class Echoes:
    """Knows how many turns have brought about each other, by whom they ask meanwhile."""

    def __init__(self) -> None:
        self._awaited: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def awaiting(self, servers: Iterable[str], depth: int) -> Generator[None]:
        """While a turn of this depth waits for those servers."""
        now = Counter((server, depth) for server in servers)
        self._awaited += now
        try:
            yield
        finally:
            self._awaited -= now

    def depth_of(self, server: str) -> int:
        """How deep a turn would be that this server brings about now."""
        return max((depth + 1 for asked, depth in self._awaited if asked == server), default=0)
