"""Reloading of the configuration while the gateway runs.

Rule 1: a configuration with an error changes nothing. Comity reports it once and keeps the old
one.
Rule 2: a change does not affect other servers or their clients.
Rule 3: a file that may be half written changes nothing.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from comity.app.settings import ServerSettings, Settings
from comity.app.settings_api import ConfigState
from comity.app.settings_reader import (
    ConfigSource,
    LoadedConfig,
    SettingsChanges,
    compare_settings,
    refuse_lost_end,
)
from comity.app.upstreams import UpstreamRegistry
from comity.config.loader import read_config_bytes
from comity.config.trust import trust_record
from comity.config.watch import file_changes
from comity.errors import Misconfigured
from comity.http.tls import ListenerCertificate
from comity.mcp.mgp import ShutdownReason
from comity.servers.packages.lock_file import lock_path
from comity.sessions.upstream import TransportFactory

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 0.2
"""The time between the two reads of a file that must be equal."""


@asynccontextmanager
async def follow_settings(
    source: ConfigSource,
    loaded: LoadedConfig,
    state: ConfigState,
    upstream_registry: UpstreamRegistry,
    report: Callable[[str], None],
    apply_policy: Callable[[Settings], Awaitable[None]] | None = None,
    certificate: ListenerCertificate | None = None,
) -> AsyncGenerator[None]:
    """Apply changes of the configuration files to servers and policies until the context ends.

    `loaded` is what the gateway was started with. The files of the certificate are watched too.
    """
    reload = SettingsReloader(
        source,
        loaded,
        state,
        upstream_registry,
        report,
        apply_policy=apply_policy,
        certificate=certificate,
    )
    running = asyncio.ensure_future(reload.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reload.stop()


class SettingsReloader:
    """Holds the settings in force and applies changes of the files to the running gateway."""

    def __init__(
        self,
        source: ConfigSource,
        loaded: LoadedConfig,
        state: ConfigState,
        upstream_registry: UpstreamRegistry,
        report: Callable[[str], None],
        *,
        apply_policy: Callable[[Settings], Awaitable[None]] | None = None,
        certificate: ListenerCertificate | None = None,
    ) -> None:
        self._source = source
        self._loaded = loaded
        self._state = state
        self._state.watch(source, loaded.digests)
        self._certificate = certificate
        self._upstream_registry = upstream_registry
        self._report = report
        self._apply_policy = apply_policy
        self._settings = upstream_registry.settings
        self._reported_restart: tuple[str, ...] = ()
        self._reported_errors = ""
        self._task_by_server: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch the files and apply changes until cancelled."""
        asked = asyncio.Event()
        with _handle_sighup(asked):
            watched = self._source.watched_paths
            approvals = map(trust_record, watched)
            watched += tuple(dict.fromkeys((*map(lock_path, watched), *approvals)))
            if self._certificate is not None:
                watched += self._certificate.paths
            async with aclosing(file_changes(watched, asked)) as heard:
                async for _ in heard:
                    await self._reload()
                    await self._reload_certificate()

    async def stop(self) -> None:
        """Cancel all changes in progress. The shutdown of the servers ends what is left of them."""
        work = list(self._task_by_server.values())
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _reload(self) -> None:
        try:
            # Reads in a thread, because a long file or a slow disk would block the event loop.
            found = await asyncio.to_thread(self._source.load)
            await asyncio.sleep(SETTLE_SECONDS)
            if await asyncio.to_thread(_has_changed_since, found):
                # The watcher reports the file again once it is stable.
                return
            await asyncio.to_thread(refuse_lost_end, self._loaded, found)
            await asyncio.to_thread(self._state.learn_secrets, found.settings)
            self._apply_settings(found.settings)
            is_changed = found.digests != self._loaded.digests
            self._loaded = found
            if self._apply_policy is not None:
                await self._apply_policy(found.settings)
            self._reported_errors = ""
            self._state.on_reload(self._settings, self._reported_restart, found.digests)
            if is_changed:
                self._report("the changed configuration is applied")
        except Misconfigured as mistake:
            self._state.on_error(str(mistake))
            self._report_errors(str(mistake))
        except Exception:
            log.exception("Watching the configuration failed")

    async def _reload_certificate(self) -> None:
        if self._certificate is None:
            return
        try:
            if await asyncio.to_thread(self._certificate.reload):
                self._report("the certificate has changed; new connections use the new one")
        except Exception:
            log.exception("reading the certificate ended in a bug")

    def _report_errors(self, errors: str) -> None:
        if errors != self._reported_errors:
            for line in errors.splitlines():
                log.error(
                    "The changed configuration was not applied: %s",
                    line.strip(),
                    extra={"is_own": True},
                )
        self._reported_errors = errors

    def _apply_settings(self, settings: Settings) -> None:
        changes = compare_settings(self._settings, settings)
        # Builds all transports before it changes anything: one bad server refuses the whole change.
        reaches = {
            server.id: self._upstream_registry.transport_factory(server)
            for server in changes.added + changes.changed
        }
        self._settings = replace(
            self._settings, servers=settings.servers, secret_values=settings.secret_values
        )
        if changes.added or changes.changed or changes.removed or changes.policy_changed:
            self._report(f"the configuration has changed: {changes}")
            self._publish(changes)
        self._report_needed_restart(changes)
        for server in changes.added:
            self._run_in_order(server.id, partial(self._add_server, server, reaches[server.id]))
        for server in changes.changed:
            self._run_in_order(server.id, partial(self._replace_server, server, reaches[server.id]))
        for server in changes.policy_changed:
            self._run_in_order(server.id, partial(self._update_policy, server))
        for name in changes.removed:
            self._run_in_order(
                name, partial(self._upstream_registry.remove, name, ShutdownReason.OPERATOR_REQUEST)
            )

    def _publish(self, changes: SettingsChanges) -> None:
        if self._upstream_registry.on_configured is not None:
            added = [s.id for s in changes.added]
            changed = [s.id for s in (*changes.changed, *changes.policy_changed)]
            concerned = {"added": added, "changed": changed, "removed": list(changes.removed)}
            self._upstream_registry.on_configured(concerned)

    def _report_needed_restart(self, changes: SettingsChanges) -> None:
        if changes.needs_restart and changes.needs_restart != self._reported_restart:
            named = ", ".join(changes.needs_restart)
            log.warning("Changes to %s need a restart", named)
        self._reported_restart = changes.needs_restart

    def _run_in_order(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run work after earlier work on the same server. Servers do not wait for others."""
        before = self._task_by_server.get(name)
        task = self._task_by_server[name] = asyncio.ensure_future(_run_after(before, work, name))
        task.add_done_callback(lambda task: self._on_task_done(name, task))

    def _on_task_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._task_by_server.get(name) is task:
            del self._task_by_server[name]

    async def _add_server(
        self, server: ServerSettings, transport_factory: TransportFactory
    ) -> None:
        self._upstream_registry.add(server, transport_factory)

    async def _update_policy(self, server: ServerSettings) -> None:
        self._upstream_registry.server_policies.update_server(server)

    async def _replace_server(
        self, server: ServerSettings, transport_factory: TransportFactory
    ) -> None:
        await self._upstream_registry.stop_for_replacement(
            server.id, ShutdownReason.CONFIGURATION_CHANGE
        )
        self._upstream_registry.add(server, transport_factory)


def _has_changed_since(loaded: LoadedConfig) -> bool:
    return any(read_config_bytes(file.path) != file.content for file in loaded.loaded_files)


async def _run_after(
    previous: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]], name: str
) -> None:
    try:
        if previous is not None:
            await asyncio.wait([previous])
        await work()
    except Exception:
        log.exception("Changing server %r failed", name)


@contextmanager
def _handle_sighup(reload_event: asyncio.Event) -> Generator[None]:
    """Let SIGHUP trigger a check at once, unless a terminal may send it when it closes."""
    loop = asyncio.get_running_loop()
    if os.isatty(0):
        yield
        return
    try:
        loop.add_signal_handler(signal.SIGHUP, reload_event.set)
    except (AttributeError, ValueError, RuntimeError, NotImplementedError):
        # SIGHUP is missing on this platform, or this is not the main thread. Polling still works.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
