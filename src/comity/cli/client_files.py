"""The files in which clients keep their servers: read, written whole or not at all, and undone.

Beside a file that is changed lies its backup, as long as Comity stands in it.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comity.cli.clients import CLIENTS, Client, Shape
from comity.cli.edits import (
    Entry,
    entries_of,
    holds_nothing,
    snippet,
    with_entry,
    without_entry,
)
from comity.cli.importing import is_comity
from comity.wire.errors import Misconfigured

NAME: Final = "comity"
BACKUP: Final = ".comity-backup"
FILE_BYTES: Final = 32 * 1024 * 1024
FOR_ONE_PERSON: Final = 0o600


@dataclass(frozen=True, slots=True)
class ClientFile:
    """One file of one client: for all of a user's projects, or for one."""

    client: Client
    path: Path
    in_project: bool = False

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    @property
    def backup(self) -> Path:
        real = self.path.resolve()
        return real.with_name(real.name + BACKUP)

    def text(self) -> str:
        """What stands in it; nothing where there is no file. Raises Misconfigured."""
        return read_text(self.path) if self.exists else ""

    def entries(self) -> dict[str, Any]:
        """Its servers by name; raises Misconfigured where it cannot be read."""
        try:
            found = entries_of(self.text(), self.client.shape, self.client.key)
        except Misconfigured as problem:
            raise Misconfigured(f"{self.path}: {problem}") from None
        return {name: entry for name, entry in found.items() if isinstance(entry, dict)}

    def connect(self, entry: Entry) -> bool:
        """Put Comity into it; whether that changed anything."""
        before = self.text()
        ours = self._edited(lambda: with_entry(before, *self._place, entry), entry)
        if self.entries().get(NAME) == dict(entry):
            return False
        if before and not is_comity(self.entries().get(NAME, {})):
            # Only what was there before Comity is worth coming back to.
            write_whole(self.backup, before, _mode_of(self.path))
        write_whole(self.path, ours, _mode_of(self.path))
        return True

    def disconnect(self) -> str:
        """Take Comity out of it again; how that was done, in words."""
        now, entry = self.text(), self.entries().get(NAME)
        if entry is None:
            return ""
        with suppress(OSError, Misconfigured):
            before = read_text(self.backup)
            if with_entry(before, *self._place, entry) == now:
                write_whole(self.path, before, _mode_of(self.path))
                self.backup.unlink()
                return "it is as it was before"
        rest = self._edited(lambda: without_entry(now, *self._place), entry)
        if not self.backup.exists() and holds_nothing(rest, self.client.shape, self.client.key):
            self.path.resolve().unlink()
            return "the file held nothing else, and is gone"
        write_whole(self.path, rest, _mode_of(self.path))
        kept = f"; the backup {self.backup.name} is kept" if self.backup.exists() else ""
        return f"the entry is gone, and the rest is as it stands now{kept}"

    @property
    def _place(self) -> tuple[Shape, str, str]:
        return self.client.shape, self.client.key, NAME

    def _edited(self, edit: Callable[[], str], entry: Entry) -> str:
        try:
            return edit()
        except Misconfigured as problem:
            pasted = snippet(self.client.shape, self.client.key, NAME, entry)
            raise Misconfigured(
                f"{self.path} is left alone, because it could not be kept as you wrote it "
                f"({problem}). Change it by hand; this is the entry:\n\n{pasted}"
            ) from None


def user_files(environ: Mapping[str, str]) -> Iterator[ClientFile]:
    """The file of every client that runs on this kind of machine, whether or not it is there."""
    for client in CLIENTS:
        path = client.user_file(environ)
        if path is not None:
            yield ClientFile(client, path)


def project_files(folder: Path) -> Iterator[ClientFile]:
    for client in CLIENTS:
        if client.project:
            yield ClientFile(client, folder / client.project, in_project=True)


def read_text(path: Path) -> str:
    """A file of somebody's settings; raises Misconfigured, naming it."""
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES + 1)
        if len(data) > FILE_BYTES:
            raise Misconfigured(f"{path} has over {FILE_BYTES} bytes, and is not read")
        return data.decode()
    except UnicodeDecodeError:
        raise Misconfigured(f"{path} is not UTF-8, and is not read") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be read: {problem.strerror}") from None


def write_whole(path: Path, text: str, mode: int = FOR_ONE_PERSON) -> None:
    """Write all of it or nothing: into a file beside, which then takes the other's place.

    A link (many keep their settings in a repository) stays one; what it leads to is written.
    """
    real = path.resolve()
    try:
        data = text.encode()
        real.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    except UnicodeEncodeError:
        raise Misconfigured(f"{path} would not be UTF-8, and is left alone") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(real)
    except OSError as problem:
        Path(beside).unlink(missing_ok=True)
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None


def _mode_of(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return FOR_ONE_PERSON
