"""Operator API for the configuration in effect, its last reload, and the health of the parts."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypedDict

from comity.app.settings import TABLES, Settings
from comity.app.settings_reader import ConfigSource
from comity.app.settings_view import settings_view
from comity.config.document import SourcePositions, positions_in_json, positions_in_toml
from comity.config.environment import variable_of
from comity.config.fields import fields_of
from comity.config.secret_files import FILE_SUFFIX
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery

CHECK_TIMEOUT_SECONDS: Final = 5.0
CHECK_CACHE_SECONDS: Final = 10.0
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024

type HealthCheck = Callable[[], Awaitable[str]]
"""Returns a text for people. Raises Unavailable, MalformedMessage or Misconfigured on trouble."""


class SettingView(TypedDict):
    """One setting, and where its value comes from. Secrets are masked."""

    name: str
    value: object
    source: Literal["default", "file", "environment", "command line"]
    # The file and the line, or the environment variable.
    file: str | None
    line: int | None
    variable: str | None


class ReloadView(TypedDict):
    """The last time that the configuration was read, and why a change was not applied."""

    read_at: datetime
    error: str | None
    needs_restart: list[str]
    # The SHA-256 of each file in effect, by its path.
    digests: dict[str, str]


class ConfigView(TypedDict):
    """The configuration in effect."""

    files: list[str]
    settings: list[SettingView]
    reload: ReloadView


class CheckView(TypedDict):
    """The health of one part."""

    name: str
    ok: bool
    text: str
    latency_ms: float | None


class HealthView(TypedDict):
    """The health of the store, the bus and the issuers of tokens, as this node sees them."""

    ok: bool
    checked_at: datetime
    checks: list[CheckView]


@dataclass(slots=True)
class ConfigState:
    """The settings in effect and the outcome of the last reload. The reloader updates it."""

    settings: Settings
    # Told of each changed configuration before it is applied.
    learn_secrets: Callable[[Settings], None]
    source: ConfigSource | None = None
    read_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    error: str = ""
    needs_restart: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict[str, str])

    def watch(self, source: ConfigSource, digests: Mapping[str, str]) -> None:
        """Note the files from which changes will come, and their content in effect."""
        self.source, self.digests = source, digests

    def on_reload(
        self, settings: Settings, needs_restart: tuple[str, ...], digests: Mapping[str, str]
    ) -> None:
        """Note that a changed configuration was applied."""
        self.settings, self.needs_restart, self.digests = settings, needs_restart, digests
        self.read_at, self.error = datetime.now(UTC), ""

    def on_error(self, error: str) -> None:
        """Note that a changed configuration was refused."""
        self.read_at, self.error = datetime.now(UTC), error


class SettingsApi:
    """The routes of the configuration and of the health."""

    def __init__(self, state: ConfigState, checks: Mapping[str, HealthCheck]) -> None:
        self._state = state
        self._checks = checks
        self._health: HealthView | None = None
        self._checked = 0.0
        self._lock = asyncio.Lock()

    @property
    def routes(self) -> ApiRoutes:
        read = Permission.ADMIN_READ
        return (
            ApiRoute("GET", "/api/config", read, self._show_config, EmptyQuery),
            ApiRoute("GET", "/api/health", read, self._show_health, EmptyQuery),
        )

    async def _show_config(self, _: ApiRequest[EmptyQuery]) -> ConfigView:
        """Return every setting in effect with its source."""
        state = self._state
        files, places = await asyncio.to_thread(_read_positions, state.source)
        values = settings_view(state.settings, of_all=True)
        named = [
            (table, name) for table, declared in TABLES.items() for name in fields_of(declared)
        ]
        return {
            "files": [str(path) for path in files],
            "settings": [
                self._setting_view(table, name, values, places)
                for table, name in named
                if (f"{table}.{name}" if table else name) in values
            ],
            "reload": {
                "read_at": state.read_at,
                "error": state.error or None,
                "needs_restart": list(state.needs_restart),
                "digests": dict(state.digests),
            },
        }

    def _setting_view(
        self,
        table: str,
        name: str,
        values: Mapping[str, object],
        places: list[tuple[Path, SourcePositions]],
    ) -> SettingView:
        full = f"{table}.{name}" if table else name
        view: SettingView = {
            "name": full,
            "value": values[full],
            "source": "default",
            "file": None,
            "line": None,
            "variable": None,
        }
        source = self._state.source
        if source is not None and full in source.overrides:
            return {**view, "source": "command line"}
        variable = variable_of(table, name)
        if source is not None and (
            source.environ.get(variable) or source.environ.get(variable + FILE_SUFFIX)
        ):
            return {**view, "source": "environment", "variable": variable}
        for path, positions in places:
            line = positions.lines.get((table, name) if table else (name,))
            if line is not None:
                return {**view, "source": "file", "file": str(path), "line": line}
        return view

    async def _show_health(self, _: ApiRequest[EmptyQuery]) -> HealthView:
        """Check every part, or return the result of a few seconds ago."""
        async with self._lock:
            is_old = time.monotonic() - self._checked > CHECK_CACHE_SECONDS
            if self._health is None or is_old:
                checks = await asyncio.gather(
                    *(_run_check(name, check) for name, check in self._checks.items())
                )
                self._checked = time.monotonic()
                self._health = {
                    "ok": all(each["ok"] for each in checks),
                    "checked_at": datetime.now(UTC),
                    "checks": list(checks),
                }
            return self._health


async def _run_check(name: str, check: HealthCheck) -> CheckView:
    started = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            text = await check()
    except (Unavailable, MalformedMessage, Misconfigured) as error:
        return {"name": name, "ok": False, "text": str(error)[:500], "latency_ms": None}
    except TimeoutError:
        text = f"no answer within {CHECK_TIMEOUT_SECONDS:.0f} s"
        return {"name": name, "ok": False, "text": text, "latency_ms": None}
    took = round((time.monotonic() - started) * 1000, 2)
    return {"name": name, "ok": True, "text": text, "latency_ms": took}


def _read_positions(
    source: ConfigSource | None,
) -> tuple[list[Path], list[tuple[Path, SourcePositions]]]:
    """Return the files of the configuration, and the line of each of their keys."""
    if source is None:
        return [], []
    files = list(source.existing_paths)
    found: list[tuple[Path, SourcePositions]] = []
    for path in files:
        try:
            text = path.read_text("utf-8")[:MAX_CONFIG_BYTES]
        except (OSError, UnicodeDecodeError):
            continue
        scan = positions_in_toml if path.suffix == ".toml" else positions_in_json
        found.append((path, scan(text)))
    return files, found
