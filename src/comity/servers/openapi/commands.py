"""`comity servers add-api`: adds an HTTP API with an OpenAPI document to the configuration."""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import click

from comity.app.settings_reader import ConfigSource, file_format_of, load_settings
from comity.cli.options import CliCommand, config_options, current_options
from comity.cli.output import line_text, shorten_path, show_document, show_hint, show_output
from comity.clients.server_import import ImportedServer
from comity.clients.takeover import add_servers
from comity.config.document import expand_variables
from comity.errors import Misconfigured
from comity.http.client.client import default_tls
from comity.http.client.dial import proxy_chooser
from comity.http.client.pool import HttpConnectionPool
from comity.servers.transports.openapi import OpenApiClient, OpenApiSource, OpenApiTransportFactory
from comity.servers.wiring import proxies_of
from comity.toolkit.text import count_noun

MAX_SHOWN_TOOLS: Final = 5


@click.command("add-api", cls=CliCommand)
@click.argument("name")
@click.argument("openapi", metavar="DOCUMENT")
@click.option(
    "--url",
    "api_url",
    metavar="URL",
    default="",
    help="The API. Default: the first server of the document.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="PATTERN",
    help='Only these: "GET /repos/*", an id, a tag; "!…" excludes. Repeatable.',
)
@click.option(
    "--auth",
    multiple=True,
    metavar="SCHEME=VALUE",
    help="A credential, best as '${VARIABLE}'. Repeatable.",
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent always. Repeatable."
)
@config_options
def add_api_command(
    *,
    name: str,
    openapi: str,
    api_url: str,
    operations: tuple[str, ...],
    auth: tuple[str, ...],
    headers: tuple[str, ...],
) -> None:
    """Add an HTTP API as a server, by its OpenAPI 3 document.

    DOCUMENT is a file or a URL, JSON or YAML. Comity reads it first, and writes nothing if it is
    unusable.

    \b
    Examples:
      comity servers add-api shop ./shop.yaml
      comity servers add-api github github.json --operation "GET /repos/*"
      comity servers add-api pay pay.json --auth key='${PAY_KEY}'
    """
    config = current_options().config
    loaded = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True).load()
    target = loaded.files[0]
    if file_format_of(target) == "mgp":
        raise Misconfigured(f"{target} is shared by MGP programs, and Comity does not change it")
    if any(each.id.casefold() == name.casefold() for each in loaded.settings.servers):
        raise Misconfigured(f"{target} has a server {name!r}; choose another name")
    remote = openapi.startswith(("http://", "https://"))
    document = openapi if remote else str(Path(openapi).expanduser().absolute())
    credentials = dict(_parse_pair("--auth", each) for each in auth)
    source = OpenApiSource(document, api_url, {}, {}, operations)
    proxy = proxy_chooser(proxies_of(loaded.settings))
    client = asyncio.run(_load(source, HttpConnectionPool(default_tls(), choose_proxy=proxy)))
    unknown = [each for each in credentials if each not in client.api.schemes]
    if unknown:
        known = ", ".join(client.api.schemes) or "none"
        raise Misconfigured(f"the document has no security scheme {unknown[0]!r}, but: {known}")
    entry: dict[str, Any] = {"openapi": document, "url": api_url or client.api.url}
    entry |= {"operations": list(operations)} if operations else {}
    entry |= {"auth": credentials} if credentials else {}
    entry |= {"headers": dict(_parse_pair("--header", each) for each in headers)} if headers else {}
    if not add_servers(target, [ImportedServer(name, entry, [])], _mistakes):
        raise Misconfigured(f"{target} has the same server under another name")
    _show_added(name, target, client, entry)


def _parse_pair(option: str, text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise click.UsageError(f"{option} needs a name, = and a value.")
    # A variable that is not set is reported before anything is written.
    expand_variables(value, os.environ)
    return name, value


async def _load(source: OpenApiSource, pool: HttpConnectionPool) -> OpenApiClient:
    async with pool:
        return await OpenApiTransportFactory(source, pool, pool).acquire()


def _mistakes(target: Path) -> str:
    try:
        load_settings(target, os.environ)
    except Misconfigured as problem:
        return str(problem)
    return ""


def _show_added(name: str, target: Path, client: OpenApiClient, entry: dict[str, Any]) -> None:
    api = client.api
    needed = sorted(
        {label for each in api.operations.values() for labels in each.security for label in labels}
    )
    view = {
        "id": name,
        "file": str(target),
        "url": entry["url"],
        "tools": len(api.operations),
        "skipped": list(api.skipped),
        "schemes": needed,
    }

    def print_text() -> None:
        tools = count_noun(len(api.operations), "tool")
        said = f"Added {name} with {tools} at {entry['url']} to {shorten_path(target)}."
        show_output(line_text(said, "bold green"))
        for reason in api.skipped[:MAX_SHOWN_TOOLS]:
            show_output(line_text(f"Skipped {reason}.", "yellow"))
        if needed and not entry.keys() & {"auth", "headers"}:
            show_hint(f"Its operations need a credential: set `auth` for {', '.join(needed[:5])}.")

    show_document(view, print_text, [name])
