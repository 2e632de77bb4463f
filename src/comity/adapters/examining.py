"""Asks the examiner's processes, off the event loop, and knows when one of them died of a question.

There are a few of them, so that one slow question does not keep all others waiting; each is ended
when it was idle for a while.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from comity.adapters.examiner import CHECK, CODE, MOST_BYTES, WEIGH, Judged, Weighed
from comity.adapters.side_process import Death, SideProcess, command_of
from comity.rules.argument_problems import Problem
from comity.rules.code_safety import CodePolicy
from comity.wire.errors import EXHAUSTED, Unavailable

LANES: Final = 2
MOST_WAITING: Final = 128
IDLE_SECONDS: Final = 60.0
TOO_HARD: Final = "it takes too long, or too much memory, to examine"
_COMMAND: Final = command_of("comity.adapters.examiner")
_violations: Final = msgspec.json.Decoder(tuple[str, ...])
_problem: Final = msgspec.json.Decoder(tuple[str, str, tuple[str, ...]] | None)
_weighed: Final = msgspec.json.Decoder(Weighed)


class _Lane:
    """One process, the thread that talks with it, and how many questions wait for it."""

    def __init__(self, number: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"examiner-{number}")
        self.process = SideProcess(lambda: _COMMAND, "examiner")
        self.waiting = 0
        self.rest: asyncio.TimerHandle | None = None

    def ask(self, line: bytes) -> bytes | Death:
        return next(self.process.ask([line]))


class Examiner:
    """Answers what cannot be answered on the event loop."""

    def __init__(self) -> None:
        self._lanes = [_Lane(number) for number in range(LANES)]

    async def weigh(self, schema: bytes) -> Weighed:
        """How heavy a schema is; one that kills the examiner is not usable."""
        answer = await self._ask(WEIGH + schema)
        return Weighed(False, False, 0, 0) if answer is None else _weighed.decode(answer)

    async def check(self, schema: bytes, arguments: object) -> Problem | None:
        """What of the arguments does not fit a schema that is too heavy for the loop."""
        pair = msgspec.json.encode((msgspec.Raw(schema), arguments))
        answer = await self._ask(CHECK + pair)
        if answer is None:
            return Problem("", TOO_HARD)
        found = _problem.decode(answer)
        return None if found is None else Problem(*found)

    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]:
        """What is wrong with a piece of code."""
        try:
            line = CODE + msgspec.json.encode(Judged(code, policy))
        except UnicodeEncodeError:
            return ("Blocked text: it holds half of a character",)
        answer = await self._ask(line)
        return (f"Blocked text: {TOO_HARD}",) if answer is None else _violations.decode(answer)

    async def _ask(self, line: bytes) -> bytes | None:
        """The answer; None where the process died of it."""
        if len(line) >= MOST_BYTES:
            return None
        lane = min(self._lanes, key=lambda each: each.waiting)
        if lane.waiting >= MOST_WAITING:
            raise Unavailable("too many calls wait for their arguments to be examined", EXHAUSTED)
        lane.waiting += 1
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(lane.thread, lane.ask, line + b"\n")
        finally:
            lane.waiting -= 1
        if lane.rest is not None:
            lane.rest.cancel()
        lane.rest = loop.call_later(IDLE_SECONDS, lane.thread.submit, lane.process.end)
        return None if isinstance(answer, Death) else answer

    async def close(self) -> None:
        """End the processes, whatever they are doing."""
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            if lane.rest is not None:
                lane.rest.cancel()
            lane.process.close()
        for lane in self._lanes:
            await loop.run_in_executor(lane.thread, lane.process.end)
            lane.thread.shutdown(wait=False)
