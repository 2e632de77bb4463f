"""`comity store`: the database and its schema version."""

import asyncio
import os
from pathlib import Path

import click

from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import json_option
from comity.cli.output import line_text, show_json, show_output
from comity.errors import Misconfigured
from comity.storage import schema, stores

config_argument = click.argument("config", type=click.Path(path_type=Path), required=False)


@click.group("store")
def store_command() -> None:
    """Show where grants, parties and keys are kept, and bring that up to date.

    CONFIG is found as `comity serve` finds it unless given; its table [store] names the store, or
    else the variable COMITY_STORE_URL does.
    """


@store_command.command("status")
@config_argument
@json_option
def store_status_command(config: Path | None, as_json: bool) -> int:
    """Show where the store is, and whether its schema is what this version needs.

    The exit status is 1 if it is not.
    """
    url = _settings(config).store.url
    if not url:
        told: dict[str, object] = {
            "store": stores.describe_store(url),
            "schema": None,
            "newest": None,
        }
        current = newest = ""
    else:
        current, newest = asyncio.run(stores.current_schema(url)), schema.newest_revision()
        told = {"store": stores.describe_store(url), "schema": current, "newest": newest}
    if as_json:
        show_json(told)
    else:
        _show(url, current, newest)
    return FINE if current == newest else SOMETHING_WRONG


@store_command.command("upgrade")
@config_argument
def upgrade_store_command(config: Path | None) -> int:
    """Bring the store's schema up to what this version needs, with all that is in it.

    A SQLite file is brought up to date by `comity serve` itself. In PostgreSQL the database must be
    there, and whoever is named in the url must be allowed to make tables in it.
    """
    url = _settings(config).store.url
    if not url:
        raise Misconfigured('name a store first, as url = "sqlite:///comity.db" in [store]')
    before = asyncio.run(stores.current_schema(url))
    asyncio.run(stores.upgrade_store(url))
    after = asyncio.run(stores.current_schema(url))
    if before == after:
        done = f"had schema {after} already"
    else:
        done = f"has schema {after} now" + (
            "" if before == stores.NO_TABLES else f", and had {before}"
        )
    show_output(line_text(f"{stores.describe_store(url)}: {done}", "green"))
    return FINE


def _settings(config: Path | None) -> Settings:
    return ConfigSource(Path.cwd(), Path.home(), os.environ, config).load().settings


def _show(url: str, current: str, newest: str) -> None:
    if not url:
        show_output(
            line_text("Nothing is kept: grants, parties and keys go when the gateway ends.")
        )
        show_output(line_text('To keep them, write url = "sqlite:///comity.db" in [store].', "dim"))
        return
    show_output(line_text(stores.describe_store(url), "bold"))
    if current == newest:
        show_output(line_text(f"schema {current}, up to date", "green"))
    else:
        has = "no tables yet" if current == stores.NO_TABLES else f"schema {current}"
        show_output(
            line_text(f"{has}; this version needs {newest}: run `comity store upgrade`", "yellow")
        )
