"""Writes values, texts and keys as TOML."""

import json
import re
from collections.abc import Mapping
from typing import cast


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(each) for each in cast("list[object]", value)) + "]"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        inner = ", ".join(f"{toml_key(name)} = {toml_value(each)}" for name, each in pairs)
        return f"{{ {inner} }}" if inner else "{}"
    return toml_text(str(value))


def toml_text(text: str) -> str:
    """Return a quoted TOML string.

    TOML's escapes are those of JSON, but TOML requires an escape for U+007F too.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)
