"""The settings as JSON Schema, for editors.

The schema uses draft 7, which every editor supports. The loader checks what a schema cannot: two
servers with one id, or a variable that is not set.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from comity.app.server_entries import CONNECTION_FIELDS, TRANSPORT_BY_NAME, URL_KEYS
from comity.app.settings import SERVER_FIELDS, TABLES
from comity.config.fields import ConfigField, fields_of, to_config_value
from comity.servers.settings import MGP_SETTINGS

type Schema = Mapping[str, object]

_ID_PATTERN: Final = r"^(?!.*__)(?!.*_$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


def json_schema() -> Schema:
    """Return one schema for `comity.toml` and clients' JSON. Its definitions tell them apart."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Comity's configuration",
        "anyOf": [{"$ref": "#/definitions/comity"}, {"$ref": "#/definitions/clients"}],
        "definitions": {
            "comity": _comity_schema(),
            "clients": _client_file_schema(),
            "server": _server_schema(),
            "entry": _client_entry_schema(),
            "mgp": _mgp_schema(),
        },
    }


def _comity_schema() -> Schema:
    tables = {name: _table_schema(_table_properties(name)) for name in TABLES if name}
    servers = {"type": "array", "items": {"$ref": "#/definitions/server"}}
    return {
        "description": "comity.toml: settings, and servers as MGP writes them",
        **_table_schema(
            {"$schema": {"type": "string"}, **_table_properties(""), **tables, "servers": servers},
        ),
    }


def _client_file_schema() -> Schema:
    """Return the schema of a client's file. Comity ignores the other keys of the client."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/definitions/entry"}}
    return {
        "description": "the file of an MCP client, as it is",
        "type": "object",
        "properties": {"mcpServers": servers, "servers": servers},
        "oneOf": [{"required": ["mcpServers"]}, {"required": ["servers"]}],
    }


def _server_schema() -> Schema:
    named = {
        "id": {
            "type": "string",
            "pattern": _ID_PATTERN,
            "description": "its name in tools and paths",
        }
    }
    table = _table_schema({**named, **_server_properties()})
    return {**table, "required": ["id"], "allOf": _connection_schemas(("url",))}


def _client_entry_schema() -> Schema:
    """Return the schema of an entry in a client's file, which allows null and unknown keys."""
    known = {name: f"#/definitions/server/properties/{name}" for name in _server_properties()}
    known |= dict.fromkeys(URL_KEYS, known["url"])
    nullable = {
        name: {"anyOf": [{"$ref": place}, {"type": "null"}]} for name, place in known.items()
    }
    return {"type": "object", "properties": nullable, "allOf": _connection_schemas(URL_KEYS)}


def _server_properties() -> dict[str, Schema]:
    reached = {
        name: {**schema, "description": meaning}
        for name, (schema, meaning) in CONNECTION_FIELDS.items()
    }
    decided = {name: _field_schema(setting) for name, setting in SERVER_FIELDS.items()}
    return {**reached, **decided, "mgp": {"$ref": "#/definitions/mgp"}}


def _connection_schemas(urls: Iterable[str]) -> list[Schema]:
    """Return the schemas that require a command, a URL or an OpenAPI document.

    A command beside one of the others needs a key that selects one.
    """
    command = _has_member_schema("command")
    url: Schema = {"anyOf": [_has_member_schema(name) for name in urls]}
    says: Schema = {"anyOf": [_has_member_schema("transport"), _has_member_schema("type")]}
    document = _has_member_schema("openapi")
    either = {"oneOf": [command, {"anyOf": [url, document]}]}
    return [
        {"if": _transport_schema("stdio"), "then": command},
        {
            "if": _transport_schema(
                *(name for name, each in TRANSPORT_BY_NAME.items() if each in ("http", "sse"))
            ),
            "then": url,
        },
        {"if": _transport_schema("openapi"), "then": document},
        {"if": says, "then": {}, "else": either},
    ]


def _has_member_schema(name: str) -> Schema:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _transport_schema(*transports: str) -> Schema:
    """Return a schema that matches the `transport`, or the `type` without one."""
    by = {key: {"properties": {key: {"enum": list(transports)}}} for key in ("transport", "type")}
    return {
        "anyOf": [
            {"allOf": [_has_member_schema("transport"), by["transport"]]},
            {
                "allOf": [
                    {"not": _has_member_schema("transport")},
                    _has_member_schema("type"),
                    by["type"],
                ]
            },
        ]
    }


def _mgp_schema() -> Schema:
    return {
        "description": "the MGP settings of a server, with the names of MGP",
        "type": "object",
        "properties": {key: kind.schema for key, (_, kind) in MGP_SETTINGS.items()},
    }


def _table_properties(table: str) -> dict[str, Schema]:
    return {name: _field_schema(each) for name, each in fields_of(TABLES[table]).items()}


def _field_schema(setting: ConfigField) -> Schema:
    gateway_info = {"description": setting.description, "default": to_config_value(setting.default)}
    return {**setting.kind.schema, **gateway_info}


def _table_schema(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(json_schema(), indent=2)}\n")
