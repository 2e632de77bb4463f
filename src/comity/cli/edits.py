"""One server put into, or taken out of, the text of a client's configuration. Pure.

Rule 1: everything else stays: keys that nobody here knows, their order, and in TOML every byte.
Rule 2: what could not be kept (comments in JSON, a key that stands twice) makes it a refusal.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from comity.cli.clients import Shape
from comity.cli.jsonc import read_table
from comity.cli.writing import toml_key, toml_value
from comity.wire.errors import Misconfigured

type Entry = Mapping[str, Any]


def entries_of(text: str, shape: Shape, key: str) -> dict[str, Any]:
    """The servers in a client's configuration; raises Misconfigured where it cannot be read."""
    document = _toml(text) if shape == "toml" else read_table(text, strictly=False)
    found = document.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def with_entry(text: str, shape: Shape, key: str, name: str, entry: Entry) -> str:
    """The text with that server in it; raises Misconfigured where that cannot be done with care."""
    if shape == "toml":
        kept = _without_table(text, key, name).rstrip("\n")
        edited = (kept + "\n\n" if kept else "") + snippet(shape, key, name, entry)
        _must_differ_by(text, edited, key, name, entry)
        return edited
    document = read_table(text, strictly=True)
    section = document.setdefault(key, {})
    if not isinstance(section, dict):
        raise Misconfigured(f"{key} is no table in it")
    cast("dict[str, Any]", section)[name] = dict(entry)
    return _as_before(text, document)


def without_entry(text: str, shape: Shape, key: str, name: str) -> str:
    """The text without that server; raises Misconfigured where that cannot be done with care."""
    if shape == "toml":
        edited = _without_table(text, key, name)
        _must_differ_by(text, edited, key, name, None)
        return edited
    document = read_table(text, strictly=True)
    section = document.get(key)
    if isinstance(section, dict):
        cast("dict[str, Any]", section).pop(name, None)
    return _as_before(text, document)


def holds_nothing(text: str, shape: Shape, key: str) -> bool:
    """Whether nothing is left but the empty place for servers."""
    if shape == "toml":
        return not text.strip()
    return read_table(text, strictly=True) in ({}, {key: {}})


def snippet(shape: Shape, key: str, name: str, entry: Entry) -> str:
    """What somebody would paste."""
    if shape == "toml":
        lines = [f"{each} = {toml_value(value)}" for each, value in entry.items()]
        return "\n".join([f"[{key}.{toml_key(name)}]", *lines, ""])
    return json.dumps({key: {name: dict(entry)}}, indent=2, ensure_ascii=False) + "\n"


def _as_before(text: str, document: Mapping[str, Any]) -> str:
    """JSON with the indent, the byte order mark and the line ends that the text had."""
    indent = re.search(r"\n([ \t]+)\S", text)
    written = json.dumps(document, indent=indent[1] if indent else 2, ensure_ascii=False)
    written += "\n" if text.endswith("\n") or not text.strip() else ""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    return mark + (written.replace("\n", "\r\n") if "\r\n" in text else written)


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        # TOML's own errors tell the place, and nothing of what stands there but its kind.
        raise Misconfigured(f"it is not TOML: {problem}") from None


def _without_table(text: str, key: str, name: str) -> str:
    """TOML without one table and those inside it: from its header to the next that is another's."""
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    ours = re.compile(rf"\s*\[\s*{key}\s*\.\s*{quoted}\s*(?:\.[^\]]*)?\]")
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = ours.match(line) is not None
        if not inside:
            kept.append(line)
    return "".join(kept)


def _must_differ_by(before: str, after: str, key: str, name: str, entry: Entry | None) -> None:
    """Look at what the edit means, since it was made by lines: just this server, nothing else."""
    wanted = _toml(before)
    section = cast("dict[str, Any]", wanted.setdefault(key, {}))
    section.pop(name, None)
    if entry is not None:
        section[name] = dict(entry)
    if not section:
        del wanted[key]
    found = _toml(after)
    if not found.get(key, True):
        del found[key]
    if found != wanted:
        raise Misconfigured("its servers are not written as tables of their own")
