"""The named cases of `tests/security/cases`, read once: hostile ones and harmless lookalikes."""

import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

CASES = Path(__file__).parent / "cases"
MOST_FALSE_ALARMS = 0.02


@functools.cache
def document(name: str) -> Mapping[str, Any]:
    path = CASES / name
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)


def section(file: str, name: str) -> dict[str, Any]:
    """Cases by their names; a text that is mostly repetition is written as one."""
    entries = document(file)[name]
    if isinstance(entries, list):
        listed = cast("list[dict[str, Any]]", entries)
        return {each["name"]: each for each in listed}
    return {key: written(value) for key, value in cast("dict[str, Any]", entries).items()}


def written(value: Any) -> Any:
    if isinstance(value, dict) and "times" in value and "text" in value:
        parts = cast("dict[str, Any]", value)
        repeated: str = parts["text"] * parts["times"]
        return f"{parts.get('before', '')}{repeated}{parts.get('after', '')}"
    return cast("Any", value)


def is_few(alarms: list[str], cases: Mapping[str, Any]) -> bool:
    """Whether at most one in fifty harmless ones was taken for hostile."""
    return len(alarms) <= MOST_FALSE_ALARMS * len(cases)
