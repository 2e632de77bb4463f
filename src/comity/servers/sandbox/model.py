"""The levels of confinement, and what a server may reach inside of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

MEGABYTE: Final = 1024 * 1024

READ_FILES: Final = "filesystem.read"
WRITE_FILES: Final = "filesystem.write"
REACH_NETWORK: Final = "network.outbound"
EXECUTE: Final = "shell.execute"


class SandboxLevel(IntEnum):
    """How strongly a server is confined. A higher level confines more."""

    NONE = 0
    # No new privileges, limits of resources, a clean environment, no inherited descriptors.
    BASIC = 1
    # Landlock and seccomp as well: files, network, programs and system calls.
    LANDLOCK = 2
    # Namespaces of bubblewrap as well: nothing else of the machine can be seen.
    BUBBLEWRAP = 3
    # A container of podman or docker. Only for images, and only by name.
    OCI = 4

    @property
    def label(self) -> str:
        return self.name.lower()


LEVEL_BY_LABEL: Final = {level.label: level for level in SandboxLevel}


@dataclass(frozen=True, slots=True)
class SandboxAccess:
    """The access of a server beyond its own program and its scratch folder.

    `hosts` are the entries of the network proxy's allow-list. `programs` are those that it may
    execute, and with `may_execute` it may execute all. Of the folders in `listed` it may
    read the names of files only. `reads_script` gives it the folder of the script in its command
    line, which an operator wrote.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    may_execute: bool = False
    programs: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    reads_script: bool = True


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The resources of a server. `cpu_percent` is of one core, and 0 is without a limit."""

    memory: int = 1024 * MEGABYTE
    processes: int = 64
    open_files: int = 1024
    file_bytes: int = 256 * MEGABYTE
    scratch_bytes: int = 64 * MEGABYTE
    cpu_percent: int = 0

    @property
    def counted_scratch_bytes(self) -> int:
        """The size of a scratch folder that no file system bounds: four files of the largest."""
        return 4 * self.file_bytes


@dataclass(frozen=True, slots=True)
class FolderHandle:
    """A granted folder or file, which stays open from its check until its server has ended.

    `path` was its real path when it was opened. As long as it is open, no other file gets its
    device and inode.
    """

    path: str
    device: int
    inode: int
    descriptor: int


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """The confinement of one server at its next start.

    `folders` maps the granted places to what was opened there. The others do not exist.
    """

    level: SandboxLevel
    access: SandboxAccess = field(default_factory=SandboxAccess)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    folders: Mapping[str, FolderHandle] = field(default_factory=dict[str, FolderHandle])
