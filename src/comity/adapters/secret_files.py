"""Reads and writes files that hold a secret: the one way, for this user alone."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from comity.wire.errors import Misconfigured

MAX_SECRET_BYTES: Final = 64 * 1024


def read_secret(path: str | Path, name: str) -> bytes:
    """What is in the file, without white space around it.

    `name` is the setting, for the message. Raises Misconfigured where the file cannot be read, is
    too long, or may be read by other users of this machine.
    """
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            found = opened.read(MAX_SECRET_BYTES + 1)
            is_shared = os.fstat(opened.fileno()).st_mode & 0o077
    except OSError as problem:
        because = problem.strerror or type(problem).__name__
        raise Misconfigured(f"{name}: {file} cannot be read: {because}") from None
    if is_shared:
        raise Misconfigured(f"{name}: other users can read {file}; run `chmod 600 {file}`")
    if len(found) > MAX_SECRET_BYTES:
        raise Misconfigured(f"{name}: {file} is too long for a secret")
    return found.strip()


def write_secret(file: Path, content: bytes, *, keep_existing: bool = False) -> None:
    """Write a file that this user alone may read; other processes see all of it or none.

    With `keep_existing`, a file that another process wrote first stays as it is. Raises OSError.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        if keep_existing:
            # A link fails where the name is taken; a rename would replace the other's file.
            with suppress(FileExistsError):
                file.hardlink_to(draft)
        else:
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
