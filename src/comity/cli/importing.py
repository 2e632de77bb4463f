"""Servers as clients wrote them down, said in Comity's words and brought together. Pure.

Rule 1: what a client keeps for itself (approvals, timeouts) is left to it; what cannot be carried
over is told.
Rule 2: the same server in two clients is one; two servers of one name are two.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.cli.asking import members
from comity.cli.clients import Client
from comity.config import derived_id

type Entry = dict[str, Any]

# Everything that could be taken for a variable of Comity's.
_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}?")
_NAME: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the variables of an entry may stand for."""

    folder: str
    home: str
    environ: Mapping[str, str]
    in_project: bool = False


@dataclass(slots=True)
class Imported:
    """One server: what to write down, where it was found, and what to know of it."""

    id: str
    entry: Entry
    sources: list[str]
    notes: list[str] = field(default_factory=list[str])


_URLS: Final = ("httpUrl", "serverUrl", "url")


def is_server(entry: Mapping[str, Any]) -> bool:
    """Whether it names a program or an address; Zed's extensions, for one, name neither."""
    return any(entry.get(key) for key in ("command", *_URLS))


def is_comity(entry: Mapping[str, Any]) -> bool:
    """Whether this is the gateway itself, which must not stand behind itself."""
    words = [entry.get("command"), *_items(entry.get("args"))]
    texts = [each for each in words if isinstance(each, str)]
    programs = {text.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") for text in texts}
    if programs & {"comity", "comity.cli"} and "serve" in texts:
        return True
    url = next((entry[key] for key in _URLS if key in entry), "")
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        near = parts.hostname in ("127.0.0.1", "localhost", "::1")
        return near and parts.port == 2664
    except ValueError:
        return False


def bring_together(
    found: Iterable[tuple[Client, str, Mapping[str, Any], Surroundings]],
) -> list[Imported]:
    """Every server of every client, in order: (client, name, entry, its surroundings)."""
    known: dict[str, Imported] = {}
    for client, name, raw, around in found:
        notes: list[str] = []
        entry = _understood(client, raw, around, notes)
        if not entry or is_comity(entry):
            continue
        same = known.get(json.dumps(entry, sort_keys=True))
        if same is not None:
            same.sources.append(client.title if same.id == name else f"{client.title} (as {name})")
            continue
        free = _free_id(derived_id(name), {each.id.casefold() for each in known.values()})
        if free != derived_id(name):
            notes.append(f"another server is named {derived_id(name)} already")
        server = Imported(free, entry, [client.title], notes)
        known[json.dumps(entry, sort_keys=True)] = server
    return list(known.values())


def _free_id(wanted: str, taken: Collection[str]) -> str:
    name, number = wanted, 2
    while name.casefold() in taken:
        name = f"{wanted[:60].rstrip('_.-')}-{number}"
        number += 1
    return name


def _understood(
    client: Client, raw: Mapping[str, Any], around: Surroundings, notes: list[str]
) -> Entry:
    """The entry in the words that most clients share; nothing where it names no server."""
    entry = _from_toml(raw) if client.shape == "toml" else dict(raw)
    inner = entry.get("command")
    if isinstance(inner, dict):  # Zed's older form
        told = cast("Entry", inner)
        entry |= {"command": told.get("path"), "args": told.get("args"), "env": told.get("env")}
    url = next((entry[key] for key in _URLS if entry.get(key)), None)
    found: Entry = {}
    if isinstance(entry.get("command"), str) and entry["command"].strip():
        found = {key: entry[key] for key in ("command", "cwd") if isinstance(entry.get(key), str)}
        found |= {key: said for key in ("args", "env") if (said := _texts(entry.get(key)))}
        if around.in_project and "cwd" not in found:
            found["cwd"] = around.folder
    elif isinstance(url, str):
        headers = _texts(entry.get("headers"))
        found = {"url": url, **({"headers": headers} if headers else {})}
        if _transport(client, entry) == "sse":
            found["transport"] = "sse"
    if found and (entry.get("disabled") is True or entry.get("enabled") is False):
        found["disabled"] = True
    if "envFile" in entry and found:
        notes.append("its envFile is not read; set what it needs in env")
    return cast("Entry", _said_here(found, around, notes))


def _texts(value: object) -> object:
    """Texts, where clients also take a number or a truth; what has no value is left out."""
    if isinstance(value, dict):
        pairs = cast("Entry", value).items()
        return {name: _texts(each) for name, each in pairs if each is not None}
    if isinstance(value, list):
        return [_texts(each) for each in cast("list[object]", value) if each is not None]
    return value if isinstance(value, str | None) else json.dumps(value)


def _transport(client: Client, entry: Entry) -> str:
    said = entry.get("transport") or entry.get("type")
    if isinstance(said, str):
        return "sse" if said == "sse" else "http"
    return "http" if "httpUrl" in entry else client.bare_url


def _from_toml(raw: Mapping[str, Any]) -> Entry:
    """Codex names variables beside the entry; here they are written where they are used."""
    entry = dict(raw)
    headers: Entry = dict(members(raw.get("http_headers")))
    headers |= {
        name: f"${{{value}}}" for name, value in members(raw.get("env_http_headers")).items()
    }
    if isinstance(raw.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{raw['bearer_token_env_var']}}}"
    if headers:
        entry["headers"] = headers
    passed = [name for name in _items(raw.get("env_vars")) if isinstance(name, str)]
    entry["env"] = {name: f"${{{name}}}" for name in passed} | members(raw.get("env"))
    return entry


def _said_here(value: object, around: Surroundings, notes: list[str]) -> object:
    """The same value with each variable as Comity reads it."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _variable(found, around, notes), value)
    if isinstance(value, list):
        return [_said_here(each, around, notes) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            name: _said_here(each, around, notes)
            for name, each in cast("dict[str, object]", value).items()
        }
    return value


def _variable(found: re.Match[str], around: Surroundings, notes: list[str]) -> str:
    inside: str = found[1]
    places = {
        "workspaceFolder": around.folder,
        "workspaceFolderBasename": around.folder.rpartition("/")[2],
        "userHome": around.home,
        "pathSeparator": "/",
        "/": "/",
    }
    if inside in places:
        return places[inside]
    if inside.startswith("input:"):
        name = re.sub(r"[^A-Z0-9]+", "_", inside.removeprefix("input:").upper()).strip("_")
        name = name if name[:1].isalpha() else f"INPUT_{name}"
        notes.append(f"the client asks for a value; set the variable {name}")
        return f"${{{name}:-}}"
    named = _NAME.fullmatch(inside)
    if named is None:
        return "$" + found.group()  # a plain text that only looks like one
    if named[1] not in around.environ and named[2] is None:
        notes.append(f"the variable {named[1]} is not set")
        return f"${{{named[1]}:-}}"
    return found.group()


def _items(anything: object) -> list[object]:
    return cast("list[object]", anything) if isinstance(anything, list) else []
