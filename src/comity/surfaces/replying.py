"""How a call in the express lane gets its answer: at once, in a while, or as a stream after all."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.surfaces import doorway
from comity.surfaces.express import Continuation, Express
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)

type Continue = Callable[[Call], Continuation]
"""How the call goes on where its answer is more than one piece."""


class Reply:
    """One request and the call that it became."""

    __slots__ = ("_call", "_continue", "_ends_with_client", "_outbox", "_request")

    def __init__(self, request: Express, outbox: Outbox, go_on: Continue) -> None:
        self._request = request
        self._outbox = outbox
        self._continue = go_on
        self._call: Call | None = None
        self._ends_with_client = False

    def ask(self, asking: Coroutine[Any, Any, Call], *, ends_with_client: bool = False) -> None:
        """Begin; most calls are on their way to their server when this returns."""
        self._ends_with_client = ends_with_client
        task = asyncio.Task(asking, loop=asyncio.get_running_loop(), eager_start=True)
        if task.done():
            self._asked(task)
        else:
            _beginning.add(task)
            task.add_done_callback(self._asked)

    def _asked(self, task: "asyncio.Task[Call]") -> None:
        _beginning.discard(task)
        try:
            call = self._call = task.result()
        except (MalformedMessage, Unavailable) as error:
            self._request.answer(*doorway.refusal(error))
            return
        except (Exception, asyncio.CancelledError):
            log.exception("a request ended in a bug of ours")
            self._request.answer(500, doorway.oops())
            return
        outbox = self._outbox
        if outbox.final or outbox.streaming or outbox.frames:
            self._ready()
            return
        outbox.on_ready = self._ready
        if self._ends_with_client and self._request.is_over:
            # The client has gone while its call was on its way through the gate.
            self._lost()
        elif self._ends_with_client:
            call.on_long = self._go_on
            self._request.on_lost = self._lost

    def _ready(self) -> None:
        outbox, call = self._outbox, self._call
        if outbox.final and len(outbox.frames) == 1 and not outbox.streaming:
            if call is not None:
                call.on_long = None
            self._request.answer(outbox.status, outbox.frames[0])
        else:
            self._go_on()

    def _go_on(self) -> None:
        call = self._call
        assert call is not None
        self._outbox.on_ready = call.on_long = None
        self._request.on_lost = None
        self._request.hand_over(self._continue(call))

    def _lost(self) -> None:
        """The client closed its stream, and with it withdrew its call. (2026-07-28)"""
        self._outbox.on_ready = None
        if self._call is not None:
            self._call.on_long = None
            self._call.withdraw(None)


_beginning: set["asyncio.Task[Call]"] = set()
"""Tasks that nobody else holds."""
