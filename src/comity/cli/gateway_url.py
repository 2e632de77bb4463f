"""Which gateway a command asks: the one that is named, or else the one of this folder.

In this order: `--url`, `COMITY_URL`, a running gateway of the configuration, the host and port in
that configuration, and the usual address. The configuration is the one that `--config` names, or
the one that `comity serve` would find here. Reading it is slow, so that comes last.
"""

import importlib
import os
from pathlib import Path
from typing import Final, Protocol, cast

from comity.cli.gateway_records import GatewayRecord, find_gateway, url_of
from comity.rules.config_files import MGP_USER, MGP_VARIABLE, choices
from comity.wire.errors import Misconfigured

DEFAULT_URL: Final = "http://127.0.0.1:2664"
URL_VARIABLE: Final = "COMITY_URL"


class _Settings(Protocol):
    host: str
    port: int


class _Reading(Protocol):
    def settings_of(self, config: Path | None) -> _Settings: ...


def find_url(config: Path | None = None) -> str:
    """The address of the gateway to ask, where no address is given."""
    if named := os.environ.get(URL_VARIABLE):
        return named
    file = config_file(config)
    if file is None:
        return DEFAULT_URL
    running = find_gateway(file)
    return _configured_url(config) if running is None else running.url


def config_file(config: Path | None = None) -> Path | None:
    """The configuration that is meant, by its first file; None where there is none."""
    if config is not None:
        return config
    for choice in choices(os.environ.get(MGP_VARIABLE)):
        for name in choice:
            file = Path.home() / name if name == MGP_USER else Path(name)
            if file.is_file():
                return file
    return None


def running_gateway(config: Path | None = None) -> GatewayRecord | None:
    """The gateway that runs with this configuration, where one has left its record."""
    file = config_file(config)
    return None if file is None else find_gateway(file)


def _configured_url(config: Path | None) -> str:
    # Loaded only now: most commands find a gateway that runs, and never need it.
    reading = cast("_Reading", importlib.import_module("comity.cli.administering"))
    try:
        settings = reading.settings_of(config)
    except Misconfigured:
        # What is wrong with a file is said by the commands that need it.
        return DEFAULT_URL
    # Port 0 is another one at each start, which only the record tells.
    return url_of(settings.host, settings.port) if settings.port else DEFAULT_URL
