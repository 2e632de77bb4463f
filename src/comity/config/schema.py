"""The same tables as JSON Schema, so that an editor completes and judges a configuration.

Draft 7, which every editor knows. What only the whole can show (two servers of one id, a variable
that is not set) is left to the loader.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from comity.config.entries import TRANSPORTS, URL_KEYS
from comity.config.kinds import plain
from comity.config.setting import Setting
from comity.config.tables import MGP_SETTINGS, SERVER_SETTINGS, SETTINGS, TABLES, default_of

type Schema = Mapping[str, object]

_NAMED: Final = {"additionalProperties": {"type": ["string", "integer"]}, "type": "object"}
_ID: Final = r"^(?!.*__)(?!.*_$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
# A whole URL, or one that a variable makes whole.
_URL: Final = {"type": "string", "pattern": r"^https?://[^/]|\$\{"}
_REACHED: Final[Mapping[str, tuple[Schema, str]]] = {
    "command": ({"type": "string", "pattern": r"\S"}, "the program to start"),
    "args": ({"type": "array", "items": {"type": ["string", "integer"]}}, "its arguments"),
    "env": (_NAMED, "variables added to the small environment that it gets"),
    "cwd": ({"type": "string"}, "the folder to start it in"),
    "url": (_URL, "where to call it"),
    "headers": (_NAMED, "sent with every request"),
    "transport": ({"enum": list(TRANSPORTS)}, "how it is reached; follows from the rest"),
    "type": ({"enum": list(TRANSPORTS)}, "the same as transport"),
}


def json_schema() -> Schema:
    """The schema of `comity.toml` and of a client's JSON alike; its definitions tell them apart."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Comity's configuration",
        "anyOf": [{"$ref": "#/definitions/comity"}, {"$ref": "#/definitions/clients"}],
        "definitions": {
            "comity": _comity(),
            "clients": _clients(),
            "server": _server(),
            "entry": _entry(),
            "mgp": _mgp(),
        },
    }


def _comity() -> Schema:
    tables = {name: _table(_settings(name)) for name in TABLES}
    servers = {"type": "array", "items": {"$ref": "#/definitions/server"}}
    return {
        "description": "comity.toml: settings, and servers as MGP writes them",
        **_table(
            {"$schema": {"type": "string"}, **_settings(""), **tables, "servers": servers},
        ),
    }


def _clients() -> Schema:
    """What MCP clients have; their other keys are none of our business."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/definitions/entry"}}
    return {
        "description": "the file of an MCP client, as it is",
        "type": "object",
        "properties": {"mcpServers": servers, "servers": servers},
        "oneOf": [{"required": ["mcpServers"]}, {"required": ["servers"]}],
    }


def _server() -> Schema:
    named = {"id": {"type": "string", "pattern": _ID, "description": "its name in tools and paths"}}
    table = _table({**named, **_properties()})
    return {**table, "required": ["id"], "allOf": _reached(("url",))}


def _entry() -> Schema:
    """The same for a client's file: null is as good as absent, and unknown keys are let be."""
    known = {name: f"#/definitions/server/properties/{name}" for name in _properties()}
    known |= dict.fromkeys(URL_KEYS, known["url"])
    nullable = {
        name: {"anyOf": [{"$ref": place}, {"type": "null"}]} for name, place in known.items()
    }
    return {"type": "object", "properties": nullable, "allOf": _reached(URL_KEYS)}


def _properties() -> dict[str, Schema]:
    reached = {
        name: {**schema, "description": meaning} for name, (schema, meaning) in _REACHED.items()
    }
    decided = {setting.name: _described(setting) for setting in SERVER_SETTINGS}
    return {**reached, **decided, "mgp": {"$ref": "#/definitions/mgp"}}


def _reached(urls: Iterable[str]) -> list[Schema]:
    """A command or a URL; both only where it is said which one counts."""
    command = _has("command")
    url: Schema = {"anyOf": [_has(name) for name in urls]}
    says: Schema = {"anyOf": [_has("transport"), _has("type")]}
    either = {"oneOf": [command, url]}
    return [
        {"if": _says("stdio"), "then": command},
        {"if": _says(*(name for name, each in TRANSPORTS.items() if each != "stdio")), "then": url},
        {"if": says, "then": {}, "else": either},
    ]


def _has(name: str) -> Schema:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _says(*transports: str) -> Schema:
    """`transport` says so, or `type` does where there is none."""
    by = {key: {"properties": {key: {"enum": list(transports)}}} for key in ("transport", "type")}
    return {
        "anyOf": [
            {"allOf": [_has("transport"), by["transport"]]},
            {"allOf": [{"not": _has("transport")}, _has("type"), by["type"]]},
        ]
    }


def _mgp() -> Schema:
    return {
        "description": "what MGP says of a server, in its own spellings",
        "type": "object",
        "properties": {key: kind.schema for key, (_, kind) in MGP_SETTINGS.items()},
    }


def _settings(table: str) -> dict[str, Schema]:
    return {each.name: _described(each) for each in SETTINGS if each.table == table}


def _described(setting: Setting) -> Schema:
    about = {"description": setting.help, "default": plain(default_of(setting))}
    return {**setting.kind.schema, **about}


def _table(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
