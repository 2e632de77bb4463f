"""Plain async functions are the tools of a server that needs nothing else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from comity.sdk.serving import Failure
from comity.sdk.tool_functions import ToolFunctions
from comity.wire.errors import Misconfigured


async def write(path: str, lines: int = 1, options: dict[str, str] | None = None) -> object:
    """Write a file.

    With more words than a list needs.
    """
    if path == "/etc":
        raise ValueError("not there")
    return {"wrote": path} if lines > 1 else path


async def nothing(anything: Any) -> None:
    """As many write them."""


SERVER = ToolFunctions("wk", {"write": write, "nothing": nothing})


async def call(**arguments: object) -> Any:
    return await SERVER.answer("tools/call", {"name": "write", "arguments": arguments})


async def test_a_list_says_what_each_takes() -> None:
    listed: Any = await SERVER.answer("tools/list", {})
    tool = listed["tools"][0]
    assert (tool["name"], tool["description"]) == ("write", "Write a file.")
    assert tool["inputSchema"]["properties"]["path"] == {"type": "string"}
    assert tool["inputSchema"]["required"] == ["path"]
    assert listed["tools"][1]["inputSchema"]["properties"] == {"anything": {}}


async def test_what_it_returns_is_told_as_text_or_structure() -> None:
    assert await call(path="a") == {"content": [{"type": "text", "text": "a"}]}
    told = await call(path="a", lines=2)
    assert told["structuredContent"] == {"wrote": "a"}
    assert told["content"][0]["text"] == '{"wrote":"a"}'
    empty: Any = await SERVER.answer(
        "tools/call", {"name": "nothing", "arguments": {"anything": 1}}
    )
    assert empty["content"][0]["text"] == ""


async def test_a_value_that_is_wrong_is_told_as_the_tools_own_error() -> None:
    assert await call(path="/etc") == {
        "content": [{"type": "text", "text": "not there"}],
        "isError": True,
    }


@pytest.mark.parametrize(
    ("params", "because"),
    [
        ({"name": "write", "arguments": {}}, "missing 'path'"),
        ({"name": "write", "arguments": {"path": 1}}, "path must be of the type string"),
        ({"name": "write", "arguments": {"path": "a", "lines": True}}, "type integer"),
        ({"name": "write", "arguments": {"path": "a", "else": 1}}, "unknown argument 'else'"),
        ({"name": "write", "arguments": [1]}, "an object"),
        ({"name": "dig"}, "no tool 'dig'"),
        ({"name": ["write"]}, "no tool"),
        ({}, "no tool None"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(
    params: dict[str, object], because: str
) -> None:
    refused = await SERVER.answer("tools/call", params)
    assert isinstance(refused, Failure)
    assert because in refused.message


async def test_one_without_tools_still_answers_a_ping_and_says_who_it_is() -> None:
    bare = ToolFunctions("bare", {})
    assert await bare.answer("ping", {}) == {}
    hello: Any = await bare.answer("initialize", {"protocolVersion": "1999"})
    assert (hello["protocolVersion"], hello["capabilities"]) == ("2025-11-25", {})
    assert isinstance(await bare.answer("tools/list", {}), Failure)


@pytest.mark.parametrize("function", [lambda: None, print])
def test_what_is_no_async_function_is_told_at_once(function: Any) -> None:
    with pytest.raises(Misconfigured, match="async def"):
        ToolFunctions("x", {"it": function})


def test_parameters_without_names_are_told_at_once() -> None:
    async def anything(**arguments: object) -> None: ...

    with pytest.raises(Misconfigured, match="name its parameters"):
        ToolFunctions("x", {"it": anything})


async def test_what_a_generator_yields_is_told_as_one_text() -> None:
    async def count(to: int) -> AsyncIterator[str]:
        """Counts."""
        for number in range(to):
            yield f"{number} "

    server = ToolFunctions("counter", {"count": count})
    said: Any = await server.answer("tools/call", {"name": "count", "arguments": {"to": 3}})
    assert said["content"] == [{"type": "text", "text": "0 1 2 "}]
