"""The records that a command reads and changes: of a running gateway, or in the store itself."""

import importlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, cast

import click

from comity.adapters.log_lines import announce
from comity.adapters.stores import described
from comity.cli.asking import Answer, Gateway
from comity.config import Settings, Source
from comity.rules.documents import Written
from comity.wire.errors import Misconfigured, Unavailable

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config_option: Final[Decorator] = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Ask no gateway, but go to the store that this configuration names.",
)


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
        self._settings = None if config is None else settings_of(config)

    def get(self, *place: str, **query: str) -> Answer:
        if self._settings is None:
            try:
                return self._gateway.get(*place, **query)
            except Unavailable as away:
                self._settings = settings_instead(away)
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
        if self._settings is None:
            try:
                return self._gateway.post(*place, body=said)
            except Unavailable as away:
                self._settings = settings_instead(away)
        return self._directly("POST", place, {}, said)

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


def settings_instead(away: Unavailable) -> Settings:
    """Where no gateway runs, a store that the configuration of this folder names will do."""
    try:
        settings = settings_of(None)
    except Misconfigured:
        raise away from None
    if not settings.store_url:
        raise Unavailable(
            f'{away}; or name a store in [store], as url = "sqlite:///comity.db", where this is '
            "kept without a gateway"
        ) from None
    announce(f"no gateway runs; this is about the store: {described(settings.store_url)}")
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
