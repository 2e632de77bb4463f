"""Settings for a test, of which some are other than usual."""

from typing import Any

from comity.app.settings import TABLES, Settings, replace_settings


def settings_with(**chosen: Any) -> Settings:
    """Settings with these values: `limits_max_depth=9` is `max_depth = 9` in `[limits]`."""
    return replace_settings(Settings(), {_whole_name(key): value for key, value in chosen.items()})


def _whole_name(key: str) -> str:
    table = next((each for each in TABLES if each and key.startswith(f"{each}_")), "")
    return f"{table}.{key.removeprefix(f'{table}_')}" if table else key
