"""The registry's document through its face: definitions, the catalogue, calls and their outputs."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jsonschema_rs
import pytest

from tests.conformance.conftest import standing
from tests.conformance.registry_face import JSON, Face, Frame, functions
from tests.conformance.ways import on_pipes

FORECAST = "reg__TideForecast"


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    servers = {"reg": functions(), "near": on_pipes("talker", TALKER_NAME="near")}
    with standing(tmp_path_factory.mktemp("registry"), servers) as house:
        yield Face(house.origin)


def definition(face: Face, name: str) -> Frame:
    listed = face.speak("tools/list").body["result"]["tools"]
    return next(tool for tool in listed if tool["name"] == name)


@pytest.mark.requirement(
    "REG-tool-name",
    "REG-tool-description",
    "REG-tool-inputSchema",
    "REG-tool-enumdefault",
    "REG-sig-tomcp",
    "REG-map-string",
    "REG-map-integer",
    "REG-map-min_length",
    "REG-map-max_length",
    "REG-map-pattern",
    "REG-map-min_value",
    "REG-map-max_value",
    "REG-map-required",
    "REG-map-description",
    "REG-core-constraints",
    "REG-ex-list",
)
def test_a_registered_function_is_listed_with_its_schema(face: Face) -> None:
    tool = definition(face, FORECAST)
    assert tool["description"] == "Says when the water of a harbour is high"
    assert tool["inputSchema"] == {
        "type": "object",
        "properties": {
            "harbour": {
                "type": "string",
                "description": "The harbour, in capitals",
                "pattern": "^[A-Z]{1,5}$",
                "minLength": 1,
                "maxLength": 5,
            },
            "days": {
                "type": "integer",
                "description": "How many days from today",
                "minimum": 1,
                "maximum": 365,
            },
            "datum": {
                "type": "string",
                "description": "Above which level",
                "enum": ["mean", "lowest", "highest"],
                "default": "mean",
            },
        },
        "required": ["harbour", "days"],
        "additionalProperties": False,
    }


@pytest.mark.requirement("REG-map-float", "REG-map-boolean", "REG-core-signature")
def test_each_type_of_a_signature_has_its_own_in_the_schema(face: Face) -> None:
    tool = definition(face, "reg__settle")
    properties = tool["inputSchema"]["properties"]
    assert properties["amount"] == {"type": "number"}
    assert properties["final"] == {"type": "boolean"}
    assert properties["way"] == {"type": "string", "enum": ["cash", "card"], "default": "cash"}
    assert properties["notes"] == {
        "anyOf": [
            {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            {"type": "null"},
        ],
        "default": None,
    }
    assert tool["outputSchema"]["required"] == ["result"]


@pytest.mark.requirement(
    "REG-export-catalog", "REG-export-tool", "REG-export-version", "REG-export-generated_at"
)
def test_the_catalogue_has_every_tool_with_four_members(face: Face) -> None:
    said = face.get("/tools")
    assert (said.status, said.headers["content-type"]) == (200, "application/json")
    catalogue = said.body
    assert catalogue["version"] == "1.0.0"
    assert datetime.fromisoformat(catalogue["generated_at"]).tzinfo is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", catalogue["generated_at"])
    assert all(set(tool) == TOLD for tool in catalogue["tools"])
    listed = face.speak("tools/list").body["result"]["tools"]
    assert [tool["name"] for tool in catalogue["tools"]] == [tool["name"] for tool in listed]
    assert FORECAST in {tool["name"] for tool in catalogue["tools"]}


TOLD = {"name", "description", "inputSchema", "tags"}


@pytest.mark.requirement("REG-export-tags")
def test_tags_tell_what_a_tool_is_about(face: Face) -> None:
    (forecast,) = [tool for tool in face.get("/tools").body["tools"] if tool["name"] == FORECAST]
    assert forecast["tags"] == ["reg", "tide", "forecast"]


@pytest.mark.requirement("REG-export-single", "REG-export-examples", "REG-export-metadata")
def test_a_tools_export_has_examples_that_really_pass(face: Face) -> None:
    export = face.get(f"/tools/{FORECAST}").body
    assert set(export) == {"schema", "examples", "metadata"}
    assert export["examples"]
    validator = jsonschema_rs.validator_for(export["schema"])
    for example in export["examples"]:
        validator.validate(example)
        assert face.call(FORECAST, example).status == 200
    metadata = export["metadata"]
    assert set(metadata) == {"category", "version", "deprecated", "author"}
    assert (metadata["category"], metadata["deprecated"]) == ("reg", False)
    assert metadata["author"] == "comity-functions"


@pytest.mark.requirement(
    "REG-methods-call",
    "REG-openapi-path",
    "REG-ex-call",
    "REG-core-register",
)
def test_a_tool_is_invoked_with_its_arguments_as_the_body(face: Face) -> None:
    said = face.call(FORECAST, {"harbour": "BREST", "days": 73})
    assert said.status == 200
    assert said.body["structuredContent"] == {
        "harbour": "BREST",
        "score": 0.2,
        "datum": "mean",
    }
    assert json.loads(said.body["content"][0]["text"]) == said.body["structuredContent"]


@pytest.mark.requirement("REG-methods-call", "REG-p4-server", "REG-overview-layers")
def test_the_same_in_json_rpc_has_the_same_output(face: Face) -> None:
    arguments = {"harbour": "BREST", "days": 73}
    spoken = face.speak("tools/call", name=FORECAST, arguments=arguments).body
    assert (spoken["jsonrpc"], spoken["id"]) == ("2.0", 7)
    assert spoken["result"] == face.call(FORECAST, arguments).body


@pytest.mark.requirement("REG-p4-server")
def test_what_fails_in_json_rpc_has_the_number_of_its_fault(face: Face) -> None:
    nowhere = face.speak("tools/call", name="reg__nothing", arguments={}).body
    unfit = face.speak("tools/call", name=FORECAST, arguments={"harbour": "BREST"}).body
    crashed = face.speak("tools/call", name="reg__crash", arguments={}).body
    unknown = face.speak("tools/nothing").body
    codes = [each["error"]["code"] for each in (nowhere, unfit, crashed, unknown)]
    assert codes == [-32002, -32001, -32003, -32601]
    assert [each["id"] for each in (nowhere, unfit, crashed, unknown)] == [7] * 4


@pytest.mark.requirement("REG-methods-list", "REG-design-thin", "REG-p4-server")
async def test_what_is_listed_here_is_what_mcp_lists(face: Face) -> None:
    listed = face.speak("tools/list").body["result"]["tools"]
    catalogue = {tool["name"]: tool for tool in face.get("/tools").body["tools"]}
    assert {tool["name"] for tool in listed} == set(catalogue)
    for tool in listed:
        assert catalogue[tool["name"]]["inputSchema"] == tool["inputSchema"]


@pytest.mark.requirement("REG-methods-validate")
@pytest.mark.parametrize("way", ["path", "rpc"])
def test_arguments_are_validated_without_a_call(face: Face, way: str) -> None:
    def validity(arguments: Frame) -> Any:
        if way == "rpc":
            spoken = face.speak("tools/validate", name=FORECAST, arguments=arguments)
            return spoken.body["result"]
        body = json.dumps(arguments).encode()
        return face.ask("POST", f"/tools/{FORECAST}/validate", body, JSON).body

    assert validity({"harbour": "BREST", "days": 90}) == {"valid": True, "errors": []}
    bad = validity({"harbour": "no harbour", "days": 90})
    assert bad["valid"] is False
    (error,) = bad["errors"]
    assert "harbour" in error["field"]
    assert error["error_type"] == "ValidationError"
    # A tool that would never end was not called.
    waiting = face.ask("POST", "/tools/reg__wait/validate", b"{}", JSON)
    assert waiting.body == {"valid": True, "errors": []}


@pytest.mark.requirement("REG-methods-reslist", "REG-methods-resread", "REG-p4-resources")
def test_resources_are_listed_and_read(face: Face) -> None:
    listed = face.get("/resources").body["resources"]
    assert listed == face.speak("resources/list").body["result"]["resources"]
    uri = listed[0]["uri"]
    read = face.get(f"/resources/read?uri={uri}")
    assert read.status == 200
    assert read.body["contents"][0]["uri"] == uri
    spoken = face.speak("resources/read", uri=uri).body["result"]
    assert spoken["contents"] == read.body["contents"]
    assert face.get("/resources/read?uri=near%3A%2F%2Fnowhere").error["code"] == -32602


@pytest.mark.requirement("REG-p4-streaming")
def test_a_large_output_comes_whole(face: Face) -> None:
    said = face.call("reg__big", {"kilobytes": 1500})
    assert said.status == 200
    assert said.body["structuredContent"] == {"result": "x" * 1024 * 1500}


@pytest.mark.requirement("REG-p4-streaming")
def test_what_is_told_amid_a_call_is_streamed(face: Face) -> None:
    accept = {**JSON, "accept": "text/event-stream"}
    said = face.ask("POST", "/tools/near__report", b"{}", accept)
    assert said.headers["content-type"] == "text/event-stream"
    events = [event.split("\n") for event in said.body.decode().split("\n\n") if event]
    assert [kind for kind, _ in events] == [*["event: progress"] * 3, "event: result"]
    assert json.loads(events[1][1].removeprefix("data: "))["progress"] == 2.5
    failed = face.ask("POST", "/tools/reg__crash", b"{}", accept).body.decode()
    assert "event: error\ndata: " in failed
    assert json.loads(failed.split("data: ")[1])["error"]["code"] == -32003
