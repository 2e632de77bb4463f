"""Parsing of one server entry, in the form of any MCP client, into its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from comity.app.settings import NOTHING, SERVER_FIELDS, ServerSettings, Transport
from comity.config.document import ConfigErrors, ConfigValue, expand_variables, nearest_name
from comity.config.fields import fields_of
from comity.errors import Misconfigured
from comity.servers.packages.model import WrittenEntry
from comity.servers.packages.rules import written_origin
from comity.servers.settings import (
    DEFAULT_POLICY_BY_MGP_NAME,
    MGP_SETTINGS,
    SupervisionSettings,
)

# All spellings that the configuration files of MCP clients use.
TRANSPORT_BY_NAME: Final[Mapping[str, Transport]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
    "openapi": "openapi",
}
URL_KEYS: Final = ("url", "serverUrl", "httpUrl")
_STRING_TABLE_SCHEMA: Final = {
    "additionalProperties": {"type": ["string", "integer"]},
    "type": "object",
}
# A complete URL, or one that a variable completes.
_URL_SCHEMA: Final = {"type": "string", "pattern": r"^https?://[^/]|\$\{"}
CONNECTION_FIELDS: Final[Mapping[str, tuple[Mapping[str, object], str]]] = {
    "command": ({"type": "string", "pattern": r"\S"}, "the program to start"),
    "args": ({"type": "array", "items": {"type": ["string", "integer"]}}, "its arguments"),
    "env": (_STRING_TABLE_SCHEMA, "variables added to the small environment that it gets"),
    "cwd": ({"type": "string"}, "the folder to start it in"),
    "url": (_URL_SCHEMA, "where to call it"),
    "headers": (_STRING_TABLE_SCHEMA, "sent with every request"),
    "openapi": (
        {"type": "string", "pattern": r"\S"},
        "the file or URL of an OpenAPI 3 document, whose operations become tools",
    ),
    "operations": (
        {"type": "array", "items": {"type": "string", "pattern": r"\S"}},
        "the operations of the document: `GET /repos/*`, an id, a tag; with `!` to exclude",
    ),
    "auth": (_STRING_TABLE_SCHEMA, "credentials of the API, by the document's security schemes"),
    "transport": (
        {"enum": list(TRANSPORT_BY_NAME)},
        "the transport; default: derived from the other keys",
    ),
    "type": ({"enum": list(TRANSPORT_BY_NAME)}, "the same as transport"),
}
"""The keys that say how to reach a server, each with its JSON Schema and description."""
SERVER_KEYS: Final = frozenset({"id", "mgp", *CONNECTION_FIELDS, *SERVER_FIELDS})
ID_RULE: Final = (
    "must have 1 to 64 of the characters A-Z a-z 0-9 _ . - and begin with a letter or digit. It "
    "must not end with _ or hold __, which separates a server from its tool"
)


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Parses server entries with the given variables and collects their errors."""

    environ: Mapping[str, str]
    errors: ConfigErrors
    # Whether the file is one that MGP programs share, with the words of MGP.
    is_mgp_file: bool = False

    def read_server(self, server_id: str, label: str, entry: ConfigValue) -> ServerSettings | None:
        table = self.errors.read(entry.table, None)
        if table is None:
            return None
        # Clients write "args": null and the like. Null means absent.
        given = {key: value for key, value in table.items() if value.value is not None}
        transport: Transport = self.errors.read(lambda: _transport(entry, given), "stdio")
        url = next((given[key] for key in URL_KEYS if key in given), None)
        is_program = transport == "stdio"
        return ServerSettings(
            server_id,
            label,
            transport,
            command=self._read_value(given.get("command"), self._read_command, "")
            if is_program
            else "",
            args=self._read_value(given.get("args"), self._read_args, ()),
            env=self._read_value(given.get("env"), self._read_string_table, NOTHING),
            cwd=self._read_value(given.get("cwd"), self._read_text, "") or None,
            url="" if is_program else self._read_value(url, self._read_url, ""),
            headers=self._read_value(given.get("headers"), self._read_string_table, NOTHING),
            written=_written_entry(given, url, is_program=is_program),
            **self._read_openapi(given),
            **self._checked_settings(entry, is_program, self._read_settings(given)),
        )

    def _read_openapi(self, given: Mapping[str, ConfigValue]) -> dict[str, Any]:
        return {
            "openapi": self._read_value(given.get("openapi"), self._read_text, ""),
            "operations": self._read_value(given.get("operations"), self._read_args, ()),
            "auth": self._read_value(given.get("auth"), self._read_string_table, NOTHING),
        }

    def _checked_settings(
        self, entry: ConfigValue, is_program: bool, decided: dict[str, Any]
    ) -> dict[str, Any]:
        """Report settings of a server that do not fit together."""
        if decided.get("replicas") == "single" and not is_program:
            # All nodes share a remote server anyway.
            self.errors.add(
                entry.wrong('replicas = "single" is for servers with a command; leave it out here')
            )
        oauth: Mapping[str, Any] = decided.get("oauth") or {}
        grant = oauth.get("grant")
        if decided.get("account") == "shared" and grant in ("id_jag", "token_exchange"):
            self.errors.add(
                entry.wrong(f'the grant {grant} is of each person; account = "shared" has none')
            )
        return decided

    def _read_value[T](
        self, value: ConfigValue | None, read: Callable[[ConfigValue], T], default: T
    ) -> T:
        if value is None:
            return default
        return self.errors.read(lambda: read(value), default)

    def _read_settings(self, members: Mapping[str, ConfigValue]) -> dict[str, Any]:
        """Return the settings from Comity's own keys and the `mgp` table, without the transport."""
        decided: dict[str, Any] = {}
        for name, setting in SERVER_FIELDS.items():
            if name in members:
                read = setting.kind.read
                if name == "default_policy" and self.is_mgp_file:
                    read = _read_mgp_default_policy
                elif name == "oauth":
                    read = self._read_oauth
                decided[name] = self._read_value(members[name], read, None)
        mgp = self._read_value(members.get("mgp"), ConfigValue.table, {})
        for key, written in mgp.items():
            if key not in MGP_SETTINGS:
                continue
            name, kind = MGP_SETTINGS[key]
            if name in decided:
                said_twice = written.wrong(
                    f"is also set outside of this table, as {name}; keep one"
                )
                self.errors.add(said_twice)
            decided[name] = self._read_value(written, kind.read, None)
        care = {
            name: decided.pop(name)
            for name in fields_of(SupervisionSettings).keys() & decided.keys()
        }
        verbatim = MappingProxyType({name: each.value for name, each in mgp.items()})
        return {**decided, "supervision": SupervisionSettings(**care), "mgp": verbatim}

    def _read_oauth(self, value: ConfigValue) -> Mapping[str, Any]:
        """Read the table of the client, in which texts may name variables."""
        table = value.table()
        plain = SERVER_FIELDS["oauth"].kind.read(value)
        texts = {
            name: self._read_text(table[name])
            for name, each in plain.items()
            if isinstance(each, str)
        }
        return MappingProxyType({**plain, **texts})

    def _read_args(self, value: ConfigValue) -> tuple[str, ...]:
        return tuple(self._read_value(each, self._read_text, "") for each in value.items())

    def _read_string_table(self, value: ConfigValue) -> Mapping[str, str]:
        table = value.table()
        return MappingProxyType(
            {name: self._read_value(each, self._read_text, "") for name, each in table.items()}
        )

    def _read_command(self, value: ConfigValue) -> str:
        command = self._read_text(value)
        if not command.strip():
            raise value.wrong("is empty; name the program to start")
        return command

    def _read_url(self, value: ConfigValue) -> str:
        url = self._read_text(value)
        try:
            usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
        except ValueError:
            usable = False
        if not usable:
            raise value.wrong("must be a whole URL, as https://example.org/mcp")
        return url

    def _read_text(self, value: ConfigValue) -> str:
        # A number in place of a string ("PORT": 3000) is accepted as written.
        text = str(value.value) if type(value.value) is int else value.text()
        try:
            return expand_variables(text, self.environ)
        except Misconfigured as problem:
            raise value.wrong(str(problem)) from None


def _written_entry(
    given: Mapping[str, ConfigValue], url: ConfigValue | None, *, is_program: bool
) -> WrittenEntry:
    """Return the entry with its variables by name. Its mistakes are found where it is read."""
    if is_program:
        return WrittenEntry(
            _written_text(given.get("command")),
            tuple(map(_written_text, _written_items(given.get("args")))),
            _written_text(given.get("cwd")),
            env=_written_names(given.get("env")),
        )
    place = written_origin(_written_text(url))
    document = _written_text(given.get("openapi")).partition("?")[0]
    return WrittenEntry(
        url=place or written_origin(document) or document,
        headers=_written_names(given.get("headers")),
    )


def _written_text(value: ConfigValue | None) -> str:
    return "" if value is None else str(value.value)


def _written_items(value: ConfigValue | None) -> list[ConfigValue]:
    return value.items() if value is not None and isinstance(value.value, list) else []


def _written_names(value: ConfigValue | None) -> tuple[str, ...]:
    if value is None or not isinstance(value.value, dict):
        return ()
    return tuple(sorted(value.table()))


def _read_mgp_default_policy(value: ConfigValue) -> str:
    return DEFAULT_POLICY_BY_MGP_NAME[value.one_of(DEFAULT_POLICY_BY_MGP_NAME)]


def _transport(entry: ConfigValue, members: Mapping[str, ConfigValue]) -> Transport:
    """Return the stated or implied transport. Raises Misconfigured if its key is missing."""
    has_command = "command" in members
    has_url = any(key in members for key in URL_KEYS)
    has_document = "openapi" in members
    said = members.get("transport") or members.get("type")
    if said:
        transport = TRANSPORT_BY_NAME[said.one_of(TRANSPORT_BY_NAME)]
    elif has_command and (has_url or has_document):
        raise entry.wrong("has a command and a url; keep one, or say which by transport")
    elif has_document:
        transport = "openapi"
    else:
        transport = "http" if has_url else "stdio"
    if transport == "openapi":
        if not has_document:
            raise entry.wrong("needs openapi, the file or URL of its document")
        return transport
    if not (has_command if transport == "stdio" else has_url):
        raise _misspelling_error(members) or entry.wrong(
            "needs a command to start, or a url to call"
            if transport == "stdio"
            else f"needs a url, as its transport is {transport}"
        )
    return transport


def _misspelling_error(members: Mapping[str, ConfigValue]) -> Misconfigured | None:
    """Return the error for a key that is probably a misspelt `command` or `url`, or None."""
    for key, written in members.items():
        near = nearest_name(key, SERVER_KEYS)
        if key not in SERVER_KEYS and near in ("command", "url"):
            return written.unknown_among(SERVER_KEYS)
    return None
