"""A gateway as `comity serve` runs it, in which turns are begun in the store and taken by nobody.

What is counted is that each cause has one turn, and a model is not needed for that.
`python -m tests.cluster.push_node CONFIG`
"""

import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.cli.main import main
from comity.errors import Unavailable
from comity.live import wiring as plane
from comity.live.turns import model
from comity.live.turns.model import TurnHandle, TurnRequest, TurnStore
from comity.live.wiring import LiveParts


class Begun:
    """Turns, up to where it is certain that each will be taken."""

    def __init__(self, live: LiveParts) -> None:
        self._records: TurnStore = live.dependencies.snapshot.records.topic_messages
        self._clock = live.dependencies.audit_log_components.audit_log.clock

    async def start(self, request: TurnRequest) -> TurnHandle:
        new = f"inf_{secrets.token_hex(12)}"
        kept = model.to_stored_turn(request, new, self._clock(), 10_000)
        begun = await self._records.begin(kept)
        return TurnHandle(begun.id, begun.conversation, is_new=begun.id == new)

    async def wait_for_output(self, inference: str) -> str:
        raise Unavailable(f"nobody takes {inference}")


@asynccontextmanager
async def begin_only(live: LiveParts) -> AsyncGenerator[Begun]:
    yield Begun(live)


if __name__ == "__main__":
    setattr(plane, "run_turns", begin_only)  # noqa: B010  # only a test puts another in its place
    sys.argv = ["comity", "serve", "-c", sys.argv[1], "--port", "0"]
    main()
