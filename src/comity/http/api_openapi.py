"""The operator API as an OpenAPI 3.1 document, made from its routes.

The input type of a route gives its parameters or its body. The return annotation of its handler, a
`TypedDict`, gives the answer.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final, TypedDict, cast, get_type_hints, is_typeddict

import msgspec

from comity.http.api import ApiRequest, ApiRoute, ApiRouter, ApiRoutes, Permission, StreamRoute
from comity.http.api_input import EmptyQuery

PATH: Final = "/api/openapi.json"

_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")
_PERMISSIONS: Final[Mapping[Permission, str]] = {
    Permission.ADMIN_READ: "a grant of `admin/read` on `*`",
    Permission.ADMIN_WRITE: "a grant of `admin/write` on `*`",
    Permission.SERVER_READ: "a grant of `admin/read` on the server in the path",
    Permission.SERVER_WRITE: "a grant of `admin/write` on the server in the path",
    Permission.ANY_PRINCIPAL: "any principal; the answer holds only what it may use",
    Permission.OWN_RECORDS: "any principal; each record decides who may read or change it",
}
_ERROR: Final[Mapping[str, object]] = {
    "type": "object",
    "description": "A JSON-RPC error without an id.",
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": "null"},
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "data": {"type": "object"},
            },
            "required": ["code", "message"],
        },
    },
    "required": ["jsonrpc", "error"],
}
_REFUSALS: Final[Mapping[str, str]] = {
    "400": "The request is malformed.",
    "401": "The credentials are missing or invalid.",
    "403": "The principal lacks the permission.",
    "404": "The record does not exist, or the principal may not see it.",
}
_REFUSAL_REFERENCES: Final = {
    status: {"$ref": f"#/components/responses/Status{status}"} for status in _REFUSALS
}

type Document = dict[str, object]


class OpenapiDocument(TypedDict):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: Document
    servers: list[Document]
    security: list[Document]
    paths: Document
    components: Document


def openapi_routes(router: ApiRouter) -> ApiRoutes:
    """Return the route that answers with the document of all routes."""

    async def read_openapi(request: ApiRequest[EmptyQuery]) -> OpenapiDocument:
        """Return this document."""
        del request
        return describe_routes(router.routes, router.streams)

    return (ApiRoute("GET", PATH, Permission.ADMIN_READ, read_openapi, EmptyQuery),)


def describe_routes(
    routes: Iterable[ApiRoute[Any]], streams: Iterable[StreamRoute] = ()
) -> OpenapiDocument:
    """Return the OpenAPI document of these routes."""
    listed = sorted(routes, key=lambda route: (route.path, route.method))
    streamed = list(streams)
    kinds = [kind for route in listed for kind in (route.input, answer_type(route))]
    kinds += [stream.event for stream in streamed]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of, ref_template=_REFERENCE
    )
    # Python 3.13 takes the indentation from a docstring, and 3.12 does not.
    for component in components.values():
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
    paths: Document = {}
    for place, route in enumerate(listed):
        input_schema = _resolve(schemas[2 * place], components)
        answer_schema = schemas[2 * place + 1]
        operations = cast("Document", paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {}))
        operations[route.method.lower()] = _operation(route, input_schema, answer_schema)
    for stream, schema in zip(streamed, schemas[2 * len(listed) :], strict=True):
        paths[stream.path] = {"get": _stream_operation(stream, schema)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Comity operator API",
            "version": version("comity"),
            "description": "The API with which operators read and change a running gateway.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "responses": _describe_refusals(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def answer_type(route: ApiRoute[Any]) -> Any:
    """Return the `TypedDict` of the answer. Raises TypeError if the handler declares none."""
    kind = get_type_hints(route.handler).get("return")
    if not is_typeddict(kind):
        raise TypeError(f"{route.method} {route.path} must declare the TypedDict that it answers")
    return kind


def _operation(
    route: ApiRoute[Any], schema: Mapping[str, Any], answer: Mapping[str, Any]
) -> Document:
    parameters = [_path_parameter(*found) for found in _PARAMETER.findall(route.path)]
    operation: Document = {
        "operationId": _operation_id(route),
        "description": _description(route.handler, route.permission),
        "responses": {"200": _describe_answer(answer), **_REFUSAL_REFERENCES},
    }
    if route.method == "GET":
        required = schema.get("required", ())
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": each}
            for name, each in schema.get("properties", {}).items()
        ]
    else:
        operation["requestBody"] = {
            "required": bool(schema.get("required")),
            "content": {"application/json": {"schema": dict(schema)}},
        }
    return {**operation, "parameters": parameters} if parameters else operation


def _stream_operation(stream: StreamRoute, schema: Mapping[str, Any]) -> Document:
    content = {"text/event-stream": {"schema": schema}}
    return {
        "operationId": "_".join(("get", *re.findall(r"\w+", stream.path))),
        "description": _description(stream.serve, stream.permission),
        "responses": {
            "200": {"description": "Events, each with this data.", "content": content},
            **_REFUSAL_REFERENCES,
        },
    }


def _description(handler: Callable[..., object], permission: Permission) -> str:
    summary = (inspect.getdoc(handler) or "").partition("\n\n")[0].replace("\n", " ")
    return f"{summary}\n\nNeeds {_PERMISSIONS[permission]}.".strip()


def _describe_answer(schema: Mapping[str, Any]) -> Document:
    return {"description": "The answer.", "content": {"application/json": {"schema": schema}}}


def _describe_refusals() -> Document:
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}}
    return {
        f"Status{status}": {"description": description, "content": content}
        for status, description in _REFUSALS.items()
    }


def _path_parameter(name: str, is_long: str) -> Document:
    parameter: Document = {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    return {**parameter, "description": "It may hold slashes."} if is_long else parameter


def _operation_id(route: ApiRoute[Any]) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", route.path))
    return "_".join((route.method.lower(), *words))


def _schema_of(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec has none for."""
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any JSON value."}


def _resolve(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a struct itself, where msgspec gives a reference to it."""
    named = str(schema.get("$ref", "")).rpartition("/")[2]
    return components[named] if named else schema
