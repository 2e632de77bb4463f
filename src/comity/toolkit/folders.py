"""Removes folders that programs filled which Comity does not trust."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
