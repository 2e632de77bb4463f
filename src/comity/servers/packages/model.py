"""The approved state of a server in a lock file: its entry, its package and its tools."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

type PackageIndex = Literal["npm", "pypi"]


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """The package that a command line such as `npx -y NAME` asks for, and how to run it."""

    index: PackageIndex
    name: str
    # The package and what is installed beside it, as the installer takes them.
    requirements: tuple[str, ...]
    program: str = ""
    """The program of the package; empty for its only one."""
    args: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One version of a package with all its dependencies.

    The digest is the SHA-256 of the resolution. The resolution names each file to download with
    its checksum, so it is the same on every machine.
    """

    index: PackageIndex
    name: str
    version: str
    digest: str
    resolution: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.digest[:19]})"


@dataclass(frozen=True, slots=True, repr=False)
class WrittenEntry:
    """How the configuration reaches a server, with variables and secrets by name only.

    `url` is the origin: the rest of a URL may be a secret.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: tuple[str, ...] = ()
    url: str = ""
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockedServer:
    """The approved state of one server.

    `tools` has the digest of each definition. It is None until the tools were approved.
    """

    entry: WrittenEntry
    package: LockedPackage | None = None
    tools: Mapping[str, str] | None = None


NOT_LOCKED: Final = LockedServer(WrittenEntry())
"""The entry of a server that the lock file does not have."""


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """One part of a server that differs from the lock file."""

    part: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.part}: {self.before or '(none)'} -> {self.after or '(none)'}"
