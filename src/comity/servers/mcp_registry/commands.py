"""`comity servers search`, and `comity servers add` with a name of the MCP registry."""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource, file_format_of, load_settings
from comity.cli.options import (
    CliCommand,
    config_options,
    confirm,
    current_options,
    limit_option,
)
from comity.cli.output import build_table, line_text, show_document, show_hint, show_output
from comity.clients.files import read_text
from comity.clients.server_import import ImportedServer, is_runner
from comity.clients.takeover import add_servers
from comity.errors import Misconfigured
from comity.mcp.protocol import is_id
from comity.servers.mcp_registry.client import McpRegistryClient, address_problem
from comity.servers.mcp_registry.model import NAME, RegistryServer
from comity.servers.mcp_registry.rules import REMOTE, ServerPlan, plan_server
from comity.servers.wiring import proxies_of

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SOURCES: Final = ("npm", "pypi", "oci", "nuget", REMOTE)


@click.command("search", cls=CliCommand)
@click.argument("words", nargs=-1)
@limit_option(20, 100)
@config_options
def search_command(words: tuple[str, ...], limit: int) -> None:
    """Search the MCP registry for servers by name.

    The setting `registry.source_url` names the registry.

    \b
    Examples:
      comity servers search github
      comity servers search files -n 50 -o json
    """
    client = _client_of(_settings_or_defaults())
    found = asyncio.run(client.search(" ".join(words), limit))
    rows = [
        (each.name, each.version, ", ".join(_sources_of(each)), each.description or each.title)
        for each in found
    ]

    def print_table() -> None:
        if not rows:
            show_output(line_text("The registry has no such server."))
            return
        show_output(build_table(("NAME", "VERSION", "RUNS AS", "DESCRIPTION"), rows))
        show_hint("`comity servers add NAME` adds one to your configuration.")

    document = {
        "servers": [
            {"name": name, "version": version, "description": about, "sources": _sources_of(each)}
            for each, (name, version, _, about) in zip(found, rows, strict=True)
        ]
    }
    show_document(document, print_table, [each.name for each in found])


@dataclass(frozen=True, slots=True)
class RegistryAddition:
    """The choices of a person who adds a server of the registry."""

    server_id: str
    source: str
    allow_runtime_arguments: bool
    variables: tuple[str, ...]
    dry_run: bool
    yes: bool


def add_from_registry(name: str, addition: RegistryAddition) -> None:
    """Add a server of the MCP registry to the configuration. Raises Misconfigured."""
    registry_name, _, version = name.partition("@")
    if not NAME.fullmatch(registry_name):
        raise Misconfigured(
            f"{registry_name!r:.200} is no server of a registry, as io.github.owner/name; to add "
            "another one, write its program after `--`, or its address after --url"
        )
    server_id = addition.server_id
    if server_id and not is_id(server_id):
        raise Misconfigured(f"{server_id!r:.80} is no id of a server")
    path, settings = load_config()
    client = _client_of(settings)
    server = asyncio.run(client.get(registry_name, version or "latest"))
    plan = plan_server(
        server,
        id=server_id,
        source=addition.source,
        with_runtime_arguments=addition.allow_runtime_arguments,
        variables=addition.variables,
    )
    if "url" in plan.entry and (problem := asyncio.run(address_problem(plan.entry["url"]))):
        raise Misconfigured(f"{server.name} {server.version} cannot be added: {problem}")
    is_for_people = not current_options().is_for_programs
    if is_for_people:
        _print_plan(server, plan)
    added: list[str] = []
    if not addition.dry_run:
        confirm(f"Add it to {line_text(path)}?", yes=addition.yes)
        added = _write(path, settings, server, plan)
    document = _plan_view(server, plan, path, added)

    def print_outcome() -> None:
        _print_outcome(path, plan, added, addition.dry_run)

    show_document(document, print_outcome, added or [plan.id])


def _write(path: Path, settings: Settings, server: RegistryServer, plan: ServerPlan) -> list[str]:
    host = urlsplit(settings.registry.source_url).netloc
    comment = f"{server.name} {server.version} of {host} {plan.digest}".strip()
    entry = {**plan.entry, "sandbox": "none"} if is_runner(plan.entry) else plan.entry
    imported = ImportedServer(plan.id, entry, [server.name], comment=comment)
    return add_servers(path, [imported], find_mistakes)


def find_mistakes(path: Path) -> str:
    try:
        load_settings(path, _environ_for(path))
    except Misconfigured as problem:
        return str(problem)
    return ""


def load_config() -> tuple[Path, Settings]:
    """Return the configuration file and its settings. Its variables need not be set yet."""
    source = _config_source(os.environ)
    paths = [path for path in source.watched_paths if path.is_file()]
    path = current_options().config or next(iter(paths), None)
    if path is not None and path.is_file():
        if file_format_of(path) == "mgp":
            raise Misconfigured(f"{path} is shared with other programs; add the server there")
        source = _config_source(_environ_for(path))
    loaded = source.load()
    return loaded.files[0], loaded.settings


def _settings_or_defaults() -> Settings:
    source = _config_source(os.environ)
    if current_options().config is None and not any(each.exists() for each in source.watched_paths):
        return Settings()
    return load_config()[1]


def _config_source(environ: Mapping[str, str]) -> ConfigSource:
    config = current_options().config
    return ConfigSource(Path.cwd(), Path.home(), environ, config, needs_trust=True)


def _environ_for(path: Path) -> dict[str, str]:
    """Return the environment, with a word for each variable of the file that is not set yet."""
    return {**dict.fromkeys(_REFERENCE.findall(read_text(path)), "unset"), **os.environ}


def _client_of(settings: Settings) -> McpRegistryClient:
    return McpRegistryClient(settings.registry.source_url, proxies_of(settings))


def _sources_of(server: RegistryServer) -> list[str]:
    kinds = [package.registry_type for package in server.packages]
    return list(dict.fromkeys([*kinds, *([REMOTE] if server.remotes else [])]))


def _print_plan(server: RegistryServer, plan: ServerPlan) -> None:
    entry = plan.entry
    facts = [
        ("description", server.description),
        ("id", plan.id),
        ("runs", " ".join(map(shown_word, [entry["command"], *entry["args"]])))
        if "command" in entry
        else ("calls", entry["url"]),
        ("digest", plan.digest),
        *(
            ("gets", f"{name} = {shown_word(text)}")
            for kind in ("env", "headers")
            for name, text in entry.get(kind, {}).items()
        ),
        *(("note", note) for note in plan.notes),
    ]
    show_output(line_text(f"{server.name} {server.version}", "bold"))
    rows = [(line_text(title, "dim"), line_text(fact)) for title, fact in facts if fact]
    show_output(build_table(("", ""), rows))
    if plan.needs:
        show_output("", line_text("Variables of the gateway's environment that it gets:", "bold"))
        needs = [
            (
                each.name,
                "required" if each.is_required else "optional",
                "set" if os.environ.get(each.name) else "not set",
                each.description,
            )
            for each in plan.needs
        ]
        show_output(build_table(("VARIABLE", "NEEDED", "STATE", "DESCRIPTION"), needs))


def _print_outcome(path: Path, plan: ServerPlan, added: list[str], dry_run: bool) -> None:
    if dry_run:
        show_output("", line_text(f"Nothing was written to {path}."))
    elif not added:
        show_output("", line_text(f"{path} has this server already."))
    else:
        show_output("", line_text(f"Added {added[0]} to {path}."))
    unset = [each.name for each in plan.needs if each.is_required and not os.environ.get(each.name)]
    if unset:
        show_output(line_text(f"Set before the gateway starts: {', '.join(unset)}.", "yellow"))


def shown_word(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z0-9_@%+=:,./${}-]+", word) else repr(word)


def _plan_view(
    server: RegistryServer, plan: ServerPlan, path: Path, added: list[str]
) -> dict[str, Any]:
    return {
        "name": server.name,
        "version": server.version,
        "id": added[0] if added else plan.id,
        "source": plan.source,
        "entry": plan.entry,
        "digest": plan.digest or None,
        "needs": [
            {
                "name": each.name,
                "description": each.description,
                "required": each.is_required,
                "secret": each.is_secret,
                "set": bool(os.environ.get(each.name)),
            }
            for each in plan.needs
        ],
        "notes": list(plan.notes),
        "file": str(path),
        "added": bool(added),
    }
