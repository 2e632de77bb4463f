"""`comity db`: the database and its schema version."""

import asyncio
import os
from pathlib import Path

import click

from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.audit.wiring import last_signed_file, signing_key_file
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import (
    CliGroup,
    check_option,
    config_options,
    current_options,
    dry_run_option,
)
from comity.cli.output import line_text, show_document, show_hint, show_output
from comity.errors import Misconfigured
from comity.identity.wiring import pepper_file_of
from comity.storage import schema, sqlite, stores


@click.group("db", cls=CliGroup)
def db_command() -> None:
    """Show and migrate the database.

    `url` in [store] of the configuration, or COMITY_STORE_URL, names the database.

    \b
    Examples:
      comity db status
      comity db migrate
    """


@db_command.command("status")
@check_option("the schema is not up to date")
@config_options
def status(*, check: bool) -> int:
    """Show the database and its schema version.

    \b
    Examples:
      comity db status
      comity db status --check
    """
    url = _settings().store.url
    current = asyncio.run(stores.current_schema(url)) if url else ""
    newest = schema.newest_revision() if url else ""
    document = {
        "store": stores.describe_store(url),
        "schema": current or None,
        "newest": newest or None,
    }
    show_document(document, lambda: _show(url, current, newest), [current] if current else [])
    return FAILED if check and current != newest else DONE


@db_command.command("migrate")
@dry_run_option
@config_options
def migrate(*, dry_run: bool) -> None:
    """Migrate the database to the schema of this version.

    `comity serve` migrates a SQLite file itself. In PostgreSQL the database must exist, and the
    user in the url must be able to create tables.

    \b
    Examples:
      comity db migrate --dry-run
      comity db migrate -c /etc/comity/comity.toml
    """
    url = _settings().store.url
    if not url:
        raise Misconfigured('name a database first, such as url = "sqlite:///comity.db" in [store]')
    before = asyncio.run(stores.current_schema(url))
    if not dry_run:
        asyncio.run(stores.upgrade_store(url))
    after = schema.newest_revision() if dry_run else asyncio.run(stores.current_schema(url))
    old = "no tables" if before == stores.NO_TABLES else f"schema {before}"
    if before == after:
        done = f"schema {after} is up to date"
    else:
        done = f"{'would migrate' if dry_run else 'migrated'} from {old} to schema {after}"
    document = {"store": stores.describe_store(url), "before": before, "schema": after}
    told = line_text(f"{stores.describe_store(url)}: {done}", "green")
    show_document(document, lambda: show_output(told), [after])


@db_command.command("backup")
@click.argument("folder", type=click.Path(path_type=Path))
@config_options
def back_up(folder: Path) -> None:
    """Copy a SQLite database and its secrets to FOLDER.

    The secrets are the pepper and the key that signs the audit log. A gateway may run. To restore,
    copy all files to the place of the database before `comity serve`. Protect the copy as well as
    the database.

    \b
    Examples:
      comity db backup /backup/comity-2027-01-31
    """
    settings = _settings()
    key = signing_key_file(settings)
    secrets = (pepper_file_of(settings), key, None if key is None else last_signed_file(key))
    copies = sqlite.back_up(settings.store.url, filter(None, secrets), folder)
    told = [line_text(f"Wrote {copy}.", "green") for copy in copies]
    files = [str(copy) for copy in copies]
    show_document({"files": files}, lambda: show_output(*told), files)


def _settings() -> Settings:
    config = current_options().config
    return (
        ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True).load().settings
    )


def _show(url: str, current: str, newest: str) -> None:
    if not url:
        show_output(line_text("There is no database. Records end with the gateway."))
        show_hint('To store them, write url = "sqlite:///comity.db" in [store].')
        return
    show_output(line_text(stores.describe_store(url), "bold"))
    if current == newest:
        show_output(line_text(f"schema {current}, up to date", "green"))
    else:
        has = "no tables" if current == stores.NO_TABLES else f"schema {current}"
        told = f"{has}, but this version needs {newest}: run `comity db migrate`"
        show_output(line_text(told, "yellow"))
