"""Prepares the command of a server at each start: its lock entry, and its package."""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final, Literal

from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.installers import INSTALLERS
from comity.servers.packages.model import LockedServer, WrittenEntry
from comity.servers.packages.package_store import PackageStore, user_package_store
from comity.servers.packages.rules import read_command, start_problem
from comity.servers.process.process import ServerCommand

log = logging.getLogger(__name__)

type PackageChoice = Literal["auto", "store", "as_written"]

# Python would otherwise write compiled files into the store, which count as added.
_STORE_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class ServerLauncher:
    """Checks a server against its lock entry, and runs its package from the store.

    `lock` is None where the configuration has no lock file.
    """

    id: str
    command: ServerCommand
    entry: WrittenEntry
    packages: PackageChoice = "auto"
    lock: LockedServer | None = None
    store: PackageStore | None = None

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
        package = locked or store.find(request) or await store.resolve(request)
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
        if not store.has(package):
            log.info("server %r: installing %s", self.id, package)
            await store.install(package)
        changes = await asyncio.to_thread(store.find_changes, package)
        if changes:
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            raise Misconfigured(
                f"the files of {package.name} {package.version} in the package store have changed: "
                f"{changes[0]}{more}; install them again with `comity servers update {self.id}`"
            )
        argv = store.command(package, request)
        return replace(self.command, argv=argv, env={**_STORE_ENVIRONMENT, **self.command.env})
