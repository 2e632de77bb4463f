"""Converts the servers of MCP clients to a Comity configuration in TOML or JSON."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.clients.applications import NAME, ClientApplication
from comity.config.toml_writer import toml_key, toml_text, toml_value
from comity.mcp.protocol import derived_id
from comity.toolkit.text import object_members

type Entry = dict[str, Any]

# Matches everything that Comity could take for a variable.
_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}?")
_OPENCODE_VARIABLE: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?")


@dataclass(frozen=True, slots=True)
class ClientImportContext:
    """The values that the variables of an entry can refer to."""

    folder: str
    home: str
    environ: Mapping[str, str]
    in_project: bool = False


@dataclass(slots=True)
class ImportedServer:
    """A server to import: its entry, the clients that have it, and notes for the operator."""

    id: str
    entry: Entry
    sources: list[str]
    notes: list[str] = field(default_factory=list[str])
    # One line above the entry, in a form of the file that has comments.
    comment: str = ""


# Programs that run another one with their own caches, downloads or daemon. Nothing of them would
# work in a sandbox. `npx` and `uvx` are not among them: Comity runs their packages from its store.
_RUNNERS: Final = frozenset(
    (
        *("uv", "pipx", "poetry", "pdm", "hatch", "conda", "pnpm", "yarn", "bun", "bunx", "deno"),
        *(
            "docker",
            "podman",
            "nerdctl",
            "dnx",
            "sh",
            "bash",
            "zsh",
            "wsl",
            "ssh",
            "go",
            "cargo",
            "mvn",
        ),
    )
)


def is_runner(entry: Entry) -> bool:
    """Return whether an entry runs another program with caches, downloads or a daemon."""
    return PurePath(entry.get("command", "")).name.removesuffix(".exe") in _RUNNERS


_URLS: Final = ("httpUrl", "serverUrl", "url", "uri")


def entry_url(entry: Mapping[str, Any]) -> str:
    """Return the address in an entry of any client; empty if it has none."""
    return next((entry[key] for key in _URLS if entry.get(key) and isinstance(entry[key], str)), "")


def entry_words(entry: Mapping[str, Any]) -> list[str]:
    """Return the program in an entry of any client and its arguments; empty if it has none."""
    command = entry.get("command") or entry.get("cmd")
    words = [*(_items(command) or [command]), *_items(entry.get("args"))]
    return [word for word in words if isinstance(word, str)] if command else []


def is_server(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry names a program or a URL. Zed's extensions name neither."""
    return any(entry.get(key) for key in ("command", "cmd", *_URLS))


def is_comity(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is Comity itself, which must not become its own server."""
    texts = entry_words(entry)
    programs = {text.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") for text in texts}
    if programs & {"comity", "comity.cli"} and "serve" in texts:
        return True
    try:
        parts = urlsplit(entry_url(entry))
        near = parts.hostname in ("127.0.0.1", "localhost", "::1")
        return near and parts.port == 2664
    except ValueError:
        return False


def bring_together(
    found: Iterable[tuple[ClientApplication, str, Mapping[str, Any], ClientImportContext]],
) -> list[ImportedServer]:
    """Return the servers of all clients, without duplicates.

    Each item of `found` is a client, the name of a server, its entry and the context.
    """
    known: dict[str, ImportedServer] = {}
    for client, name, raw, around in found:
        notes: list[str] = []
        entry = _understood(client, raw, around, notes)
        if not entry or name == NAME or is_comity(entry):
            continue
        same = known.get(json.dumps(entry, sort_keys=True))
        if same is not None:
            same.sources.append(client.title if same.id == name else f"{client.title} (as {name})")
            continue
        free = free_id(derived_id(name), {each.id.casefold() for each in known.values()})
        if free != derived_id(name):
            notes.append(f"another server is named {derived_id(name)} already")
        server = ImportedServer(free, entry, [client.title], notes)
        known[json.dumps(entry, sort_keys=True)] = server
    return list(known.values())


def free_id(wanted: str, taken: Collection[str]) -> str:
    name, number = wanted, 2
    while name.casefold() in taken:
        name = f"{wanted[:60].rstrip('_.-')}-{number}"
        number += 1
    return name


def _understood(
    client: ClientApplication,
    raw: Mapping[str, Any],
    context: ClientImportContext,
    notes: list[str],
) -> Entry:
    """Return the entry with the keys that most clients share; empty if it names no server."""
    entry = _common_form(client, raw, notes)
    url = next((entry[key] for key in _URLS if entry.get(key)), None)
    found: Entry = {}
    if isinstance(entry.get("command"), str) and entry["command"].strip():
        found = {key: entry[key] for key in ("command", "cwd") if isinstance(entry.get(key), str)}
        found |= {key: said for key in ("args", "env") if (said := _texts(entry.get(key)))}
        if context.in_project and "cwd" not in found:
            found["cwd"] = context.folder
    elif isinstance(url, str):
        headers = _texts(entry.get("headers"))
        found = {"url": url, **({"headers": headers} if headers else {})}
        _note_oauth_client(entry, notes)
        if _transport(client, entry) == "sse":
            found["transport"] = "sse"
    if found and (entry.get("disabled") is True or entry.get("enabled") is False):
        found["disabled"] = True
    if "envFile" in entry and found:
        notes.append("its envFile is not read; set what it needs in env")
    return cast("Entry", _convert_variables(found, context, notes))


def _note_oauth_client(entry: Mapping[str, Any], notes: list[str]) -> None:
    """Say that the OAuth client in an entry is not taken over.

    Cursor writes it as `auth`, Claude Code as `oauth`. Neither says which issuer knows the client,
    and without that any issuer that the server names would get its secret.
    """
    cursor, claude = object_members(entry.get("auth")), object_members(entry.get("oauth"))
    client = cursor.get("CLIENT_ID") or claude.get("clientId")
    if isinstance(client, str) and client:
        notes.append(
            f"its OAuth client {client:.80} is not taken over; add issuer, client_id and "
            "client_secret in [servers.oauth] if the server registers no clients"
        )


def _common_form(client: ClientApplication, raw: Mapping[str, Any], notes: list[str]) -> Entry:
    """Return the entry with the keys of most clients for the command, variables and headers."""
    entry = _from_toml(raw) if client.shape == "toml" else dict(raw)
    if client.env != "env":
        entry["env"] = raw.get(client.env)
    for key in client.headers[:-1]:
        entry |= {"headers": object_members(raw.get(key)).get("headers")}
    if client.name == "goose":
        entry["command"] = raw.get("cmd")
        kept = [name for name in _items(raw.get("env_keys")) if isinstance(name, str)]
        if kept:
            entry["env"] = {name: f"${{{name}}}" for name in kept} | object_members(entry["env"])
            notes.append(f"Goose keeps secrets for it ({', '.join(kept)}); set these variables")
    inner = entry.get("command")
    if isinstance(inner, dict):  # Zed's older form
        told = cast("Entry", inner)
        entry |= {"command": told.get("path"), "args": told.get("args"), "env": told.get("env")}
    elif isinstance(inner, list) and inner:
        words = cast("list[object]", inner)
        entry |= {"command": words[0], "args": words[1:]}
    if client.name == "opencode":
        return cast("Entry", _rewrite(entry, _OPENCODE_VARIABLE, r"${\1}"))
    return entry


def _rewrite(value: object, pattern: re.Pattern[str], written: str) -> object:
    """Return the value with a replacement in all its texts."""
    if isinstance(value, str):
        return pattern.sub(written, value)
    if isinstance(value, list):
        return [_rewrite(each, pattern, written) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        pairs = cast("Entry", value).items()
        return {name: _rewrite(each, pattern, written) for name, each in pairs}
    return value


def _texts(value: object) -> object:
    """Convert numbers and booleans, which clients accept too, to texts. Leave out nulls."""
    if isinstance(value, dict):
        pairs = cast("Entry", value).items()
        return {name: _texts(each) for name, each in pairs if each is not None}
    if isinstance(value, list):
        return [_texts(each) for each in cast("list[object]", value) if each is not None]
    return value if isinstance(value, str | None) else json.dumps(value)


def _transport(client: ClientApplication, entry: Entry) -> str:
    said = entry.get("transport") or entry.get("type")
    if isinstance(said, str):
        return "sse" if said == "sse" else "http"
    return "http" if "httpUrl" in entry else client.bare_url


def _from_toml(raw: Mapping[str, Any]) -> Entry:
    """Write variables where they are used. Codex names them beside the entry."""
    entry = dict(raw)
    headers: Entry = dict(object_members(raw.get("http_headers")))
    headers |= {
        name: f"${{{value}}}" for name, value in object_members(raw.get("env_http_headers")).items()
    }
    if isinstance(raw.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{raw['bearer_token_env_var']}}}"
    if headers:
        entry["headers"] = headers
    passed = [name for name in _items(raw.get("env_vars")) if isinstance(name, str)]
    entry["env"] = {name: f"${{{name}}}" for name in passed} | object_members(raw.get("env"))
    return entry


def _convert_variables(value: object, context: ClientImportContext, notes: list[str]) -> object:
    """Return the value with each variable in Comity's form."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _variable(found, context, notes), value)
    if isinstance(value, list):
        return [_convert_variables(each, context, notes) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            name: _convert_variables(each, context, notes)
            for name, each in cast("dict[str, object]", value).items()
        }
    return value


def _variable(match: re.Match[str], context: ClientImportContext, notes: list[str]) -> str:
    inside: str = match[1]
    places = {
        "workspaceFolder": context.folder,
        "workspaceFolderBasename": context.folder.rpartition("/")[2],
        "userHome": context.home,
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
        return "$" + match.group()  # plain text that only looks like a variable
    if named[1] not in context.environ and named[2] is None:
        notes.append(f"the variable {named[1]} is not set")
        return f"${{{named[1]}:-}}"
    return match.group()


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


type Servers = Mapping[str, Mapping[str, Any]]

HEAD: Final = """\
# The configuration of Comity. `comity serve` starts the gateway with it; `comity config check`
# validates it. A text may hold ${VARIABLE} or ${VARIABLE:-default}.
"""

POLICY: Final = """\
[policy]
# Calls that may destroy something wait for your approval (`comity approvals list`). Tools that
# declare themselves read-only or not destructive run at once. Comity trusts these declarations of
# the servers in this file, unless a server has `trust = "standard"` in its [servers.policy].
require_approval = "destructive"

# A person who may do everything (verb * on *) may approve their own requests. This matters once
# clients need keys ([identity] mode = "required"). Set it to false when you have a second approver.
approve_own = true
"""

EXAMPLES: Final = """
# A program that is started, and spoken with over its input and output:
#
# [[servers]]
# id = "files"
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]
#
# A server that is called over HTTP:
#
# [[servers]]
# id = "search"
# url = "https://search.example.org/mcp"
# headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
"""

_ORDER: Final = (
    *("command", "args", "cwd", "sandbox", "openapi", "url", "operations", "transport"),
    "disabled",
)
_TABLES: Final = ("env", "headers", "auth", "oauth", "policy")


def as_toml(servers: Servers) -> str:
    """Return a comity.toml with these servers, each under its id."""
    return "\n".join(
        [HEAD, POLICY, *(render_table(name, entry) for name, entry in servers.items())]
    )


def as_json(servers: Servers) -> str:
    """Return the JSON form of most clients. Comity's own keys have the same names there."""
    document = {"mcpServers": {name: dict(entry) for name, entry in servers.items()}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def render_starter_config(example: Mapping[str, Any]) -> str:
    """Return a first comity.toml, with one example server and commented examples."""
    told = "# A small server that comes with Comity, to try things with.\n"
    return "\n".join([HEAD, POLICY, told + render_table("example", example)]) + EXAMPLES


def render_table(name: str, entry: Mapping[str, Any]) -> str:
    lines = ["[[servers]]", f"id = {toml_text(name)}"]
    lines += [f"{key} = {toml_value(entry[key])}" for key in _ORDER if key in entry]
    for key in _TABLES:
        if entry.get(key):
            lines.append(f"[servers.{key}]")
            lines += [
                f"{toml_key(each)} = {toml_value(value)}" for each, value in entry[key].items()
            ]
    return "\n".join([*lines, ""])
