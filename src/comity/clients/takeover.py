"""Moves the servers of MCP clients into Comity's own configuration."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from comity.clients.files import ClientFile, ClientServer, file_mode, read_text, write_whole
from comity.clients.formats import append_table, parse_toml
from comity.clients.json_format import JsonFormat
from comity.clients.server_import import (
    ClientImportContext,
    ImportedServer,
    bring_together,
    free_id,
    render_table,
    with_permissions,
)
from comity.config.trust import content_digest, is_trusted, trust_file
from comity.errors import Misconfigured

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
    home = Path.home()
    allowed = (replace(each, entry=with_permissions(each.entry, home)) for each in together)
    return ServerTakeover(tuple(allowed), movable)


def _context_of(file: ClientFile) -> ClientImportContext:
    return ClientImportContext(
        str(Path.cwd()), str(Path.home()), os.environ, in_project=file.in_project
    )


def _is_importable(file: ClientFile, server: ClientServer) -> bool:
    item = (file.client, server.name, server.entry, _context_of(file))
    return bool(bring_together([item]))


def add_servers(path: Path, servers: Sequence[ImportedServer], check: ConfigCheck) -> list[str]:
    """Add the servers that the configuration lacks, and return their ids.

    The rest of the file stays as it is. Raises Misconfigured, and leaves the file alone, if the
    result would have mistakes.
    """
    before = read_text(path)
    is_toml = path.suffix.lower() == ".toml"
    known = _known_servers(before, is_toml=is_toml)
    missing: dict[str, ImportedServer] = {}
    for server in servers:
        if not any(_is_same(server, name, entry) for name, entry in known):
            taken = {name.casefold() for name, _ in known} | {name.casefold() for name in missing}
            missing[free_id(server.id, taken)] = server
    if not missing:
        return []
    text = before
    for name, server in missing.items():
        if is_toml:
            comment = f"# {server.comment}\n" if server.comment else ""
            text = append_table(text, comment + render_table(name, server.entry))
        else:
            text = JsonFormat().put(text, ("mcpServers",), name, server.entry)
    mode = file_mode(path)
    write_whole(path, text, mode)
    if mistakes := check(path):
        write_whole(path, before, mode)
        raise Misconfigured(f"{path} would not be valid with these servers: {mistakes}")
    if is_trusted(path, content_digest(before.encode())):
        # The person who approved the file is the one who adds to it.
        trust_file(path, content_digest(text.encode()))
    return [*missing]


def _known_servers(text: str, *, is_toml: bool) -> list[tuple[str, dict[str, Any]]]:
    if not is_toml:
        entries = JsonFormat().read(text, ("mcpServers",))
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
