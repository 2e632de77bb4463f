"""Which servers are just now asked before or after a model: they may not ask one for it. (D-69)"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager


class HookWatch:
    """Who asks a hook marks it here for as long as its answer is awaited."""

    def __init__(self) -> None:
        self._pending: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def pending(self, server: str, conversation: str) -> Generator[None]:
        """While this server looks at a turn of that conversation."""
        key = (server, conversation)
        self._pending[key] += 1
        try:
            yield
        finally:
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]

    def is_pending(self, server: str, conversation: str = "") -> bool:
        """Whether it looks at a turn of that conversation; without one, at any turn at all."""
        if conversation:
            return (server, conversation) in self._pending
        return any(asked == server for asked, _ in self._pending)
