"""The registry's own paths, schemas and answers."""

from typing import Any, cast

from comity.registry.export import METHODS, OWN_SCHEMAS, PATHS, RESPONSES


def test_a_tool_is_invoked_as_the_registrys_document_says() -> None:
    invoke = cast("Any", PATHS["/tools/{tool_name}"])["post"]
    (named,) = invoke["parameters"]
    assert (named["name"], named["in"], named["required"]) == ("tool_name", "path", True)
    assert named["schema"] == {"type": "string"}
    assert invoke["requestBody"]["required"] is True
    responses = invoke["responses"]
    assert responses["400"] == {"$ref": "#/components/responses/ValidationError"}
    assert responses["404"] == {"$ref": "#/components/responses/NotFound"}


def test_everything_that_is_referred_to_is_there() -> None:
    assert {"ToolInput", "ToolOutput", "Error"} <= OWN_SCHEMAS.keys()
    assert {"ValidationError", "NotFound", "Failure"} <= RESPONSES.keys()


def test_every_method_may_be_said() -> None:
    request = cast("Any", OWN_SCHEMAS["Request"])
    assert request["properties"]["method"]["enum"] == list(METHODS)
