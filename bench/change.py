"""How long the change of one grant takes to be in force, and what other calls feel of it."""

import asyncio
import time
from dataclasses import dataclass

from bench.eras import FIRST_CALL, call_body
from bench.load import Caller, Stretch
from bench.load_http import HttpTarget
from bench.realm import TARGET, Realm, party, records
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant

CALLERS = 16
_QUIET_SECONDS = 2.0
_AFTERWARDS_SECONDS = 1.0
_IN_FORCE_WITHIN_SECONDS = 10.0
_TIMES = 5


@dataclass(frozen=True, slots=True)
class Changed:
    """The longest of several changes, and the longest that any call took meanwhile."""

    revoked_after_seconds: float
    granted_after_seconds: float
    longest_call_seconds: float
    # The same callers over an equally long time in which nothing was changed.
    longest_call_before_seconds: float
    calls: int


class Watched(Stretch):
    """A stretch without an end that knows its slowest call."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self.calls = 0
        self._began: dict[Caller, float] = {}

    def begin(self, callers: list[Caller]) -> None:
        self._finished = asyncio.get_running_loop().create_future()
        for caller in callers:
            self._call(caller)

    def answered(self, caller: Caller) -> None:
        self.longest = max(self.longest, time.perf_counter() - self._began[caller])
        self.calls += 1
        self._call(caller)

    def _call(self, caller: Caller) -> None:
        self._began[caller] = time.perf_counter()
        self._number += 1
        caller.send(self._number)

    def end(self) -> None:
        """Raises what a caller met instead of its answer; what comes now is nobody's."""
        if self._finished is None:
            return
        if self._finished.done():
            self._finished.result()
        else:
            self._finished.set_result(None)


async def measure(realm: Realm, target: HttpTarget) -> Changed:
    """Revokes and grants the same thing several times, while others call."""
    await target.open_sessions(CALLERS + 1)
    watched = Watched()
    # The first party is the one whose grant changes; it does not take part in the load.
    callers = [await target.connect(watched, order + 1) for order in range(CALLERS)]
    try:
        watched.begin(list(callers))
        await asyncio.sleep(_QUIET_SECONDS)
        before, watched.longest = watched.longest, 0.0
        first = watched.calls
        took = await _change(realm, target)
        watched.end()
        return Changed(*took, watched.longest, before, watched.calls - first)
    finally:
        for caller in callers:
            caller.close()


async def _change(realm: Realm, target: HttpTarget) -> tuple[float, float]:
    revoked, granted = 0.0, 0.0
    async with records(realm.store) as kept:
        for _ in range(_TIMES):
            await kept.grants.revoke(party(0), CALL, TARGET)
            revoked = max(revoked, await _until(target, succeeds=False))
            await kept.grants.put(Grant(party(0), CALL, TARGET, Effect.ALLOW))
            granted = max(granted, await _until(target, succeeds=True))
            await asyncio.sleep(_AFTERWARDS_SECONDS / _TIMES)
    return revoked, granted


async def _until(target: HttpTarget, *, succeeds: bool) -> float:
    """Calls again and again, until it does as it should."""
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < _IN_FORCE_WITHIN_SECONDS:
        answer = await target.ask(call_body(target.era), target.headers_of(0))
        did = answer.status == 200 and b"call %d, please" % FIRST_CALL in answer.body
        if did == succeeds:
            return time.perf_counter() - began
    return spent
