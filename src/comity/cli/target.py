"""The gateway that a command talks to: its URL and the key for it.

The first of these names the gateway: `--url`, `--context`, `--config`, COMITY_URL, COMITY_CONTEXT,
the configuration in this folder, the current context, the default URL.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from comity.cli.api_client import (
    API_TIMEOUT,
    ApiClient,
    GatewayRecord,
    find_gateway,
    read_key,
    url_of,
)
from comity.cli.contexts import CONTEXT_VARIABLE, GatewayContext, read_contexts
from comity.cli.options import CliOptions, current_options
from comity.config.files import OWN, config_file_choices, existing_choices
from comity.errors import Misconfigured

DEFAULT_URL: Final = "http://127.0.0.1:2664"
URL_VARIABLE: Final = "COMITY_URL"
KEY_FILE_VARIABLE: Final = "COMITY_KEY_FILE"


@dataclass(frozen=True, slots=True)
class GatewayTarget:
    """The URL of a gateway, and the file with the key for it, if one is named."""

    url: str
    key_file: Path | None = None


def connect_gateway(
    timeout: timedelta = API_TIMEOUT, options: CliOptions | None = None
) -> ApiClient:
    """Return a client of the gateway that this command talks to. Raises Misconfigured."""
    target = find_target(options or current_options())
    key = None if target.key_file is None else read_key(target.key_file)
    return ApiClient(target.url, timeout, key=key)


def find_target(options: CliOptions) -> GatewayTarget:
    """Return the gateway that these options and the environment name. Raises Misconfigured."""
    named = os.environ.get(KEY_FILE_VARIABLE)
    key_file = options.key_file or (Path(named) if named else None)
    url = options.url or (
        "" if options.context or options.config else os.environ.get(URL_VARIABLE, "")
    )
    if url:
        return GatewayTarget(url, key_file)
    if context := _named_context(options):
        # The key of another gateway is not sent to this one.
        own = Path(context.key_file).expanduser() if context.key_file else key_file
        return GatewayTarget(context.url, options.key_file or own)
    return GatewayTarget(_config_url(options.config) or DEFAULT_URL, key_file)


def _named_context(options: CliOptions) -> GatewayContext | None:
    name = options.context
    if not name and options.config is None:
        name = os.environ.get(CONTEXT_VARIABLE, "")
    if name:
        return read_contexts().find(name)
    if _is_configured_here(options.config):
        return None
    contexts = read_contexts()
    return contexts.find(contexts.current) if contexts.current else None


def _is_configured_here(config: Path | None) -> bool:
    """Return whether a configuration names the gateway: a comity.toml, or one that is served.

    Other configuration files belong to MCP clients, and name no gateway unless one serves them.
    """
    file = config_file(config)
    return config is not None or (
        file is not None and (file.name == OWN or find_gateway(file) is not None)
    )


def _config_url(config: Path | None) -> str:
    """Return the URL of the gateway of this configuration; empty if there is none."""
    running = running_gateway(config)
    if running is not None:
        return running.url
    return "" if config_file(config) is None else _configured_url(config)


def config_file(config: Path | None = None) -> Path | None:
    """Return the first file of the configuration; None if there is none."""
    if config is not None:
        return config
    choices = config_file_choices(Path(), Path.home(), os.environ)
    found = existing_choices(choices, None)
    return found[0][0] if found else None


def running_gateway(config: Path | None = None) -> GatewayRecord | None:
    """Return the gateway that runs with this configuration, if it left a record."""
    file = config_file(config)
    return None if file is None else find_gateway(file)


def _configured_url(config: Path | None) -> str:
    # Imported here because it loads slowly, and most commands find the record of a gateway.
    from comity.app.settings_reader import ConfigSource

    try:
        source = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)
        settings = source.load().settings
    except Misconfigured:
        # The commands that need the file report what is wrong with it. A file that no person
        # approved must not choose the gateway that gets the user's key.
        return ""
    # With port 0 the port changes at each start, and only the record names it.
    scheme = "https" if settings.tls.certificate_file else "http"
    return url_of(settings.host, settings.port, scheme) if settings.port else ""
