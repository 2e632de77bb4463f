"""`comity servers add` and `comity servers remove`."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from comity.app.server_entries import ID_RULE
from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import NOT_FOUND, suggest_name
from comity.cli.options import (
    CliCommand,
    config_options,
    confirm,
    current_options,
    dry_run_option,
    yes_option,
)
from comity.cli.output import (
    build_table,
    line_text,
    short_reason,
    show_document,
    show_output,
    show_spinner,
)
from comity.cli.target import running_gateway
from comity.clients.commands import proposal_context
from comity.clients.permission_proposals import AccessProposal, propose_permissions
from comity.clients.server_import import ImportedServer
from comity.clients.takeover import add_servers, remove_server
from comity.config.document import masked_text, references_in
from comity.errors import Misconfigured, Unavailable
from comity.mcp.protocol import is_id
from comity.redaction.secrets import is_secret_name, without_secrets
from comity.servers.commands import has_failed, is_settled
from comity.servers.mcp_registry.commands import (
    SOURCES,
    RegistryAddition,
    add_from_registry,
    find_mistakes,
    load_config,
    shown_word,
)
from comity.toolkit.text import count_noun

POLL_INTERVAL: Final = timedelta(milliseconds=200)
MAX_WAIT: Final = timedelta(seconds=20)
"""A gateway reads a changed file within two seconds; the rest is for the start of the server."""

_OF_REGISTRY: Final = {
    "server_id": "--id",
    "source": "--use",
    "allow_runtime_arguments": "--allow-runtime-arguments",
    "variables": "--allow-variable",
}
_OF_ENTRY: Final = {"env": "--env", "headers": "--header"}


@click.command("add", cls=CliCommand)
@click.argument("name", metavar="NAME[@VERSION]")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGUMENT]...]", type=click.UNPROCESSED)
@click.option("--url", "server_url", metavar="URL", default="", help="Add the server there.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="With COMMAND: a variable of the program, from the gateway if without a value. "
    "Repeatable.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --url: a header, best with a '${VARIABLE}'. Repeatable.",
)
@click.option("--id", "server_id", metavar="ID", default="", help="Registry: id of the server.")
@click.option(
    "--use",
    "source",
    type=click.Choice(SOURCES),
    help="Registry: this kind of package, or the remote endpoint. Default: the first one.",
)
@click.option(
    "--allow-runtime-arguments",
    is_flag=True,
    help="Registry: accept arguments for the program that runs the package, such as docker.",
)
@click.option(
    "--allow-variable",
    "variables",
    metavar="NAME",
    multiple=True,
    help="Registry: let the entry set this variable to a text of its own. Repeatable.",
)
@dry_run_option
@yes_option
@config_options
def add_command(name: str, words: tuple[str, ...], **said: Any) -> None:
    """Add a program, a URL or a server of the MCP registry.

    The command shows what will run and what it may reach, and asks. A running gateway starts the
    server at once. Give secrets as '${VARIABLE}' or '${secret:NAME}'.

    \b
    Examples:
      comity servers add files -- npx -y @example/files-server ~/notes
      comity servers add notes --env NOTES_KEY -- notes-mcp
      comity servers add search --url https://search.example.org/mcp
      comity servers add io.github.owner/name@1.2.0 --id notes
    """
    dry_run, yes = said.pop("dry_run"), said.pop("yes")
    if words and said["server_url"]:
        raise click.UsageError("A server is a COMMAND or has a --url, not both.")
    if words or said["server_url"]:
        _refuse_options(said, _OF_REGISTRY, "a server of the registry")
        _refuse_options(said, {"headers": "--header"} if words else {"env": "--env"}, "the other")
        entry = _program_entry(words, said["env"]) if words else _remote_entry(said)
        _add_entry(name, entry, dry_run=dry_run, yes=yes)
        return
    _refuse_options(said, _OF_ENTRY, "a COMMAND or a --url")
    registry: dict[str, Any] = {key: said[key] for key in _OF_REGISTRY}
    registry["source"] = said["source"] or ""
    add_from_registry(name, RegistryAddition(**registry, dry_run=dry_run, yes=yes))


def _refuse_options(said: Mapping[str, Any], options: Mapping[str, str], what: str) -> None:
    for key, option in options.items():
        if said[key]:
            raise click.UsageError(f"{option} is for {what}.")


def _program_entry(words: Sequence[str], env: Sequence[str]) -> dict[str, Any]:
    program, *args = words
    entry: dict[str, Any] = {"command": _find_program(program)}
    if args:
        entry["args"] = args
    if any(_is_in_this_folder(each) for each in args):
        entry["cwd"] = str(Path.cwd())
    variables = dict(_variable_pair(each) for each in env)
    if variables:
        entry["env"] = variables
    return entry


def _find_program(program: str) -> str:
    """Return the program as the gateway finds it, from whatever folder that runs in."""
    if references_in(program):
        return program
    found = shutil.which(program)
    if found is None:
        hint = (
            "write each of its arguments as a word of its own"
            if any(letter.isspace() for letter in program)
            else "check how it is spelt, install it, or give its whole path"
        )
        raise Misconfigured(f"there is no program {program!r:.200}; {hint}")
    return str(Path(found).absolute()) if "/" in program else program


def _is_in_this_folder(word: str) -> bool:
    try:
        return bool(word) and not Path(word).is_absolute() and Path(word).exists()
    except (OSError, ValueError):
        return False


def _variable_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name:
        raise click.UsageError("--env needs a name.")
    return name, value if sign else f"${{{name}}}"


def _header_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise click.UsageError("--header needs a name, = and a value.")
    return name, value


def _remote_entry(said: Mapping[str, Any]) -> dict[str, Any]:
    headers = dict(_header_pair(each) for each in said["headers"])
    return {"url": said["server_url"], **({"headers": headers} if headers else {})}


def _add_entry(name: str, entry: dict[str, Any], *, dry_run: bool, yes: bool) -> None:
    if not is_id(name):
        raise Misconfigured(f"{name!r:.80} is no name of a server: it {ID_RULE}")
    path, settings = load_config()
    if any(each.id.casefold() == name.casefold() for each in settings.servers):
        raise Misconfigured(
            f"{path} has a server {name!r} already; choose another name, or remove that one with "
            f"`comity servers remove {name}`"
        )
    # The operator typed this command line, and confirms below what it would reach.
    proposal = propose_permissions(entry, proposal_context(path))
    entry = proposal.applied_to(entry)
    notes = [*_notes_on(entry), *proposal.notes]
    if not current_options().is_for_programs:
        _print_review(name, entry, proposal, notes)
    outcome = ""
    if not dry_run:
        confirm(f"Add it to {line_text(path)}?", yes=yes)
        proposal.make_folders()
        if not add_servers(path, [ImportedServer(name, entry, [])], find_mistakes):
            raise Misconfigured(f"{path} has the same server under another name")
        outcome = _follow(name, is_added=True)
    view = {
        "id": name,
        "entry": {**entry, **_masked_texts(entry), **_masked_tables(entry)},
        "notes": notes,
        "file": str(path),
        "added": not dry_run,
    }
    done = f"Nothing was written to {path}." if dry_run else f"Added {name} to {path}. {outcome}"
    show_document(view, lambda: show_output("", line_text(done)), [name])


def _print_review(
    name: str, entry: Mapping[str, Any], proposal: AccessProposal, notes: Sequence[str]
) -> None:
    if "command" in entry:
        words = [entry["command"], *entry.get("args", [])]
        facts = [("runs", without_secrets(" ".join(map(shown_word, words))))]
    else:
        facts = [("calls", without_secrets(entry["url"]))]
    facts += [("in", entry["cwd"])] if "cwd" in entry else []
    facts += [
        ("gets", f"{key} = {shown}")
        for table in _masked_tables(entry).values()
        for key, shown in table.items()
    ]
    facts += [("may", each) for each in proposal.describe()]
    facts += [("note", note) for note in notes]
    show_output(line_text(name, "bold"))
    rows = [(line_text(title, "dim"), line_text(fact)) for title, fact in facts]
    show_output(build_table(("", ""), rows))


def _masked_tables(entry: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the variables and headers of an entry without the texts that may be secrets."""
    env = {
        name: masked_text(value) if _is_secret(name, value) else value
        for name, value in entry.get("env", {}).items()
    }
    headers = {name: masked_text(value) for name, value in entry.get("headers", {}).items()}
    return {key: table for key, table in (("env", env), ("headers", headers)) if table}


def _masked_texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments or the URL of an entry without what looks like a secret."""
    if "url" in entry:
        return {"url": without_secrets(entry["url"])}
    return {"args": [without_secrets(each) for each in entry["args"]]} if "args" in entry else {}


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or without_secrets(value) != value


def _notes_on(entry: Mapping[str, Any]) -> list[str]:
    """Return what the person should know before they agree."""
    secrets = [
        name
        for key in ("env", "headers")
        for name, value in entry.get(key, {}).items()
        if (key == "headers" or _is_secret(name, value)) and not references_in(value)
    ]
    notes = [
        f"the value of {name} goes into the file as it is; '${{secret:{name}}}' would keep it out"
        for name in secrets
    ]
    texts = [*entry.get("env", {}).values(), *entry.get("headers", {}).values()]
    texts += [*entry.get("args", []), entry.get("command", ""), entry.get("url", "")]
    variables = dict.fromkeys(
        name for text in texts for name in references_in(text) if not name.startswith("secret:")
    )
    unset = [name for name in variables if not os.environ.get(name)]
    return notes + ([f"set for the gateway: {', '.join(unset)}"] if unset else [])


@click.command("remove", cls=CliCommand)
@click.argument("name", shell_complete=complete_servers)
@yes_option
@config_options
def remove_command(name: str, *, yes: bool) -> None:
    """Remove a server from the configuration.

    A running gateway stops the server after its running calls. Grants for it stay.

    \b
    Examples:
      comity servers remove files
      comity servers remove files --yes
    """
    path, settings = load_config()
    names = [each.id for each in settings.servers]
    if name not in names:
        raise Misconfigured(
            f"{path} has no server {name!r:.80}. {suggest_name(name, names)}".rstrip(), NOT_FOUND
        )
    confirm(f"Remove {name} from {line_text(path)}?", yes=yes)
    remove_server(path, name, find_mistakes)
    done = f"Removed {name} from {path}. {_follow(name, is_added=False)}"
    view = {"id": name, "file": str(path), "removed": True}
    show_document(view, lambda: show_output(line_text(done)), [name])


def _follow(name: str, *, is_added: bool) -> str:
    """Wait until the running gateway has taken the change, and say what became of it."""
    record = running_gateway(current_options().config)
    if record is None:
        return "It counts from the next `comity serve`."
    gateway = ApiClient(record.url)
    ends = time.monotonic() + MAX_WAIT.total_seconds()
    with show_spinner("the gateway takes the change"):
        while True:
            try:
                server = _find_server(gateway, name)
                is_done = is_settled(server) if server and is_added else bool(server) is is_added
                if is_done or time.monotonic() > ends:
                    return _describe(gateway, name, server, is_added=is_added, is_done=is_done)
            except (Misconfigured, Unavailable) as problem:
                return f"The outcome at the gateway is unknown: {problem}."
            time.sleep(POLL_INTERVAL.total_seconds())


def _find_server(gateway: ApiClient, name: str) -> Answer:
    servers: list[Answer] = gateway.get("servers")["servers"]
    return next((each for each in servers if each["id"] == name), dict[str, Any]())


def _describe(
    gateway: ApiClient, name: str, server: Answer, *, is_added: bool, is_done: bool
) -> str:
    if not is_added and is_done:
        return f"The gateway at {gateway.url} has stopped it."
    if is_added and server:
        if has_failed(server):
            reason = short_reason(server["reason"])
            return f"It failed: {reason}. `comity servers show {name}` shows the details."
        if is_done:
            tools = count_noun(server["tools"], "tool")
            return f"The gateway at {gateway.url} runs it: {tools}."
        return f"The gateway at {gateway.url} is starting it; see `comity servers show {name}`."
    error = gateway.get("config")["reload"]["error"]
    return f"The gateway at {gateway.url} has not applied it{f': {error}' if error else ' yet'}."
