"""What a validator that comes as a plugin is: a name, and one question answered."""

from collections.abc import Awaitable, Mapping
from typing import Protocol

from comity.wire.tools import Tool


class Validator(Protocol):
    """Looks at the arguments of a call before they leave."""

    @property
    def name(self) -> str:
        """By which operators and tools ask for it."""
        ...

    def examine(
        self, tool: Tool, arguments: Mapping[str, object], settings: Mapping[str, object]
    ) -> str | Awaitable[str | None] | None:
        """Why the call is blocked, in one sentence; None where nothing speaks against it.

        Called on the event loop, so it has to be quick; one that has to wait returns an awaitable.
        What it raises blocks the call. `settings` are what the operator wrote for it.
        """
        ...
