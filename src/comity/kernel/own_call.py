"""A request of the gateway's own to a server, whose answer somebody here waits for."""

import asyncio
from collections.abc import Callable

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame


class OwnCall(Call):
    """A request of the gateway's own, behind which no client stands."""

    __slots__ = ("done", "on_told")
    is_for_all_servers = True

    def __init__(self, frame: Frame, on_told: Callable[[Frame], None] | None) -> None:
        super().__init__(frame, Outbox(), None, 0)
        self.done: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.on_told = on_told

    def answered(self, frame: Frame, status: int = 200) -> None:
        if not self.done.done():
            self.done.set_result(frame)

    def told(self, frame: Frame) -> None:
        if self.on_told is not None:
            self.on_told(frame)

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        if not self.done.done():
            self.done.set_exception(error)
