"""The settings in effect without their secrets, for people."""

import re
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.app.settings import TABLES, Settings
from comity.config.fields import fields_of, to_config_value
from comity.toolkit.text import count_noun

MASK: Final = "***"
_SECRET_NAME: Final = re.compile(r"secret|password|token$|pepper$|(^|_)key$")


def settings_view(settings: Settings, *, of_all: bool) -> dict[str, object]:
    """Return each setting by its full name; without `of_all`, only those with another value."""
    view: dict[str, object] = {}
    for table, declared in TABLES.items():
        holder = getattr(settings, table) if table else settings
        for name, field in fields_of(declared).items():
            value = to_config_value(getattr(holder, name))
            if of_all or value != to_config_value(field.default):
                shown = _mask(name, _entry_names(value), settings.secret_values)
                view[f"{table}.{name}" if table else name] = shown
    return view


def _entry_names(value: object) -> object:
    """Name the entries of a table such as [[models]], or count them if they have no names."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    if not any(map(is_dataclass, entries)):
        return cast("object", value)
    names: list[object] = [
        getattr(entry, "id", None) or getattr(entry, "name", None) for entry in entries
    ]
    return names if all(names) else count_noun(len(names), "entry", "entries")


def _mask(name: str, value: object, secrets: Collection[str]) -> object:
    """Hide what is or may be a secret: by its value or its name, and the tail of each URL."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {key: _mask(key, each, secrets) for key, each in members.items()}
    if isinstance(value, list | tuple):
        return [_mask(name, each, secrets) for each in cast("list[object]", value)]
    if not isinstance(value, str) or not value:
        return value
    is_secret = _SECRET_NAME.search(name) or any(each in value for each in secrets)
    return MASK if is_secret else _mask_url(value)


def _mask_url(text: str) -> str:
    scheme, has_scheme, _ = text.partition("://")
    if not has_scheme or scheme.startswith("sqlite"):
        return text
    try:
        parts = urlsplit(text)
        port = "" if parts.port is None else f":{parts.port}"
        is_origin = parts.path in ("", "/") and not parts.query
        return f"{scheme}://{parts.hostname}{port}{'' if is_origin else f'/{MASK}'}"
    except ValueError:
        return MASK
