"""How a tool server fares and how it ends: its health, its last calls, its close. (MGP §11.3, 11.4)

Rule 1: it is asked how it is while tools run, so nothing here waits for one.
Rule 2: a check that fails, is late or breaks makes the server degraded; `ail` makes it unhealthy.
Rule 3: it ends when its calls are done or their time is over, whichever comes first.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from comity.sdk.mgp_server_peers import Peer, Request
from comity.wire import jsonrpc, lifecycle
from comity.wire.errors import INVALID_PARAMS, SERVER_DRAINING
from comity.wire.jsonrpc import UNSET
from comity.wire.lifecycle import Reason, State, Status, moment
from comity.wire.negotiation import Extension

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 2.0
"""What all checks together may take, well within the 5 seconds that a ping has."""

MOST_CHECKS: Final = 64
USUAL_DRAIN_MS: Final = 30_000
LONGEST_DRAIN: Final = timedelta(minutes=10)
LAST_WORDS_SECONDS: Final = 0.25
"""A result that is ready is still on its way out: the SDK tells nobody when it was written."""

_A_CALL_MS: Final = 1_000
"""How long a call is guessed to need for its end."""

type Check = Callable[[], Awaitable[bool]]
type Resource = Callable[[], int]


class Life:
    """From the first request to the last. `closed` is set when the transport is to be closed."""

    def __init__(self, server_id: str) -> None:
        self.closed = asyncio.Event()
        self.checks: dict[str, Check] = {}
        self.resources: dict[str, Resource] = {}
        self.state = State.CONNECTED
        self.peers: set[Peer] = set()
        self._id = server_id
        self._began = datetime.now(UTC)
        self._ailment = ""
        self._running: set[Request] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining: asyncio.Task[None] | None = None

    def ail(self, because: str) -> None:
        """Say that nothing works; the empty text takes it back."""
        self._ailment = because

    @asynccontextmanager
    async def running(self, request: Request) -> AsyncGenerator[None]:
        """A request that is waited for before the end. Raises where the end has begun."""
        if self.state is not State.CONNECTED:
            raise request.refused(SERVER_DRAINING, "this server is shutting down")
        self._running.add(request)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(request)
            if not self._running:
                self._idle.set()

    async def ping(self, request: Request) -> dict[str, object]:
        now = datetime.now(UTC)
        checks = await self._checked()
        return {
            "status": self._status(checks),
            "timestamp": moment(now),
            "uptime_secs": int((now - self._began).total_seconds()),
            "server_id": self._id,
        }

    async def status(self, tools: tuple[int, int]) -> dict[str, object]:
        checks = await self._checked()
        return {
            "status": self._status(checks),
            "uptime_secs": int((datetime.now(UTC) - self._began).total_seconds()),
            "tools_available": tools[0] if self.state is State.CONNECTED else 0,
            "tools_total": tools[1],
            "pending_requests": len(self._running),
            "resources": {name: read() for name, read in self.resources.items()},
            "checks": checks,
        }

    async def shut_down(self, request: Request) -> dict[str, object]:
        params = request.params
        reason, given = params.get("reason"), params.get("timeout_ms", USUAL_DRAIN_MS)
        if reason not in Reason or not isinstance(given, int | float) or given < 0:
            raise request.refused(INVALID_PARAMS, "a shutdown has a reason and a timeout_ms")
        within = min(timedelta(milliseconds=min(given, 1e9)), LONGEST_DRAIN)
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(str(reason), within))
        guess = min(len(self._running) * _A_CALL_MS, int(within / timedelta(milliseconds=1)))
        return {
            "accepted": True,
            "pending_requests": len(self._running),
            "estimated_drain_ms": guess,
        }

    async def _drain(self, reason: str, within: timedelta) -> None:
        await self._enter(State.DRAINING, reason)
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d calls were not done when the time was over", len(self._running))
        await self._enter(State.DISCONNECTED, reason)
        await asyncio.sleep(LAST_WORDS_SECONDS)
        self.closed.set()

    async def _enter(self, state: State, reason: str) -> None:
        before, self.state = self.state, state
        told = lifecycle.changed(self._id, before, state, reason, datetime.now(UTC))
        assert told.params is not UNSET
        params = cast("dict[str, object]", jsonrpc.value(told.params))
        for peer in [each for each in self.peers if Extension.LIFECYCLE in each.extensions]:
            try:
                await peer.tell(lifecycle.CHANGED, params)
            except Exception:
                # Somebody who cannot be told any more does not keep the server from its end.
                log.exception("a change of state was not told")

    def _status(self, checks: Mapping[str, bool]) -> Status:
        if self._ailment:
            return Status.UNHEALTHY
        well = all(checks.values()) and self.state is State.CONNECTED
        return Status.HEALTHY if well else Status.DEGRADED

    async def _checked(self) -> dict[str, bool]:
        """Every check at once; one that is late counts as failed."""
        tasks = {name: asyncio.ensure_future(check()) for name, check in self.checks.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=CHECK_SECONDS)
        found = {name: _passed(name, task) for name, task in tasks.items()}
        for task in tasks.values():
            task.cancel()
        return found


def _passed(name: str, task: "asyncio.Future[bool]") -> bool:
    if not task.done() or task.cancelled():
        return False
    if (problem := task.exception()) is not None:
        log.warning("the check %r broke", name, exc_info=problem)
        return False
    return bool(task.result())
