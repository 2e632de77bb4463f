"""Load over the pipes of a child process: what a client without any relay has."""

import asyncio
from collections.abc import Callable
from typing import cast

from bench.bodies import PLAIN, Body
from bench.eras import CallTemplate, Era, call_bodies, initialize_body, initialized_body
from bench.http_answers import WrongAnswer, check_answer
from bench.load import Budget, Caller, Slice, Stretch, timed


class StdioTarget(asyncio.SubprocessProtocol):
    """The stub itself, reached over its pipes: what a direct stdio client has."""

    def __init__(self, command: list[str], era: Era) -> None:
        self._command = command
        self._era: Era = era
        self._template = CallTemplate(())
        self._stretch = Stretch()
        self._callers: dict[int, Caller] = {}
        self._rest = b""
        self._child: asyncio.SubprocessTransport | None = None
        self._pipe: asyncio.WriteTransport | None = None

    async def measure(
        self,
        concurrency: int,
        budget: Budget,
        cpu: Callable[[], float],
        body: Body = PLAIN,
    ) -> Slice:
        await self._start()
        bodies = call_bodies(self._era, body=body)
        self._template = CallTemplate.cut(*(each + b"\n" for each in bodies))
        callers: list[Caller] = [_PipeCaller(self) for _ in range(concurrency)]
        await self._stretch.run(callers, Budget(concurrency, 1.0))
        return await timed(self._stretch, callers, budget, cpu)

    async def _start(self) -> None:
        if self._child is not None:
            return
        loop = asyncio.get_running_loop()
        self._child, _ = await loop.subprocess_exec(
            lambda: self, *self._command, stderr=None, start_new_session=True
        )
        pipe = self._child.get_pipe_transport(0)
        self._pipe = cast(asyncio.WriteTransport, pipe)
        if self._era == "handshake":
            self._pipe.write(initialize_body() + b"\n" + initialized_body() + b"\n")

    def send(self, caller: Caller, number: int) -> None:
        assert self._pipe is not None
        self._callers[number] = caller
        self._pipe.write(self._template.numbered(number))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            number = int(line[22:].partition(b",")[0])
            caller = self._callers.pop(number, None)
            if caller is None:
                continue
            try:
                check_answer(line, number)
            except (WrongAnswer, ValueError) as reason:
                self._stretch.failed(reason)
                return
            self._stretch.answered(caller)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()


class _PipeCaller:
    def __init__(self, target: StdioTarget) -> None:
        self._target = target

    def send(self, number: int) -> None:
        self._target.send(self, number)
