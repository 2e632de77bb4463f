"""The permissions that a sandbox enforces, and the folders and hosts that they can be for."""

import os
import stat
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import comity
from comity.config.files import PACKAGE_FOLDER, state_folder
from comity.errors import INVALID_PARAMS, MalformedMessage, Misconfigured, Unavailable
from comity.policy.risk import folder_problem, program_problem
from comity.servers.sandbox.egress_rules import ANY_HOST, parse_reach
from comity.servers.sandbox.model import (
    EXECUTE,
    REACH_NETWORK,
    READ_FILES,
    WRITE_FILES,
    FolderHandle,
    SandboxAccess,
)

ANY_PROGRAM: Final = "*"
_MAX_LINKS: Final = 40
# The packages of Comity, and its virtual environment if it has one.
_CODE_FOLDERS: Final = (
    Path(comity.__file__).resolve().parents[1],
    *((Path(sys.prefix).resolve(),) if sys.prefix != sys.base_prefix else ()),
)


def read_reach(permission: str, places: tuple[str, ...]) -> tuple[str, ...]:
    """Return the places of a permission in their stored form.

    Raises MalformedMessage for a place that no server can get, and for a permission without places.
    """
    if permission == REACH_NETWORK:
        return tuple(_read_host(place) for place in places)
    if permission == EXECUTE:
        return tuple(_read_program(place) for place in places)
    if permission not in (READ_FILES, WRITE_FILES):
        raise MalformedMessage(
            f"{permission:.80} has no reach: only {READ_FILES}, {WRITE_FILES}, {REACH_NETWORK} and "
            f"{EXECUTE} are for folders, hosts or programs; approve it without a reach",
            INVALID_PARAMS,
        )
    for place in places:
        problem = folder_problem(place)
        if problem is not None:
            raise MalformedMessage(f"the folder {place!r:.200} {problem}", INVALID_PARAMS)
        problem = own_files_problem(place)
        if problem is not None:
            raise MalformedMessage(problem, INVALID_PARAMS)
    return places


def _read_host(place: str) -> str:
    if place == ANY_HOST:
        return place
    try:
        target, is_wildcard = parse_reach(place)
    except Misconfigured as mistake:
        raise MalformedMessage(str(mistake), INVALID_PARAMS) from None
    return f"*.{target}" if is_wildcard else str(target)


def _read_program(place: str) -> str:
    problem = program_problem(place)
    if problem is None and place != ANY_PROGRAM and not _is_program(Path(place)):
        problem = "is no program that this user may execute"
    if problem is not None:
        raise MalformedMessage(f"the program {place!r:.200} {problem}", INVALID_PARAMS)
    return place


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def own_files_problem(place: str) -> str | None:
    """Return why no server may get a folder: it holds the tokens of Comity, or None."""
    own, folder = state_folder().resolve(), Path(place).expanduser().resolve()
    if own.is_relative_to(folder):
        return f"{place} holds files of Comity itself; name a folder inside of it"
    if folder.is_relative_to(own):
        return f"{place} belongs to Comity itself; name another folder"
    return None


def program_files_problem(place: str) -> str | None:
    """Return why a place is no part of a server's program, or None. The package store may be."""
    real = Path(place).resolve()
    # A process may have no home folder at all.
    with suppress(RuntimeError):
        if Path.home().resolve().is_relative_to(real):
            return f"{place} holds the home folder; move the program to a folder of its own"
    if real.is_relative_to((state_folder() / PACKAGE_FOLDER).resolve()):
        return None
    return own_files_problem(place)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it, by the words of both."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_below(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of these places or below one of them."""
    return any(is_within(path, each) for each in places)


def exchange_problem(program: str, writable: Collection[str]) -> str | None:
    """Return why no server may execute a granted program, or None.

    A server that may write to its folder could put a link to a file of others in its place.
    """
    if is_below(program, writable) or follow_links(program, writable)[1] is not None:
        return f"{program} is in a folder that a server may write to; name another program"
    return None


def without_nested(places: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
    """Return the places that are not inside of one of the folders, nor such a folder.

    A server that may write to a folder could put a link to elsewhere in the place of an inner one.
    """
    found: list[str] = []
    for each in sorted(set(places)):
        if not is_below(each, (*folders, *found)):
            found.append(each)
    return tuple(found)


def follow_links(path: str, folders: Iterable[str]) -> tuple[Path, str | None]:
    """Follow the symbolic links on the way to a path, but none inside of the folders.

    Return where that leads, and the first link inside of a folder, where it stopped.
    """
    real = [str(Path(each).resolve()) for each in folders]
    here, waiting, hops = Path("/"), list(reversed(Path(path).parts)), 0
    while waiting:
        part = waiting.pop()
        # An absolute part replaces the path.
        at = here.parent if part == ".." else here / part
        if not at.is_symlink():
            here = at
            continue
        hops += 1
        if is_below(str(here), real) or hops > _MAX_LINKS:
            return here, str(at)
        waiting += reversed(at.readlink().parts)
    return here, None


def write_problem(place: str, files: Iterable[Path]) -> str | None:
    """Return why no server may write to a place: it could change Comity, or None.

    `files` are the configuration files and the store of the gateway.
    """
    folder = Path(place).expanduser().resolve()
    for file in files:
        # Who can replace a link decides what is read, and so does who can write to its target.
        for path in (file.resolve(), file.parent.resolve() / file.name):
            if path.is_relative_to(folder):
                return f"{place} holds the configuration of Comity; name a folder inside of it"
    for code in _CODE_FOLDERS:
        if code.is_relative_to(folder) or folder.is_relative_to(code):
            return f"{place} holds the programs of Comity; name another folder"
    return None


def lost_permissions(before: SandboxAccess, after: SandboxAccess) -> list[str]:
    """Return the permissions that have lost a folder, a host or the execution of programs."""
    lost = {
        READ_FILES: without_nested(before.readable, (*after.readable, *after.writable)),
        WRITE_FILES: without_nested(before.writable, after.writable),
        REACH_NETWORK: {*before.hosts} - {*after.hosts},
        EXECUTE: not after.may_execute
        and (before.may_execute or not {*before.programs} <= {*after.programs}),
    }
    return [name for name, is_lost in lost.items() if is_lost]


def expand_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return full paths: `~` is the home directory, and the rest is in the current folder."""
    return tuple(str(Path(each).expanduser().absolute()) for each in folders)


class FolderHandles:
    """The open folders of one start, by the granted place. Places that do not exist are absent."""

    def __init__(self, by_place: dict[str, FolderHandle]) -> None:
        self.by_place = by_place

    def close(self) -> None:
        while self.by_place:
            _, folder = self.by_place.popitem()
            os.close(folder.descriptor)


def open_folders(access: SandboxAccess, writable: Collection[str]) -> FolderHandles:
    """Open the places of a grant.

    No link in a folder of `writable` is followed, because a server could have made it, and could
    exchange it at any moment. Raises Unavailable for such a link. Only the levels of Linux need
    open folders.
    """
    found = FolderHandles({})
    try:
        for place in (*access.readable, *access.writable, *access.listed):
            real = _follow_safe_links(place, writable)
            if sys.platform == "linux" and place not in found.by_place:
                with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                    found.by_place[place] = _open_without_links(real)
    except BaseException:
        found.close()
        raise
    return found


def _follow_safe_links(place: str, writable: Collection[str]) -> Path:
    real, link = follow_links(place, writable)
    if link is not None:
        raise Unavailable(
            f"{place} leads through {link}, a link in a folder that a server may write to"
        )
    return real


def _open_without_links(path: Path) -> FolderHandle:
    """Open a path part by part. Raise Unavailable if one of the parts is a link by now."""
    held = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        for part in path.parts[1:]:
            inner = _open_part(part, held)
            os.close(held)
            held = inner
        status = os.fstat(held)
        # The path is that of what is open, whatever has its name by now.
        real = str(Path(f"/proc/self/fd/{held}").readlink())
    except BaseException:
        os.close(held)
        raise
    return FolderHandle(real, status.st_dev, status.st_ino, held)


def _open_part(name: str, folder: int) -> int:
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(opened).st_mode):
        os.close(opened)
        raise Unavailable(f"{name!r:.200} was exchanged for a link while it was opened")
    return opened
