"""`comity store`: where grants, parties and keys are kept, and bringing that up to date."""

import asyncio
import os
from pathlib import Path

import click

from comity.adapters import stores
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import json_option
from comity.cli.show import plain, show, show_json
from comity.config import Settings, Source
from comity.wire.errors import Misconfigured

config_argument = click.argument("config", type=click.Path(path_type=Path), required=False)


@click.group("store")
def command() -> None:
    """Show where grants, parties and keys are kept, and bring that up to date.

    CONFIG is found as `comity serve` finds it unless given; its table [store] names the store, or
    else the variable COMITY_STORE_URL does.
    """


@command.command("status")
@config_argument
@json_option
def status(config: Path | None, as_json: bool) -> int:
    """Show where the store is, and whether its schema is what this version needs.

    The exit status is 1 if it is not.
    """
    url = _settings(config).store_url
    if not url:
        told: dict[str, object] = {"store": stores.described(url), "schema": None, "newest": None}
        current = newest = ""
    else:
        current, newest = asyncio.run(stores.current(url)), stores.newest()
        told = {"store": stores.described(url), "schema": current, "newest": newest}
    if as_json:
        show_json(told)
    else:
        _show(url, current, newest)
    return FINE if current == newest else SOMETHING_WRONG


@command.command("upgrade")
@config_argument
def upgrade(config: Path | None) -> int:
    """Bring the store's schema up to what this version needs, with all that is in it.

    A SQLite file is brought up to date by `comity serve` itself. In PostgreSQL the database must be
    there, and whoever is named in the url must be allowed to make tables in it.
    """
    url = _settings(config).store_url
    if not url:
        raise Misconfigured('name a store first, as url = "sqlite:///comity.db" in [store]')
    before = asyncio.run(stores.current(url))
    asyncio.run(stores.upgrade(url))
    after = asyncio.run(stores.current(url))
    if before == after:
        done = f"had schema {after} already"
    else:
        done = f"has schema {after} now" + (
            "" if before == stores.NO_TABLES else f", and had {before}"
        )
    show(plain(f"{stores.described(url)}: {done}", "green"))
    return FINE


def _settings(config: Path | None) -> Settings:
    return Source(Path.cwd(), Path.home(), os.environ, config).find().settings


def _show(url: str, current: str, newest: str) -> None:
    if not url:
        show(plain("Nothing is kept: grants, parties and keys are in memory while it runs."))
        show(plain('To keep them, write url = "sqlite:///comity.db" in [store].', "dim"))
        return
    show(plain(stores.described(url), "bold"))
    if current == newest:
        show(plain(f"schema {current}, up to date", "green"))
    else:
        has = "no tables yet" if current == stores.NO_TABLES else f"schema {current}"
        show(plain(f"{has}; this version needs {newest}: run `comity store upgrade`", "yellow"))
