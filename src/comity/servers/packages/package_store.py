"""The package store: a folder for each installed package, named by its digest.

A record beside the files of a package lists each of them with its size, times and SHA-256. A
server starts only if its files are those of the record.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from comity.config.files import PACKAGE_FOLDER, prepare_state_folder, state_folder
from comity.config.secret_files import write_secret
from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.installers import INSTALLERS
from comity.servers.packages.model import LockedPackage, PackageRequest
from comity.servers.packages.rules import is_program_name, resolution_digest
from comity.toolkit.folders import remove_folder

MAX_FILES: Final = 200_000
MAX_RECORD_BYTES: Final = 128 * 1024 * 1024
_REQUESTS: Final = "requests"
_FILES: Final = "files"
_RECORD: Final = "record.json"


class FileRecord(msgspec.Struct, frozen=True, array_like=True):
    """One file of a package. `target` is for symbolic links, and the rest for regular files.

    A program can set the modification time of a file, but not its change time.
    """

    size: int = 0
    modified_ns: int = 0
    changed_ns: int = 0
    mode: int = 0
    sha256: str = ""
    target: str = ""


class PackageRecord(msgspec.Struct, frozen=True):
    """An installed package: its digest, and all its files by their relative paths."""

    digest: str
    files: dict[str, FileRecord]


@dataclass(frozen=True, slots=True)
class PackageStore:
    """The installed packages of this user."""

    folder: Path

    def find(self, request: PackageRequest) -> LockedPackage | None:
        """Return the package that this request was resolved to, if it was."""
        try:
            data = self._request_file(request).read_bytes()
            return msgspec.json.decode(data, type=LockedPackage)
        except (OSError, msgspec.DecodeError):
            return None

    async def resolve(self, request: PackageRequest) -> LockedPackage:
        """Resolve a request anew at its index, and remember the answer.

        Raises Unavailable if the index does not answer, and Misconfigured for a package that
        cannot be pinned.
        """
        with self._draft() as draft:
            try:
                found = await INSTALLERS[request.index].resolve(request, draft)
            except (OSError, ValueError, KeyError, TypeError):
                raise Unavailable(f"the resolution of {request.name} cannot be read") from None
        self._prepare(_REQUESTS)
        write_secret(self._request_file(request), msgspec.json.encode(found))
        return found

    async def install(self, package: LockedPackage) -> None:
        """Install a package, unless the store has it. Raises Unavailable or Misconfigured."""
        if resolution_digest(package.resolution) != package.digest:
            raise Misconfigured(
                f"the resolution of {package.name} is not the one of its digest; someone changed it"
            )
        if self._home(package).exists():
            return
        with self._draft() as draft:
            files = draft / _FILES
            files.mkdir()
            await INSTALLERS[package.index].install(package, files)
            await asyncio.to_thread(_seal, draft, package.digest)
            # Another process may have installed the same package in the meantime.
            with contextlib.suppress(OSError):
                draft.rename(self._home(package))
        if not self._home(package).exists():
            raise Unavailable(f"{package.name} cannot be moved to {self._home(package)}")

    async def reinstall(self, package: LockedPackage) -> None:
        """Replace the files of a package. Raises Unavailable or Misconfigured."""
        await asyncio.to_thread(remove_folder, self._home(package))
        await self.install(package)

    def command(self, package: LockedPackage, request: PackageRequest) -> tuple[str, ...]:
        """Return the command that a request runs. Raises Misconfigured if there is none."""
        installer = INSTALLERS[package.index]
        name = request.program or installer.default_program(package)
        found = installer.programs(self._home(package) / _FILES) / name
        # The names of default programs are part of a resolution. A path would lead elsewhere.
        if not is_program_name(name) or not found.is_file():
            raise Misconfigured(f"{package.name} {package.version} has no program {name}")
        return (*installer.interpreter(found), str(found), *request.args)

    def find_changes(self, package: LockedPackage, *, reads_all: bool = False) -> list[str]:
        """Return how the files of a package differ from its record; empty if they do not.

        A file with the size and times of its record counts as unchanged, unless `reads_all`.
        """
        home = self._home(package)
        try:
            if not all(_is_own_folder(each) for each in (home, home / _FILES)):
                return [f"{home} is no folder of this user"]
            record = _read_record(home / _RECORD)
            if record.digest != package.digest:
                return [f"{home / _RECORD} belongs to another package"]
            return list(_changes(home / _FILES, record.files, reads_all=reads_all))
        except (OSError, msgspec.DecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "its record is damaged"
            return [f"{home} cannot be read: {why}"]

    def has(self, package: LockedPackage) -> bool:
        return self._home(package).exists()

    def _home(self, package: LockedPackage) -> Path:
        return self.folder / package.digest.removeprefix("sha256:")

    def _request_file(self, request: PackageRequest) -> Path:
        asked = msgspec.json.encode((request.index, request.requirements, request.python))
        return self.folder / _REQUESTS / f"{hashlib.sha256(asked).hexdigest()}.json"

    @contextlib.contextmanager
    def _draft(self) -> Generator[Path]:
        self._prepare()
        draft = self.folder / f".new-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o700)
        try:
            yield draft
        finally:
            remove_folder(draft)

    def _prepare(self, *names: str) -> None:
        if self.folder == state_folder() / PACKAGE_FOLDER:
            prepare_state_folder(PACKAGE_FOLDER, *names)
        else:
            self.folder.joinpath(*names).mkdir(mode=0o700, parents=True, exist_ok=True)


def user_package_store() -> PackageStore:
    return PackageStore(state_folder() / PACKAGE_FOLDER)


def _seal(draft: Path, digest: str) -> None:
    """Make the files read-only, then write the record of them."""
    root = draft / _FILES
    for name, about in _walk(root):
        if stat.S_ISREG(about.st_mode):
            (root / name).chmod(stat.S_IMODE(about.st_mode) & 0o555)
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).chmod(0o500)
    files = {name: _record_of(root / name, about) for name, about in _walk(root)}
    (draft / _RECORD).write_bytes(msgspec.json.encode(PackageRecord(digest, files)))


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path of everything that is no folder. It follows no symbolic link.

    It runs at each start for thousands of files, so it makes no `Path` of them.
    """
    begin, waiting, count = len(str(root)) + 1, [str(root)], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                count += 1
                if count > MAX_FILES:
                    raise Misconfigured(f"a package has more than {MAX_FILES} files")
                yield entry.path[begin:], entry.stat(follow_symlinks=False)


def _record_of(path: Path, about: os.stat_result) -> FileRecord:
    if stat.S_ISLNK(about.st_mode):
        return FileRecord(target=str(path.readlink()))
    if not stat.S_ISREG(about.st_mode):
        raise Misconfigured(f"{path.name} in a package is no regular file")
    return FileRecord(*_facts_of(about), sha256=_sha256(path))


def _facts_of(about: os.stat_result) -> tuple[int, int, int, int]:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, stat.S_IMODE(about.st_mode)


def _sha256(path: Path) -> str:
    # A pipe that took the place of a file would otherwise block for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _changes(root: Path, recorded: Mapping[str, FileRecord], *, reads_all: bool) -> Iterator[str]:
    missing = set(recorded)
    for name, about in _walk(root):
        known = recorded.get(name)
        if known is None:
            yield f"{name} was added"
            continue
        missing.discard(name)
        if not _is_same(root, name, about, known, reads_all=reads_all):
            yield f"{name} was changed"
    yield from (f"{name} is missing" for name in sorted(missing))


def _is_same(
    root: Path, name: str, about: os.stat_result, known: FileRecord, *, reads_all: bool
) -> bool:
    if stat.S_ISLNK(about.st_mode):
        return str((root / name).readlink()) == known.target
    if not stat.S_ISREG(about.st_mode) or known.target:
        return False
    facts = _facts_of(about)
    if not reads_all and facts == (known.size, known.modified_ns, known.changed_ns, known.mode):
        return True
    has_same_shape = (facts[0], facts[3]) == (known.size, known.mode)
    return has_same_shape and _sha256(root / name) == known.sha256


def _is_own_folder(path: Path) -> bool:
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def _read_record(file: Path) -> PackageRecord:
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        return msgspec.json.decode(stream.read(MAX_RECORD_BYTES), type=PackageRecord)
