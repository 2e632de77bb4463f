"""Clients under soak: each call knows its answer, and each error must have somebody to blame."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp

from tests.interop.crowds import SECONDS, Caller, Frame, ModernCaller, calling, heard, refusal
from tests.interop.soaking.world import Ward, World

LONGEST_VISIT = 12


@dataclass
class Tally:
    """What came of all calls."""

    answered: int = 0
    explained: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    left: int = 0

    def blame(self, ward: Ward, began: float, what: str, detail: object) -> None:
        """Count an error if the server had a reason to be ill; anything else is wrong."""
        if ward.explains(began, time.monotonic()):
            self.explained[what] += 1
        else:
            self.wrong.append(f"{ward.name}: {what} that nothing explains: {detail!s:.400}")


class Pause:
    """Lets all clients come to rest together, so that the gateway can be measured."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def visit(self) -> AsyncGenerator[None]:
        await self._open.wait()
        self._busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    @asynccontextmanager
    async def rest(self) -> AsyncGenerator[None]:
        self._open.clear()
        async with asyncio.timeout(SECONDS):
            await self._idle.wait()
        try:
            yield
        finally:
            self._open.set()


class Visitors:
    """Everybody who calls, for as long as it lasts."""

    def __init__(self, world: World, seed: int) -> None:
        self.tally = Tally()
        self.pause = Pause()
        self._world = world
        self._chance = random.Random(seed)  # noqa: S311  # no secret
        self._numbers: Iterator[int] = itertools.count(1)

    async def come_and_go(self) -> None:
        """One client after the other, each of a random kind, until cancelled."""
        while True:
            async with self.pause.visit():
                await self._visit()
            await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _visit(self) -> None:
        ward = self._chance.choice(self._world.wards)
        era = self._chance.choice([Caller, ModernCaller])
        at_its_own = self._chance.random() < 0.4
        door = self._world.gateway.door(ward.name if at_its_own else "")
        began = time.monotonic()
        try:
            async with calling(door, era) as caller:
                for _ in range(self._chance.randint(1, LONGEST_VISIT)):
                    # At its own door a client stays with its server.
                    ward = ward if at_its_own else self._chance.choice(self._world.wards)
                    await self._do_something(caller, ward, "" if at_its_own else f"{ward.name}__")
                if self._chance.random() < 0.5:
                    await _say_goodbye(caller)
        except (TimeoutError, ConnectionError, aiohttp.ClientError) as error:
            self.tally.blame(ward, began, type(error).__name__, error)
        except (AssertionError, KeyError) as error:
            self.tally.wrong.append(f"{ward.name}: a broken answer: {error!r:.400}")

    async def _do_something(self, caller: Caller, ward: Ward, prefix: str) -> None:
        what = self._chance.random()
        if what < 0.04:
            await self._leave_amid_a_call(caller, prefix)
        elif what < 0.06 and not ward.is_near:
            await self._read_slowly(caller, f"{prefix}slow")
        elif what < 0.08:
            await caller.tools()
        else:
            await self._call(caller, ward, prefix)

    async def _call(self, caller: Caller, ward: Ward, prefix: str) -> None:
        number, began = next(self._numbers), time.monotonic()
        tools = ("say", "say", "say", "pour" if ward.is_near else "slow")
        tool = self._chance.choice(tools)
        async with asyncio.timeout(SECONDS):
            answer = await caller.call(prefix + tool, n=number)
        refused = refusal(answer)
        if refused is not None:
            self.tally.blame(ward, began, refused["error_type"], refused)
        elif _is_right(answer, ward, number):
            self.tally.answered += 1
        else:
            self.tally.wrong.append(f"{ward.name} was asked {number} and said {answer!s:.400}")

    async def _leave_amid_a_call(self, caller: Caller, prefix: str) -> None:
        """A client that hangs up: nobody waits for its answer, and nobody else is harmed.

        In the handshake era that is no cancellation, so there it says that it has lost interest.
        """
        frame, headers = caller.dressed("tools/call", {"name": f"{prefix}hold", "arguments": {}})
        leaving = asyncio.ensure_future(caller.post(frame, headers))
        await asyncio.sleep(self._chance.uniform(0, 0.1))
        leaving.cancel()
        await asyncio.wait([leaving])
        if not isinstance(caller, ModernCaller):
            told = {"method": "notifications/cancelled", "params": {"requestId": frame["id"]}}
            await caller.post({"jsonrpc": "2.0", **told})
        self.tally.left += 1

    async def _read_slowly(self, caller: Caller, tool: str) -> None:
        """A client that opens a stream and hardly reads it."""
        asked = {"name": tool, "arguments": {"n": 0}, "_meta": {"progressToken": "slowly"}}
        frame, headers = caller.dressed("tools/call", asked)
        sent = {**caller.headers, **headers}
        async with caller.http.post(caller.url, json=frame, headers=sent) as reply:
            await reply.content.read(1)
            await asyncio.sleep(self._chance.uniform(0, 0.5))
        self.tally.left += 1


def _is_right(answer: Frame, ward: Ward, number: int) -> bool:
    said = heard(answer)
    return said["by"] == ward.name and said["heard"] == {"n": number}


async def _say_goodbye(caller: Caller) -> None:
    if "mcp-session-id" in caller.headers:
        with suppress(aiohttp.ClientError):
            async with caller.http.delete(caller.url, headers=caller.headers):
                pass
