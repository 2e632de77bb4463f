"""The catalog as documents: the export of each tool, and OpenAPI."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, cast
from urllib.parse import urlencode

from comity.catalog import catalog
from comity.catalog.catalog import Tool
from comity.catalog.signatures import CATALOGUE_VERSION, Schema
from comity.gateway.pipeline import CallGate
from comity.mcp.actors import CALL, LIST, READ, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.refusals import Refusal
from comity.registry.examples import generate_candidates
from comity.servers.service import ServerService

SCHEMAS: Final = "#/components/schemas/"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
METHODS: Final = ("tools/list", "tools/call", "tools/validate", "resources/list", "resources/read")
"""The methods that clients may use in JSON-RPC at the registry."""

_FAILURES: Final = {
    "400": ("ValidationError", "The request or the arguments are not as they should be"),
    "401": ("Unauthenticated", "The credentials are missing or unknown"),
    "403": ("Forbidden", "The caller was not granted this"),
    "404": ("NotFound", "There is no such tool"),
    "429": ("RateLimited", "Too many calls; retry after a while"),
    "502": ("ToolFailed", "The tool, or its server, failed"),
    "503": ("Unavailable", "The server of the tool is unavailable"),
    "504": ("ToolTimeout", "The tool took too long"),
}
_FAILED: Final = {
    **{
        status: {"$ref": f"#/components/responses/{name}"}
        for status, (name, _) in _FAILURES.items()
    },
    "default": {"$ref": "#/components/responses/Failure"},
}


def build_operation(name: str, summary: str, takes: str | None, gives: str) -> Schema:
    told: Schema = {"operationId": name, "summary": summary}
    if takes is not None:
        told["requestBody"] = build_request_body(takes)
    content: Schema = {_JSON: {"schema": {"$ref": SCHEMAS + gives}}}
    if name.startswith("call"):
        content[_EVENTS] = {"schema": {"type": "string"}}
    return {**told, "responses": {"200": {"description": "Done", "content": content}, **_FAILED}}


def build_request_body(schema: str) -> Schema:
    return {"required": True, "content": {_JSON: {"schema": {"$ref": SCHEMAS + schema}}}}


def _query(name: str, about: str, *, required: bool = False) -> Schema:
    plain = {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
    return {**plain, "required": required}


_TOOL_NAME_PARAMETER: Final[Schema] = {
    "name": "tool_name",
    "in": "path",
    "required": True,
    "description": "The tool's name, as the catalogue has it",
    "schema": {"type": "string"},
}
_CURSOR: Final = _query("cursor", "Where the page before ended")
_SERVER: Final = _query("server", "Only the tools of this server")
PATHS: Final[Schema] = {
    "/tools": {
        "get": {
            **build_operation("listTools", "The catalogue", None, "Catalogue"),
            "parameters": [_CURSOR, _SERVER],
        },
        "post": build_operation("speak", "Use JSON-RPC", "Request", "Response"),
    },
    "/tools/{tool_name}": {
        "get": {
            **build_operation("describeTool", "A tool's schema, and examples", None, "Export"),
            "parameters": [_TOOL_NAME_PARAMETER],
        },
        "post": {
            **build_operation("callTool", "Invoke a tool", "ToolInput", "ToolOutput"),
            "parameters": [_TOOL_NAME_PARAMETER],
        },
    },
    "/tools/{tool_name}/validate": {
        "post": {
            **build_operation("validateTool", "Check arguments", "ToolInput", "Validity"),
            "parameters": [_TOOL_NAME_PARAMETER],
        },
    },
    "/resources": {
        "get": {
            **build_operation("listResources", "Data to read", None, "Resources"),
            "parameters": [_CURSOR, _SERVER],
        }
    },
    "/resources/read": {
        "get": {
            **build_operation("readResource", "Read data", None, "Contents"),
            "parameters": [_query("uri", "The URI of what to read", required=True)],
        }
    },
}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT: Final[Schema] = {"type": "string"}
_OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_ID: Final[Schema] = {"type": ["string", "integer", "null"]}
_TRUTH: Final[Schema] = {"type": "boolean"}
OWN_SCHEMAS: Final[Schema] = {
    "ToolInput": {"type": "object", "description": "The tool's arguments"},
    "Content": {"type": "object", "description": "One block of content, as MCP has it"},
    "ToolOutput": _object(
        ("content",),
        content={"type": "array", "items": {"$ref": f"{SCHEMAS}Content"}},
        structuredContent={},
    ),
    "Validity": _object(("valid", "errors"), valid=_TRUTH, errors=_OBJECTS),
    "Catalogue": _object(
        ("tools", "version", "generated_at"),
        tools=_OBJECTS,
        version=_TEXT,
        generated_at={"type": "string", "format": "date-time"},
        next=_TEXT,
    ),
    "Export": _object(
        ("schema", "examples", "metadata"),
        schema={"type": "object"},
        examples=_OBJECTS,
        metadata=_object(
            ("category", "version", "deprecated", "author"),
            category=_TEXT,
            version=_TEXT,
            deprecated=_TRUTH,
            author=_TEXT,
        ),
    ),
    "Resources": _object(("resources",), resources=_OBJECTS, next=_TEXT),
    "Contents": _object(("contents",), contents=_OBJECTS),
    "Request": _object(
        ("jsonrpc", "id", "method"),
        jsonrpc={"const": "2.0"},
        id={"type": ["string", "integer"]},
        method={
            "enum": [
                "tools/list",
                "tools/call",
                "tools/validate",
                "resources/list",
                "resources/read",
            ]
        },
        params={"type": "object"},
    ),
    "Response": _object(
        ("jsonrpc", "id", "result"), jsonrpc={"const": "2.0"}, id=_ID, result={"type": "object"}
    ),
    "Error": _object(
        ("jsonrpc", "error"),
        jsonrpc={"const": "2.0"},
        id=_ID,
        error=_object(
            ("code", "message", "data"),
            code={"type": "integer"},
            message=_TEXT,
            data=_object(
                ("error_type", "reason", "trace_id"),
                error_type=_TEXT,
                field=_TEXT,
                reason=_TEXT,
                trace_id=_TEXT,
                suggestions=_TEXTS,
                documentation_url=_TEXT,
            ),
        ),
    ),
}
_ERROR_CONTENT: Final = {_JSON: {"schema": {"$ref": f"{SCHEMAS}Error"}}}
RESPONSES: Final[Schema] = {
    **{
        name: {"description": about, "content": _ERROR_CONTENT}
        for name, about in _FAILURES.values()
    },
    "Failure": {"description": "Anything else that went wrong", "content": _ERROR_CONTENT},
}


type ToolDocument = Mapping[str, Any]

OPENAPI: Final = "3.1.0"
TITLE: Final = "Comity tool registry"
MAX_SUMMARY_LENGTH: Final = 120
MAX_DEPTH: Final = 64

_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})
_SCHEMA_MAP_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_NAMING: Final = ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "id")


@dataclass(slots=True)
class OpenApiDocument:
    """Builds an OpenAPI document tool by tool, so that the caller can yield in between."""

    paths: Schema = field(default_factory=lambda: dict(PATHS))
    schemas: Schema = field(default_factory=lambda: dict(OWN_SCHEMAS))
    tags: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, tool: ToolDocument) -> None:
        self.paths |= _paths_of(tool)
        self.schemas |= _schemas_of(tool)
        self.tags |= dict.fromkeys(tool["tags"][:1])

    def whole(self, *, is_open: bool, following: str | None = None) -> Schema:
        """Return the document. `following` is the URL of the next one, if there are more tools."""
        whole: Schema = {
            "openapi": OPENAPI,
            "info": {"title": TITLE, "version": CATALOGUE_VERSION},
            "servers": [{"url": "/"}],
            "security": [{}, {"bearer": []}] if is_open else [{"bearer": []}],
            "tags": [{"name": tag} for tag in self.tags],
            "paths": self.paths,
            "components": {
                "schemas": self.schemas,
                "responses": RESPONSES,
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
        }
        return whole if following is None else {**whole, "x-next": following}


def embed_schema(schema: object, home: str) -> object:
    """Return a tool's schema with its references adapted to the place `home`.

    A schema that cannot be moved becomes a plain object schema.
    """
    if not isinstance(schema, dict) or _names_itself(cast("Schema", schema), 0):
        return {"type": "object"}
    return _moved(cast("Schema", schema), home)


def _moved(schema: Schema, home: str) -> Schema:
    moved: Schema = {}
    for key, said in schema.items():
        if key == "$schema":
            continue
        if key == "$ref" and isinstance(said, str):
            moved[key] = home + said[1:]
        elif key in _DATA:
            moved[key] = said
        elif key in _SCHEMA_MAP_KEYWORDS and isinstance(said, dict):
            inner = cast("Schema", said)
            moved[key] = {name: _moved_part(part, home) for name, part in inner.items()}
        else:
            moved[key] = _moved_part(said, home)
    return _as_today(moved)


def _moved_part(value: object, home: str) -> object:
    if isinstance(value, dict):
        return _moved(cast("Schema", value), home)
    if isinstance(value, list):
        return [_moved_part(each, home) for each in cast("list[object]", value)]
    return value


def _as_today(schema: Schema) -> Schema:
    """Replace keywords of older drafts by those of JSON Schema 2020-12."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    for limit, beyond in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(beyond), bool) and schema.pop(beyond) and limit in schema:
            schema[beyond] = schema.pop(limit)
    return schema


def _names_itself(value: object, depth: int) -> bool:
    """Return whether a schema has its own ids, or references outside of the document.

    It may take a property name for a keyword. Then a schema is left out that could stay.
    """
    if depth > MAX_DEPTH:
        return True
    if isinstance(value, list):
        return any(_names_itself(each, depth + 1) for each in cast("list[object]", value))
    if not isinstance(value, dict):
        return False
    table = cast("Schema", value)
    pointer = table.get("$ref")
    if isinstance(pointer, str) and pointer != "#" and not pointer.startswith("#/"):
        return True
    if any(isinstance(table.get(name), str) for name in _NAMING):
        return True
    return any(_names_itself(each, depth + 1) for each in table.values())


def _schemas_of(tool: ToolDocument) -> Schema:
    name: str = tool["name"]
    found: Schema = {
        f"{name}.input": embed_schema(tool["inputSchema"], f"{SCHEMAS}{name}.input"),
    }
    if tool.get("outputSchema") is not None:
        output = embed_schema(tool["outputSchema"], f"{SCHEMAS}{name}.output")
        content = {"$ref": f"{SCHEMAS}Content"}
        found[f"{name}.output"] = output
        found[f"{name}.wrapped"] = {
            "type": "object",
            "properties": {
                "content": {"type": "array", "items": content},
                "structuredContent": {"$ref": f"{SCHEMAS}{name}.output"},
            },
            "required": ["content"],
        }
    return found


def _paths_of(tool: ToolDocument) -> Schema:
    name: str = tool["name"]
    given = f"{name}.wrapped" if tool.get("outputSchema") is not None else "ToolOutput"
    shown = build_operation(f"call_{name}", _summary(tool), f"{name}.input", given)
    tried = build_operation(
        f"validate_{name}", f"Check arguments of {name}", f"{name}.input", "Validity"
    )
    told: Schema = {"tags": tool["tags"][:1]}
    description = tool.get("description")
    if description:
        told["description"] = description
    if tool.get("deprecated"):
        told["deprecated"] = True
    # This path checks arguments, so its schema accepts all of them.
    tried["requestBody"] = build_request_body("ToolInput")
    return {
        f"/tools/{name}": {"post": {**shown, **told}},
        f"/tools/{name}/validate": {"post": {**tried, "tags": tool["tags"][:1]}},
    }


def _summary(tool: ToolDocument) -> str:
    first = str(tool.get("description") or "").strip().partition("\n")[0]
    return first[:MAX_SUMMARY_LENGTH] or f"Call {tool['name']}"


BREATH: Final = 25
"""The number of tools that are read before other tasks have a turn."""
MAX_EXAMPLES: Final = 3
OPENAPI_PATH: Final = "/openapi.json"


@dataclass(frozen=True, slots=True)
class ToolQuery:
    """Which tools to list, and for which actor."""

    actor: Actor
    server: str | None = None
    cursor: str | None = None


def to_reader(actor: Actor) -> Actor:
    """Return the actor with permission to look at each tool that its key may list or read."""
    bounds = actor.permissions or ()
    readable = [(CALL, target) for verb, target in bounds if verb in (LIST, READ)]
    return replace(actor, permissions=(*bounds, *readable)) if readable else actor


class CatalogExport:
    """Writes documents about tools. `is_open` tells whether some tools need no credentials."""

    def __init__(self, gate: CallGate, servers: ServerService, *, is_open: bool = False) -> None:
        self._gate = gate
        self._servers = servers
        self._is_open = is_open

    async def catalogue(self, query: ToolQuery) -> Schema:
        """Return one page of the catalog."""
        definitions, following = self._gate.list_tools(
            query.actor, self._shown_to(query), query.cursor
        )
        tools = [
            catalog.catalog_row(offer.server, offer.name, tool)
            async for offer, tool in self._read(definitions)
        ]
        told: Schema = {
            "tools": tools,
            "version": CATALOGUE_VERSION,
            "generated_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return told if following is None else {**told, "next": following}

    async def export(self, entry: CatalogEntry) -> Schema:
        """Return the schema of a tool, valid example arguments, and its metadata."""
        tool = catalog.read_tool(entry.definition)
        schema = tool.get("inputSchema", {})
        return {
            "schema": schema,
            "examples": await self._examples(entry, schema),
            "metadata": catalog.metadata_of(entry.server, tool, self._about(entry.server)),
        }

    async def openapi(self, query: ToolQuery) -> Schema:
        """Return an OpenAPI document of one page of tools, with the URL of the next page."""
        definitions, following = self.page(EntryKind.TOOL, query)
        document = OpenApiDocument()
        async for offer, tool in self._read(definitions):
            metadata = catalog.metadata_of(offer.server, tool, {})
            document.add(
                {**tool, **catalog.catalog_row(offer.server, offer.name, tool), **metadata}
            )
        return document.whole(is_open=self._is_open, following=_place(query.server, following))

    def page(self, kind: EntryKind, query: ToolQuery) -> tuple[list[bytes], str | None]:
        """Return a page of unchanged definitions, and the cursor of the next page."""
        return self._gate.page(query.actor, kind, self._shown_to(query), query.cursor)

    def _shown_to(self, query: ToolQuery) -> Callable[[str], bool]:
        def shown(server: str) -> bool:
            return query.server in (None, server) and self._servers.get(server) is not None

        return shown

    def _about(self, name: str) -> Tool:
        """Return the server's own `serverInfo`."""
        server = self._servers.get(name)
        said = (
            {}
            if server is None
            else server.connections.initialize_result or server.connections.discover_result
        )
        return catalog.read_tool(bytes(said.get("serverInfo", b"{}")))

    async def _read(self, definitions: list[bytes]) -> AsyncGenerator[tuple[CatalogEntry, Tool]]:
        for number, definition in enumerate(definitions):
            if number % BREATH == 0:
                await asyncio.sleep(0)
            tool = catalog.read_tool(definition)
            name = tool.get("name")
            offer = (
                self._gate.catalog.find_public(EntryKind.TOOL, name)
                if isinstance(name, str)
                else None
            )
            # The server may have been removed while this coroutine yielded.
            if offer is not None:
                yield offer, tool

    async def _examples(self, entry: CatalogEntry, schema: object) -> list[object]:
        """Return the candidates that pass the argument checks of the tool."""
        found: list[object] = []
        for candidate in generate_candidates(schema):
            await asyncio.sleep(0)
            outcome = self._gate.check_arguments(entry, candidate)
            if outcome is not None and not isinstance(outcome, Refusal):
                outcome = await outcome
            if outcome is None:
                found.append(candidate)
            if len(found) == MAX_EXAMPLES:
                break
        return found


def _place(server: str | None, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    asked: Mapping[str, str] = {"cursor": cursor} | ({} if server is None else {"server": server})
    return f"{OPENAPI_PATH}?{urlencode(asked)}"
