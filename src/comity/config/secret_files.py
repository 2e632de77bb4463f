"""Reads and writes files that hold a secret. No other module opens such a file."""

import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from comity.config.document import SECRET_PREFIX
from comity.errors import Misconfigured

MAX_SECRET_BYTES: Final = 64 * 1024
MOUNTED_SECRETS: Final = (Path("/run/secrets"), Path("/run/credentials"))
"""Where container engines and systemd put secrets.

They choose the mode of these files. A file of Compose has the mode that it has on the host.
Kubernetes and systemd let a group read it. Only root can create these folders.
"""


def read_secret(
    path: str | Path, name: str, *, may_be_shared: bool = False, must_be_own: bool = False
) -> bytes:
    """Return the content of the file, without surrounding white space.

    `name` is the setting, for the message. Raises Misconfigured if the file cannot be read, is too
    long, or is readable for other users of this machine. `may_be_shared` allows the latter, and so
    do the folders in MOUNTED_SECRETS.
    `must_be_own` also refuses a link and a file of another user, for files that Comity wrote.
    """
    file = Path(path).expanduser()
    try:
        # Opening a pipe without a writer would otherwise block forever.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW * must_be_own)
        with os.fdopen(handle, "rb") as opened:
            about = os.fstat(handle)
            found = opened.read(MAX_SECRET_BYTES + 1)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise Misconfigured(f"{name}: {file} cannot be read: {reason}") from None
    if must_be_own and (about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode)):
        raise Misconfigured(f"{name}: {file} belongs to another user, or is no regular file")
    is_mounted = any(file.is_relative_to(folder) for folder in MOUNTED_SECRETS)
    if about.st_mode & 0o077 and not may_be_shared and not is_mounted:
        raise Misconfigured(f"{name}: other users can read {file}; run `chmod 600 {file}`")
    if len(found) > MAX_SECRET_BYTES:
        raise Misconfigured(f"{name}: {file} is too long for a secret")
    return found.strip()


FILE_SUFFIX: Final = "_FILE"


def variable_text(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable, or the content of the file that NAME_FILE names.

    Container engines and service managers give secrets as files. Raises Misconfigured if both are
    set, or if the file cannot be read.
    """
    text, file = environ.get(name), environ.get(name + FILE_SUFFIX)
    if not file:
        return text
    variable = name + FILE_SUFFIX
    if text:
        raise Misconfigured(f"{variable}: {name} is set too; unset one of them")
    try:
        return read_secret(file, variable).decode()
    except UnicodeDecodeError:
        raise Misconfigured(f"{variable}: the file is not UTF-8") from None


class FileVariables(Mapping[str, str]):
    """Environment variables, of which each may be in the file that NAME_FILE names.

    A name with the prefix `secret:` is a secret, which `read_named` returns. Reading one raises
    Misconfigured as `variable_text` does.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        read_named: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._environ = environ
        self._read_named = read_named

    def __getitem__(self, name: str) -> str:
        if name.startswith(SECRET_PREFIX):
            text = self._read_named(name.removeprefix(SECRET_PREFIX))
        else:
            text = variable_text(name, self._environ)
        if text is None:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def write_secret(file: Path, content: bytes, *, keep_existing: bool = False) -> None:
    """Write a file that only this user may read. Other processes see all of it or none.

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
            # A link fails if the name is taken. A rename would replace the file of the other
            # process.
            with suppress(FileExistsError):
                file.hardlink_to(draft)
        else:
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(file.parent)


@contextmanager
def reserve_secret(file: Path) -> Generator[None]:
    """Create an empty file for this user before the secret exists, and remove it on failure.

    A secret that is shown once would be lost if its file could not be written. The caller calls
    `write_secret` inside. Raises OSError, or FileExistsError if the name is taken.
    """
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make the new name durable as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
