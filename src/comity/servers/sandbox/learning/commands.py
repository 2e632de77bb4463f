"""`comity servers learn`: runs a server with wide rights and proposes its permissions."""

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import click

from comity.app.settings import ServerSettings, Settings
from comity.app.settings_reader import ConfigSource, file_format_of
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED, suggest_name
from comity.cli.options import CliCommand, config_options, current_options, yes_option
from comity.cli.output import (
    build_table,
    line_text,
    show_document,
    show_hint,
    show_output,
    show_spinner,
)
from comity.clients.files import file_mode, read_text, write_whole
from comity.config.server_tables import by_hand_error, find_server_table, has_meaning
from comity.config.toml_writer import toml_key, toml_value
from comity.config.trust import content_digest, is_trusted, trust_file
from comity.errors import MalformedMessage, Misconfigured
from comity.http.client.dial import proxy_chooser
from comity.http.server import event_loop
from comity.policy.risk import TrustLevel
from comity.servers.process.stderr import sanitize_line
from comity.servers.sandbox.egress import open_stream
from comity.servers.sandbox.learning.service import (
    LearningCall,
    LearningOutcome,
    LearningSetup,
    learn_server,
    read_calls,
)
from comity.servers.sandbox.learning.trace import find_strace, trace_problem
from comity.servers.sandbox.model import EXECUTE, REACH_NETWORK, READ_FILES, WRITE_FILES
from comity.servers.wiring import launcher_of, options_of, proxies_of

LEARNED: Final = (READ_FILES, WRITE_FILES, REACH_NETWORK, EXECUTE)
WARNING: Final = (
    "{server} will run with the rights of your user. It can read and change your files, and reach "
    "every host. Run only a server that you trust."
)

TABLE: Final = "[servers.policy.permissions]"
_HEADER: Final = re.compile(r"\s*\[")
_OLD_TABLE: Final = re.compile(r"\s*\[\s*servers\s*\.\s*policy\s*\.\s*permissions\s*\]")
_OLD_KEY: Final = re.compile(r"\s*permissions\s*=")
_POLICY: Final = re.compile(r"\s*\[\s*servers\s*\.\s*policy\s*\]")


@click.command("learn", cls=CliCommand)
@click.argument("name", shell_complete=complete_servers)
@click.option(
    "--calls",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help='Calls to make: lines such as {"tool": "read", "arguments": {}}.',
)
@click.option("--write", is_flag=True, help="Write the permissions into the configuration.")
@yes_option
@config_options
def learn_command(name: str, calls: IO[str] | None, *, write: bool, yes: bool) -> int:
    """Run a server and propose its permissions.

    The server runs outside of the gateway, with wide rights. The command makes the calls of a
    file, records the files, hosts and programs that the server uses, and shows the permissions
    for them. Exits with 1 if a call fails.

    \b
    Examples:
      comity servers learn files --calls calls.jsonl
      comity servers learn files --calls calls.jsonl --write
    """
    path = current_options().config
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, path, needs_trust=True)
    loaded = source.load()
    server = _find_server(loaded.settings, name)
    wanted = _read_calls(calls)
    problem = trace_problem()
    _ask(server, problem, yes=yes)
    setup = _setup_of(server, loaded.settings, find_strace() if problem is None else None)
    with show_spinner(f"learn {server.id}"):
        outcome = _run(setup, wanted)
    permissions = _merge(server, outcome.proposal.permissions)
    if problem is not None:
        outcome.proposal.notes.append(f"Files and programs were not recorded: {problem}.")
    _show(server, permissions, outcome, was_called=bool(wanted))
    if write:
        file = next(each.path for each in loaded.loaded_files if name in each.servers)
        _write(file, server.id, permissions)
        click.echo(f"Wrote the permissions to {file}.", err=True)
    return FAILED if outcome.failures else DONE


def _find_server(settings: Settings, name: str) -> ServerSettings:
    found = next((each for each in settings.servers if each.id == name), None)
    if found is None:
        names = [each.id for each in settings.servers]
        raise Misconfigured(f"there is no server {name!r:.80}. {suggest_name(name, names)}")
    if found.transport != "stdio":
        raise Misconfigured(f"server {name!r} is not started by Comity, so it has no sandbox")
    return found


def _read_calls(file: IO[str] | None) -> list[LearningCall]:
    try:
        return [] if file is None else read_calls(file)
    except (MalformedMessage, UnicodeDecodeError) as problem:
        name = "" if file is None else file.name
        raise Misconfigured(f"the calls in {name} cannot be read: {problem}") from None


def _ask(server: ServerSettings, problem: str | None, *, yes: bool) -> None:
    """Say what will happen, and ask. A script needs --yes, because no person is there to refuse."""
    click.echo(str(line_text(WARNING.format(server=server.id))), err=True)
    if problem is not None:
        click.echo(f"Only the network is recorded: {problem}.", err=True)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misconfigured("this run needs a person; run it at a terminal, or add --yes")
    click.confirm(f"Run {server.id} with wide rights?", default=False, abort=True, err=True)


def _setup_of(server: ServerSettings, settings: Settings, strace: str | None) -> LearningSetup:
    return LearningSetup(
        server.id,
        launcher_of(server, settings).prepare,
        options_of(server, settings).connections,
        settings.limits.call_idle_timeout.total_seconds(),
        open_stream(proxy_chooser(proxies_of(settings))),
        lambda: ((settings.host, settings.port),),
        strace,
    )


def _run(setup: LearningSetup, calls: Sequence[LearningCall]) -> LearningOutcome:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(learn_server(setup, calls))


def _merge(
    server: ServerSettings, proposed: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return the proposed permissions, and those of the file that no run can show."""
    written: Mapping[str, Sequence[str]] = server.policy.get("permissions", {})
    others = {name: list(each) for name, each in written.items() if name not in LEARNED}
    return {**{name: proposed[name] for name in LEARNED if name in proposed}, **others}


def _write(path: Path, id: str, permissions: Mapping[str, Sequence[str]]) -> None:
    if file_format_of(path) != "comity":
        raise Misconfigured(f"{path} is not a comity.toml; put the permissions in by hand")
    before = read_text(path)
    text = put_permissions(before, id, permissions)
    write_whole(path, text, file_mode(path))
    if is_trusted(path, content_digest(before.encode())):
        # The person who approved the file is the one who adds to it.
        trust_file(path, content_digest(text.encode()))


def _show(
    server: ServerSettings,
    permissions: Mapping[str, Sequence[str]],
    outcome: LearningOutcome,
    *,
    was_called: bool,
) -> None:
    notes = [*outcome.proposal.notes, *(f"A call failed: {each}." for each in outcome.failures)]
    document = {
        "server": server.id,
        "permissions": {name: list(places) for name, places in permissions.items()},
        "notes": notes,
        "tools": outcome.tools,
        "failures": outcome.failures,
    }

    def print_text() -> None:
        _print_permissions(server, permissions)
        if notes:
            show_output("", *(line_text(note, "yellow") for note in notes))
        if not was_called:
            show_hint(f"No tools were called. Give calls with --calls: {_tools_text(outcome)}")
        if server.policy.get("trust") != TrustLevel.SANDBOXED:
            show_hint('The server is always confined with trust = "sandboxed" in [servers.policy].')

    show_document(document, print_text, permissions)


def _print_permissions(server: ServerSettings, permissions: Mapping[str, Sequence[str]]) -> None:
    if not permissions:
        show_output(line_text(f"{server.id} needs no permission for this."))
        return
    rows = [(name, place) for name, each in permissions.items() for place in (each or [""])]
    show_output(build_table(("PERMISSION", "REACH"), rows), "")
    # On lines of their own, however long, because the person pastes them into a file.
    for line in render_permissions(permissions).splitlines():
        click.echo(sanitize_line(line))


def _tools_text(outcome: LearningOutcome) -> str:
    return ", ".join(outcome.tools[:10]) or "it lists no tools"


def render_permissions(permissions: Mapping[str, Sequence[str]]) -> str:
    """Return the table of permissions, to write below an entry of `[[servers]]`."""
    lines = [f"{toml_key(name)} = {toml_value(list(each))}" for name, each in permissions.items()]
    return "\n".join([TABLE, *lines, ""])


def put_permissions(text: str, id: str, permissions: Mapping[str, Sequence[str]]) -> str:
    """Return the text with these permissions of a server in place of its former ones.

    Raises Misconfigured if the edit of lines would change the meaning of anything else.
    """
    table = find_server_table(text, id)
    kept = _without_permissions(table.lines[table.first : table.end])
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    rest = table.lines[table.end :]
    edited = "".join(
        [*table.lines[: table.first], *kept, "\n", render_permissions(permissions), *rest]
    )
    wanted = tomllib.loads(text)
    wanted["servers"][table.number].setdefault("policy", {})["permissions"] = {
        name: list(each) for name, each in permissions.items()
    }
    if not has_meaning(edited, wanted):
        raise by_hand_error(id)
    return edited


def _without_permissions(lines: Sequence[str]) -> list[str]:
    """Return the lines of an entry without its permissions, as a table or as a key."""
    kept: list[str] = []
    is_old = is_policy = False
    for line in lines:
        if _HEADER.match(line):
            is_old, is_policy = _OLD_TABLE.match(line) is not None, bool(_POLICY.match(line))
        if not is_old and not (is_policy and _OLD_KEY.match(line)):
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept
