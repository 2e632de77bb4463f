"""The configuration files of MCP clients: read, edited in place, and restored."""

import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from comity.clients.applications import CLIENTS, ClientApplication, Shape
from comity.clients.server_import import is_comity, toml_key, toml_value
from comity.errors import Misconfigured

# Strings come first, since comment marks and commas inside them do not count. An unterminated
# comment extends to the end of the file.
_TEXT: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(_TEXT + r"|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])")


def plain_json(text: str) -> str:
    """Return the document without comments and trailing commas. Line numbers stay the same."""
    return _LAST_COMMA.sub(_kept, _COMMENT.sub(_kept, text))


def _kept(match: re.Match[str]) -> str:
    token = match.group()
    return token if token.startswith('"') else "\n" * token.count("\n") or " "


def read_table(text: str, *, strictly: bool) -> dict[str, Any]:
    """Return the object in a JSON text; empty for an empty text. Raises Misconfigured.

    `strictly` refuses what a rewrite would lose: comments and duplicate keys. Errors drop their
    causes, because those contain the text and so its secrets.
    """
    stripped = text.removeprefix("\ufeff")
    if not stripped.strip():
        return {}
    try:
        found = json.loads(
            stripped if strictly else plain_json(stripped),
            object_pairs_hook=_unique if strictly else dict,
        )
    except json.JSONDecodeError as problem:
        if strictly and read_table(text, strictly=False):
            raise Misconfigured("it has comments, or commas that JSON has not") from None
        raise Misconfigured(f"it is not JSON at line {problem.lineno}: {problem.msg}") from None
    except RecursionError:
        raise Misconfigured("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise Misconfigured("it holds no table of names and values")
    return cast("dict[str, Any]", found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Misconfigured("a key stands in it twice")
    return found


type Entry = Mapping[str, Any]


def entries_of(text: str, shape: Shape, key: str) -> dict[str, Any]:
    """Return the servers of a client's configuration. Raises Misconfigured if it cannot be read."""
    document = _toml(text) if shape == "toml" else read_table(text, strictly=False)
    found = document.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def with_entry(text: str, shape: Shape, key: str, name: str, entry: Entry) -> str:
    """Return the text with that server added.

    Raises Misconfigured if the edit would change anything else.
    """
    if shape == "toml":
        kept = _without_table(text, key, name).rstrip("\n")
        edited = (kept + "\n\n" if kept else "") + render_snippet(shape, key, name, entry)
        _check_edit(text, edited, key, name, entry)
        return edited
    document = read_table(text, strictly=True)
    section = document.setdefault(key, {})
    if not isinstance(section, dict):
        raise Misconfigured(f"{key} is no table in it")
    cast("dict[str, Any]", section)[name] = dict(entry)
    return _as_before(text, document)


def without_entry(text: str, shape: Shape, key: str, name: str) -> str:
    """Return the text without that server.

    Raises Misconfigured if the edit would change anything else.
    """
    if shape == "toml":
        edited = _without_table(text, key, name)
        _check_edit(text, edited, key, name, None)
        return edited
    document = read_table(text, strictly=True)
    section = document.get(key)
    if isinstance(section, dict):
        cast("dict[str, Any]", section).pop(name, None)
    return _as_before(text, document)


def is_empty_config(text: str, shape: Shape, key: str) -> bool:
    """Return whether only an empty section for servers is left."""
    if shape == "toml":
        return not text.strip()
    return read_table(text, strictly=True) in ({}, {key: {}})


def render_snippet(shape: Shape, key: str, name: str, entry: Entry) -> str:
    """Return the text that a user can paste into the file."""
    if shape == "toml":
        lines = [f"{each} = {toml_value(value)}" for each, value in entry.items()]
        return "\n".join([f"[{key}.{toml_key(name)}]", *lines, ""])
    return json.dumps({key: {name: dict(entry)}}, indent=2, ensure_ascii=False) + "\n"


def _as_before(text: str, document: Mapping[str, Any]) -> str:
    """Return JSON with the indent, the byte order mark and the line ends of the original text."""
    indent = re.search(r"\n([ \t]+)\S", text)
    written = json.dumps(document, indent=indent[1] if indent else 2, ensure_ascii=False)
    written += "\n" if text.endswith("\n") or not text.strip() else ""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    return mark + (written.replace("\n", "\r\n") if "\r\n" in text else written)


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        # A TOML error names the place and the kind of the problem, but not the text there.
        raise Misconfigured(f"it is not TOML: {problem}") from None


def _without_table(text: str, key: str, name: str) -> str:
    """Return TOML without one table and its subtables, up to the next header."""
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    ours = re.compile(rf"\s*\[\s*{key}\s*\.\s*{quoted}\s*(?:\.[^\]]*)?\]")
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = ours.match(line) is not None
        if not inside:
            kept.append(line)
    return "".join(kept)


def _check_edit(before: str, after: str, key: str, name: str, entry: Entry | None) -> None:
    """Compare the meaning of both texts, because the edit worked on lines.

    Raises Misconfigured if anything but this server differs.
    """
    wanted = _toml(before)
    section = cast("dict[str, Any]", wanted.setdefault(key, {}))
    section.pop(name, None)
    if entry is not None:
        section[name] = dict(entry)
    if not section:
        del wanted[key]
    found = _toml(after)
    if not found.get(key, True):
        del found[key]
    if found != wanted:
        raise Misconfigured("its servers are not written as tables of their own")


NAME: Final = "comity"
BACKUP: Final = ".comity-backup"
FILE_BYTES: Final = 32 * 1024 * 1024
FOR_ONE_PERSON: Final = 0o600
"""The mode of new files, because a configuration may hold secrets."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A configuration file of a client, for all projects of a user or for one."""

    client: ClientApplication
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
        """Return the content of the file; empty if there is none. Raises Misconfigured."""
        return read_text(self.path) if self.exists else ""

    def entries(self) -> dict[str, Any]:
        """Return the servers by name. Raises Misconfigured if the file cannot be read."""
        try:
            found = entries_of(self.text(), self.client.shape, self.client.key)
        except Misconfigured as problem:
            raise Misconfigured(f"{self.path}: {problem}") from None
        return {name: entry for name, entry in found.items() if isinstance(entry, dict)}

    def connect(self, entry: Entry) -> bool:
        """Add Comity to the file, and return whether that changed it. Raises Misconfigured."""
        before = self.text()
        ours = self._apply_edit(lambda: with_entry(before, *self._place, entry), entry)
        if self.entries().get(NAME) == dict(entry):
            return False
        if before and not is_comity(self.entries().get(NAME, {})):
            # A backup holds the state before Comity, so a later change must not overwrite it.
            write_whole(self.backup, before, _mode_of(self.path))
        write_whole(self.path, ours, _mode_of(self.path))
        return True

    def disconnect(self) -> str:
        """Remove Comity from the file, and return a description of what was done.

        The result is empty if the file has no such entry. Raises Misconfigured.
        """
        now, entry = self.text(), self.entries().get(NAME)
        if entry is None:
            return ""
        with suppress(OSError, Misconfigured):
            before = read_text(self.backup)
            if with_entry(before, *self._place, entry) == now:
                write_whole(self.path, before, _mode_of(self.path))
                self.backup.unlink()
                return "it is as it was before"
        rest = self._apply_edit(lambda: without_entry(now, *self._place), entry)
        if not self.backup.exists() and is_empty_config(rest, self.client.shape, self.client.key):
            self.path.resolve().unlink()
            return "the file held nothing else, and is gone"
        write_whole(self.path, rest, _mode_of(self.path))
        kept = f"; the backup {self.backup.name} is kept" if self.backup.exists() else ""
        return f"the entry is gone, and the rest is as it stands now{kept}"

    @property
    def _place(self) -> tuple[Shape, str, str]:
        return self.client.shape, self.client.key, NAME

    def _apply_edit(self, edit: Callable[[], str], entry: Entry) -> str:
        try:
            return edit()
        except Misconfigured as problem:
            pasted = render_snippet(self.client.shape, self.client.key, NAME, entry)
            raise Misconfigured(
                f"{self.path} is left alone, because it could not be kept as you wrote it "
                f"({problem}). Change it by hand; this is the entry:\n\n{pasted}"
            ) from None


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
            # Sync before the rename, so that a crash cannot leave an empty file.
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
