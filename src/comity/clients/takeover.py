"""Moves the servers of MCP clients into Comity's own configuration."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from comity.clients.files import ClientFile, ClientServer, file_mode, read_text, write_whole
from comity.clients.formats import Section, append_table, parse_toml
from comity.clients.json_format import JsonFormat
from comity.clients.server_import import (
    ClientImportContext,
    ImportedServer,
    bring_together,
    free_id,
    render_table,
)
from comity.config.server_tables import by_hand_error, remove_server_table
from comity.config.trust import content_digest, is_trusted, record_written, trust_file
from comity.errors import Misconfigured
from comity.mcp.protocol import derived_id

type ConfigCheck = Callable[[Path], str]
"""Returns the mistakes in a configuration file; empty if it has none."""


@dataclass(frozen=True, slots=True)
class ServerTakeover:
    """The servers of some files, and how they go into a configuration file."""

    servers: tuple[ImportedServer, ...]
    # The servers of each file that Comity understands. The others stay with the client.
    movable: tuple[tuple[ClientFile, tuple[ClientServer, ...]], ...]

    def of(self, file: ClientFile) -> tuple[ClientServer, ...]:
        return next((found for each, found in self.movable if each == file), ())


def plan_takeover(found: Iterable[tuple[ClientFile, Sequence[ClientServer]]]) -> ServerTakeover:
    """Return all servers of these files, without duplicates."""
    sources = [(file, tuple(servers)) for file, servers in found]
    together = bring_together(
        (file.client, each.name, each.entry, _context_of(file))
        for file, servers in sources
        for each in servers
    )
    movable = tuple(
        (file, tuple(each for each in servers if _is_importable(file, each)))
        for file, servers in sources
    )
    return ServerTakeover(tuple(together), movable)


def _context_of(file: ClientFile) -> ClientImportContext:
    return ClientImportContext(
        str(Path.cwd()), str(Path.home()), os.environ, in_project=file.in_project
    )


def _is_importable(file: ClientFile, server: ClientServer) -> bool:
    item = (file.client, server.name, server.entry, _context_of(file))
    return bool(bring_together([item]))


def missing_servers(path: Path, servers: Sequence[ImportedServer]) -> dict[str, ImportedServer]:
    """Return the servers that the configuration lacks, by the ids that they get there."""
    known = _known_servers(read_text(path), is_toml=path.suffix.lower() == ".toml")
    missing: dict[str, ImportedServer] = {}
    for server in servers:
        if not any(_is_same(server, name, entry) for name, entry in known):
            taken = {name.casefold() for name, _ in known} | {name.casefold() for name in missing}
            missing[free_id(server.id, taken)] = server
    return missing


def add_servers(path: Path, servers: Sequence[ImportedServer], check: ConfigCheck) -> list[str]:
    """Add the servers that the configuration lacks, and return their ids.

    The rest of the file stays as it is. Raises Misconfigured, and leaves the file alone, if the
    result would have mistakes.
    """
    before = read_text(path)
    is_toml = path.suffix.lower() == ".toml"
    missing = missing_servers(path, servers)
    if not missing:
        return []
    text = before
    for name, server in missing.items():
        if is_toml:
            comment = f"# {server.comment}\n" if server.comment else ""
            text = append_table(text, comment + render_table(name, server.entry))
        else:
            text = JsonFormat().put(text, _json_section(text), name, server.entry)
    _write_checked(path, before, text, check)
    return [*missing]


def remove_server(path: Path, id: str, check: ConfigCheck) -> None:
    """Remove a server from the configuration. The rest of the file stays as it is.

    Raises Misconfigured, and leaves the file alone, if that is impossible or the result would have
    mistakes.
    """
    before = read_text(path)
    if path.suffix.lower() == ".toml":
        text = remove_server_table(before, id)
    else:
        section = _json_section(before)
        labels = (each for each in JsonFormat().read(before, section) if derived_id(each) == id)
        label = next(labels, None)
        if label is None:
            raise by_hand_error(id)
        text, _ = JsonFormat().take(before, section, label)
    _write_checked(path, before, text, check)


def _json_section(text: str) -> Section:
    """Return the key of the servers in a client's file. Clients know two."""
    return ("servers",) if JsonFormat().read(text, ("servers",)) else ("mcpServers",)


def _write_checked(path: Path, before: str, text: str, check: ConfigCheck) -> None:
    """Write a changed configuration. A person who had approved the file has approved the change.

    A file that was not approved stays so, because no person has seen the rest of it.
    Raises Misconfigured, and restores the file, if it would have mistakes.
    """
    mode = file_mode(path)
    # First the record: a running gateway may read the file as soon as it is there.
    record_written(path, content_digest(text.encode()))
    write_whole(path, text, mode)
    if mistakes := check(path):
        record_written(path, content_digest(before.encode()))
        write_whole(path, before, mode)
        raise Misconfigured(f"{path} would not be valid with this change: {mistakes}")
    if is_trusted(path, content_digest(before.encode())):
        trust_file(path, content_digest(text.encode()))


def _known_servers(text: str, *, is_toml: bool) -> list[tuple[str, dict[str, Any]]]:
    if not is_toml:
        entries = JsonFormat().read(text, _json_section(text))
        return [(name, entry) for name, entry in entries.items() if isinstance(entry, dict)]
    tables: object = parse_toml(text).get("servers", [])
    found = cast("list[object]", tables) if isinstance(tables, list) else []
    known = [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]
    return [(str(each.get("id", "")), each) for each in known]


def _is_same(server: ImportedServer, name: str, entry: dict[str, Any]) -> bool:
    """Return whether a configured server is this one.

    Under the same id, its variables and headers may differ: the operator may have replaced secrets
    by references.
    """
    keys = ("command", "args", "url", "cwd", "openapi", "operations")
    if name.casefold() != server.id.casefold():
        keys += ("env", "headers", "auth", "oauth")
    return all((server.entry.get(key) or None) == (entry.get(key) or None) for key in keys)
