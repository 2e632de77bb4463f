"""Client of the operator API, which falls back to the store when no gateway runs."""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.api_client import Answer, ApiClient, find_gateway_by_url, running_gateway, url_of
from comity.config.document import ConfigValue
from comity.errors import Misconfigured, Unavailable
from comity.storage.stores import describe_store
from comity.telemetry.logging import log_announcement

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OFFLINE_CONTEXT_KEY: Final = "comity.offline"
"""Key in the click context of a command that holds the `--offline` flag."""

PROBE_TIMEOUT: Final = timedelta(seconds=2)


def _store_offline_flag(context: click.Context, _: click.Parameter, offline: bool) -> None:
    context.meta[OFFLINE_CONTEXT_KEY] = offline


_config_option: Final[Decorator] = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    is_eager=True,
    help="The configuration whose gateway is asked; that of this folder unless given.",
)
_offline_option: Final[Decorator] = click.option(
    "--offline",
    is_flag=True,
    expose_value=False,
    callback=_store_offline_flag,
    help="Ask no gateway, but work on the store that the configuration names.",
)


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--config` option, which selects the gateway, or its store, that a command uses."""
    return _config_option(_offline_option(command))


def is_offline() -> bool:
    """Return whether the user gave `--offline`, so that the command contacts no gateway."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.meta.get(OFFLINE_CONTEXT_KEY))


class AdminClient:
    """Reads and writes records through a running gateway, or directly in its store."""

    def __init__(self, url: str, config: Path | None) -> None:
        self._api_client = ApiClient(url)
        self._config = config
        self._is_offline = is_offline()
        self._settings = settings_of(config) if self._is_offline else None

    def get(self, *path_parts: str, **query: str) -> Answer:
        if self._settings is None:
            try:
                return self._api_client.get(*path_parts, **query)
            except Unavailable as away:
                self._settings = settings_for_offline_read(away, self._config)
        return self._request_offline("GET", path_parts, query, {})

    def pages(self, name: str, **query: str) -> list[Answer]:
        """Return every entry of a list. The method requests one page after another."""
        found: list[Answer] = []
        while True:
            page = self.get(name, **query)
            found += page[name]
            if "next" not in page:
                return found
            query["cursor"] = page["next"]

    def post(self, *path_parts: str, **body: object) -> Answer:
        said = {name: value for name, value in body.items() if value not in (None, "", ())}
        if self._is_offline:
            refuse_if_gateway_runs(self._config)
            return self._request_offline("POST", path_parts, {}, said)
        try:
            return self._api_client.post(*path_parts, body=said)
        except Unavailable as away:
            raise Unavailable(f"{away}; or change the store itself with --offline") from None

    def _request_offline(
        self,
        method: str,
        path_parts: tuple[str, ...],
        query: Mapping[str, str],
        body: Mapping[str, object],
    ) -> Answer:
        assert self._settings is not None
        # Imported here because the storage packages load slowly and a running gateway needs none
        # here.
        from comity.app import offline

        return offline.request_offline(self._settings, method, path_parts, query, body)


def settings_of(config: Path | None) -> Settings:
    return ConfigSource(Path.cwd(), Path.home(), os.environ, config).load().settings


def refuse_if_gateway_runs(config: Path | None) -> None:
    """Raise Misconfigured if a gateway with this configuration runs.

    A running gateway caches the records of its store and signs what it writes there. A second
    writer would make the cache stale.
    """
    running = running_gateway(config)
    settings = settings_of(config)
    url = url_of(settings.host, settings.port) if running is None else running.url
    # A gateway that left a record for this URL serves another configuration.
    may_be_ours = settings.port and find_gateway_by_url(url) is None
    if running is not None or (may_be_ours and _is_gateway_running(url)):
        raise Misconfigured(
            f"a gateway with this configuration runs at {url}; leave --offline away, or stop it"
        )


def _is_gateway_running(url: str) -> bool:
    try:
        ApiClient(url, PROBE_TIMEOUT).status()
    except Misconfigured:
        # A gateway runs there and refuses these credentials.
        return True
    except Unavailable:
        return False
    return True


def settings_for_offline_read(error: Unavailable, config: Path | None) -> Settings:
    """Return the settings whose store can answer reads while no gateway runs.

    Raises Unavailable if there is no usable configuration, or if it names no store.
    """
    try:
        settings = settings_of(config)
    except Misconfigured:
        raise error from None
    if not settings.store.url:
        raise Unavailable(
            f'{error}; or name a store in [store], as url = "sqlite:///comity.db", where this is '
            "kept without a gateway"
        ) from None
    log_announcement(
        f"no gateway answers; this is what the store holds: {describe_store(settings.store.url)}"
    )
    return settings


def parse_expiry(text: str | None) -> str | None:
    """Return an ISO time for a duration such as 90d or a date such as 2027-01-31."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        length = ConfigValue(text, "--expires").duration()
        return (datetime.now(UTC) + length).isoformat()
    return (at if at.tzinfo is not None else at.astimezone()).isoformat()
