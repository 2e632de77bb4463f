"""Documents become tools: names, schemas, annotations, selection, and hostile documents."""

import json
import time
from typing import Any

import jsonschema_rs
import pytest

from comity.errors import MalformedMessage
from comity.servers.openapi.document import MAX_DOCUMENT_BYTES, parse_document
from comity.servers.openapi.operations import ApiOperation, CompiledApi, compile_api
from comity.validation.schema_compiler import check_schema

Table = dict[str, Any]
NO_BODY: Table = {"responses": {"204": {"description": "Done."}}}


def _document(paths: Table, version: str = "3.0.3", **members: Any) -> bytes:
    head = {"openapi": version, "info": {"title": "T", "version": "1"}, "paths": paths}
    return json.dumps({**head, **members}).encode()


def _compile(data: bytes, *selection: str) -> CompiledApi:
    return compile_api(parse_document(data), selection)


def _definition(operation: ApiOperation) -> Table:
    return json.loads(operation.definition)


def _body_schema(schema: Any, version: str = "3.0.3", **schemas: Any) -> Table:
    """The input schema of a tool whose JSON body has this schema."""
    body = {"content": {"application/json": {"schema": schema}}, "required": True}
    paths: Table = {"/a": {"post": {**NO_BODY, "operationId": "a", "requestBody": body}}}
    api = _compile(_document(paths, version, components={"schemas": schemas}))
    found = _definition(api.operations["a"])["inputSchema"]
    assert check_schema(found, of_arguments=True) is None
    return found


SCHEMAS: list[tuple[str, Table, list[Any], list[Any]]] = [
    ("3.0.3", {"type": "string", "nullable": True}, [None, "a"], [1]),
    ("3.0.3", {"type": "string", "enum": ["a"], "nullable": True}, [None, "a"], ["b"]),
    ("3.0.3", {"allOf": [{"type": "integer"}], "nullable": True}, [None, 1], ["b"]),
    ("3.0.3", {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
    ("3.1.0", {"type": "integer", "exclusiveMinimum": 1}, [2], [1]),
    ("3.1.0", {"type": ["string", "null"]}, [None, "a"], [1]),
    ("3.1.0", {"const": "x"}, ["x"], ["y"]),
    ("3.1.0", {"type": "array", "prefixItems": [{"type": "string"}]}, [["a"]], [[1]]),
    # Keywords that no JSON Schema has, or with values of another type, restrict nothing.
    ("3.0.3", {"type": "file", "required": True, "minimum": "1", "xml": {}}, [1, "a", {}], []),
    ("3.0.3", {"type": "string", "pattern": "(["}, ["a"], [1]),
    ("3.0.3", {"enum": [{"a": 1}]}, [{"a": 2}], []),
    (
        "3.0.3",
        {
            "type": "object",
            "required": ["id", "name"],
            "properties": {"id": {"type": "integer", "readOnly": True}, "name": {}},
        },
        [{"name": "a"}],
        [{}],
    ),
    (
        "3.0.3",
        {
            "oneOf": [{"type": "object"}, {"type": "object"}],
            "discriminator": {"propertyName": "kind"},
        },
        [{"kind": "a"}],
        ["a"],
    ),
]


@pytest.mark.parametrize(
    ("version", "schema", "valid", "invalid"),
    SCHEMAS,
)
def test_openapi_schemas_become_json_schema(
    version: str, schema: Table, valid: list[Any], invalid: list[Any]
) -> None:
    check = jsonschema_rs.Draft202012Validator(_body_schema(schema, version))
    assert [value for value in valid if not check.is_valid({"body": value})] == []
    assert [value for value in invalid if check.is_valid({"body": value})] == []
    assert not check.is_valid({"body": "x", "more": 1})


def test_a_recursive_schema_validates_at_every_level() -> None:
    node = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    schema = _body_schema({"$ref": "#/components/schemas/Node"}, Node=node)
    check = jsonschema_rs.Draft202012Validator(schema)
    deep: Table = {"name": "z"}
    for _ in range(20):
        deep = {"name": "a", "children": [deep]}
    assert check.is_valid({"body": deep})
    assert not check.is_valid({"body": {"name": "a", "children": [{"name": 1}]}})


def test_large_definitions_are_reduced_to_their_type_and_the_description_says_so() -> None:
    wide = {
        f"field{number}": {"type": "string", "description": "long " * 40} for number in range(60)
    }
    schemas = {
        f"S{number}": {
            "type": "object",
            "properties": {**wide, "next": {"$ref": f"#/components/schemas/S{number + 1}"}},
        }
        for number in range(20)
    }
    paths: Table = {
        "/a": {
            "put": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}
                }
            }
        }
    }
    api = _compile(_document(paths, components={"schemas": schemas}))
    tool = _definition(api.operations["put_a"])
    assert len(json.dumps(tool["inputSchema"])) < 48 * 1024
    assert tool["inputSchema"]["$defs"]["S0"]["properties"].keys() >= {"field0", "next"}
    assert {"type": "object"} in tool["inputSchema"]["$defs"].values()
    assert "Deeper parts of its body are not described" in tool["description"]


def test_names_annotations_and_output_schemas_follow_the_operation() -> None:
    found = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    answer = {"200": {"content": {"application/json": {"schema": found}}}}
    many = {"200": {"content": {"application/json": {"schema": {"type": "array"}}}}}
    paths: Table = {
        "/repos/{owner}": {
            "parameters": [{"name": "owner", "in": "path", "schema": {"type": "string"}}],
            "get": {"responses": answer, "summary": "Get it.", "deprecated": True},
            "put": {"responses": many, "operationId": "repos/replace it"},
            "delete": {"operationId": "repos/replace-it"},
            "patch": {"operationId": "repos/replace it"},
        },
        "/long": {"post": {"operationId": "x" * 200}},
    }
    api = _compile(_document(paths))
    tools = {name: _definition(each) for name, each in api.operations.items()}
    assert list(tools)[:4] == [
        *("get_repos_by_owner", "repos_replace_it", "repos_replace_it_2", "repos_replace-it"),
    ]
    assert all(len(name) <= 64 for name in tools)
    get = tools["get_repos_by_owner"]
    assert get["description"] == "Deprecated.\n\nGet it.\n\nGET /repos/{owner}"
    assert get["outputSchema"]["required"] == ["id"]
    assert get["inputSchema"]["required"] == ["owner"]
    assert not any("outputSchema" in tools[name] for name in list(tools)[1:])
    hints = {api.operations[name].method: tool["annotations"] for name, tool in tools.items()}
    assert {method: each["readOnlyHint"] for method, each in hints.items()} == {
        "GET": True,
        "PUT": False,
        "DELETE": False,
        "PATCH": False,
        "POST": False,
    }
    assert [each.get("destructiveHint") for each in hints.values()] == [
        *(None, False, False, True, False),
    ]
    assert hints["PUT"]["idempotentHint"]
    assert not hints["POST"]["idempotentHint"]


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        ((), ["getA", "postA", "getAB", "issues_list"]),
        (("GET /a/*",), ["getA", "getAB"]),
        (("GET *",), ["getA", "getAB", "issues_list"]),
        (("* /a",), ["getA", "postA"]),
        (("/a/*",), ["getA", "postA", "getAB"]),
        (("issues/*",), ["issues_list"]),
        (("bugs", "getA"), ["getA", "issues_list"]),
        (("!POST *", "!bugs"), ["getA", "getAB"]),
    ],
)
def test_operations_are_selected_by_method_path_id_and_tag(
    selection: tuple[str, ...], chosen: list[str]
) -> None:
    paths: Table = {
        "/a": {"get": {"operationId": "getA"}, "post": {"operationId": "postA"}},
        "/a/b/c": {"get": {"operationId": "getAB"}},
        "/issues": {"get": {"operationId": "issues/list", "tags": ["bugs"]}},
    }
    assert list(_compile(_document(paths), *selection).operations) == chosen


def test_an_operation_at_another_host_or_with_a_strange_path_is_skipped() -> None:
    get = {"get": {"operationId": "a"}}
    paths: Table = {
        "/ok": get,
        "/other": {"get": {"servers": [{"url": "https://evil.example/"}]}},
        "/a/../admin": get,
        "/a/%2E%2e/admin": get,
        "/a?x=1": get,
        "/a#b": get,
        "/{undeclared}": get,
        "no-slash": get,
        "/loop": {"$ref": "#/paths/~1loop"},
        "/nowhere": {"$ref": "https://evil.example/doc.json#/paths/~1a"},
        "/file": {"$ref": "other.json#/a"},
    }
    server = {"url": "https://{h}", "variables": {"h": {"default": "api.example"}}}
    api = _compile(_document(paths, servers=[server]))
    assert list(api.operations) == ["a"]
    assert api.skipped_count == len(paths) - 1
    assert api.url == "https://api.example"


def _laughing_references() -> bytes:
    """Each schema refers twice to the next one: expanded, it has 2^60 parts."""
    schemas = {
        f"S{number}": {
            "type": "object",
            "properties": {
                key: {"$ref": f"#/components/schemas/S{number + 1}"} for key in ("a", "b")
            },
        }
        for number in range(60)
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    return _document({"/a": {"post": {"requestBody": body}}}, components={"schemas": schemas})


def _nested_schema(levels: int) -> Table:
    schema: Table = {"type": "string"}
    for _ in range(levels):
        schema: Table = {"type": "object", "properties": {"a": schema}}
    return schema


LAUGHING_YAML = b"openapi: 3.0.0\npaths: {}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%b]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no object"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "nested too deeply|no YAML"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"a: &b [*b]", "an alias in it names nothing"),
        (b"? [a]\n: b", "a key in it is no text"),
        (LAUGHING_YAML, "over 4000000 values"),
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": 3}', "names no version"),
        (b'{"openapi": "4.0.0"}', "names no version"),
        (_document({}), "no usable operation"),
        (b'{"openapi": "3.0.0", "paths": [1]}', "no usable operation"),
        (_document({"/a": {"get": 1, "post": []}}), "no usable operation"),
        (
            _document({f"/a{number}": {"get": {}} for number in range(5_001)}),
            "over 5000 operations; choose some by `operations`",
        ),
        (b'{"openapi": "3.0.0"}' + b" " * MAX_DOCUMENT_BYTES, "bytes"),
        (b"{" + b"[" * 10 + b"," * 4_000_001, "over 4000000 values"),
    ],
)
def test_a_hostile_document_fails_with_a_clear_message(data: bytes, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(MalformedMessage, match=reason):
        _compile(data)
    assert time.monotonic() - began < 30


def test_a_selection_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(MalformedMessage, match="'GET /b', which matches none"):
        _compile(_document({"/a": {"get": NO_BODY}}), "GET /b")


@pytest.mark.parametrize(
    "data",
    [
        _laughing_references(),
        _document(
            {
                "/a": {
                    "post": {
                        "requestBody": {
                            "content": {"application/json": {"schema": _nested_schema(80)}}
                        }
                    }
                }
            }
        ),
        _document(
            {
                "/a": {
                    "post": {
                        "operationId": 7,
                        "summary": [],
                        "tags": [1, {}],
                        "security": "all",
                        "parameters": [
                            {"name": "q", "in": "query", "schema": {"enum": ["x" * 9] * 90_000}},
                            {"name": "q", "in": "query", "schema": {"pattern": "a{9}" * 999}},
                            {"name": 5, "in": "query"},
                            {"name": "Host", "in": "header"},
                            {"name": "x\r\ny", "in": "header"},
                        ],
                        "responses": {"200": {"$ref": "#/components/responses/none"}},
                    }
                }
            },
            components={"securitySchemes": {"a": 1}, "schemas": []},
        ),
    ],
)
def test_a_strange_document_still_gives_small_valid_tools(data: bytes) -> None:
    (operation,) = _compile(data).operations.values()
    tool = _definition(operation)
    assert check_schema(tool["inputSchema"], of_arguments=True) is None
    assert len(operation.definition) < 64 * 1024


def test_yaml_gives_the_same_tools_as_json() -> None:
    written = b"""
openapi: 3.1.0
info: {title: T, version: 2026-01-02}
paths:
  /a/{id}:
    parameters:
      - &id {name: id, in: path, required: true, schema: {type: string, default: no}}
    get: {operationId: getA, parameters: [*id], responses: {200: {description: ok}}}
"""
    parameter = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "default": "no"},
    }
    paths: Table = {
        "/a/{id}": {
            "parameters": [parameter],
            "get": {"operationId": "getA", "parameters": [parameter], "responses": {"200": {}}},
        }
    }
    one, other = _compile(written), _compile(_document(paths, "3.1.0"))
    assert one.operations["getA"].definition == other.operations["getA"].definition
    assert one.version == "2026-01-02"
