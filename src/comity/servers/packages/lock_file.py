"""Reads and writes `comity.lock`, which is beside the configuration file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from comity.config.toml_writer import toml_key, toml_text, toml_value
from comity.errors import Misconfigured
from comity.servers.packages.model import (
    LockedPackage,
    LockedServer,
    PackageIndex,
    WrittenEntry,
)
from comity.servers.packages.rules import resolution_digest

LOCK_NAME: Final = "comity.lock"
MAX_LOCK_BYTES: Final = 64 * 1024 * 1024
FORMAT: Final = 1
_INTRODUCTION: Final = """\
# `comity servers update` writes this file. Keep it together with the configuration.
# A server that differs from it does not start.
"""


class _PackageTable(msgspec.Struct, forbid_unknown_fields=True):
    index: PackageIndex
    name: str
    version: str
    digest: str


class _ServerTable(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: tuple[str, ...] = ()
    url: str = ""
    headers: tuple[str, ...] = ()
    package: _PackageTable | None = None
    tools: dict[str, str] | None = None


class _LockDocument(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    servers: list[_ServerTable] = []
    resolutions: dict[str, str] = {}


def lock_path(config: Path) -> Path:
    return config.with_name(LOCK_NAME)


def read_lock_bytes(config: Path) -> bytes | None:
    """Return the lock file of a configuration; None if it has none. Raises Misconfigured."""
    path = lock_path(config)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise Misconfigured(f"{path} cannot be read: {why}") from None
    if len(data) > MAX_LOCK_BYTES:
        raise Misconfigured(f"{path} has over {MAX_LOCK_BYTES} bytes")
    return data


def parse_lock(path: Path, data: bytes) -> dict[str, LockedServer]:
    """Return the servers of a lock file by their ids. Raises Misconfigured if it was damaged."""
    try:
        document = msgspec.convert(tomllib.loads(data.decode()), _LockDocument)
        if document.format != FORMAT:
            raise Misconfigured(f"{path} has the format {document.format}, not {FORMAT}")
        found = {each.id: _locked_server(each, document.resolutions) for each in document.servers}
    except (ValueError, RecursionError, msgspec.ValidationError) as problem:
        raise Misconfigured(
            f"{path} is damaged ({str(problem)[:200]}); restore it, or delete it and run "
            "`comity servers update`"
        ) from None
    if len(found) != len(document.servers):
        raise Misconfigured(f"{path} has a server twice")
    return found


def _locked_server(table: _ServerTable, resolutions: Mapping[str, str]) -> LockedServer:
    entry = WrittenEntry(table.command, table.args, table.cwd, table.env, table.url, table.headers)
    package = table.package
    if package is None:
        return LockedServer(entry, tools=table.tools)
    resolution = resolutions.get(package.digest, "")
    if resolution_digest(resolution) != package.digest:
        raise ValueError(f"the resolution of {package.name} is not the one of its digest")
    locked = LockedPackage(package.index, package.name, package.version, package.digest, resolution)
    return LockedServer(entry, locked, table.tools)


def render_lock(servers: Mapping[str, LockedServer]) -> str:
    """Return the text of a lock file."""
    lines = [_INTRODUCTION, f"format = {FORMAT}", ""]
    resolutions: dict[str, str] = {}
    for id, server in sorted(servers.items()):
        lines += ["[[servers]]", *_pairs({"id": id, **_entry_values(server.entry)})]
        if server.package is not None:
            package = server.package
            resolutions[package.digest] = package.resolution
            names = ("index", "name", "version", "digest")
            lines.append(
                f"package = {toml_value({name: getattr(package, name) for name in names})}"
            )
        if server.tools is not None:
            lines += ["[servers.tools]", *_pairs(dict(sorted(server.tools.items())))]
        lines.append("")
    if resolutions:
        lines.append("[resolutions]")
        lines += [
            f"{toml_key(digest)} = {_long_text(text)}"
            for digest, text in sorted(resolutions.items())
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry_values(entry: WrittenEntry) -> dict[str, Any]:
    found = {name: getattr(entry, name) for name in WrittenEntry.__dataclass_fields__}
    return {name: value for name, value in found.items() if value}


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [f"{toml_key(name)} = {toml_value(value)}" for name, value in values.items()]


def _long_text(text: str) -> str:
    """Return a text with its lines, so that a person can read the changes of a lock file."""
    is_plain = "'''" not in text and all(each.isprintable() or each == "\n" for each in text)
    return f"'''\n{text}'''" if is_plain and not text.endswith("'") else toml_text(text)
