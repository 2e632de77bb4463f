"""Validators that the names of tools and arguments suggest."""

from comity.validation.rules import SuggestedValidator, suggest_validators, validators_of
from tests.support.cases import loop_over


def tool(**arguments: object) -> dict[str, object]:
    return {"inputSchema": {"type": "object", "properties": arguments}}


TEXT = {"type": "string"}


@loop_over(
    ("name", "argument", "validator", "meaning"),
    [
        ("run", "command", "sandbox", "command"),
        ("anything", "cmd", "sandbox", "command"),
        ("anything", "shellCommand", "sandbox", "command"),
        ("fetch", "url", "network_restricted", "url"),
        ("hook", "webhook_url", "network_restricted", "url"),
        ("run_python", "code", "code_safety", "code"),
        ("eval", "sourceCode", "code_safety", "code"),
        ("bash", "input", "sandbox", "command"),
        ("executeLine", "line", "sandbox", "command"),
    ],
)
def test_an_argument_is_looked_at_by_what_it_is_called(
    name: str, argument: str, validator: str, meaning: str
) -> None:
    found = suggest_validators(name, tool(**{argument: TEXT, "other": TEXT}))
    assert found == (SuggestedValidator(validator, argument, meaning),)


@loop_over(
    ("name", "definition"),
    [
        ("echo", tool(message=TEXT)),
        ("add", tool(a={"type": "number"}, b={"type": "number"})),
        ("get", tool(code={"type": "integer"})),
        ("toggle", tool(url={"type": "boolean"})),
        ("runner", tool(input=TEXT)),
        ("find", tool(postcode=TEXT, curl=TEXT)),
        ("run_report", tool(title=TEXT)),
        ("odd", {"inputSchema": [1]}),
        ("odd", {"inputSchema": {"properties": "x"}}),
        ("odd", {}),
    ],
)
def test_nothing_is_suggested_for_what_only_sounds_alike(
    name: str, definition: dict[str, object]
) -> None:
    assert suggest_validators(name, definition) == ()


def test_each_validator_is_named_once() -> None:
    found = suggest_validators("run", tool(url=TEXT, uri={"anyOf": [TEXT]}, command={}, input=TEXT))
    assert validators_of(found) == ("network_restricted", "sandbox")
    assert [each.argument for each in found] == ["url", "uri", "command"]
