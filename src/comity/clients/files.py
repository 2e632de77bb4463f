"""The configuration files of MCP clients: read, edited in place, and restored."""

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from comity.clients.applications import CLIENTS, NAME, ClientApplication
from comity.clients.formats import Entry, Section
from comity.clients.server_import import is_comity, is_server
from comity.config.files import prepare_state_folder, state_folder
from comity.config.secret_files import write_secret
from comity.errors import Misconfigured

BACKUP: Final = ".comity-backup"
FILE_BYTES: Final = 32 * 1024 * 1024
FOR_ONE_PERSON: Final = 0o600
"""The mode of new files, because a configuration may hold secrets."""

RECORDS: Final = "clients"
"""The folder of the records, in the state folder. They may hold secrets, as the files do."""

MAX_RECORD_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MovedServer:
    """A server that Comity took out of a client's file, as it was written there."""

    section: Section
    name: str
    raw: str


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """The state of a file before Comity, and how to recognise the state after.

    `before` is None if there was no file. `mode` is the mode before, if Comity tightened it because
    of a key. `after` is the digest of what Comity wrote.
    """

    path: str
    before: str | None
    mode: int | None
    after: str
    moved: tuple[MovedServer, ...] = ()


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find_record(path: Path) -> ClientRecord | None:
    """Return the record of the file at this resolved path, or None if there is no valid one."""
    try:
        with (state_folder() / RECORDS / _file_name(path)).open("rb") as stream:
            said: object = json.loads(stream.read(MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError, Misconfigured):
        return None
    if not isinstance(said, dict):
        return None
    fields = cast("dict[str, Any]", said)
    try:
        moved = tuple(
            MovedServer(tuple(each["section"]), each["name"], each["raw"])
            for each in fields.pop("moved")
        )
        return ClientRecord(**fields, moved=moved)
    except (KeyError, TypeError):
        return None


def save_record(record: ClientRecord) -> None:
    """Write the record, before the file itself changes. Raises Misconfigured."""
    file = prepare_state_folder(RECORDS) / _file_name(Path(record.path))
    try:
        write_secret(file, json.dumps(asdict(record)).encode())
    except OSError as problem:
        raise Misconfigured(f"{file} cannot be written: {problem.strerror}") from None


def delete_record(path: Path) -> None:
    with suppress(OSError, Misconfigured):
        (state_folder() / RECORDS / _file_name(path)).unlink()


def _file_name(path: Path) -> str:
    return digest_of(str(path))[:32] + ".json"


@dataclass(frozen=True, slots=True)
class ClientServer:
    """A server in a client's file, with the section that it is in."""

    section: Section
    name: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConnectPlan:
    """The change of `connect`: the file before and after, and the record for `disconnect`."""

    current: str | None
    text: str
    mode: int
    record: ClientRecord
    is_changed: bool

    @property
    def moved(self) -> list[str]:
        return [each.name for each in self.record.moved]


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A configuration file of a client, for all projects of a user or for one."""

    client: ClientApplication
    path: Path
    in_project: bool = False

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    def text(self) -> str:
        """Return the content of the file; empty if there is none. Raises Misconfigured."""
        return read_text(self.path) if self.exists else ""

    def entries(self) -> dict[str, Any]:
        """Return the servers by name. Raises Misconfigured if the file cannot be read."""
        text = self.text()
        return {each.name: each.entry for each in self._read(text, self._section(text))}

    def servers(self) -> list[ClientServer]:
        """Return the servers of the file, and those that Comity took out of it.

        Claude Code keeps the servers for one folder in its user's file too.
        """
        text = self.text()
        sections = [self._section(text)]
        if self.client.name == "claude-code" and not self.in_project:
            sections.append(("projects", str(Path.cwd()), *self.client.section))
        found = [each for section in sections for each in self._read(text, section)]
        known = {(each.section, each.name) for each in found}
        for moved in _moved_by(find_record(_resolved(self.path))):
            if moved.section in sections and (moved.section, moved.name) not in known:
                put_back = self.client.format.put_back("", moved.section, moved.name, moved.raw)
                found += self._read(put_back, moved.section)
        return found

    def plan_connect(self, entry: Entry, move: Collection[ClientServer] = ()) -> ConnectPlan:
        """Return how Comity gets into the file, and how these servers get out of it.

        Servers that an earlier `connect` moved stay moved. Raises Misconfigured.
        """
        current = self.text() if self.exists else None
        record = find_record(_resolved(self.path))
        edit = self.client.format
        try:
            before = self._restored(current, record)
            text = self.client.new_file if before is None else before
            places = {(each.section, each.name): None for each in move}
            places |= {(each.section, each.name): None for each in _moved_by(record)}
            moved: list[MovedServer] = []
            for section, name in places:
                text, raw = edit.take(text, section, name)
                if raw:
                    moved.append(MovedServer(section, name, raw))
            text = edit.put(text, self._section(text), NAME, entry)
        except Misconfigured as problem:
            raise self._by_hand(problem, entry) from None
        mode = record.mode if record and record.mode is not None else _mode_of(self.path)
        tightened = mode if self.client.key_of(entry) else None
        real = str(_resolved(self.path))
        new = ClientRecord(real, before, tightened, digest_of(text), tuple(moved))
        is_same = self.entries().get(NAME) == dict(entry) and len(moved) == len(_moved_by(record))
        written = FOR_ONE_PERSON if mode is None or self.client.key_of(entry) else mode
        return ConnectPlan(current, text, written, new, not is_same)

    def connect(self, plan: ConnectPlan) -> None:
        """Write what was planned. Raises Misconfigured, also if the file changed meanwhile."""
        if not plan.is_changed:
            return
        if (self.text() if self.exists else None) != plan.current:
            raise Misconfigured(f"{self.path} was changed by another program; run this again")
        save_record(plan.record)
        write_whole(self.path, plan.text, plan.mode)

    def disconnect(self) -> str:
        """Remove Comity from the file, and return a description of what was done.

        The result is empty if the file has no such entry. Raises Misconfigured.
        """
        current = self.text() if self.exists else None
        real = _resolved(self.path)
        record = find_record(real)
        if current is None:
            return ""
        missing = [
            each.name
            for each in _moved_by(record)
            if each.name not in self._parse(current, each.section)
        ]
        if NAME not in self.entries() and not missing:
            return ""
        try:
            rest = self._restored(current, record, leaves=True)
        except Misconfigured as problem:
            raise self._by_hand(problem, self.entries().get(NAME, {})) from None
        was_missing = record is None or record.before is None
        if rest is None or (was_missing and self._is_unused(rest)):
            real.unlink()
            done = "Comity had created the file, and it is deleted"
        else:
            mode = record.mode if record and record.mode is not None else file_mode(self.path)
            write_whole(self.path, rest, mode)
            done = _describe_rest(record, current, missing)
        delete_record(real)
        return done

    def _is_unused(self, text: str) -> bool:
        rest = text.removeprefix(self.client.new_file) if self.client.new_file else text
        return self.client.format.is_empty(rest, self._section(text))

    def _restored(
        self, current: str | None, record: ClientRecord | None, *, leaves: bool = False
    ) -> str | None:
        """Return the text without Comity and with the servers that Comity moved.

        That is the text before Comity, unless the file was changed since. Another server that is
        named as Comity stays, unless `leaves` says that it has to go.
        """
        if current is None:
            return None
        if record is not None and record.after == digest_of(current):
            return record.before
        edit, text, section = self.client.format, current, self._section(current)
        entry = edit.read(text, section).get(NAME)
        is_ours = leaves or record is not None
        if is_ours or (isinstance(entry, dict) and is_comity(cast("Entry", entry))):
            text, _ = edit.take(text, section, NAME)
        for moved in _moved_by(record):
            if moved.name not in edit.read(text, moved.section):
                text = edit.put_back(text, moved.section, moved.name, moved.raw)
        return text

    def _section(self, text: str) -> Section:
        """Return where the servers are in this text."""
        other = self.client.other_section
        if other:
            found = self._parse(text, other[:-1]).get(other[-1])
            if isinstance(found, dict) and not is_server(cast("Entry", found)):
                return other
        return self.client.section

    def _read(self, text: str, section: Section) -> list[ClientServer]:
        return [
            ClientServer(section, name, cast("dict[str, Any]", entry))
            for name, entry in self._parse(text, section).items()
            if isinstance(entry, dict)
        ]

    def _parse(self, text: str, section: Section) -> dict[str, Any]:
        try:
            return self.client.format.read(text, section)
        except Misconfigured as problem:
            raise Misconfigured(f"{self.path}: {problem}") from None

    def _by_hand(self, problem: Misconfigured, entry: Entry) -> Misconfigured:
        reason = str(problem).removeprefix(f"{self.path}: ")
        shown = self.client.hide_key(entry)
        pasted = self.client.format.render(self.client.section, NAME, shown)
        return Misconfigured(
            f"Comity did not change {self.path}, because it could not keep the rest of the file "
            f"({reason}). Change the file by hand; this is the entry:\n\n{pasted}"
        )


def _moved_by(record: ClientRecord | None) -> tuple[MovedServer, ...]:
    return record.moved if record else ()


def _describe_rest(record: ClientRecord | None, current: str, put_back: list[str]) -> str:
    if record is None:
        return "only its entry was removed, because there is no record of the file before"
    if record.after == digest_of(current):
        return "it is exactly as it was before"
    back = f", and put back: {', '.join(put_back)}" if put_back else ""
    return f"the file was changed since, so only its entry was removed{back}"


def user_files(environ: Mapping[str, str]) -> Iterator[ClientFile]:
    """Yield the file of every client that exists for this platform, even if it is missing."""
    for client in CLIENTS:
        path = client.user_file(environ)
        if path is not None:
            yield ClientFile(client, path)


def project_files(folder: Path) -> Iterator[ClientFile]:
    for client in CLIENTS:
        if client.project:
            yield ClientFile(client, folder / client.project, in_project=True)


def read_text(path: Path) -> str:
    """Return the content of a file. Raises Misconfigured with the name of the file."""
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
    """Write the file atomically: a temporary file in the same folder replaces it.

    A symbolic link stays, and its target is written, because many users keep settings in a
    repository. Raises Misconfigured.
    """
    real = _resolved(path)
    if real.exists() and not real.is_file():
        raise Misconfigured(f"{path} is no regular file, and is not changed")
    try:
        data = text.encode()
        real.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    except UnicodeEncodeError:
        raise Misconfigured(f"{path} would not be UTF-8, and is not changed") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            # Sync before the rename, so that a crash cannot leave an empty file.
            os.fsync(stream.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(real)
    except OSError as problem:
        with suppress(OSError):
            Path(beside).unlink(missing_ok=True)
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None


def file_mode(path: Path) -> int:
    """Return the mode that the file has, or the one for new files."""
    mode = _mode_of(path)
    return FOR_ONE_PERSON if mode is None else mode


def _resolved(path: Path) -> Path:
    """Return the file behind all links. Raises Misconfigured if they lead in a circle."""
    try:
        real = path.resolve()
        # Only Python 3.12 refuses a circle here. Later versions return a link of the circle.
        if not _is_in_circle(real):
            return real
    except (OSError, RuntimeError):
        pass
    raise Misconfigured(f"the links of {path} lead in a circle")


def _is_in_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as problem:
        return problem.errno == errno.ELOOP
    return False


def _mode_of(path: Path) -> int | None:
    """Return the mode of the file; None if there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
