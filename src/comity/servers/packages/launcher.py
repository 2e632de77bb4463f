"""Prepares the command of a server at each start: its lock entry, and its package."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Literal

from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.installers import INSTALL_TIMEOUT, INSTALLERS
from comity.servers.packages.model import (
    LockedPackage,
    LockedServer,
    PackageRequest,
    WrittenEntry,
)
from comity.servers.packages.package_store import PackageStore, user_package_store
from comity.servers.packages.rules import read_command, start_problem
from comity.servers.process.process import ServerCommand
from comity.telemetry.logging import log_announcement

type PackageChoice = Literal["auto", "store", "as_written"]

# Python would otherwise write compiled files into the store, which count as added.
_STORE_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class ServerLauncher:
    """Checks a server against its lock entry, and runs its package from the store.

    `lock` is None where the configuration has no lock file. A start waits for a download for
    `install_wait`. The download goes on after that, and the next start finds it further on.
    """

    id: str
    command: ServerCommand
    entry: WrittenEntry
    packages: PackageChoice = "auto"
    lock: LockedServer | None = None
    store: PackageStore | None = None
    install_wait: timedelta = INSTALL_TIMEOUT
    _downloads: list[asyncio.Task[LockedPackage]] = field(
        default_factory=list[asyncio.Task[LockedPackage]], compare=False
    )

    @property
    def problem(self) -> str:
        """Why the lock file forbids a start; empty if it does not."""
        return start_problem(self.lock, self.entry, self.id)

    async def prepare(self) -> ServerCommand:
        """Return the command to start. Raises Unavailable with the reason if it must not start."""
        if self.problem:
            raise Unavailable(self.problem)
        try:
            return await self._stored_command()
        except Misconfigured as refusal:
            raise Unavailable(str(refusal)) from None

    async def _stored_command(self) -> ServerCommand:
        locked = None if self.lock is None else self.lock.package
        if self.packages == "as_written" or (self.packages == "auto" and locked is None):
            return self.command
        request = read_command(self.command.argv)
        if request is None:
            return self.command
        if locked is None and self.lock is not None:
            raise Misconfigured(
                f"its package is not in comity.lock; add it with `comity servers update {self.id}`"
            )
        store = self.store or user_package_store()
        package = locked or store.find(request)
        if package is None or not store.has(package):
            package = await self._download(store, request, package)
        if (package.index, package.name) != (request.index, request.name):
            raise Misconfigured(
                f"comity.lock has the package {package.name} for it, but it runs {request.name}; "
                f"accept it with `comity servers update {self.id}`"
            )
        if INSTALLERS[package.index].version(package) != package.version:
            # Somebody gave the entry the resolution of another package.
            raise Misconfigured(
                f"{package.name} {package.version} is not in its resolution; "
                f"resolve it again with `comity servers update {self.id}`"
            )
        changes = await asyncio.to_thread(store.find_changes, package)
        if changes:
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            raise Misconfigured(
                f"the files of {package.name} {package.version} in the package store have changed: "
                f"{changes[0]}{more}; install them again with `comity servers update {self.id}`"
            )
        argv = store.command(package, request)
        return replace(self.command, argv=argv, env={**_STORE_ENVIRONMENT, **self.command.env})

    async def _download(
        self, store: PackageStore, request: PackageRequest, package: LockedPackage | None
    ) -> LockedPackage:
        """Return the package of a request once it is installed.

        Raises Unavailable while the download goes on. A start that gave up would otherwise end it,
        and each new start would begin anew.
        """
        if not self._downloads:
            log_announcement(f"server {self.id!r}: downloading {request.name}")
            self._downloads.append(asyncio.ensure_future(_install(store, request, package)))
        (task,) = self._downloads
        done, _ = await asyncio.wait({task}, timeout=self.install_wait.total_seconds())
        if not done:
            raise Unavailable(f"its package {request.name} is being downloaded")
        self._downloads.clear()
        return task.result()


async def _install(
    store: PackageStore, request: PackageRequest, package: LockedPackage | None
) -> LockedPackage:
    found = package or await store.resolve(request)
    is_requested = (found.index, found.name) == (request.index, request.name)
    # The caller refuses any other package, which therefore is not downloaded.
    if is_requested and INSTALLERS[found.index].version(found) == found.version:
        await store.install(found)
    return found
