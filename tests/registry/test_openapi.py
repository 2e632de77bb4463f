"""An OpenAPI document of any tools is a sound one, and nothing in it leads out of it."""

import copy
from typing import Any

from openapi_spec_validator import validate

from comity.registry import export
from tests.support.cases import loop_over

PLAIN: dict[str, Any] = {
    "name": "files__read",
    "description": "Reads a file.\nAll of it.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"path": {"$ref": "#/$defs/path"}, "default": {"$ref": "#/$defs/path"}},
        "$defs": {"path": {"type": "string"}},
        "required": ["path"],
    },
    "outputSchema": {"type": "object", "properties": {"inside": {"$ref": "#"}}},
    "tags": ["files", "read"],
}


def document(*tools: dict[str, Any], is_open: bool = True) -> Any:
    making = export.OpenApiDocument()
    for tool in tools:
        making.add(tool)
    made = making.whole(is_open=is_open)
    validate(copy.deepcopy(made))
    return made


def inputs(schema: object) -> Any:
    made = document({**PLAIN, "inputSchema": schema})
    return made["components"]["schemas"]["files__read.input"]


def test_the_document_without_a_tool_is_sound() -> None:
    made = document()
    assert made["openapi"] == "3.1.0"
    assert made["info"] == {"title": "Comity tool registry", "version": "1.0.0"}
    assert made["security"] == [{}, {"bearer": []}]
    assert document(is_open=False)["security"] == [{"bearer": []}]


def test_a_tool_has_a_path_of_its_own_and_its_schema_is_the_requests() -> None:
    made = document(PLAIN)
    called = made["paths"]["/tools/files__read"]["post"]
    body = called["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/files__read.input"}
    assert called["summary"] == "Reads a file."
    assert called["description"] == "Reads a file.\nAll of it."
    assert called["tags"] == ["files"]
    assert made["tags"] == [{"name": "files"}]
    assert set(called["responses"]) == {
        *("200", "400", "401", "403", "404", "429", "502", "503", "504"),
        "default",
    }


def test_references_are_moved_with_the_schema() -> None:
    schema = inputs(
        {
            "type": "object",
            "properties": {"path": {"$ref": "#/$defs/path"}, "default": {"$ref": "#/$defs/path"}},
            "$defs": {"path": {"type": "string", "enum": ["a"]}},
        }
    )
    home = "#/components/schemas/files__read.input/$defs/path"
    assert schema["properties"] == {"path": {"$ref": home}, "default": {"$ref": home}}


def test_what_is_data_stays_as_it_is() -> None:
    schema = inputs({"type": "object", "properties": {"a": {"const": {"items": [1]}}}})
    assert schema["properties"]["a"] == {"const": {"items": [1]}}


@loop_over(
    "schema",
    [
        {"type": "object", "$id": "https://elsewhere.example/"},
        {"type": "object", "properties": {"a": {"$anchor": "b"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://elsewhere.example/"}}},
        {"type": "object", "properties": {"a": {"$ref": "#b"}}},
        {"type": "object", "allOf": [{"$dynamicRef": "#b"}]},
        None,
        True,
    ],
)
def test_a_schema_with_an_address_of_its_own_is_left_out(schema: object) -> None:
    assert inputs(schema) == {"type": "object"}


def test_what_an_older_draft_says_is_said_as_today() -> None:
    schema = inputs(
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "object",
            "properties": {
                "pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
                "low": {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
                "high": {"type": "integer", "maximum": 1, "exclusiveMaximum": False},
            },
        }
    )
    assert schema["properties"] == {
        "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        "low": {"type": "integer", "exclusiveMinimum": 1},
        "high": {"type": "integer", "maximum": 1},
    }


def test_a_tool_that_should_not_be_used_any_more_is_marked() -> None:
    made = document({**PLAIN, "deprecated": True, "description": ""})
    called = made["paths"]["/tools/files__read"]["post"]
    assert called["deprecated"] is True
    assert called["summary"] == "Call files__read"


def test_where_there_are_more_tools_the_next_document_is_named() -> None:
    made = export.OpenApiDocument().whole(is_open=True, following="/openapi.json?cursor=x")
    assert made["x-next"] == "/openapi.json?cursor=x"
