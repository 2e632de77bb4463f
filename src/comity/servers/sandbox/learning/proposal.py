"""Reduces what a server touched to the permissions that it needs."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from comity.errors import Misconfigured
from comity.servers.sandbox.egress_rules import parse_reach
from comity.servers.sandbox.learning.trace import TracedAccess
from comity.servers.sandbox.model import EXECUTE, REACH_NETWORK, READ_FILES, WRITE_FILES
from comity.servers.sandbox.programs import SYSTEM_LIBRARIES, SYSTEM_PROGRAMS, ProgramFiles
from comity.servers.sandbox.reach import is_below, is_within

MAX_FOLDERS_BESIDE: Final = 4
"""More folders than this with the same parent are proposed as that parent."""

MAX_NOTES: Final = 10
"""How many places of one kind the notes name."""

_OF_MACHINE: Final = (
    *("/proc", "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm", "/etc/resolv.conf"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/dev/pts", "/dev/ptmx", "/etc/ld.so.preload", "/etc/locale.alias", "/etc/mime.types"),
)
"""Files that runtimes read if they are there, or that every sandbox has."""

_SHARED_FOLDERS: Final = frozenset(
    {
        *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc"),
        *("/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/tmp"),  # noqa: S108  # only compared
    }
)
"""Folders that programs share. They are never proposed as a whole."""

_BYTECODE: Final = "__pycache__"


@dataclass(frozen=True, slots=True)
class LearningBounds:
    """The places that are not proposed: the program itself, its scratch folder, and Comity."""

    files: ProgramFiles
    folder: str
    scratch: tuple[str, ...]
    state: str
    home: str

    def is_too_wide(self, folder: str) -> bool:
        """Whether a folder holds the files of other programs, or those of Comity."""
        private = (self.home, self.state)
        return folder in _SHARED_FOLDERS or any(is_within(each, folder) for each in private)


@dataclass(slots=True)
class PermissionProposal:
    """The permissions that a server needs, each with its reach, and what a person should know."""

    permissions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    notes: list[str] = field(default_factory=list[str])

    def note(self, text: str, places: Iterable[str]) -> None:
        """Add a note that names these places, if there are any."""
        named = sorted(places)
        more = f" and {len(named) - MAX_NOTES} more" if len(named) > MAX_NOTES else ""
        told = f"{text}: {', '.join(named[:MAX_NOTES])}{more}."
        if named and told not in self.notes:
            self.notes.append(told)


def propose_hosts(proposal: PermissionProposal, hosts: Iterable[str]) -> None:
    """Add the hosts that a server asked the proxy for."""
    granted: list[str] = []
    for host in sorted(set(hosts)):
        try:
            parse_reach(host)
        except Misconfigured as problem:
            proposal.notes.append(f"It asked for a host that cannot be granted: {problem}.")
        else:
            granted.append(host)
    if granted:
        proposal.permissions[REACH_NETWORK] = granted


def propose_files(
    proposal: PermissionProposal, access: TracedAccess, bounds: LearningBounds
) -> None:
    """Add the folders and programs that a trace shows."""
    others = {each for each in access.executed if not _is_own_program(each, bounds)}
    own = [*SYSTEM_LIBRARIES, *bounds.files.readable, *bounds.files.executable]
    own += [*bounds.files.links, *_OF_MACHINE, *bounds.scratch]
    if others:
        own += SYSTEM_PROGRAMS
    written = {
        each
        for path in access.written
        for each in _names_of(path)
        if not is_below(each, (*_OF_MACHINE, *bounds.scratch))
        and not _is_bytecode(each, (*own, *bounds.files.listed))
    }
    # An interpreter lists the folder of its script. The sandbox shows the modules in it without a
    # permission, and a permission would open what lies beside them.
    read = {
        each
        for path in access.read
        for each in _names_of(path)
        if not is_below(each, own) and each not in bounds.files.listed
    }
    used = {*read, *written, *own, *bounds.files.listed, bounds.folder}
    read |= {
        each
        for each in access.seen_folders
        if not is_below(each, own)
        and not bounds.is_too_wide(each)
        and not any(is_within(other, each) for other in used)
    }
    writable = _places(proposal, written, bounds, is_change=True)
    readable = _places(
        proposal, {each for each in read if not is_below(each, writable)}, bounds, is_change=False
    )
    if readable := [each for each in readable if not is_below(each, writable)]:
        proposal.permissions[READ_FILES] = readable
    if writable:
        proposal.permissions[WRITE_FILES] = writable
    if others:
        proposal.permissions[EXECUTE] = []
        proposal.note("It executed other programs", others)
    proposal.note(
        "It connected without the proxy, which a confined server cannot", access.connected
    )
    if not access.is_complete:
        proposal.notes.append("The recording is not complete, so permissions may be missing.")


def _places(
    proposal: PermissionProposal, names: set[str], bounds: LearningBounds, *, is_change: bool
) -> list[str]:
    """Return the folders to grant for these files, or single files where a folder is too wide."""
    ours = {each for each in names if is_within(each, bounds.state)}
    proposal.note("It used files of Comity itself, which it never gets", ours)
    found: set[str] = set()
    too_wide: set[str] = set()
    for name in names - ours:
        is_folder = not is_change and Path(name).is_dir()
        place = name if is_folder else str(Path(name).parent)
        if not bounds.is_too_wide(place):
            found.add(place)
        elif is_folder:
            too_wide.add(place)
        elif Path(name).exists() and not bounds.is_too_wide(name):
            found.add(name)
    proposal.note("It listed folders that are too wide to grant", too_wide)
    unnamed = {each for each in found if not _can_be_written(each)}
    proposal.note("A configuration cannot name these places", unnamed)
    return _collapse(found - unnamed, bounds.is_too_wide)


def _collapse(places: set[str], is_too_wide: Callable[[str], bool]) -> list[str]:
    """Return the outermost places, where many folders side by side become their parent."""
    while True:
        outer = {
            each
            for each in places
            if not any(is_within(each, other) for other in places if other != each)
        }
        beside: defaultdict[str, set[str]] = defaultdict(set)
        for each in outer:
            beside[str(Path(each).parent)].add(each)
        joined = {
            parent
            for parent, inner in beside.items()
            if len(inner) > MAX_FOLDERS_BESIDE and not is_too_wide(parent)
        }
        if not joined:
            return sorted(outer)
        places = outer | joined


def _is_own_program(path: str, bounds: LearningBounds) -> bool:
    own = (bounds.files.program, *bounds.files.executable, "/proc/self/exe")
    return any(each in own for each in _names_of(path))


def _is_bytecode(path: str, own: Iterable[str]) -> bool:
    """Whether Python keeps its own compiled files there. It works without them."""
    return _BYTECODE in Path(path).parts and is_below(path, own)


def _names_of(path: str) -> Iterator[str]:
    """Yield the name that was used, and the name without symbolic links in its folders."""
    yield path
    real = str(Path(os.path.realpath(Path(path).parent), Path(path).name))
    if real != path:
        yield real


def _can_be_written(path: str) -> bool:
    """Whether a configuration can hold the path: as UTF-8, and without control characters."""
    return path.isprintable()
