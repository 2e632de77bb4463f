"""What the operator wrote, read once into frozen settings.

Rule 1: every mistake is named by file and key, with what to do next.
Rule 2: nothing here reads the process's own environment; whoever calls hands it in.
Rule 3: a variable, a header, an argument or the tail of a URL may be a secret: none is in a repr.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, cast
from urllib.parse import urlsplit

from comity.rules.documents import Written
from comity.rules.variables import expand
from comity.wire.errors import Misconfigured

type Transport = Literal["stdio", "http", "sse"]
type Sharing = Literal["shared", "session"]
type Value = str | int | timedelta | tuple[str, ...]

FILE_BYTES: Final = 1024 * 1024

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_SHARINGS: Final = ("shared", "session")
# Every spelling that the clients' own files use.
_TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_URL_KEYS: Final = ("url", "serverUrl", "httpUrl")
_SERVER_KEYS: Final = frozenset(
    {"id", "command", "args", "env", "cwd", "url", "headers", "transport", "type"}
    | {"sharing", "disabled", "mgp"}
)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ID_RULE: Final = (
    "must be 1 to 64 of the characters A-Z a-z 0-9 _ . - that begin with a letter or digit, "
    "do not end with _ and hold no __, which separates a server from its tool"
)


@dataclass(frozen=True, slots=True, repr=False)
class ServerSettings:
    """One tool server, and how it is reached: by `command`, or at `url`."""

    id: str
    label: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = _NOTHING
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = _NOTHING
    sharing: Sharing = "shared"
    disabled: bool = False
    # MGP's own table, kept as it was written.
    mgp: Mapping[str, object] = _NOTHING

    def __repr__(self) -> str:
        reached = f"{len(self.args)} args, env {sorted(self.env)}"
        if self.transport != "stdio":
            reached = f"host {urlsplit(self.url).hostname!r}, headers {sorted(self.headers)}"
        return f"ServerSettings({self.id!r}, {self.transport}, {reached})"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that was decided before the start; SETTINGS says what each is for."""

    servers: tuple[ServerSettings, ...] = ()
    host: str = "127.0.0.1"
    port: int = 2664
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    frame_bytes: int = 4 * 1024 * 1024
    depth: int = 64
    call_deadline: timedelta = timedelta(minutes=5)
    call_cap: timedelta = timedelta(hours=1)
    start_deadline: timedelta = timedelta(seconds=60)
    idle_session: timedelta = timedelta(minutes=30)
    max_sessions: int = 20_000
    max_connections: int = 20_000
    max_connections_per_address: int = 1_000
    header_deadline: timedelta = timedelta(seconds=10)
    keep_alive: timedelta = timedelta(seconds=75)
    shutdown_grace: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that an operator can decide: its table in comity.toml, and how it is read."""

    name: str
    table: str
    read: Callable[[Written], Value]
    help: str

    @property
    def default(self) -> Value:
        return getattr(_DEFAULTS, self.name)


def _number(at_least: int, at_most: int) -> Callable[[Written], int]:
    return lambda written: written.number(at_least, at_most)


def _texts(shape: str, example: str) -> Callable[[Written], tuple[str, ...]]:
    def read(written: Written) -> tuple[str, ...]:
        for item in written.items():
            if not re.fullmatch(shape, item.text()):
                raise item.wrong(f"must be written as {example}")
        return tuple(item.text() for item in written.items())

    return read


_DEFAULTS: Final = Settings()
_COUNT: Final = _number(1, 10_000_000)
_HOSTS: Final = _texts(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "gateway.example.org, without a port")
_ORIGINS: Final = _texts(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+", "https://app.example.org")
SETTINGS: Final = (
    Setting("host", "", Written.text, "the address to listen on"),
    Setting("port", "", _number(0, 65535), "the port to listen on; 0 takes a free one"),
    Setting("allowed_hosts", "", _HOSTS, "names this gateway is called by, beside localhost"),
    Setting("allowed_origins", "", _ORIGINS, "web origins whose pages may call it"),
    Setting("frame_bytes", "limits", _number(1024, 2**30), "the longest message that is read"),
    Setting("depth", "limits", _number(8, 512), "how deeply a message may be nested"),
    Setting("call_deadline", "limits", Written.duration, "how long a call may show no progress"),
    Setting("call_cap", "limits", Written.duration, "how long a call may last, with progress"),
    Setting("start_deadline", "limits", Written.duration, "how long a server may take to start"),
    Setting("idle_session", "limits", Written.duration, "when an unused client session ends"),
    Setting("max_sessions", "limits", _COUNT, "client sessions open at once"),
    Setting("max_connections", "limits", _COUNT, "client connections open at once"),
    Setting("max_connections_per_address", "limits", _COUNT, "of them, from one remote address"),
    Setting("header_deadline", "limits", Written.duration, "how long a request's head may take"),
    Setting("keep_alive", "limits", Written.duration, "how long an idle connection is kept"),
    Setting("shutdown_grace", "limits", Written.duration, "what open requests get at the end"),
)


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read `comity.toml`, or JSON with `mcpServers`; then COMITY_HOST and COMITY_PORT over it."""
    document = _parse(Written(None, str(path)), _read(path))
    if path.suffix.lower() == ".toml":
        servers, decided = _from_toml(document, environ)
    else:
        servers, decided = _from_json(document, environ), {}
    _refuse_collisions(servers, document)
    if environ.get("COMITY_HOST"):
        decided["host"] = environ["COMITY_HOST"]
    if port := environ.get("COMITY_PORT"):
        number = int(port[:9]) if port.isascii() and port.isdigit() else None
        decided["port"] = Written(number, "COMITY_PORT").number(0, 65535)
    return Settings(servers=tuple(servers), **decided)


def _read(path: Path) -> bytes:
    file = Written(None, str(path))
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise file.wrong("there is no such file; check the path, or write it") from None
    except (OSError, ValueError) as problem:
        raise file.wrong(f"cannot be read ({problem}); check the path") from None
    if len(data) > FILE_BYTES:
        raise file.wrong(f"has over {FILE_BYTES} bytes; is it really a configuration?")
    return data


def _parse(file: Written, data: bytes) -> Written:
    """The whole document. Causes are dropped: they hold its text, and so its secrets."""
    try:
        text = data.decode("utf-8-sig")
        if file.file.lower().endswith(".toml"):
            return Written(tomllib.loads(text), file.file)
        document: object = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise file.wrong("is not UTF-8; save it as UTF-8") from None
    except json.JSONDecodeError as problem:
        at = f"line {problem.lineno}, column {problem.colno}"
        raise file.wrong(f"is not JSON: {problem.msg} at {at}") from None
    except tomllib.TOMLDecodeError as problem:
        raise file.wrong(f"is not TOML: {problem}") from None
    except ValueError as problem:
        raise file.wrong(str(problem)) from None
    except RecursionError:
        raise file.wrong("is nested too deeply; is it really a configuration?") from None
    return Written(document, file.file)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} stands twice in one object; remove one")
        found[name] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; write a number")


def _from_json(document: Written, environ: Mapping[str, str]) -> list[ServerSettings]:
    top = document.table()
    present = [key for key in ("mcpServers", "servers") if key in top]
    if len(present) != 1:
        raise document.wrong('needs your servers once, in {"mcpServers": {...}}')
    servers = top[present[0]].table()
    return [_server(derived_id(name), name, servers[name], environ) for name in servers]


def _from_toml(
    document: Written, environ: Mapping[str, str]
) -> tuple[list[ServerSettings], dict[str, Any]]:
    limits = document.table().get("limits", Written({}, document.file, "limits"))
    tables = {"": document, "limits": limits}
    decided: dict[str, Any] = {}
    for name, table in tables.items():
        here = {setting.name: setting for setting in SETTINGS if setting.table == name}
        table.refuse_unknown({*here, *(() if name else ("limits", "servers"))})
        for key, written in table.table().items():
            if key in here:
                decided[key] = here[key].read(written)
    servers: list[ServerSettings] = []
    for entry in document.table().get("servers", Written([], document.file)).items():
        entry.refuse_unknown(_SERVER_KEYS)
        named = entry.table().get("id", Written("", entry.file, f"{entry.keys}.id"))
        if not _is_id(named.text()):
            raise named.wrong(_ID_RULE)
        known_by_id = Written(entry.value, entry.file, f"servers[{named.text()}]")
        servers.append(_server(named.text(), named.text(), known_by_id, environ))
    return servers, decided


def _server(
    server_id: str, label: str, entry: Written, environ: Mapping[str, str]
) -> ServerSettings:
    # Clients write "args": null and the like; nothing is the same as absent.
    given = {key: value for key, value in entry.table().items() if value.value is not None}

    def text(key: str) -> str:
        return _expanded(given[key], environ) if key in given else ""

    def named(key: str) -> Mapping[str, str]:
        table = given[key].table() if key in given else {}
        return MappingProxyType({name: _expanded(each, environ) for name, each in table.items()})

    transport = _transport(entry, given)
    args = given["args"].items() if "args" in given else []
    url = next((given[key] for key in _URL_KEYS if key in given), None)
    if "sharing" in given:
        given["sharing"].one_of(_SHARINGS)
    return ServerSettings(
        server_id,
        label,
        transport,
        command=_command(given["command"], environ) if transport == "stdio" else "",
        args=tuple(_expanded(arg, environ) for arg in args),
        env=named("env"),
        cwd=text("cwd") or None,
        url=_url(url, environ) if url and transport != "stdio" else "",
        headers=named("headers"),
        sharing=cast("Sharing", given["sharing"].value) if "sharing" in given else "shared",
        disabled="disabled" in given and given["disabled"].truth(),
        mgp=MappingProxyType(_verbatim(given["mgp"])) if "mgp" in given else _NOTHING,
    )


def _verbatim(written: Written) -> dict[str, object]:
    return {name: each.value for name, each in written.table().items()}


def _transport(entry: Written, given: Mapping[str, Written]) -> Transport:
    """As said, or as follows from what there is; and then what it needs must be there."""
    has_command = "command" in given
    has_url = any(key in given for key in _URL_KEYS)
    said = given.get("transport") or given.get("type")
    if said:
        transport = _TRANSPORTS[said.one_of(_TRANSPORTS)]
    elif has_command and has_url:
        raise entry.wrong("has a command and a url; keep one, or say which by transport")
    else:
        transport = "http" if has_url else "stdio"
    if transport == "stdio" and not has_command:
        raise entry.wrong("needs a command to start, or a url to call")
    if transport != "stdio" and not has_url:
        raise entry.wrong(f"needs a url, as its transport is {transport}")
    return transport


def _command(written: Written, environ: Mapping[str, str]) -> str:
    command = _expanded(written, environ)
    if not command.strip():
        raise written.wrong("is empty; name the program to start")
    return command


def _url(written: Written, environ: Mapping[str, str]) -> str:
    url = _expanded(written, environ)
    try:
        usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise written.wrong("must be a whole URL, as https://example.org/mcp")
    return url


def _expanded(written: Written, environ: Mapping[str, str]) -> str:
    # A number where a text belongs ("PORT": 3000) is meant as it stands.
    text = str(written.value) if type(written.value) is int else written.text()
    try:
        return expand(text, environ)
    except Misconfigured as problem:
        raise written.wrong(str(problem)) from None


def _is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and "__" not in text and not text.endswith("_")


def derived_id(label: str) -> str:
    """An id for a name of `mcpServers`, which may be any text."""
    if _is_id(label):
        return label
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_.-]+", "-", label))
    derived = plain.lstrip("_.-")[:64].rstrip("_.-")
    return derived or "server-" + hashlib.sha256(label.encode(errors="replace")).hexdigest()[:8]


def _refuse_collisions(servers: Sequence[ServerSettings], document: Written) -> None:
    seen: dict[str, ServerSettings] = {}
    for server in servers:
        # By look, not by letter: `Files` beside `files` is a trap for whoever reads a tool's name.
        other = seen.setdefault(server.id.casefold(), server)
        if other is not server:
            both = f"{other.label!r} and {server.label!r}"
            raise document.wrong(f"servers {both} would share the id {server.id!r}; rename one")
