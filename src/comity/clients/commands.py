"""`comity init` and `comity client`."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

import click

from comity.app.settings_reader import ConfigSource, load_settings
from comity.cli.api_client import ApiClient, find_url
from comity.cli.completion import complete_clients
from comity.cli.exit_status import FINE, SOMETHING_WRONG, suggest_name
from comity.cli.options import DefaultListGroup, json_option
from comity.cli.output import build_table, line_text, shorten_path, show_json, show_output
from comity.clients import server_import
from comity.clients.applications import ARGS, BY_NAME, COMMAND, URL, ClientApplication
from comity.clients.files import (
    BACKUP,
    NAME,
    ClientFile,
    entries_of,
    project_files,
    read_text,
    user_files,
    write_whole,
)
from comity.clients.server_import import (
    ClientImportContext,
    ImportedServer,
    bring_together,
    is_comity,
    is_server,
)
from comity.errors import Misconfigured

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_project_option: Final[Decorator] = click.option(
    "--project", is_flag=True, help="In this folder's file, instead of the one for all projects."
)


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """What is known of one client on this machine."""

    file: ClientFile
    servers: int = 0
    entry: str = ""
    problem: str = ""


@click.group("client", cls=DefaultListGroup)
def client_command() -> None:
    """Put Comity into the configuration of an MCP client, and take it out again."""


@client_command.command("list")
@json_option
def list_clients(as_json: bool) -> int:
    """List the clients that Comity knows, and whether it stands in their configurations."""
    states = [_state_of(file) for file in user_files(os.environ)]
    states += [_state_of(file) for file in project_files(Path.cwd()) if file.exists]
    if as_json:
        show_json({"clients": [_state_view(state) for state in states]})
    else:
        show_output(
            build_table(("CLIENT", "SERVERS", "COMITY", "FILE"), [_row(state) for state in states])
        )
    return SOMETHING_WRONG if any(state.problem for state in states) else FINE


def _state_of(file: ClientFile) -> ClientStatus:
    try:
        entries = file.entries()
    except Misconfigured as problem:
        return ClientStatus(file, problem=str(problem).removeprefix(f"{file.path}: "))
    ours = next((entry for entry in entries.values() if is_comity(entry)), entries.get(NAME))
    return ClientStatus(file, len(entries), _reached_by(ours) if ours else "")


def _reached_by(entry: dict[str, Any]) -> str:
    url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if entry.get(key)), None)
    return str(url) if url else "starts it"


def _row(state: ClientStatus) -> tuple[str, str, str, str]:
    there = str(state.servers) if state.file.exists else "-"
    where = shorten_path(state.file.path)
    if state.problem:
        where += f" ({state.problem})"
    return state.file.client.name, "?" if state.problem else there, state.entry or "-", where


def _state_view(state: ClientStatus) -> dict[str, object]:
    return {
        "client": state.file.client.name,
        "title": state.file.client.title,
        "file": str(state.file.path),
        "exists": state.file.exists,
        "project": state.file.in_project,
        "servers": state.servers,
        "comity": state.entry or None,
        "problem": state.problem or None,
    }


@client_command.command("connect")
@click.argument("name", shell_complete=complete_clients)
@click.option(
    "--url",
    metavar="URL",
    help="Where the gateway is called; COMITY_URL, or the configuration's here, unless given.",
)
@click.option(
    "--stdio", is_flag=True, help="Let the client start a program that joins it to the gateway."
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What that gateway serves; found as `comity serve` finds it unless given.",
)
@_project_option
@json_option
def connect_client_command(
    name: str, url: str | None, config: Path | None, *, stdio: bool, project: bool, as_json: bool
) -> int:
    """Write Comity into the configuration of the client NAME, in that client's own form.

    The file as it was is kept beside it, and `comity client disconnect` brings it back. A client
    that can only start programs (Claude Desktop) gets a gateway that it starts.
    """
    if url is not None and stdio:
        raise click.UsageError("--url and --stdio exclude each other.")
    client = _client(name)
    file = _file(client, project)
    started = stdio or not client.called
    if started and url is not None:
        raise Misconfigured(f"{client.title} can only start programs; leave --url away")
    entry = _started(client, config) if started else _called(client, url)
    changed = file.connect(entry)
    if as_json:
        show_json({"client": name, "file": str(file.path), "entry": entry, "changed": changed})
    else:
        _show_connected(file, changed)
    return FINE


def _show_connected(file: ClientFile, changed: bool) -> None:
    title, path = file.client.title, shorten_path(file.path)
    if not changed:
        show_output(line_text(f"Comity stands in {path} already, just so."))
        return
    show_output(line_text(f"Comity stands in {path} now.", "bold green"))
    if file.backup.exists():
        show_output(line_text(f"The file as it was: {shorten_path(file.backup)}"))
    show_output(line_text(f"Restart {title}, or let it look for its MCP servers again."))
    others = len(file.entries()) - 1
    if others:
        told = "one other server" if others == 1 else f"{others} other servers"
        show_output(
            line_text(f"It has {told} beside Comity; `comity init` takes them over.", "dim")
        )


@client_command.command("disconnect")
@click.argument("name", shell_complete=complete_clients)
@_project_option
@json_option
def disconnect_client_command(name: str, *, project: bool, as_json: bool) -> int:
    """Take Comity out of the configuration of the client NAME again."""
    file = _file(_client(name), project)
    how = file.disconnect()
    if as_json:
        show_json({"client": name, "file": str(file.path), "changed": bool(how)})
    elif how:
        show_output(line_text(f"Comity is out of {shorten_path(file.path)}: {how}."))
    else:
        show_output(line_text(f"Comity does not stand in {shorten_path(file.path)}."))
    return FINE


def _client(name: str) -> ClientApplication:
    client = BY_NAME.get(name)
    if client is None:
        hint = suggest_name(name, BY_NAME) or f"Known are: {', '.join(BY_NAME)}."
        raise Misconfigured(f"there is no client {name!r}. {hint}")
    return client


def _file(client: ClientApplication, project: bool) -> ClientFile:
    if project:
        if not client.project:
            raise Misconfigured(f"{client.title} has no file for one project; leave --project away")
        return ClientFile(client, Path.cwd() / client.project, in_project=True)
    path = client.user_file(os.environ)
    if path is None:
        raise Misconfigured(f"{client.title} does not run on this kind of machine")
    return ClientFile(client, path)


def _called(client: ClientApplication, url: str | None) -> dict[str, object]:
    url = url or find_url()
    gateway = ApiClient(url)
    path = urlsplit(url if "://" in url else f"http://{url}").path.rstrip("/")
    whole = gateway.url + (path or "/mcp")
    return {key: whole if value == URL else value for key, value in client.called.items()}


def _started(client: ClientApplication, config: Path | None) -> dict[str, object]:
    found = ConfigSource(Path.cwd(), Path.home(), os.environ, config).load()
    # The client starts it from some folder of its own, with some path of its own.
    program = shutil.which("comity") or str(Path(sys.argv[0]).absolute())
    args = ["serve", "--stdio", str(found.files[0].absolute())]
    words: dict[str, object] = {COMMAND: str(Path(program).absolute()), ARGS: args}
    return {key: words.get(value, value) for key, value in client.started.items()}


type Format = Literal["toml", "json"]

NAMES: Final[Mapping[Format, str]] = {"toml": "comity.toml", "json": "mcp.json"}
_KEYS: Final = {"mcpServers": "cursor", "servers": "vscode", "context_servers": "zed"}


@dataclass(frozen=True, slots=True)
class ClientFileScan:
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
def init_command(
    source: Path | None, form: Format, to: Path | None, *, force: bool, as_json: bool
) -> int:
    """Write a first configuration from the servers that your MCP clients have.

    Looks for Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Zed, Gemini CLI, Codex, Cline
    and LM Studio. Nothing of theirs is changed. Where there are no servers, the file has a small
    one to start with. A file that is there already is never replaced unasked.
    """
    target = to or Path(NAMES[form])
    looked = [_from_file(source)] if source else list(_all_client_files())
    servers = bring_together(_found(looked))
    text = _written(servers, form)
    _refuse_to_replace(target, force)
    if target.exists():
        write_whole(target.with_name(target.name + BACKUP), read_text(target))
    write_whole(target, text)
    mistakes = _mistakes(target)
    if as_json:
        show_json(_import_view(looked, servers, target, mistakes))
    else:
        _show(looked, servers, target, mistakes)
    return SOMETHING_WRONG if mistakes else FINE


def _all_client_files() -> Iterator[ClientFileScan]:
    of_user = list(user_files(os.environ))
    # In the home itself some files are both.
    known = {file.path for file in of_user}
    of_project = [file for file in project_files(Path.cwd()) if file.path not in known]
    for file in (*of_project, *of_user):
        if file.exists:
            yield _look(file)


def _look(file: ClientFile) -> ClientFileScan:
    try:
        entries = file.entries()
        if file.client.name == "claude-code" and not file.in_project:
            entries |= _of_this_folder(file)
        return ClientFileScan(file, entries)
    except Misconfigured as problem:
        return ClientFileScan(file, {}, str(problem).removeprefix(f"{file.path}: "))


def _of_this_folder(file: ClientFile) -> dict[str, Any]:
    """Claude Code keeps what is for one folder in its user's file too."""
    projects = entries_of(file.text(), "json", "projects")
    here = projects.get(str(Path.cwd()))
    found = cast("dict[str, Any]", here).get("mcpServers") if isinstance(here, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _from_file(path: Path) -> ClientFileScan:
    """A file that somebody named: whose it is, its form tells."""
    text = read_text(path)
    client = _client_of(path, text)
    file = ClientFile(client, path.absolute())
    entries = file.entries()
    if not entries:
        raise Misconfigured(f"{path} names no servers; they stand in one of: {', '.join(_KEYS)}")
    return ClientFileScan(file, entries)


def _client_of(path: Path, text: str) -> ClientApplication:
    if path.suffix.lower() == ".toml":
        return BY_NAME["codex"]
    try:
        present = [name for key, name in _KEYS.items() if entries_of(text, "json", key)]
    except Misconfigured as problem:
        raise Misconfigured(f"{path}: {problem}") from None
    return BY_NAME[present[0] if present else "cursor"]


def _found(
    scans: list[ClientFileScan],
) -> Iterator[tuple[ClientApplication, str, Mapping[str, Any], ClientImportContext]]:
    around = ClientImportContext(str(Path.cwd()), str(Path.home()), os.environ)
    in_project = ClientImportContext(around.folder, around.home, os.environ, in_project=True)
    for each in scans:
        for name, entry in each.entries.items():
            if isinstance(entry, dict):
                where = in_project if each.file.in_project else around
                yield each.file.client, name, cast("dict[str, Any]", entry), where


def _written(servers: list[ImportedServer], form: Format) -> str:
    entries = {server.id: server.entry for server in servers}
    if servers:
        return server_import.as_toml(entries) if form == "toml" else server_import.as_json(entries)
    if form == "toml":
        return server_import.render_starter_config(_example())
    return server_import.as_json({"example": _example()})


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
        load_settings(target, os.environ)
    except Misconfigured as problem:
        return str(problem)
    return ""


def _import_view(
    scans: list[ClientFileScan], servers: list[ImportedServer], target: Path, mistakes: str
) -> dict[str, object]:
    return {
        "found": [
            {
                "client": each.file.client.name,
                "file": str(each.file.path),
                "servers": list(each.entries),
                "problem": each.problem or None,
            }
            for each in scans
        ],
        "servers": [
            {"id": server.id, "from": server.sources, "notes": server.notes} for server in servers
        ],
        "written": str(target.absolute()),
        "mistakes": mistakes or None,
    }


def _show(
    scans: list[ClientFileScan], servers: list[ImportedServer], target: Path, mistakes: str
) -> None:
    if scans:
        rows = [
            (each.file.client.title, shorten_path(each.file.path), each.problem or _counted(each))
            for each in scans
        ]
        show_output(build_table(("CLIENT", "FILE", "SERVERS"), rows), "")
    else:
        show_output(line_text("No MCP client with servers was found on this machine."))
    if servers:
        show_output(
            build_table(("SERVER", "FROM", "NOTES"), [_init_row(server) for server in servers]), ""
        )
    show_output(line_text(f"Wrote {target}, which only you can read.", "bold green"))
    if any(server.entry.get(key) for server in servers for key in ("env", "headers")):
        show_output(
            line_text("Values of variables and headers were copied into it as they are.", "yellow")
        )
    if not servers:
        show_output(line_text("It has one small server to try things with; add yours to it."))
    if mistakes:
        show_output("", line_text(mistakes, "red"))
    show_output(
        "", line_text("Next: `comity serve`, then `comity client connect NAME` for each client.")
    )


def _counted(scan: ClientFileScan) -> str:
    told = [name for name, entry in scan.entries.items() if is_server(entry)]
    said = ", ".join(name for name in told if not is_comity(scan.entries[name])) or "none"
    if any(is_comity(scan.entries[name]) for name in told):
        said += " (Comity itself is left out)"
    strange = ", ".join(name for name in scan.entries if name not in told)
    return f"{said} (without a program or an address: {strange})" if strange else said


def _init_row(server: ImportedServer) -> tuple[str, str, str]:
    return server.id, ", ".join(server.sources), "; ".join(server.notes)
