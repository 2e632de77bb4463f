"""A gateway as `comity serve` runs it, in which turns are begun in the store and taken by nobody.

What is counted is that each cause has one turn, and a model is not needed for that.
`python -m tests.cluster.push_node CONFIG`
"""

import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app import live as plane
from comity.app.live_parts import LiveParts
from comity.app.live_turns import join_turns
from comity.cli.main import main
from comity.kernel.live import turn_errands
from comity.kernel.live.parts import Errand, Taken
from comity.ports.conversations import ConversationRecords
from comity.wire.errors import Unavailable


class Begun:
    """Turns, up to where it is certain that each will be taken."""

    def __init__(self, live: LiveParts) -> None:
        self._records: ConversationRecords = live.parts.snapshot.records.conversations
        self._clock = live.parts.journaling.journal.clock

    async def begin(self, errand: Errand) -> Taken:
        new = f"inf_{secrets.token_hex(12)}"
        kept = turn_errands.kept(errand, new, self._clock(), 10_000)
        begun = await self._records.begin(kept)
        return Taken(begun.id, begun.conversation, is_new=begun.id == new)

    async def finished(self, inference: str) -> str:
        raise Unavailable(f"nobody takes {inference}")


@asynccontextmanager
async def begin_only(live: LiveParts) -> AsyncGenerator[None]:
    live.turns = Begun(live)
    yield


if __name__ == "__main__":
    joined = vars(plane)["_JOINS"]
    taking = tuple(begin_only if each is join_turns else each for each in joined)
    setattr(plane, "_JOINS", taking)  # noqa: B010  # it is private, and only a test changes it
    sys.argv = ["comity", "serve", sys.argv[1], "--port", "0"]
    main()
