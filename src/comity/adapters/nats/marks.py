"""Before each message: over which connection, of which node, it was published.

NATS keeps order within one connection, and spares a connection its own messages. What a stalled
server still holds of a connection that was given up would come after what the next one sent, and
to its own sender. So each message is marked, and stragglers are known by their mark.
"""

import logging
from typing import Final

log = logging.getLogger(__name__)

SIZE: Final = 12
NODE_SIZE: Final = 7
_VERSION: Final = b"\x01"
_NODES_KNOWN: Final = 4096
"""Of those that went away, the marks are forgotten from the oldest on."""


class Marks:
    def __init__(self, node: bytes) -> None:
        assert len(node) == NODE_SIZE
        self._own = _VERSION + node
        self._newest: dict[bytes, bytes] = {}
        self._connections = 0
        self.stragglers = 0
        self.strangers = 0

    def next(self) -> bytes:
        """For what is sent over the connection that was just made."""
        self._connections += 1
        return self._own + self._connections.to_bytes(4, "big")

    def body_of(self, data: bytes) -> bytes | None:
        """None where nobody should hear it."""
        node, connection = data[:8], data[8:SIZE]
        if self._newest.get(node) == connection:
            return data[SIZE:]
        return data[SIZE:] if self._is_news(node, connection) else None

    def _is_news(self, node: bytes, connection: bytes) -> bool:
        if len(connection) < 4 or node[:1] != _VERSION:
            if self.strangers == 0:
                log.warning("somebody who is no node of ours publishes on our subjects of NATS")
            self.strangers += 1
            return False
        if node == self._own:
            self.stragglers += 1
            return False
        known = self._newest.pop(node, b"")
        if connection < known:
            self._newest[node] = known
            self.stragglers += 1
            return False
        self._newest[node] = connection
        if len(self._newest) > _NODES_KNOWN:
            del self._newest[next(iter(self._newest))]
        return True
