"""`comity config`."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import click

from comity.app.settings_reader import ConfigSource
from comity.app.settings_schema import json_schema
from comity.app.settings_view import settings_view
from comity.cli.api_client import ApiClient, find_gateway
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import (
    CliGroup,
    confirm,
    current_options,
    file_options,
    output_options,
    yes_option,
)
from comity.cli.output import line_text, show_document, show_json, show_output
from comity.config.document import masked_text, references_in
from comity.config.loader import parse_config_file, read_config_bytes
from comity.config.trust import TRUST_COMMAND, content_digest, is_trusted, trust_file
from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.lock_file import LOCK_NAME, parse_lock, read_lock_bytes
from comity.servers.wiring import describe_server
from comity.toolkit.text import object_members


@click.group(
    "config",
    cls=CliGroup,
    lazy_commands={"check": "comity.app.checks.configuration:check_command"},
)
def config_command() -> None:
    """Check and show the configuration.

    Comity reads the first of these files: comity.toml, mcp.json and .mcp.json in this folder, the
    file in MGP_CONFIG_PATH, or mgp.toml in this folder with ~/.config/mgp/servers.toml.

    \b
    Examples:
      comity config check
      comity config show
    """


@config_command.command("show")
@click.option("--all", "of_all", is_flag=True, help="Also settings with their default value.")
@file_options
def show_config(*, of_all: bool) -> None:
    """Show the settings in effect, without secrets.

    The settings come from the configuration file and the environment. A file of this folder needs
    your approval, see `comity config trust`.

    \b
    Examples:
      comity config show
      comity config show --all -o json
    """
    found = _source().load()
    settings = settings_view(found.settings, of_all=of_all)
    servers = [
        {"id": server.id, "disabled": server.disabled, **describe_server(server)}
        for server in found.settings.servers
    ]

    def print_table() -> None:
        for line in found.describe():
            show_output(line_text(line, "bold"))
        show_output(*(line_text(f"{name} = {_shown(value)}") for name, value in settings.items()))

    document = {"files": [str(path) for path in found.files], "settings": settings}
    show_document({**document, "servers": servers}, print_table, settings)


@config_command.command("path")
@file_options
def show_path() -> None:
    """Print the paths of the configuration files.

    \b
    Examples:
      comity config path
    """
    paths = [str(path.absolute()) for path in _source().required_paths()]
    show_document(
        {"files": paths}, lambda: show_output(*(line_text(path) for path in paths)), paths
    )


@config_command.command("schema")
@output_options
def show_schema() -> None:
    """Print the JSON Schema of comity.toml.

    \b
    Examples:
      comity config schema > comity.schema.json
    """
    schema = json_schema()
    show_document(schema, lambda: show_json(schema))


@config_command.command("trust")
@yes_option
@file_options
def trust_config(*, yes: bool) -> int:
    """Approve the configuration file of this folder.

    A file that comes with a folder, such as a cloned repository, has no effect until you approve
    its content. A changed file needs a new approval. The command shows what the file starts, and
    which variables it sends away. Without a terminal it needs --yes.

    If a gateway runs with this configuration, the command waits until it has applied the files, and
    exits with 1 if it refuses them.

    \b
    Examples:
      comity config trust
      comity config trust ./mcp.json
    """
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, needs_trust=False)
    file = current_options().config
    paths = [file] if file is not None else list(source.project_files)
    if not paths:
        raise Misconfigured("this folder has no configuration file")
    approve_files(paths, yes=yes)
    names = [str(path.absolute()) for path in paths]
    application = _await_application(source, paths)
    lines = [line_text(f"Approved {name}.") for name in names]
    if application is not None:
        lines.append(line_text(f"{application.text}.", application.style))
    document = {
        "files": names,
        "gateway": None if application is None else application.url,
        "applied": None if application is None else application.is_applied,
    }
    show_document(document, lambda: show_output(*lines), names)
    return FAILED if application is not None and application.is_applied is False else DONE


APPLY_SECONDS: Final = 30.0
"""A gateway looks at its files once a second, and reads a file that is stable."""
_ASK_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Application:
    """The outcome of approved files at a running gateway."""

    url: str
    text: str
    # None if the gateway does not tell this user.
    is_applied: bool | None

    @property
    def style(self) -> str:
        return "yellow" if self.is_applied is None else "green" if self.is_applied else "red"


def _await_application(source: ConfigSource, paths: Sequence[Path]) -> Application | None:
    """Wait until the gateway that runs this configuration has applied or refused the files.

    Returns None if no gateway runs it.
    """
    configs = dict.fromkeys((*source.existing_paths[:1], *paths))
    records = [record for path in configs if (record := find_gateway(path)) is not None]
    if not records:
        return None
    record, approved_at = records[0], datetime.now(UTC)
    url = record.url
    client = ApiClient(url, token=record.token, key="" if record.token else None)
    # A lock file has no digest of its own there. It is read together with its configuration.
    digests = {
        str(path.absolute()): content_digest(read_config_bytes(path))
        for path in paths
        if path.name != LOCK_NAME
    }
    deadline = time.monotonic() + APPLY_SECONDS
    error = ""
    try:
        while time.monotonic() < deadline:
            reload = object_members(client.get("config").get("reload"))
            error = str(reload.get("error") or "")
            if not error and digests.items() <= object_members(reload.get("digests")).items():
                return Application(url, f"The gateway at {url} has applied it", is_applied=True)
            is_new = datetime.fromisoformat(str(reload.get("read_at"))) > approved_at
            # An old reading may still end with a refusal of the content that is approved now.
            if error and is_new and TRUST_COMMAND not in error:
                break
            time.sleep(_ASK_AGAIN_SECONDS)
    except (Misconfigured, Unavailable) as problem:
        text = f"The gateway at {url} does not say whether it has applied it; see its log"
        return Application(url, f"{text} ({problem})", is_applied=None)
    reason = error or f"it has not read the file within {APPLY_SECONDS:g} s"
    return Application(url, f"The gateway at {url} has not applied it: {reason}", is_applied=False)


def ask_for_trust(source: ConfigSource) -> None:
    """Ask at a terminal for the approval of files that need one. A script is not asked."""
    unknown = [path for path in source.project_files if not _is_approved(path)]
    if unknown and source.needs_trust and sys.stdin.isatty() and sys.stdout.isatty():
        approve_files(unknown, yes=False)


def _is_approved(path: Path) -> bool:
    try:
        return is_trusted(path, content_digest(path.read_bytes()))
    except OSError:
        return False


def approve_files(paths: Sequence[Path], *, yes: bool) -> None:
    """Show what files start, ask, and record exactly the content that was shown.

    Raises Misconfigured without `yes` if there is no terminal.
    """
    is_shown = not current_options().is_for_programs
    if not yes and not (is_shown and sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misconfigured(
            "the approval needs a terminal; read the file, then approve it with --yes"
        )
    for path in paths:
        digest, lines = _examine_file(path)
        if is_shown:
            show_output(line_text(f"{path} starts or calls:" if lines else str(path), "bold"))
            show_output(*(line_text(line) for line in lines))
        confirm(f"Approve {line_text(path)}?", yes=yes)
        trust_file(path, digest)


def _examine_file(path: Path) -> tuple[str, list[str]]:
    """Return the digest of a file, and lines that say what it starts and how."""
    if path.name == LOCK_NAME:
        data = read_lock_bytes(path) or b""
        return content_digest(data), _lock_lines(path, data)
    digests: list[str] = []
    file = parse_config_file(path, lambda _, digest: digests.append(digest))
    return digests[0], approval_lines(file.document.value)


def approval_lines(document: object) -> list[str]:
    """Return what a configuration starts and calls, and which variables it sends there."""
    top = dict(object_members(document))
    servers = top.pop("servers", None) or top.pop("mcpServers", None)
    if isinstance(servers, list):
        entries = [object_members(each) for each in cast("list[object]", servers)]
        named = [(str(each.get("id")), each) for each in entries]
    else:
        named = [(name, object_members(each)) for name, each in object_members(servers).items()]
    lines = [line for name, entry in named for line in _server_lines(name, entry)]
    lines += _setting_lines("", top)
    variables = dict.fromkeys(_variables_in(document))
    return [*lines, *([f"sends these variables: {', '.join(variables)}"] if variables else [])]


def _variables_in(document: object) -> Iterator[str]:
    """Yield the variables and secrets of a configuration, by reference and by name."""
    # A stack and no recursion, because the file is not trusted yet.
    values: list[tuple[str, object]] = [("", document)]
    while values:
        key, value = values.pop()
        if isinstance(value, str):
            yield from [value] if key.endswith("_env") else references_in(value)
        elif isinstance(value, list):
            values += ((key, each) for each in reversed(cast("list[object]", value)))
        else:
            values += reversed(object_members(value).items())


def _lock_lines(path: Path, data: bytes) -> list[str]:
    return [
        f"{id}: {server.package or ' '.join((server.entry.command, *server.entry.args))}"
        for id, server in parse_lock(path, data).items()
    ]


def _server_lines(name: str, entry: Mapping[str, object]) -> list[str]:
    """Return the command or URL of a server, and each other key of its entry."""
    args = entry.get("args")
    words = [entry.get("command") or entry.get("url") or entry.get("openapi")]
    rest = {key: value for key, value in entry.items() if key not in ("id", "command")}
    if isinstance(args, list):
        words += cast("list[object]", rest.pop("args"))
    lines = [f"{name}: {' '.join(map(str, words))}"]
    # The text of a credential stays hidden. The variables that it sends do not.
    for key in ("headers", "auth"):
        texts = object_members(rest.get(key))
        if texts:
            del rest[key]
        lines += [f"{name}.{key}.{each} = {_masked(text)}" for each, text in texts.items()]
    if "client_secret" in (oauth := object_members(rest.get("oauth"))):
        rest["oauth"] = {**oauth, "client_secret": _masked(oauth["client_secret"])}
    return [*lines, *_setting_lines(f"{name}.", rest)]


def _masked(value: object) -> str:
    return masked_text(value if isinstance(value, str) else json.dumps(value, default=str))


def _setting_lines(prefix: str, settings: Mapping[str, object]) -> list[str]:
    return [
        f"{prefix}{key} = {json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in settings.items()
    ]


def _source() -> ConfigSource:
    config = current_options().config
    return ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)


def _shown(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, cast("list[object]", value))) or "none"
