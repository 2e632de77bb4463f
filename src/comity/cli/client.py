"""`comity client`: Comity put into the configuration of an MCP client, and taken out again."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from comity.cli.asking import Gateway
from comity.cli.client_files import NAME, ClientFile, project_files, user_files
from comity.cli.clients import ARGS, BY_NAME, COMMAND, URL, Client
from comity.cli.completing import complete_clients
from comity.cli.ends import FINE, SOMETHING_WRONG, suggestion
from comity.cli.gateway_url import find_url
from comity.cli.importing import is_comity
from comity.cli.options import Listing, json_option
from comity.cli.show import plain, short, show, show_json, table
from comity.config import Source
from comity.wire.errors import Misconfigured

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_project_option: Final[Decorator] = click.option(
    "--project", is_flag=True, help="In this folder's file, instead of the one for all projects."
)


@dataclass(frozen=True, slots=True)
class State:
    """What is known of one client on this machine."""

    file: ClientFile
    servers: int = 0
    entry: str = ""
    problem: str = ""


@click.group("client", cls=Listing)
def command() -> None:
    """Put Comity into the configuration of an MCP client, and take it out again."""


@command.command("list")
@json_option
def list_clients(as_json: bool) -> int:
    """List the clients that Comity knows, and whether it stands in their configurations."""
    states = [_state_of(file) for file in user_files(os.environ)]
    states += [_state_of(file) for file in project_files(Path.cwd()) if file.exists]
    if as_json:
        show_json({"clients": [_told(state) for state in states]})
    else:
        show(table(("CLIENT", "SERVERS", "COMITY", "FILE"), [_row(state) for state in states]))
    return SOMETHING_WRONG if any(state.problem for state in states) else FINE


def _state_of(file: ClientFile) -> State:
    try:
        entries = file.entries()
    except Misconfigured as problem:
        return State(file, problem=str(problem).removeprefix(f"{file.path}: "))
    ours = next((entry for entry in entries.values() if is_comity(entry)), entries.get(NAME))
    return State(file, len(entries), _reached_by(ours) if ours else "")


def _reached_by(entry: dict[str, Any]) -> str:
    url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if entry.get(key)), None)
    return str(url) if url else "starts it"


def _row(state: State) -> tuple[str, str, str, str]:
    there = str(state.servers) if state.file.exists else "-"
    where = short(state.file.path)
    if state.problem:
        where += f" ({state.problem})"
    return state.file.client.name, "?" if state.problem else there, state.entry or "-", where


def _told(state: State) -> dict[str, object]:
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


@command.command("connect")
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
def connect(
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
    title, path = file.client.title, short(file.path)
    if not changed:
        show(plain(f"Comity stands in {path} already, just so."))
        return
    show(plain(f"Comity stands in {path} now.", "bold green"))
    if file.backup.exists():
        show(plain(f"The file as it was: {short(file.backup)}"))
    show(plain(f"Restart {title}, or let it look for its MCP servers again."))
    others = len(file.entries()) - 1
    if others:
        told = "one other server" if others == 1 else f"{others} other servers"
        show(plain(f"It has {told} beside Comity; `comity init` takes them over.", "dim"))


@command.command("disconnect")
@click.argument("name", shell_complete=complete_clients)
@_project_option
@json_option
def disconnect(name: str, *, project: bool, as_json: bool) -> int:
    """Take Comity out of the configuration of the client NAME again."""
    file = _file(_client(name), project)
    how = file.disconnect()
    if as_json:
        show_json({"client": name, "file": str(file.path), "changed": bool(how)})
    elif how:
        show(plain(f"Comity is out of {short(file.path)}: {how}."))
    else:
        show(plain(f"Comity does not stand in {short(file.path)}."))
    return FINE


def _client(name: str) -> Client:
    client = BY_NAME.get(name)
    if client is None:
        hint = suggestion(name, BY_NAME) or f"Known are: {', '.join(BY_NAME)}."
        raise Misconfigured(f"there is no client {name!r}. {hint}")
    return client


def _file(client: Client, project: bool) -> ClientFile:
    if project:
        if not client.project:
            raise Misconfigured(f"{client.title} has no file for one project; leave --project away")
        return ClientFile(client, Path.cwd() / client.project, in_project=True)
    path = client.user_file(os.environ)
    if path is None:
        raise Misconfigured(f"{client.title} does not run on this kind of machine")
    return ClientFile(client, path)


def _called(client: Client, url: str | None) -> dict[str, object]:
    url = url or find_url()
    gateway = Gateway(url)
    path = urlsplit(url if "://" in url else f"http://{url}").path.rstrip("/")
    whole = gateway.url + (path or "/mcp")
    return {key: whole if value == URL else value for key, value in client.called.items()}


def _started(client: Client, config: Path | None) -> dict[str, object]:
    found = Source(Path.cwd(), Path.home(), os.environ, config).find()
    # The client starts it from some folder of its own, with some path of its own.
    program = shutil.which("comity") or str(Path(sys.argv[0]).absolute())
    args = ["serve", "--stdio", str(found.files[0].absolute())]
    words: dict[str, object] = {COMMAND: str(Path(program).absolute()), ARGS: args}
    return {key: words.get(value, value) for key, value in client.started.items()}
