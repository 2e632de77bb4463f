"""What the gateway says of itself at the door of all servers, to clients of either era."""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from comity.kernel.presence import with_mgp
from comity.kernel.servers import Servers
from comity.rules import tasks
from comity.rules.negotiation import of_request
from comity.wire import jsonrpc, mcp, mcp_events
from comity.wire.jsonrpc import Frame

CAPABILITIES: Final[Mapping[str, Mapping[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
    "events": mcp_events.CAPABILITY,
}
TASKS: Final[dict[str, object]] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
LIST_TTL_MS: Final = 5000


class Introduction:
    """Who the gateway is, and what it can do."""

    def __init__(self, servers: Servers, about: dict[str, str]) -> None:
        self.about = about
        self._servers = servers

    def capabilities(self) -> dict[str, Mapping[str, object]]:
        """What the gateway can do for a handshake client; tasks only if a server knows them."""
        known = any(
            b'"tasks"' in bytes(s.reached.hello.get("capabilities", Raw())) for s in self._servers
        )
        return {**CAPABILITIES, "tasks": TASKS} if known else {**CAPABILITIES}

    def discovered(self, frame: Frame, *, has_tasks: bool) -> dict[str, object]:
        """The answer to a client of the modern era that asks who is there."""
        plain = {name: terms for name, terms in CAPABILITIES.items() if name != "logging"}
        if has_tasks:
            plain["extensions"] = {tasks.EXTENSION.decode(): {}}
        asked = jsonrpc.members(jsonrpc.params_of(frame)["_meta"])[mcp.CLIENT_CAPABILITIES]
        offered = with_mgp(plain, of_request(frame.params), asked)
        return self.stamped(
            {"supportedVersions": list(mcp.MODERN_VERSIONS), "capabilities": offered}
        )

    def stamped(self, result: dict[str, object]) -> dict[str, object]:
        """An answer as the modern era wants it."""
        # What is listed may come to depend on who asks, so nobody else may keep it.
        return {
            "resultType": "complete",
            "ttlMs": LIST_TTL_MS,
            "cacheScope": "private",
            **result,
            "_meta": {mcp.SERVER_INFO: self.about},
        }
