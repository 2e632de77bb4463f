"""`comity config`."""

import os
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click

from comity.app.settings import TABLES, Settings
from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.app.settings_schema import json_schema
from comity.cli.options import CliGroup, config_options, current_options, output_options
from comity.cli.output import line_text, show_document, show_json, show_output
from comity.config.fields import fields_of, to_config_value
from comity.servers.wiring import describe_server
from comity.toolkit.text import count_noun

MASK: Final = "***"
_SECRET_NAME: Final = re.compile(r"secret|password|token$|pepper$|(^|_)key$")


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
@config_options
def show_config(*, of_all: bool) -> None:
    """Show the settings in effect, without secrets.

    The settings come from the configuration file and the environment.

    \b
    Examples:
      comity config show
      comity config show --all -o json
    """
    found = _load()
    settings = _settings_view(found.settings, of_all=of_all)
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
@config_options
def show_path() -> None:
    """Print the paths of the configuration files.

    \b
    Examples:
      comity config path
    """
    paths = [str(path.absolute()) for path in _load().files]
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


def _load() -> LoadedConfig:
    config = current_options().config
    return ConfigSource(Path.cwd(), Path.home(), os.environ, config).load()


def _settings_view(settings: Settings, *, of_all: bool) -> dict[str, object]:
    view: dict[str, object] = {}
    for table, declared in TABLES.items():
        holder = getattr(settings, table) if table else settings
        for name, field in fields_of(declared).items():
            value = to_config_value(getattr(holder, name))
            if of_all or value != to_config_value(field.default):
                view[f"{table}.{name}" if table else name] = _mask(name, _entry_names(value))
    return view


def _entry_names(value: object) -> object:
    """Name the entries of a table such as [[models]], or count them if they have no names."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    if not any(map(is_dataclass, entries)):
        return cast("object", value)
    names: list[object] = [
        getattr(entry, "id", None) or getattr(entry, "name", None) for entry in entries
    ]
    return names if all(names) else count_noun(len(names), "entry", "entries")


def _shown(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, cast("list[object]", value))) or "none"


def _mask(name: str, value: object) -> object:
    """Hide what may be a secret: by the name of the setting, and the tail of each URL."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {key: _mask(key, each) for key, each in members.items()}
    if isinstance(value, list | tuple):
        return [_mask(name, each) for each in cast("list[object]", value)]
    if not isinstance(value, str) or not value:
        return value
    return MASK if _SECRET_NAME.search(name) else _mask_url(value)


def _mask_url(text: str) -> str:
    scheme, has_scheme, _ = text.partition("://")
    if not has_scheme or scheme.startswith("sqlite"):
        return text
    try:
        parts = urlsplit(text)
        port = "" if parts.port is None else f":{parts.port}"
        is_origin = parts.path in ("", "/") and not parts.query
        return f"{scheme}://{parts.hostname}{port}{'' if is_origin else f'/{MASK}'}"
    except ValueError:
        return MASK
