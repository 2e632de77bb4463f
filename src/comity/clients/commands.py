"""`comity init` and `comity clients`."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click

from comity.app.administration import AdminClient
from comity.app.settings_reader import ConfigSource, file_format_of, load_settings
from comity.cli.api_client import ApiClient, read_key
from comity.cli.completion import complete_clients
from comity.cli.exit_status import DONE, FAILED, suggest_name
from comity.cli.options import (
    CliCommand,
    CliOptions,
    Decorator,
    DefaultListGroup,
    check_option,
    current_options,
    gateway_options,
    output_options,
)
from comity.cli.output import (
    build_table,
    line_text,
    shorten_path,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.permission_question import PermissionAnswer, ask_permissions
from comity.cli.target import find_target
from comity.clients import server_import
from comity.clients.applications import BY_NAME, NAME, ClientApplication
from comity.clients.files import (
    BACKUP,
    ClientFile,
    ClientServer,
    ConnectPlan,
    project_files,
    read_text,
    user_files,
    write_whole,
)
from comity.clients.permission_proposals import ProposalContext
from comity.clients.server_import import ImportedServer, entry_url, is_comity, is_server
from comity.clients.takeover import (
    ServerTakeover,
    add_servers,
    missing_servers,
    plan_takeover,
)
from comity.config.trust import content_digest, trust_file
from comity.errors import Misconfigured, Unavailable
from comity.toolkit.text import count_noun

_project_option: Final[Decorator] = click.option(
    "--project", is_flag=True, help="Use the client's file in this folder."
)


_yes_option: Final[Decorator] = click.option(
    "-y", "--yes", is_flag=True, help="Grant the proposed permissions to new servers, unasked."
)


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The status of one client on this machine."""

    file: ClientFile
    servers: int = 0
    entry: str = ""
    problem: str = ""


@click.group("clients", cls=DefaultListGroup)
def clients_command() -> None:
    """Configure MCP clients to use Comity.

    \b
    Examples:
      comity clients
      comity clients connect cursor
      comity clients disconnect cursor
    """


@clients_command.command("list")
@check_option("a client has an invalid file")
@output_options
def list_clients(*, check: bool) -> int:
    """List known clients and their connection to Comity.

    \b
    Examples:
      comity clients list
    """
    states = [_state_of(file) for file in user_files(os.environ)]
    states += [_state_of(file) for file in project_files(Path.cwd()) if file.exists]

    def print_table() -> None:
        columns = ("CLIENT", "SERVERS", "COMITY", "FILE")
        show_output(build_table(columns, [_row(state) for state in states]))

    document = {"clients": [_state_view(state) for state in states]}
    show_document(document, print_table, [state.file.client.name for state in states])
    return FAILED if check and any(state.problem for state in states) else DONE


def _state_of(file: ClientFile) -> ClientStatus:
    try:
        entries = file.entries()
    except Misconfigured as problem:
        return ClientStatus(file, problem=str(problem).removeprefix(f"{file.path}: "))
    ours = next((entry for entry in entries.values() if is_comity(entry)), entries.get(NAME))
    return ClientStatus(file, len(entries), _reached_by(ours) if ours else "")


def _reached_by(entry: dict[str, Any]) -> str:
    return entry_url(entry) or "stdio"


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


@clients_command.command("connect")
@click.argument("name", shell_complete=complete_clients)
@click.option("--stdio", is_flag=True, help="Let the client start `comity serve --stdio`.")
@click.option("--replace", is_flag=True, help="Move the other servers of the client to Comity.")
@click.option(
    "--client-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Put the key in this file into the entry.",
)
@click.option("--create-key", is_flag=True, help="Create a key and put it into the entry.")
@click.option("--principal", metavar="ID", help="Owner of the new key. Default: agent:NAME.")
@_project_option
@_yes_option
@gateway_options
def connect_client_command(name: str, *, project: bool, **said: Any) -> None:
    """Add Comity to the configuration of a client.

    Nothing else in the file changes. A client that can only start programs, such as Claude Desktop,
    gets an entry for `comity serve --stdio`, which joins the same gateway.

    \b
    Examples:
      comity clients connect cursor
      comity clients connect vscode --project
      comity clients connect cursor --replace
      comity clients connect cursor --url https://comity.example.org --create-key
    """
    client = _client(name)
    _check_connect_options(client, said, project)
    file = _file(client, project)
    is_stdio = said["stdio"] or not client.called
    takeover = plan_takeover([(file, file.servers())] if said["replace"] else [])
    entry_with = _entry_maker(client, is_stdio)
    # Planned once with a placeholder: no key is created for a file that cannot be changed.
    wants_key = bool(said["client_key_file"] or said["create_key"])
    file.plan_connect(entry_with("YOUR_KEY" if wants_key else ""), takeover.of(file))
    target = _config_to_extend() if takeover.servers else None
    new = missing_servers(target, takeover.servers) if target else {}
    answer = ask_permissions(new, proposal_context(target), yes=said["yes"])
    key = _key_for(client, said) if wants_key else _kept_key(file, entry_with)
    servers = [answer.applied_to(id, each) for id, each in new.items()]
    added = add_servers(target, servers, _mistakes) if target else []
    answer.make_folders()
    plan = file.plan_connect(entry_with(key), takeover.of(file))
    file.connect(plan)

    def print_text() -> None:
        _show_connected(file, plan, target)
        answer.show_refused()
        _show_key_hint(said, key)

    entry = client.hide_key(entry_with(key))
    view = {"client": name, "file": str(file.path), "entry": entry, "changed": plan.is_changed}
    show_document({**view, "moved": plan.moved, "added": added}, print_text, [name])


def _check_connect_options(
    client: ClientApplication, said: Mapping[str, Any], project: bool
) -> None:
    url = current_options().url
    has_key = said["client_key_file"] is not None
    if url and said["stdio"]:
        raise click.UsageError("--url and --stdio exclude each other.")
    if has_key and said["create_key"]:
        raise click.UsageError("--client-key-file and --create-key exclude each other.")
    if said["principal"] and not said["create_key"]:
        raise click.UsageError("--principal needs --create-key.")
    if project and (has_key or said["create_key"]):
        raise Misconfigured(
            "everyone who has the project could read a key in its file; remove --project"
        )
    if not client.called and url:
        raise Misconfigured(f"{client.title} can only start programs; remove --url")


def _entry_maker(
    client: ClientApplication, is_stdio: bool, options: CliOptions | None = None
) -> Callable[[str], dict[str, Any]]:
    """Return a function that makes Comity's entry from a key."""
    options = options or current_options()
    if is_stdio:
        words = _program_words(options.config)
        return lambda key: client.stdio_entry(words, key)
    address = _endpoint(find_target(options).url)
    return lambda key: client.http_entry(address, key)


def _key_for(client: ClientApplication, said: Mapping[str, Any]) -> str:
    if said["client_key_file"] is not None:
        return read_key(said["client_key_file"])
    principal = said["principal"] or f"agent:{client.name}"
    try:
        created = AdminClient().post("keys", principal=principal, label=client.title)
    except Unavailable:
        raise Unavailable(
            "no gateway runs that could create a key; start it with `comity serve`, or give a key "
            "with --client-key-file"
        ) from None
    return str(created["key"])


def _kept_key(file: ClientFile, entry_with: Callable[[str], dict[str, Any]]) -> str:
    """Return the key that is in the entry already, if nothing else of the entry changes."""
    entry = file.entries().get(NAME, {})
    key = file.client.key_of(entry)
    return key if key and entry_with(key) == entry else ""


def _config_to_extend() -> Path:
    config = current_options().config
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)
    found = source.load().files[0]
    if file_format_of(found) == "mgp":
        raise Misconfigured(f"{found} is shared by MGP programs, and Comity does not change it")
    return found


def _show_connected(file: ClientFile, plan: ConnectPlan, target: Path | None) -> None:
    title, path = file.client.title, shorten_path(file.path)
    if not plan.is_changed:
        show_output(line_text(f"{path} has Comity already."))
        return
    show_output(line_text(f"Added Comity to {path}.", "bold green"))
    if plan.moved and target is not None:
        names = ", ".join(plan.moved)
        show_output(line_text(f"Moved to {shorten_path(target)}: {names}."))
    show_output(line_text(f"Restart {title}, or reload its MCP servers."))
    undo = f"comity clients disconnect {file.client.name}" + " --project" * file.in_project
    show_hint(f"`{undo}` undoes this.")
    others = len(
        [name for name, entry in file.entries().items() if name != NAME and is_server(entry)]
    )
    if others:
        servers = count_noun(others, "other server")
        show_hint(f"The client calls {servers} directly. --replace moves them to Comity.")


def _show_key_hint(said: Mapping[str, Any], key: str) -> None:
    options = current_options()
    if said["create_key"]:
        show_hint("The entry has a new key. `comity grants create` gives its principal access.")
    elif not key and not options.url and _needs_key(options.config):
        show_output(
            line_text(
                "This gateway requires a key: add --create-key or --client-key-file.", "yellow"
            )
        )


def _needs_key(config: Path | None) -> bool:
    try:
        source = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)
        found = source.load()
    except Misconfigured:
        return False
    return found.settings.identity.mode == "required"


@clients_command.command("disconnect")
@click.argument("name", shell_complete=complete_clients)
@_project_option
@output_options
def disconnect_client_command(name: str, *, project: bool) -> None:
    """Remove Comity from the configuration of a client.

    The command puts the servers back that `connect --replace` moved.

    \b
    Examples:
      comity clients disconnect cursor
    """
    file = _file(_client(name), project)
    how = file.disconnect()
    path = shorten_path(file.path)
    told = f"Removed Comity from {path}: {how}." if how else f"{path} does not have Comity."
    document = {"client": name, "file": str(file.path), "changed": bool(how)}
    show_document(document, lambda: show_output(line_text(told)), [name])


def _client(name: str) -> ClientApplication:
    client = BY_NAME.get(name)
    if client is None:
        hint = suggest_name(name, BY_NAME) or f"Known are: {', '.join(BY_NAME)}."
        raise Misconfigured(f"there is no client {name!r}. {hint}")
    return client


def _file(client: ClientApplication, project: bool) -> ClientFile:
    if project:
        if not client.project:
            raise Misconfigured(f"{client.title} has no file for one project; remove --project")
        return ClientFile(client, Path.cwd() / client.project, in_project=True)
    path = client.user_file(os.environ)
    if path is None:
        raise Misconfigured(f"{client.title} does not run on this system")
    return ClientFile(client, path)


def _endpoint(url: str) -> str:
    """Return the address for clients of a gateway: all of its servers, unless `url` names one."""
    path = urlsplit(url if "://" in url else f"http://{url}").path.rstrip("/")
    return ApiClient(url, key="").url + (path or "/mcp")


def _program_words(config: Path | None) -> list[str]:
    # The entry names the file, and a file that is named needs no approval any more.
    found = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True).load()
    # The client starts it from some folder of its own, with some path of its own.
    program = shutil.which("comity") or str(Path(sys.argv[0]).absolute())
    return [str(Path(program).absolute()), "serve", "--stdio", "-c", str(found.files[0].absolute())]


type Format = Literal["toml", "json"]

NAMES: Final[Mapping[Format, str]] = {"toml": "comity.toml", "json": "mcp.json"}
_KEYS: Final = {
    "mcpServers": "cursor",
    "servers": "vscode",
    "context_servers": "zed",
    "mcp": "opencode",
    "amp.mcpServers": "amp",
}


@dataclass(frozen=True, slots=True)
class ClientFileScan:
    """One file that was looked into: the servers in it, or why it could not be read."""

    file: ClientFile
    servers: tuple[ClientServer, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ConnectResult:
    """How one client was connected, or why it was not."""

    file: ClientFile
    moved: tuple[str, ...] = ()
    problem: str = ""


@click.command("init", cls=CliCommand)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Import the servers of this client file only.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["toml", "json"]),
    default="toml",
    show_default=True,
    help="Write comity.toml or mcp.json.",
)
@click.option(
    "--to", metavar="FILE", type=click.Path(path_type=Path), help="Write this file instead."
)
@click.option("--force", is_flag=True, help="Replace an existing file, and keep a backup.")
@click.option(
    "--connect",
    is_flag=True,
    help="Also move the servers out of your clients, and add Comity to each.",
)
@_yes_option
@output_options
def init_command(
    source: Path | None, form: Format, to: Path | None, *, force: bool, connect: bool, yes: bool
) -> int:
    """Create a configuration from your MCP clients.

    The command reads the files of the clients that `comity clients` lists. It changes them only
    with --connect. If it finds no server, it writes a small example server. With --connect, it
    adds missing servers to an existing configuration.

    Comity confines servers. The command shows which folders, hosts and programs the servers need,
    and asks once. Without a terminal it grants nothing, unless you add --yes.

    \b
    Examples:
      comity init
      comity init --connect
      comity init --from ~/.cursor/mcp.json --to cursor.toml
    """
    if source is not None and connect:
        raise click.UsageError("--from and --connect exclude each other.")
    target = to or Path(NAMES[form])
    looked = [_from_file(source)] if source else list(_all_client_files())
    takeover = plan_takeover((each.file, each.servers) for each in looked)
    is_extended = connect and target.exists() and not force
    if is_extended:
        new = missing_servers(target, takeover.servers)
    else:
        _refuse_to_replace(target, force)
        new = {each.id: each for each in takeover.servers}
    answer = ask_permissions(new, proposal_context(target), yes=yes)
    servers = [answer.applied_to(id, each) for id, each in new.items()]
    if is_extended:
        added = add_servers(target, servers, _mistakes)
        done = f"Added to {target}: {', '.join(added) or 'nothing, it has all these servers'}."
    else:
        _write_config(target, _written(servers, form))
        done = f"Wrote {target}. Only you can read it."
    answer.make_folders()
    mistakes = _mistakes(target)
    results = [] if mistakes or not connect else _connect_all(looked, takeover, target)

    def print_text() -> None:
        _show(looked, servers, done, mistakes)
        answer.show_refused()
        _show_next(results, looked if connect else None)

    view = _import_view(looked, servers, target, mistakes, results)
    document = {**view, "permissions": _answer_view(answer)}
    show_document(document, print_text, [target])
    return FAILED if mistakes or any(each.problem for each in results) else DONE


def proposal_context(target: Path | None) -> ProposalContext:
    """Return this machine as proposals see it, with the configuration files that count here."""
    found = ConfigSource(Path.cwd(), Path.home(), os.environ, target, needs_trust=True)
    return ProposalContext(Path.home(), Path.cwd(), os.environ, found.watched_paths)


def _answer_view(answer: PermissionAnswer) -> dict[str, object]:
    proposed = {
        id: {"needs": each.describe(), "commands": each.commands(id)}
        for id, each in answer.proposals.items()
        if not each.is_empty
    }
    return {"granted": answer.is_granted, "proposed": proposed}


def _write_config(target: Path, text: str) -> None:
    if target.exists():
        write_whole(target.with_name(target.name + BACKUP), read_text(target))
    write_whole(target, text)
    trust_file(target, content_digest(text.encode()))


def _connect_all(
    scans: list[ClientFileScan], takeover: ServerTakeover, target: Path
) -> list[ConnectResult]:
    """Put Comity into the user's file of each client. Files of projects are shared, and stay."""
    results: list[ConnectResult] = []
    for each in scans:
        if each.file.in_project or each.problem:
            continue
        client = each.file.client
        try:
            entry_with = _entry_maker(client, not client.called, CliOptions(config=target))
            plan = each.file.plan_connect(
                entry_with(_kept_key(each.file, entry_with)), takeover.of(each.file)
            )
            each.file.connect(plan)
            results.append(ConnectResult(each.file, tuple(plan.moved)))
        except Misconfigured as problem:
            results.append(ConnectResult(each.file, problem=str(problem)))
    return results


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
        return ClientFileScan(file, tuple(file.servers()))
    except Misconfigured as problem:
        return ClientFileScan(file, (), str(problem).removeprefix(f"{file.path}: "))


def _from_file(path: Path) -> ClientFileScan:
    """Scan a named file; its form shows the client that it belongs to."""
    text = read_text(path)
    client = _client_of(path, text)
    file = ClientFile(client, path.absolute())
    servers = file.servers()
    if not servers:
        raise Misconfigured(f"{path} names no servers; they are read from: {', '.join(_KEYS)}")
    return ClientFileScan(file, tuple(servers))


def _client_of(path: Path, text: str) -> ClientApplication:
    if path.suffix.lower() == ".toml":
        return BY_NAME["codex"]
    if path.suffix.lower() in (".yaml", ".yml"):
        names = ("goose", "continue")
        return next(
            (BY_NAME[each] for each in names if _has_servers(BY_NAME[each], text)), BY_NAME["goose"]
        )
    try:
        present = [name for name in _KEYS.values() if _has_servers(BY_NAME[name], text)]
    except Misconfigured as problem:
        raise Misconfigured(f"{path}: {problem}") from None
    return BY_NAME[present[0] if present else "cursor"]


def _has_servers(client: ClientApplication, text: str) -> bool:
    return bool(client.format.read(text, client.section))


def _written(servers: list[ImportedServer], form: Format) -> str:
    entries = {server.id: server.entry for server in servers}
    if servers:
        return server_import.as_toml(entries) if form == "toml" else server_import.as_json(entries)
    if form == "toml":
        return server_import.render_starter_config(_example())
    return server_import.as_json({"example": _example()})


def _example() -> dict[str, Any]:
    """How the small server that comes along is started, from wherever `serve` will run.

    The sandbox knows the libraries of this interpreter. A `comity` on the PATH may be of another
    installation.
    """
    return {"command": sys.executable, "args": ["-m", "comity.cli", "dev", "example-server"]}


def _refuse_to_replace(target: Path, force: bool) -> None:
    if target.exists() and not force:
        raise Misconfigured(
            f"{target} exists; --force replaces it and keeps a backup, --to writes another file"
        )


def _mistakes(target: Path) -> str:
    try:
        load_settings(target, os.environ)
    except Misconfigured as problem:
        return str(problem)
    return ""


def _import_view(
    scans: list[ClientFileScan],
    servers: list[ImportedServer],
    target: Path,
    mistakes: str,
    results: list[ConnectResult],
) -> dict[str, object]:
    return {
        "found": [
            {
                "client": each.file.client.name,
                "file": str(each.file.path),
                "servers": [server.name for server in each.servers],
                "problem": each.problem or None,
            }
            for each in scans
        ],
        "servers": [
            {"id": server.id, "from": server.sources, "notes": server.notes} for server in servers
        ],
        "written": str(target.absolute()),
        "mistakes": mistakes or None,
        "connected": [
            {
                "client": each.file.client.name,
                "file": str(each.file.path),
                "moved": list(each.moved),
                "problem": each.problem or None,
            }
            for each in results
        ],
    }


def _show(
    scans: list[ClientFileScan], servers: list[ImportedServer], done: str, mistakes: str
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
    show_output(line_text(done, "bold green"))
    if any(server.entry.get(key) for server in servers for key in ("env", "headers")):
        show_output(line_text("It contains the values of variables and headers.", "yellow"))
    if not servers:
        show_output(line_text("It has one example server. Add your own."))
    if mistakes:
        show_output("", line_text(mistakes, "red"))


def _show_next(results: list[ConnectResult], connected: list[ClientFileScan] | None) -> None:
    """Say what to do next. `connected` is None without --connect."""
    if connected is None:
        show_hint(
            "Next: `comity serve`, then `comity clients connect NAME --replace` for each client."
        )
        return
    rows = [
        (
            each.file.client.title,
            "no" if each.problem else "yes",
            ", ".join(each.moved) or "none",
        )
        for each in results
    ]
    if rows:
        show_output("", build_table(("CLIENT", "CONNECTED", "MOVED SERVERS"), rows))
    for each in results:
        if each.problem:
            show_output("", line_text(each.problem, "yellow"))
    for scan in connected:
        if scan.file.in_project and scan.servers and NAME not in scan.file.entries():
            name = scan.file.client.name
            show_output(
                line_text(
                    f"{shorten_path(scan.file.path)} belongs to this project and was not changed; "
                    f"`comity clients connect {name} --project --replace` changes it.",
                    "yellow",
                )
            )
    show_hint("Next: `comity serve`. `comity clients disconnect NAME` puts servers back.")


def _counted(scan: ClientFileScan) -> str:
    servers = [each for each in scan.servers if is_server(each.entry)]
    ours = [each for each in servers if each.name == NAME or is_comity(each.entry)]
    said = ", ".join(each.name for each in servers if each not in ours) or "none"
    if ours:
        said += " (Comity itself is left out)"
    strange = ", ".join(each.name for each in scan.servers if each not in servers)
    return f"{said} (without a program or an address: {strange})" if strange else said


def _init_row(server: ImportedServer) -> tuple[str, str, str]:
    return server.id, ", ".join(server.sources), "; ".join(server.notes)
