"""`comity tools serve`: a module's functions, offered by their signatures."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from comity.cli.functions import Functions, Registered, register
from comity.cli.main import main
from comity.wire.errors import Misconfigured

SOURCE = '''
"""Tools for a test."""
from dataclasses import dataclass
from typing import Annotated

from comity.rules.signatures import Constraints


@dataclass
class Place:
    name: str
    height: float = 0.0


def add(one: int, other: Annotated[int, Constraints(min_value=0)] = 1) -> int:
    """Adds two numbers.

    Args:
        one: The first.
    """
    print("thinking")
    return one + other


async def climb(place: Place, by: float) -> Place:
    return Place(place.name, place.height + by)


def fail() -> None:
    raise ValueError("no luck")


def _hidden() -> None: ...
'''


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Registered]:
    (tmp_path / "some_tools.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "some_tools", raising=False)
    return register("some_tools")


def result(held: dict[str, Registered], name: str, **arguments: object) -> dict[str, Any]:
    given = Functions(held, io.StringIO(), io.StringIO()).call(name, arguments, {})
    assert given is not None
    return given


def test_every_public_function_is_a_tool(held: dict[str, Registered]) -> None:
    tools = {tool["name"]: tool for tool in Functions(held, io.StringIO(), io.StringIO()).tools()}
    assert list(tools) == ["add", "climb", "fail"]
    assert tools["add"]["description"] == "Adds two numbers."
    assert tools["add"]["inputSchema"] == {
        "type": "object",
        "properties": {
            "one": {"type": "integer", "description": "The first."},
            "other": {"type": "integer", "minimum": 0, "default": 1},
        },
        "required": ["one"],
        "additionalProperties": False,
    }


def test_a_whole_number_is_one_however_it_is_written(held: dict[str, Registered]) -> None:
    assert result(held, "add", one=2.0)["structuredContent"] == {"result": 3}


def test_a_result_has_both_forms(held: dict[str, Registered]) -> None:
    assert result(held, "add", one=2) == {
        "content": [{"type": "text", "text": "3"}],
        "isError": False,
        "structuredContent": {"result": 3},
    }
    climbed = result(held, "climb", place={"name": "Rax", "height": 1}, by=2)
    assert climbed["structuredContent"] == {"name": "Rax", "height": 3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"one": "2"}, '/one: "2" is not of type "integer"'),
        ({"one": 2, "other": -1}, "/other: -1 is less than the minimum of 0"),
        ({}, 'the arguments: "one" is a required property'),
        (
            {"one": 2, "two": 3},
            "the arguments: Additional properties are not allowed ('two' was unexpected)",
        ),
    ],
)
def test_arguments_that_do_not_fit_never_reach_the_function(
    held: dict[str, Registered], arguments: dict[str, object], said: str
) -> None:
    refused = result(held, "add", **arguments)
    assert refused == {"content": [{"type": "text", "text": said}], "isError": True}


def test_a_function_that_raises_has_failed_and_nothing_else(held: dict[str, Registered]) -> None:
    failed = result(held, "fail")
    assert failed == {"content": [{"type": "text", "text": "ValueError: no luck"}], "isError": True}


def test_functions_can_be_chosen_and_a_file_can_be_named(held: dict[str, Registered]) -> None:
    assert list(register("some_tools:climb,add")) == ["climb", "add"]
    assert list(register("./some_tools.py:add")) == ["add"]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("no_such_module", "cannot be imported"),
        ("./no_such_file.py", "cannot be imported"),
        ("some_tools:nothing", "has no function 'nothing'"),
        ("some_tools:Place", "has no function 'Place'"),
        ("json.scanner:py_make_scanner", "has no annotation; write its type"),
        ("this_is_empty", "has no function to offer"),
    ],
)
def test_what_cannot_be_registered_is_told_with_what_to_do(
    held: dict[str, Registered], named: str, told: str
) -> None:
    Path("this_is_empty.py").write_text("__all__ = []")
    with pytest.raises(Misconfigured, match=told):
        register(named)


@pytest.mark.requirement("MGP-2.2-ignore")
def test_the_command_speaks_mcp_and_what_is_printed_goes_elsewhere(
    held: dict[str, Registered], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, object]] = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {"capabilities": {"mgp": {"version": "0.3.0", "extensions": ["security"]}}},
        },
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "nonsense"},
    ]
    out = io.StringIO()
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("".join(json.dumps(each) + "\n" for each in said))
    )
    monkeypatch.setattr(sys, "stdout", out)
    main(["tools", "serve", "some_tools:add"])
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "comity-functions"
    assert answers[0]["result"]["capabilities"] == {"tools": {}}
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["add"]
    assert answers[2]["error"]["code"] == -32601
