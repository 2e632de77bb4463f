"""The interface of all client configuration formats, and TOML, which is edited by tables."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from comity.config.toml_writer import toml_key, toml_value
from comity.errors import Misconfigured

type Entry = Mapping[str, Any]
type Entries = dict[str, Any]
type Section = tuple[str, ...]
"""The keys that lead to the servers in a document."""


class ConfigFormat(Protocol):
    """Reads and edits servers in a text. Every method raises Misconfigured for a strange form."""

    def read(self, text: str, section: Section) -> Entries:
        """Return the servers by name."""
        ...

    def put(self, text: str, section: Section, name: str, entry: Entry) -> str:
        """Return the text with this server added or replaced."""
        ...

    def take(self, text: str, section: Section, name: str) -> tuple[str, str]:
        """Return the text without this server, and the server as it was written."""
        ...

    def put_back(self, text: str, section: Section, name: str, raw: str) -> str:
        """Return the text with a server that `take` has taken out."""
        ...

    def is_empty(self, text: str, section: Section) -> bool:
        """Return whether only an empty section for servers is left."""
        ...

    def render(self, section: Section, name: str, entry: Entry) -> str:
        """Return the text that a user can paste into the file."""
        ...


NOT_TABLES: Final = "its servers are not written as tables of their own"


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        # A TOML error names the place and the kind of the problem, but not the text there.
        raise Misconfigured(f"it is not TOML: {problem}") from None


@dataclass(frozen=True, slots=True)
class TomlFormat:
    """Reads and edits the servers of a TOML file, as Codex has them. All other lines stay."""

    def read(self, text: str, section: Section) -> Entries:
        found = parse_toml(text).get(section[0])
        return cast("Entries", found) if isinstance(found, dict) else {}

    def put(self, text: str, section: Section, name: str, entry: Entry) -> str:
        table = self.render(section, name, entry)
        edited = append_table(text, table)
        if name in self.read(text, section):
            lines, ours = _table_lines(text, section[0], name)
            first = min(ours)
            rest = "".join(line for at, line in enumerate(lines) if at > first and at not in ours)
            edited = "".join(lines[:first]) + table.replace("\n", _newline(text)) + rest
        _check(text, edited, section, name, entry)
        return edited

    def put_back(self, text: str, section: Section, name: str, raw: str) -> str:
        entry = self.read(raw, section)[name]
        edited = append_table(text, raw)
        _check(text, edited, section, name, entry)
        return edited

    def take(self, text: str, section: Section, name: str) -> tuple[str, str]:
        if name not in self.read(text, section):
            return text, ""
        lines, ours = _table_lines(text, section[0], name)
        above = min(ours) - 1
        # The empty line above goes too, because `put` adds one.
        gone = {*ours, above} if above >= 0 and not lines[above].strip() else ours
        edited = "".join(line for at, line in enumerate(lines) if at not in gone)
        _check(text, edited, section, name, None)
        return edited, "".join(lines[at] for at in sorted(ours))

    def is_empty(self, text: str, section: Section) -> bool:
        return not text.strip()

    def render(self, section: Section, name: str, entry: Entry) -> str:
        lines = [f"{each} = {toml_value(value)}" for each, value in entry.items()]
        return "\n".join([f"[{section[0]}.{toml_key(name)}]", *lines, ""])


def _table_lines(text: str, key: str, name: str) -> tuple[list[str], set[int]]:
    """Return all lines, and the numbers of those of a table and its subtables.

    Comments and empty lines before the next header belong to that header. Raises Misconfigured if
    the server is no table of its own.
    """
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    ours = re.compile(rf"\s*\[\s*{key}\s*\.\s*{quoted}\s*(?:\.[^\]]*)?\]")
    lines = text.splitlines(keepends=True)
    found: set[int] = set()
    waiting: set[int] = set()
    inside = False
    for at, line in enumerate(lines):
        bare = line.strip()
        if bare.startswith("["):
            inside, waiting = ours.match(line) is not None, set[int]()
        if inside:
            waiting.add(at)
            if bare and not bare.startswith("#"):
                found |= waiting
                waiting = set[int]()
    if not found:
        raise Misconfigured(NOT_TABLES)
    return lines, found


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def append_table(text: str, table: str) -> str:
    """Return the text with a table at its end, after an empty line."""
    newline = _newline(text)
    end = "" if not text or text.endswith("\n") else newline
    gap = newline if text.strip() else ""
    return text + end + gap + table.replace("\r\n", "\n").replace("\n", newline)


def _check(before: str, after: str, section: Section, name: str, entry: Entry | None) -> None:
    """Compare the meaning of both texts, because the edit worked on lines.

    Raises Misconfigured if anything but this server differs.
    """
    key = section[0]
    wanted = parse_toml(before)
    servers = cast("dict[str, Any]", wanted.setdefault(key, {}))
    servers.pop(name, None)
    if entry is not None:
        servers[name] = dict(entry)
    found = parse_toml(after)
    for document in (wanted, found):
        if not document.get(key, True):
            del document[key]
    if found != wanted:
        raise Misconfigured(NOT_TABLES)
