"""The records that a command reads and changes: of a running gateway, or in the store itself."""

import importlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, cast

import click

from comity.adapters.log_lines import announce
from comity.adapters.stores import described
from comity.cli.asking import Answer, Gateway
from comity.cli.gateway_records import find_gateway_by_url, url_of
from comity.cli.gateway_url import running_gateway
from comity.config import Settings, Source
from comity.rules.documents import Written
from comity.wire.errors import Misconfigured, Unavailable

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OFFLINE: Final = "comity.offline"
"""Where a command's context holds that no gateway is to be asked."""

PATIENCE: Final = timedelta(seconds=2)


def _keep_offline(context: click.Context, _: click.Parameter, offline: bool) -> None:
    context.meta[OFFLINE] = offline


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
    callback=_keep_offline,
    help="Ask no gateway, but work on the store that the configuration names.",
)


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whose gateway is asked, or whose store."""
    return _config_option(_offline_option(command))


def is_offline() -> bool:
    """Whether this command was told to ask no gateway."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.meta.get(OFFLINE))


class _Room(Protocol):
    def ask(
        self,
        settings: Settings,
        method: str,
        place: tuple[str, ...],
        query: Mapping[str, str],
        body: Mapping[str, object],
    ) -> Answer: ...


class Records:
    """What is kept, wherever it can be reached."""

    def __init__(self, url: str, config: Path | None) -> None:
        self._gateway = Gateway(url)
        self._config = config
        self._is_offline = is_offline()
        self._settings = settings_of(config) if self._is_offline else None

    def get(self, *place: str, **query: str) -> Answer:
        if self._settings is None:
            try:
                return self._gateway.get(*place, **query)
            except Unavailable as away:
                self._settings = settings_instead(away, self._config)
        return self._directly("GET", place, query, {})

    def pages(self, name: str, **query: str) -> list[Answer]:
        """Every entry of a list, page after page."""
        found: list[Answer] = []
        while True:
            page = self.get(name, **query)
            found += page[name]
            if "next" not in page:
                return found
            query["cursor"] = page["next"]

    def post(self, *place: str, **body: object) -> Answer:
        said = {name: value for name, value in body.items() if value not in (None, "", ())}
        if self._is_offline:
            refuse_to_write_behind(self._config)
            return self._directly("POST", place, {}, said)
        try:
            return self._gateway.post(*place, body=said)
        except Unavailable as away:
            raise Unavailable(f"{away}; or change the store itself with --offline") from None

    def _directly(
        self,
        method: str,
        place: tuple[str, ...],
        query: Mapping[str, str],
        body: Mapping[str, object],
    ) -> Answer:
        assert self._settings is not None
        # Loaded only now: a store's packages take a while, and a running gateway has its own.
        room = cast("_Room", importlib.import_module("comity.cli.direct"))
        return room.ask(self._settings, method, place, query, body)


def settings_of(config: Path | None) -> Settings:
    return Source(Path.cwd(), Path.home(), os.environ, config).find().settings


def refuse_to_write_behind(config: Path | None) -> None:
    """A gateway keeps in memory what stands in its store, and signs what it writes there."""
    running = running_gateway(config)
    settings = settings_of(config)
    url = url_of(settings.host, settings.port) if running is None else running.url
    # One that left a record there is known to serve another configuration.
    may_be_ours = settings.port and find_gateway_by_url(url) is None
    if running is not None or (may_be_ours and _answers(url)):
        raise Misconfigured(
            f"a gateway with this configuration runs at {url}; leave --offline away, or stop it"
        )


def _answers(url: str) -> bool:
    try:
        Gateway(url, PATIENCE).status()
    except Misconfigured:
        # It is one, and does not tell us.
        return True
    except Unavailable:
        return False
    return True


def settings_instead(away: Unavailable, config: Path | None) -> Settings:
    """Where no gateway runs, what the store of the configuration holds can still be read."""
    try:
        settings = settings_of(config)
    except Misconfigured:
        raise away from None
    if not settings.store_url:
        raise Unavailable(
            f'{away}; or name a store in [store], as url = "sqlite:///comity.db", where this is '
            "kept without a gateway"
        ) from None
    announce(f"no gateway answers; this is what the store holds: {described(settings.store_url)}")
    return settings


def moment(said: str | None) -> str | None:
    """When something ends: after a while, as 90d, or at a time, as 2027-01-31."""
    if not said:
        return None
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        length = Written(said, "--expires").duration()
        return (datetime.now(UTC) + length).isoformat()
    return (at if at.tzinfo is not None else at.astimezone()).isoformat()
