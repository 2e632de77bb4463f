"""`comity init`: a first configuration, from the servers that this machine's clients have."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import click

from comity.cli import writing
from comity.cli.client_files import (
    BACKUP,
    ClientFile,
    project_files,
    read_text,
    user_files,
    write_whole,
)
from comity.cli.clients import BY_NAME, Client
from comity.cli.edits import entries_of
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.importing import Imported, Surroundings, bring_together, is_comity, is_server
from comity.cli.options import json_option
from comity.cli.show import plain, short, show, show_json, table
from comity.config import load
from comity.wire.errors import Misconfigured

type Format = Literal["toml", "json"]

NAMES: Final[Mapping[Format, str]] = {"toml": "comity.toml", "json": "mcp.json"}
_KEYS: Final = {"mcpServers": "cursor", "servers": "vscode", "context_servers": "zed"}


@dataclass(frozen=True, slots=True)
class Looked:
    """One file that was looked into: the servers in it, or why it could not be read."""

    file: ClientFile
    entries: Mapping[str, Any]
    problem: str = ""


@click.command("init")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Take the servers of this file alone, in whichever client's form it is.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["toml", "json"]),
    default="toml",
    help="Write comity.toml, or mcp.json in the form that most clients have.",
)
@click.option(
    "--to", metavar="FILE", type=click.Path(path_type=Path), help="Write another file than that."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there; a backup is kept.")
@json_option
def command(
    source: Path | None, form: Format, to: Path | None, *, force: bool, as_json: bool
) -> int:
    """Write a first configuration from the servers that your MCP clients have.

    Looks for Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Zed, Gemini CLI, Codex, Cline
    and LM Studio. Nothing of theirs is changed. Where there are no servers, the file has a small
    one to start with. A file that is there already is never replaced unasked.
    """
    target = to or Path(NAMES[form])
    looked = [_from_file(source)] if source else list(_everywhere())
    servers = bring_together(_found(looked))
    text = _written(servers, form)
    _refuse_to_replace(target, force)
    if target.exists():
        write_whole(target.with_name(target.name + BACKUP), read_text(target))
    write_whole(target, text)
    mistakes = _mistakes(target)
    if as_json:
        show_json(_told(looked, servers, target, mistakes))
    else:
        _show(looked, servers, target, mistakes)
    return SOMETHING_WRONG if mistakes else FINE


def _everywhere() -> Iterator[Looked]:
    of_user = list(user_files(os.environ))
    # In the home itself some files are both.
    known = {file.path for file in of_user}
    of_project = [file for file in project_files(Path.cwd()) if file.path not in known]
    for file in (*of_project, *of_user):
        if file.exists:
            yield _look(file)


def _look(file: ClientFile) -> Looked:
    try:
        entries = file.entries()
        if file.client.name == "claude-code" and not file.in_project:
            entries |= _of_this_folder(file)
        return Looked(file, entries)
    except Misconfigured as problem:
        return Looked(file, {}, str(problem).removeprefix(f"{file.path}: "))


def _of_this_folder(file: ClientFile) -> dict[str, Any]:
    """Claude Code keeps what is for one folder in its user's file too."""
    projects = entries_of(file.text(), "json", "projects")
    here = projects.get(str(Path.cwd()))
    found = cast("dict[str, Any]", here).get("mcpServers") if isinstance(here, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _from_file(path: Path) -> Looked:
    """A file that somebody named: whose it is, its form tells."""
    text = read_text(path)
    client = _client_of(path, text)
    file = ClientFile(client, path.absolute())
    entries = file.entries()
    if not entries:
        raise Misconfigured(f"{path} names no servers; they stand in one of: {', '.join(_KEYS)}")
    return Looked(file, entries)


def _client_of(path: Path, text: str) -> Client:
    if path.suffix.lower() == ".toml":
        return BY_NAME["codex"]
    try:
        present = [name for key, name in _KEYS.items() if entries_of(text, "json", key)]
    except Misconfigured as problem:
        raise Misconfigured(f"{path}: {problem}") from None
    return BY_NAME[present[0] if present else "cursor"]


def _found(
    looked: list[Looked],
) -> Iterator[tuple[Client, str, Mapping[str, Any], Surroundings]]:
    around = Surroundings(str(Path.cwd()), str(Path.home()), os.environ)
    in_project = Surroundings(around.folder, around.home, os.environ, in_project=True)
    for each in looked:
        for name, entry in each.entries.items():
            if isinstance(entry, dict):
                where = in_project if each.file.in_project else around
                yield each.file.client, name, cast("dict[str, Any]", entry), where


def _written(servers: list[Imported], form: Format) -> str:
    entries = {server.id: server.entry for server in servers}
    if servers:
        return writing.as_toml(entries) if form == "toml" else writing.as_json(entries)
    if form == "toml":
        return writing.starter(_example())
    return writing.as_json({"example": _example()})


def _example() -> dict[str, Any]:
    """How the small server that comes along is started, from wherever `serve` will run."""
    if shutil.which("comity"):
        return {"command": "comity", "args": ["example"]}
    return {"command": sys.executable, "args": ["-m", "comity.cli", "example"]}


def _refuse_to_replace(target: Path, force: bool) -> None:
    if target.exists() and not force:
        raise Misconfigured(
            f"{target} is there already, and is left alone; --force replaces it and keeps a "
            "backup, --to writes another file"
        )


def _mistakes(target: Path) -> str:
    try:
        load(target, os.environ)
    except Misconfigured as problem:
        return str(problem)
    return ""


def _told(
    looked: list[Looked], servers: list[Imported], target: Path, mistakes: str
) -> dict[str, object]:
    return {
        "found": [
            {
                "client": each.file.client.name,
                "file": str(each.file.path),
                "servers": list(each.entries),
                "problem": each.problem or None,
            }
            for each in looked
        ],
        "servers": [
            {"id": server.id, "from": server.sources, "notes": server.notes} for server in servers
        ],
        "written": str(target.absolute()),
        "mistakes": mistakes or None,
    }


def _show(looked: list[Looked], servers: list[Imported], target: Path, mistakes: str) -> None:
    if looked:
        rows = [
            (each.file.client.title, short(each.file.path), each.problem or _counted(each))
            for each in looked
        ]
        show(table(("CLIENT", "FILE", "SERVERS"), rows), "")
    else:
        show(plain("No MCP client with servers was found on this machine."))
    if servers:
        show(table(("SERVER", "FROM", "NOTES"), [_row(server) for server in servers]), "")
    show(plain(f"Wrote {target}, which only you can read.", "bold green"))
    if any(server.entry.get(key) for server in servers for key in ("env", "headers")):
        show(plain("Values of variables and headers were copied into it as they are.", "yellow"))
    if not servers:
        show(plain("It has one small server to try things with; add yours to it."))
    if mistakes:
        show("", plain(mistakes, "red"))
    show("", plain("Next: `comity serve`, then `comity client connect NAME` for each client."))


def _counted(looked: Looked) -> str:
    told = [name for name, entry in looked.entries.items() if is_server(entry)]
    said = ", ".join(name for name in told if not is_comity(looked.entries[name])) or "none"
    if any(is_comity(looked.entries[name]) for name in told):
        said += " (Comity itself is left out)"
    strange = ", ".join(name for name in looked.entries if name not in told)
    return f"{said} (without a program or an address: {strange})" if strange else said


def _row(server: Imported) -> tuple[str, str, str]:
    return server.id, ", ".join(server.sources), "; ".join(server.notes)
