"""What the registry's OpenAPI document says whatever tools there are: its own paths and answers."""

from typing import Final

from comity.rules.signatures import Schema

SCHEMAS: Final = "#/components/schemas/"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
METHODS: Final = ("tools/list", "tools/call", "tools/validate", "resources/list", "resources/read")
"""What may be said in JSON-RPC at the registry's face."""

_FAILURES: Final = {
    "400": ("ValidationError", "The request or the arguments are not as they should be"),
    "401": ("Unauthenticated", "Nobody is known by these credentials, or there are none"),
    "403": ("Forbidden", "The caller was not granted this"),
    "404": ("NotFound", "There is no such tool"),
    "429": ("RateLimited", "Too many calls; retry after a while"),
    "502": ("ToolFailed", "The tool, or its server, failed"),
    "503": ("Unavailable", "The tool's server is not there just now"),
    "504": ("ToolTimeout", "The tool took too long"),
}
_FAILED: Final = {
    **{
        status: {"$ref": f"#/components/responses/{name}"}
        for status, (name, _) in _FAILURES.items()
    },
    "default": {"$ref": "#/components/responses/Failure"},
}


def operation(name: str, summary: str, takes: str | None, gives: str) -> Schema:
    told: Schema = {"operationId": name, "summary": summary}
    if takes is not None:
        told["requestBody"] = body(takes)
    content: Schema = {_JSON: {"schema": {"$ref": SCHEMAS + gives}}}
    if name.startswith("call"):
        content[_EVENTS] = {"schema": {"type": "string"}}
    return {**told, "responses": {"200": {"description": "Done", "content": content}, **_FAILED}}


def body(schema: str) -> Schema:
    return {"required": True, "content": {_JSON: {"schema": {"$ref": SCHEMAS + schema}}}}


def _query(name: str, about: str, *, required: bool = False) -> Schema:
    plain = {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
    return {**plain, "required": required}


_NAMED: Final[Schema] = {
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
            **operation("listTools", "The catalogue", None, "Catalogue"),
            "parameters": [_CURSOR, _SERVER],
        },
        "post": operation("speak", "Say it in JSON-RPC", "Request", "Response"),
    },
    "/tools/{tool_name}": {
        "get": {
            **operation("describeTool", "A tool's schema, and examples", None, "Export"),
            "parameters": [_NAMED],
        },
        "post": {
            **operation("callTool", "Invoke a tool", "ToolInput", "ToolOutput"),
            "parameters": [_NAMED],
        },
    },
    "/tools/{tool_name}/validate": {
        "post": {
            **operation("validateTool", "Check arguments", "ToolInput", "Validity"),
            "parameters": [_NAMED],
        },
    },
    "/resources": {
        "get": {
            **operation("listResources", "Data to read", None, "Resources"),
            "parameters": [_CURSOR, _SERVER],
        }
    },
    "/resources/read": {
        "get": {
            **operation("readResource", "Read data", None, "Contents"),
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
_SAID: Final = {_JSON: {"schema": {"$ref": f"{SCHEMAS}Error"}}}
RESPONSES: Final[Schema] = {
    **{name: {"description": about, "content": _SAID} for name, about in _FAILURES.values()},
    "Failure": {"description": "Anything else that went wrong", "content": _SAID},
}
