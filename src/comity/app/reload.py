"""A configuration that changes while the gateway runs: read again, judged, and followed.

Rule 1: a configuration with a mistake changes nothing; it is told once, and the old one stays.
Rule 2: a server that is not concerned does not notice; nor do its clients.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial

from comity.app.residents import Residents
from comity.config import Changes, ServerSettings, Settings, Source, difference, file_changes
from comity.ports import Reach
from comity.wire.errors import Misconfigured
from comity.wire.lifecycle import Reason

log = logging.getLogger(__name__)


@asynccontextmanager
async def followed(
    source: Source,
    residents: Residents,
    tell: Callable[[str], None],
    decide: Callable[[Settings], Awaitable[None]] | None = None,
) -> AsyncGenerator[None]:
    """Keep the servers, and who may use them, in step with the files, until the way out."""
    reload = Reload(source, residents, tell, decide)
    running = asyncio.ensure_future(reload.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reload.stop()


class Reload:
    """The settings in force, and what is being done to have others."""

    def __init__(
        self,
        source: Source,
        residents: Residents,
        tell: Callable[[str], None],
        decide: Callable[[Settings], Awaitable[None]] | None = None,
    ) -> None:
        self._source = source
        self._residents = residents
        self._tell = tell
        self._decide = decide
        self._settings = residents.settings
        self._restart_told: tuple[str, ...] = ()
        self._mistake_told = ""
        self._work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the files until cancelled."""
        asked = asyncio.Event()
        with _hangups_heard(asked):
            async with aclosing(file_changes(self._source.watched, asked)) as heard:
                async for _ in heard:
                    await self._read_again()

    async def stop(self) -> None:
        """Let nothing begin any more; what is half done is ended with the servers."""
        work = list(self._work.values())
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _read_again(self) -> None:
        try:
            # In a thread: a long file, or a slow disk, must hold up nobody.
            found = await asyncio.to_thread(self._source.find)
            self._follow(found.settings)
            if self._decide is not None:
                await self._decide(found.settings)
            self._mistake_told = ""
        except Misconfigured as mistake:
            self._refuse(str(mistake))
        except Exception:
            log.exception("following the configuration ended in a bug")

    def _refuse(self, mistakes: str) -> None:
        if mistakes != self._mistake_told:
            for line in mistakes.splitlines():
                log.error(
                    "the configuration has changed and is not taken: %s",
                    line.strip(),
                    extra={"is_own": True},
                )
        self._mistake_told = mistakes

    def _follow(self, settings: Settings) -> None:
        changes = difference(self._settings, settings)
        # All of them first: one that cannot be keeps the whole from being taken.
        reaches = {
            server.id: self._residents.reach(server) for server in changes.added + changes.changed
        }
        self._settings = replace(self._settings, servers=settings.servers)
        if changes.added or changes.changed or changes.removed or changes.decided:
            self._tell(f"the configuration has changed: {changes}")
            self._publish(changes)
        self._tell_what_needs_a_restart(changes)
        for server in changes.added:
            self._then(server.id, partial(self._admit, server, reaches[server.id]))
        for server in changes.changed:
            self._then(server.id, partial(self._exchange, server, reaches[server.id]))
        for server in changes.decided:
            self._then(server.id, partial(self._decide_anew, server))
        for name in changes.removed:
            self._then(name, partial(self._residents.dismiss, name, Reason.OPERATOR_REQUEST))

    def _publish(self, changes: Changes) -> None:
        if self._residents.configured is not None:
            added = [s.id for s in changes.added]
            changed = [s.id for s in (*changes.changed, *changes.decided)]
            concerned = {"added": added, "changed": changed, "removed": list(changes.removed)}
            self._residents.configured(concerned)

    def _tell_what_needs_a_restart(self, changes: Changes) -> None:
        if changes.needs_restart and changes.needs_restart != self._restart_told:
            named = ", ".join(changes.needs_restart)
            log.warning("to take over %s, restart the gateway; it goes on as before", named)
        self._restart_told = changes.needs_restart

    def _then(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """After whatever is being done about this server; nobody waits for another's calls."""
        before = self._work.get(name)
        task = self._work[name] = asyncio.ensure_future(_after(before, work, name))
        task.add_done_callback(lambda task: self._done(name, task))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._work.get(name) is task:
            del self._work[name]

    async def _admit(self, server: ServerSettings, reach: Reach) -> None:
        self._residents.admit(server, reach)

    async def _decide_anew(self, server: ServerSettings) -> None:
        self._residents.caring.decide_live(server)

    async def _exchange(self, server: ServerSettings, reach: Reach) -> None:
        await self._residents.let_go(server.id, Reason.CONFIGURATION_CHANGE)
        self._residents.admit(server, reach)


async def _after(
    before: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]], name: str
) -> None:
    try:
        if before is not None:
            await asyncio.wait([before])
        await work()
    except Exception:
        log.exception("changing server %r ended in a bug", name)


@contextmanager
def _hangups_heard(asked: asyncio.Event) -> Generator[None]:
    """Have SIGHUP ask for a look at once; unless it is what a closing terminal sends."""
    loop = asyncio.get_running_loop()
    if os.isatty(0):
        yield
        return
    try:
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    except (AttributeError, ValueError, RuntimeError, NotImplementedError):
        # Not the main thread, or a platform without it: the files are looked at all the same.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
