"""A whole configuration file, judged: its settings, or everything that is wrong with it.

Rule 1: every mistake is named by file, line and key, with what to do next.
Rule 2: nothing here reads the process's own environment; whoever calls hands it in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from comity.config.addresses import CLUSTER_URL, STORE_URL
from comity.config.entries import ID_RULE, SERVER_KEYS, EntryReader, derived_id, is_id
from comity.config.files import parse
from comity.config.models import check_names, with_variables
from comity.config.settings import ServerSettings, Settings
from comity.config.tables import SETTINGS, TABLES
from comity.rules.documents import Mistake, Mistakes, Written, nearest
from comity.wire.errors import Misconfigured

type Shape = Literal["clients", "comity", "mgp"]
"""Whose file it is: an MCP client's own, Comity's, or one that MGP lets its programs share."""

NEEDS_SERVERS: Final = 'needs your servers once, in {"mcpServers": {...}}'


@dataclass(frozen=True, slots=True)
class Reading:
    """What one file says, as far as it could be understood, and what is wrong with it."""

    servers: tuple[ServerSettings, ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict[str, Any])
    mistakes: tuple[Mistake, ...] = ()


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read `comity.toml`, `mgp.toml`, or JSON with `mcpServers`; then what the environment says."""
    return settled([read(path, environ)], environ)


def shape_of(path: Path) -> Shape:
    if path.suffix.lower() != ".toml":
        return "clients"
    is_mgp = path.name == "mgp.toml" or path.parts[-2:] == ("mgp", "servers.toml")
    return "mgp" if is_mgp else "comity"


def read(path: Path, environ: Mapping[str, str], shape: Shape | None = None) -> Reading:
    """Read one file to its end, whatever is wrong with it on the way."""
    mistakes = Mistakes()
    file = mistakes.read(lambda: parse(path), None)
    if file is None:
        return Reading(mistakes=tuple(mistakes.found))
    reader = EntryReader(environ, mistakes)
    shape = shape or shape_of(path)
    decided: dict[str, Any] = {}
    if not file.is_toml:
        servers = _from_json(file.document, reader)
    else:
        servers = _from_toml(file.document, reader, is_strict=shape == "comity")
        if shape == "comity":
            decided = _decided(file.document, mistakes)
    if mistakes.found:
        positions = file.positions()
        lined = [
            each if each.line else replace(each, line=positions.line_of(each.place))
            for each in dict.fromkeys(mistakes.found)
        ]
        return Reading(mistakes=tuple(sorted(lined, key=lambda each: each.line or 0)))
    return Reading(tuple(servers), decided)


def settled(readings: Sequence[Reading], environ: Mapping[str, str]) -> Settings:
    """One set of settings: of two servers with one id the earlier; COMITY_* over all files."""
    mistakes = Mistakes([mistake for each in readings for mistake in each.mistakes])
    decided: dict[str, Any] = {}
    servers: dict[str, ServerSettings] = {}
    for reading in readings:
        decided = {**reading.decided, **decided}
        for server in reading.servers:
            servers.setdefault(server.id.casefold(), server)
    if environ.get("COMITY_HOST"):
        decided["host"] = environ["COMITY_HOST"]
    if port := environ.get("COMITY_PORT"):
        number = int(port[:9]) if port.isascii() and port.isdigit() else None
        written = Written(number, "COMITY_PORT")
        decided["port"] = mistakes.read(lambda: written.number(0, 65535), 0)
    decided["store_url"] = STORE_URL.found(decided.get("store_url") or "", environ, mistakes)
    decided["cluster_url"] = CLUSTER_URL.found(decided.get("cluster_url") or "", environ, mistakes)
    decided["models"] = with_variables(decided.get("models") or (), environ, mistakes)
    check_names(decided, mistakes)
    if mistakes.found:
        # All of them go with it, for those who would rather have a list than a text.
        raise Misconfigured(mistakes)
    return Settings(servers=tuple(servers.values()), **decided)


def _from_json(document: Written, reader: EntryReader) -> list[ServerSettings]:
    if not isinstance(document.value, dict):
        reader.mistakes.note(document.wrong(NEEDS_SERVERS))
        return []
    top = document.table()
    present = [key for key in ("mcpServers", "servers") if key in top]
    if len(present) != 1:
        meant = next((each for key, each in top.items() if nearest(key, ("mcpServers",))), None)
        if meant and not present:
            reader.mistakes.note(meant.unknown_among(("mcpServers",)))
        else:
            reader.mistakes.note(document.wrong(NEEDS_SERVERS))
        return []
    entries = reader.mistakes.read(top[present[0]].table, {})
    found = [
        (reader.server(derived_id(name), name, entry), entry) for name, entry in entries.items()
    ]
    return _without_collisions(found, reader.mistakes)


def _decided(document: Written, mistakes: Mistakes) -> dict[str, Any]:
    """The settings of the gateway itself."""
    decided: dict[str, Any] = {}
    top = document.table()
    for name in ("", *TABLES):
        table = top.get(name) if name else document
        if table is None or mistakes.read(table.table, None) is None:
            continue
        here = {setting.name: setting for setting in SETTINGS if setting.table == name}
        strangers = table.unknown({*here, *(() if name else (*TABLES, "servers", "$schema"))})
        mistakes.note(*strangers)
        for key, written in table.table().items():
            if key in here:
                field, kind = here[key].field, here[key].kind
                decided[field] = mistakes.read(lambda kind=kind, it=written: kind.read(it), None)
    return decided


def _from_toml(document: Written, reader: EntryReader, *, is_strict: bool) -> list[ServerSettings]:
    top = document.table()
    if "servers" in top:
        entries = reader.mistakes.read(top["servers"].items, [])
        found = [_entry(entry, reader, is_strict=is_strict) for entry in entries]
        return _without_collisions(found, reader.mistakes)
    if not is_strict:
        meant = next((each for key, each in top.items() if nearest(key, ("servers",))), document)
        reader.mistakes.note(meant.wrong("there are no servers here; write each in [[servers]]"))
    return []


def _entry(
    entry: Written, reader: EntryReader, *, is_strict: bool
) -> tuple[ServerSettings | None, Written]:
    if reader.mistakes.read(entry.table, None) is None:
        return None, entry
    server_id = reader.mistakes.read(lambda: _id(entry), "")
    known = entry.known(f"servers[{server_id}]") if server_id else entry
    if is_strict:
        reader.mistakes.note(*known.unknown(SERVER_KEYS))
    return reader.server(server_id, server_id, known), known


def _id(entry: Written) -> str:
    named = entry.table().get("id")
    if named is None:
        raise entry.wrong('needs an id, as id = "search"')
    if not is_id(named.text()):
        raise named.wrong(ID_RULE)
    return named.text()


def _without_collisions(
    found: Sequence[tuple[ServerSettings | None, Written]], mistakes: Mistakes
) -> list[ServerSettings]:
    seen: dict[str, ServerSettings] = {}
    for server, entry in found:
        if server is None or not server.id:
            continue
        # By look, not by letter: `Files` beside `files` is a trap for whoever reads a tool's name.
        other = seen.setdefault(server.id.casefold(), server)
        if other is not server:
            both = f"servers {other.label!r} and {server.label!r}"
            mistakes.note(entry.wrong(f"{both} would share the id {server.id!r}; rename one"))
    return list(seen.values())
