"""The OpenAPI document of a running gateway: sound, true of what the gateway does, and bounded."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.conformance.conftest import standing
from tests.conformance.registry_face import Face, Frame, functions
from tests.conformance.ways import on_pipes

SOUND = "tests.conformance.servers.registered:TideForecast,settle,echo"
MANY = 1_200
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method"
)
OF_TOOLS = "^/tools/reg__"
ODD: list[Frame] = [
    {"name": "old", "inputSchema": {"type": "object", "properties": {"a": {"items": [{}]}}}},
    {"name": "own", "inputSchema": {"type": "object", "$id": "https://x.example/", "$defs": {}}},
    {
        "name": "deep",
        "inputSchema": {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/tree"}},
            "$defs": {"tree": {"type": "object", "properties": {"in": {"$ref": "#/$defs/tree"}}}},
        },
    },
]


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    servers = {
        "reg": functions(SOUND),
        "near": on_pipes("talker", TALKER_NAME="near"),
        "odd": on_pipes("talker", TALKER_DEFINITIONS=json.dumps(ODD)),
        "many": on_pipes("talker", TALKER_NAME="many", TALKER_MANY=str(MANY)),
    }
    with standing(tmp_path_factory.mktemp("openapi"), servers) as house:
        yield Face(house.origin)


def documents(face: Face, query: str = "") -> Iterator[Any]:
    """Every document, one after the other."""
    path = f"/openapi.json{query}"
    while True:
        document = face.get(path).body
        yield document
        if "x-next" not in document:
            return
        path = document["x-next"]


@pytest.mark.requirement("REG-openapi-path", "REG-openapi-param", "REG-openapi-body")
@pytest.mark.parametrize("server", ["reg", "near", "odd"])
def test_the_document_of_any_server_is_sound(face: Face, server: str) -> None:
    (document,) = documents(face, f"?server={server}")
    OpenAPIV31SpecValidator(document).validate()
    listed = face.get(f"/tools?server={server}").body["tools"]
    assert {f"/tools/{tool['name']}" for tool in listed} <= document["paths"].keys()


@pytest.mark.requirement("REG-openapi-200", "REG-openapi-400", "REG-openapi-404")
def test_the_registrys_own_path_is_as_its_document_says(face: Face) -> None:
    (document,) = documents(face, "?server=reg")
    assert document["info"]["version"] == "1.0.0"
    invoke = document["paths"]["/tools/{tool_name}"]["post"]
    assert [each["name"] for each in invoke["parameters"]] == ["tool_name"]
    content = invoke["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/ToolInput"}
    answers = invoke["responses"]
    given = answers["200"]["content"]["application/json"]["schema"]
    assert given == {"$ref": "#/components/schemas/ToolOutput"}
    assert answers["400"] == {"$ref": "#/components/responses/ValidationError"}
    assert answers["404"] == {"$ref": "#/components/responses/NotFound"}
    assert {"401", "403", "429", "502", "503", "504"} <= set(answers)


def test_a_long_catalogue_is_told_in_several_documents(face: Face) -> None:
    found = list(documents(face, "?server=many"))
    assert len(found) > 1
    named = {path for document in found for path in document["paths"] if "many__n" in path}
    assert len(named) == 2 * MANY
    assert all(document["openapi"] == "3.1.0" for document in found)


@pytest.mark.timeout(240)
@pytest.mark.requirement("REG-p4-tests")
@pytest.mark.parametrize(
    "narrowed",
    [
        pytest.param(
            ("--include-path-regex", OF_TOOLS, "--checks", f"{CHECKS},positive_data_acceptance"),
            id="tools",
        ),
        # No schema says which cursor was given out, nor which resource there is.
        pytest.param(("--exclude-path-regex", OF_TOOLS, "--checks", CHECKS), id="face"),
    ],
)
def test_what_the_document_says_is_what_the_gateway_does(
    face: Face, tmp_path: Path, narrowed: tuple[str, ...]
) -> None:
    """Schemathesis, in a short form: what fits is taken, what does not is refused as written."""
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(face.get("/openapi.json?server=reg").body))
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", str(document)),
        *("--url", face.origin, *narrowed, "--max-examples", "15", "--seed", "7"),
        *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
        "--suppress-health-check=all",
        *("--request-timeout", "30", "--workers", "1", "--no-color"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
