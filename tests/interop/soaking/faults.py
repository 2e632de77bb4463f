"""What goes wrong under soak: servers are killed, stopped, changed, restarted, added, removed."""

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

import psutil

from tests.interop.crowds import SECONDS, Caller, ModernCaller, calling, hearing, until_told
from tests.interop.soaking.visits import Pause
from tests.interop.soaking.world import Ward, World

LIST_CHANGED = "notifications/tools/list_changed"


class Faults:
    """One after the other, each until the gateway has recovered from it."""

    def __init__(self, world: World, pause: Pause, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._pause = pause
        self._chance = random.Random(seed)  # noqa: S311  # no secret
        self._kinds: dict[str, Callable[[Caller], Awaitable[None]]] = {
            "kill near": self._kill_near,
            "kill far": self._kill_far,
            "stop for a while": self._stop_for_a_while,
            "change a list": self._change_a_list,
            "operator restarts": self._restart,
            "operator stops and starts": self._stop_and_start,
            "a guest comes and goes": self._reload,
        }

    async def happen(self) -> None:
        """Until cancelled; every kind in turn, so that a short soak meets each of them."""
        while True:
            kinds = list(self._kinds)
            self._chance.shuffle(kinds)
            for kind in kinds:
                async with self._pause.visit(), calling(self._world.gateway.door()) as caller:
                    async with asyncio.timeout(SECONDS):
                        await self._kinds[kind](caller)
                self.done[kind] += 1
                await asyncio.sleep(self._chance.uniform(0.2, 1.0))

    def _some(self, *, near: bool | None = None) -> Ward:
        return self._chance.choice(
            [ward for ward in self._world.wards if near is None or ward.is_near is near]
        )

    async def _kill_near(self, caller: Caller) -> None:
        ward = self._some(near=True)
        with ward.troubled():
            process = self._world.process_of(ward)
            if process is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(process.wait, SECONDS)
            await self._until_well(caller, ward)

    async def _kill_far(self, caller: Caller) -> None:
        ward = self._some(near=False)
        with ward.troubled():
            self._world.kill_far(ward)
            await asyncio.sleep(self._chance.uniform(0, 3))
            await asyncio.to_thread(self._world.start_far, ward)
            await self._until_well(caller, ward)

    async def _stop_for_a_while(self, caller: Caller) -> None:
        """A server that is only slow has done no wrong: every one of its calls is answered."""
        process = self._world.process_of(self._some())
        if process is not None:
            process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(self._chance.uniform(0.5, 2))
            finally:
                process.send_signal(signal.SIGCONT)

    async def _change_a_list(self, caller: Caller) -> None:
        """Whoever listens is told, in both eras and at both doors."""
        ward = self._some(near=False)
        async with contextlib.AsyncExitStack() as stack:
            ears: list[asyncio.Queue[dict[str, object]]] = []
            for era in (Caller, ModernCaller):
                for door in ("", ward.name):
                    listener = calling(self._world.gateway.door(door), era)
                    client = await stack.enter_async_context(listener)
                    ears.append(await stack.enter_async_context(hearing(client)))
            # A server tells whoever listens already.
            await self._until_well(caller, ward)
            async with caller.http.post(f"http://127.0.0.1:{ward.port}/change") as reply:
                assert reply.status == 204
            for told in ears:
                await until_told(told, LIST_CHANGED)

    async def _restart(self, caller: Caller) -> None:
        ward = self._some()
        with ward.troubled():
            await self._world.order(caller, ward, "restart")
            await self._until_well(caller, ward)

    async def _stop_and_start(self, caller: Caller) -> None:
        ward = self._some()
        with ward.troubled():
            await self._world.order(caller, ward, "stop")
            await self._world.order(caller, ward, "start")
            await self._until_well(caller, ward)

    async def _reload(self, caller: Caller) -> None:
        """The file changes: one server comes and goes, and nobody else notices."""
        self._world.write(with_guest=True)
        await caller.until_listed(["guest__say"])
        await self._until_well(caller, self._world.guest)
        self._world.write(with_guest=False)
        while "guest__say" in await caller.tools():
            await asyncio.sleep(0.1)

    async def _until_well(self, caller: Caller, ward: Ward) -> None:
        while (await self._world.api(caller, f"servers/{ward.name}"))["state"] != "connected":
            await asyncio.sleep(0.05)
        await caller.until_said(f"{ward.name}__say", most=0.1)
