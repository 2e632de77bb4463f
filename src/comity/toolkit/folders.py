"""Measures and removes folders that programs filled which Comity does not trust."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES: Final = 512
_LEAST_BYTES: Final = 16 * 1024
"""The least that an entry counts for, so that a size bounds the number of entries too."""
_UNREADABLE: Final = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def holds_more(folder: Path, most: int) -> bool:
    """Whether the files of a folder take more bytes than `most` on the disk.

    A folder inside that cannot be read, or whose path is too long to open, counts as more: it may
    hold anything. Entries that disappear meanwhile do not count. This follows no link it finds.
    """
    waiting, left = [str(folder)], most
    while waiting and left >= 0:
        try:
            size, inner = _measure_folder(waiting.pop(), left)
        except OSError as refused:
            if refused.errno in _UNREADABLE:
                return True
            continue
        left -= size
        waiting += inner
    return left < 0


def _measure_folder(place: str, most: int) -> tuple[int, list[str]]:
    """Return the bytes of the entries of a folder, and its folders. Stop above `most` bytes."""
    size, inner = 0, list[str]()
    opened = os.open(place, _FOLDER)
    try:
        with os.scandir(opened) as listed:
            for entry in listed:
                with suppress(FileNotFoundError):
                    held = entry.stat(follow_symlinks=False)
                    size += max(held.st_blocks * _BLOCK_BYTES, _LEAST_BYTES)
                    if stat.S_ISDIR(held.st_mode):
                        inner.append(f"{place}/{entry.name}")
                if size > most:
                    break
    finally:
        os.close(opened)
    return size, inner


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything inside, at any depth and of any mode.

    It follows no symbolic link, and leaves what the system does not let it remove. Folders move to
    the outermost one first: a path can be longer than a call takes, and a recursion deeper than
    Python allows.
    """
    with suppress(OSError):
        if folder.is_symlink():
            folder.unlink()
            return
        top = _open_folder(str(folder))
        try:
            waiting = _empty_folder(top, top)
            while waiting:
                waiting += _remove_inner(waiting.pop(), top)
        finally:
            os.close(top)
        folder.rmdir()


def _remove_inner(name: str, top: int) -> list[str]:
    """Remove a folder of the outermost one. Return the new names of its own folders."""
    moved: list[str] = []
    with suppress(OSError):
        inner = _open_folder(name, top)
        try:
            moved = _empty_folder(inner, top)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    return moved


def _empty_folder(folder: int, top: int) -> list[str]:
    """Remove the files of a folder, and move its folders to the outermost one."""
    with os.scandir(folder) as listed:
        entries = list(listed)
    found: list[str] = []
    for entry in entries:
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                continue
            name = entry.name
            if folder != top:
                # Only a folder that may be written can move.
                os.close(_open_folder(entry.name, folder))
                name = f"removed-{secrets.token_hex(16)}"
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            found.append(name)
    return found


def _open_folder(name: str, parent: int | None = None) -> int:
    """Open a folder and make it accessible to its owner."""
    try:
        opened = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _make_readable(name, parent)
        opened = os.open(name, _FOLDER, dir_fd=parent)
    with suppress(OSError):
        os.fchmod(opened, 0o700)
    return opened


def _make_readable(name: str, parent: int | None) -> None:
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    # Linux has no call that changes a mode and follows no link. This name is the open folder's.
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{held}").chmod(0o700)
    finally:
        os.close(held)
