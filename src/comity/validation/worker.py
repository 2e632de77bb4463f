"""Worker processes for slow checks. The module detects which request killed a process.

There are a few processes, so that one slow request does not delay all others. Each ends when it was
idle for a while.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from comity.errors import EXHAUSTED, Unavailable
from comity.toolkit.worker_process import SideProcess, WorkerExitCause, command_of
from comity.validation.arguments import ArgumentError
from comity.validation.python_code import CodePolicy
from comity.validation.worker_main import (
    CHECK,
    CODE,
    MOST_BYTES,
    WEIGH,
    CodeSafetyRequest,
    SchemaWeight,
)

LANES: Final = 2
MOST_WAITING: Final = 128
IDLE_SECONDS: Final = 60.0
TOO_HARD: Final = "it takes too long, or too much memory, to examine"
_COMMAND: Final = command_of("comity.validation.worker_main")
_violations: Final = msgspec.json.Decoder(tuple[str, ...])
_problem: Final = msgspec.json.Decoder(tuple[str, str, tuple[str, ...]] | None)
_weighed: Final = msgspec.json.Decoder(SchemaWeight)


class _WorkerLane:
    """One process, the thread that talks to it, and the number of waiting requests."""

    def __init__(self, number: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"examiner-{number}")
        self.process = SideProcess(lambda: _COMMAND, "examiner")
        self.waiting_count = 0
        self.idle_timer: asyncio.TimerHandle | None = None

    def ask(self, line: bytes) -> bytes | WorkerExitCause:
        return next(self.process.ask([line]))


class ValidationWorker:
    """Runs the checks that cannot run on the event loop."""

    def __init__(self) -> None:
        self._lanes = [_WorkerLane(number) for number in range(LANES)]

    async def weigh(self, schema: bytes) -> SchemaWeight:
        """Return the cost of a schema. A schema that kills the worker is unusable."""
        answer = await self._request(WEIGH + schema)
        return SchemaWeight(False, False, 0, 0) if answer is None else _weighed.decode(answer)

    async def check(self, schema: bytes, arguments: object) -> ArgumentError | None:
        """Return the error of arguments against a schema that is too costly for the event loop."""
        pair = msgspec.json.encode((msgspec.Raw(schema), arguments))
        answer = await self._request(CHECK + pair)
        if answer is None:
            return ArgumentError("", TOO_HARD)
        found = _problem.decode(answer)
        return None if found is None else ArgumentError(*found)

    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]:
        """Return the violations in a piece of code."""
        try:
            line = CODE + msgspec.json.encode(CodeSafetyRequest(code, policy))
        except UnicodeEncodeError:
            return ("Blocked text: it holds half of a character",)
        answer = await self._request(line)
        return (f"Blocked text: {TOO_HARD}",) if answer is None else _violations.decode(answer)

    async def _request(self, line: bytes) -> bytes | None:
        """Return the answer, or None if the process died of the request."""
        if len(line) >= MOST_BYTES:
            return None
        lane = min(self._lanes, key=lambda each: each.waiting_count)
        if lane.waiting_count >= MOST_WAITING:
            raise Unavailable("too many calls wait for their arguments to be examined", EXHAUSTED)
        lane.waiting_count += 1
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(lane.thread, lane.ask, line + b"\n")
        finally:
            lane.waiting_count -= 1
        if lane.idle_timer is not None:
            lane.idle_timer.cancel()
        lane.idle_timer = loop.call_later(IDLE_SECONDS, lane.thread.submit, lane.process.end)
        return None if isinstance(answer, WorkerExitCause) else answer

    async def close(self) -> None:
        """Kill the processes, even while they work."""
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            if lane.idle_timer is not None:
                lane.idle_timer.cancel()
            lane.process.close()
        for lane in self._lanes:
            await loop.run_in_executor(lane.thread, lane.process.end)
            lane.thread.shutdown(wait=False)
