"""What an operator may order for a server: start, stop, restart; one order after the other. (D-22)

Every order first ends the task that lives the server's life, so that no two of them ever disagree
about what becomes of it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.draining import FAREWELL, close_all, drain, part
from comity.kernel.life import Life, ServerOptions
from comity.kernel.listing import Listing
from comity.kernel.standing import Transition
from comity.ports import Reach
from comity.rules.health import Health
from comity.rules.lifecycle import Happened
from comity.rules.restarts import Next
from comity.wire.lifecycle import Reason, State

FIRST_TRY_SECONDS: Final = 10.0


class Server:
    """One configured server: its state, the links to it, and the task that cares for it."""

    def __init__(
        self,
        name: str,
        reach: Reach,
        listing: Listing,
        options: ServerOptions,
        tell: Callable[[Transition], None],
    ) -> None:
        self.name = name
        self._life = Life(name, reach, listing, options, tell)
        self.reached = self._life.reached
        self.pulse = self._life.pulse
        self.tried = self._life.tried
        self._options = options
        self._living: asyncio.Task[None] | None = None
        self._orders = asyncio.Lock()
        self._drained_by = 0.0

    @property
    def options(self) -> ServerOptions:
        return self._options

    @property
    def state(self) -> State:
        return self._life.standing.state

    @property
    def reason(self) -> str:
        """Why the server is in this state."""
        return self._life.standing.reason

    @property
    def is_halted(self) -> bool:
        """Whether it was stopped by order, and so starts by order alone."""
        ended = self._living is None or self._living.done()
        return ended and self.state is State.DISCONNECTED

    @property
    def since(self) -> datetime:
        return self._life.standing.since

    @property
    def health(self) -> Health:
        """What the server last said of itself, and how many probes it left unanswered."""
        return self._life.prober.health

    @property
    def restarts(self) -> int:
        """How often it was started again, by itself or by order."""
        return self._life.restarts

    def doubt(self) -> None:
        """Have it asked soon how it is."""
        self._life.prober.doubt()

    def hints(self) -> Sequence[str]:
        """The last lines that its process wrote to standard error."""
        return self._life.hints()

    def require(self) -> None:
        """Raise Unavailable, at once and with its reason, unless calls can be made."""
        self._life.require()

    async def first_try(self) -> None:
        """Let a server that was never tried yet finish its first start, for a bounded while."""
        if not self.tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_TRY_SECONDS):
                    await self.tried.wait()

    def start(self) -> None:
        """Begin its life, with nothing held against it."""
        self._life.forgive()
        self._living = asyncio.ensure_future(self._life.live())

    async def begin(self) -> None:
        """Start a server that nobody cares for, or that waits to be used."""
        async with self._orders:
            if self._living is not None and not self._living.done():
                self._life.wanted.set()
                return
            if self.state is State.ERROR:
                self._life.happen(Happened.ASKED_TO_RESTART, Reason.OPERATOR_REQUEST)
            self.start()

    async def halt(self, reason: Reason, within: timedelta | None = None) -> None:
        """Let calls finish, then end the server; nothing starts it again but a word. (D-22)"""
        async with self._orders:
            await self._end(reason, Happened.ASKED_TO_STOP, within or self._options.drain)
            self._life.happen(Happened.EMPTIED, reason)
            self.tried.set()

    async def restart(self, reason: Reason) -> None:
        """Let calls finish, end the server and start it again; its start is not waited for."""
        async with self._orders:
            await self._end(reason, Happened.ASKED_TO_RESTART, self._options.drain)
            self._life.happen(Happened.ASKED_TO_RESTART, reason)
            self._life.restarts += 1
            self.start()

    async def retire(self, reason: Reason) -> None:
        """Let calls finish and end a server for what it uses; what follows is the table's. (D-22)

        One that is in use again by then is left alone.
        """
        async with self._orders:
            is_idle = reason is Reason.IDLE_TIMEOUT
            if self.state is not State.CONNECTED or (is_idle and self.pulse.calls):
                return
            following = self._life.following(reason)
            await self._end(reason, Happened.ASKED_TO_STOP, self._options.drain)
            self._life.standing.starts_on_use = following is Next.ON_USE
            self._life.happen(Happened.EMPTIED, reason)
            self._living = asyncio.ensure_future(self._life.resume(following))

    def hurry(self, within: timedelta) -> None:
        """Whoever drains just now has no more time than this."""
        limit = asyncio.get_running_loop().time() + within.total_seconds()
        self._drained_by = min(self._drained_by, limit)

    async def _end(self, reason: Reason, asked: Happened, within: timedelta) -> None:
        was_connected = self.state is State.CONNECTED
        if was_connected:
            self._life.happen(asked, reason)
        if self._living is not None:
            self._living.cancel()
            await asyncio.wait([self._living])
        self._life.standing.starts_on_use = False
        try:
            if was_connected:
                await self._drain(within)
                await part(self.reached, reason, min(FAREWELL, within))
        finally:
            await close_all(self.reached, self.pulse)
        if not was_connected:
            self._life.happen(asked, reason)

    async def _drain(self, within: timedelta) -> None:
        loop = asyncio.get_running_loop()
        self._drained_by = loop.time() + within.total_seconds()
        await drain(self.name, self.pulse, lambda: loop.time() >= self._drained_by)
