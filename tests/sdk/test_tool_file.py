"""A file of plain functions as a server: what is a tool of it, and how it answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comity.sdk.tool_file import answered, functions_in
from comity.sdk.tool_functions import ToolFunctions
from comity.wire.errors import Misconfigured

CODE = '''
from statistics import mean

LIMIT = 10

def average(values: list) -> float:
    """The average of numbers."""
    return mean(values)

async def shout(text: str, twice: bool = False) -> dict:
    print("for its author")
    return {"text": text.upper() * (1 + twice)}

def fails() -> str:
    raise KeyError("no")

def _hidden() -> None: ...

class Thing: ...
'''


def request(id: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def test_every_function_of_its_own_is_a_tool_and_nothing_else() -> None:
    assert sorted(functions_in(CODE)) == ["average", "fails", "shout"]


@pytest.mark.parametrize("code", ["", "x = 1", "def _f(): ...", "from math import sqrt"])
def test_a_file_without_functions_is_no_server(code: str) -> None:
    with pytest.raises(Misconfigured):
        functions_in(code)


async def test_a_bug_of_a_tool_is_told_and_the_next_call_is_answered() -> None:
    tools = ToolFunctions("x", functions_in(CODE))
    failed = json.loads(await answered(tools, request(1, "tools/call", name="fails")) or b"")
    assert "KeyError" in failed["error"]["message"]
    assert await answered(tools, request(2, "ping")) is not None


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b'{"method":"ping"}', b'{"id":1}'])
async def test_what_is_no_request_is_not_answered(line: bytes) -> None:
    assert await answered(ToolFunctions("x", functions_in(CODE)), line) is None


def test_it_serves_on_its_standard_streams_and_prints_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(CODE)
    said = b"\n".join(
        (
            request(1, "initialize", protocolVersion="2025-11-25"),
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            request(2, "tools/list"),
            request(3, "tools/call", name="average", arguments={"values": [1, 2]}),
            request(4, "tools/call", name="shout", arguments={"text": "a", "twice": True}),
            b"",
        )
    )
    argv = [sys.executable, "-I", "-m", "comity.sdk.tool_file", str(file)]
    done = subprocess.run(argv, input=said, capture_output=True, timeout=60, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in answers] == [1, 2, 3, 4]
    tools = {tool["name"]: tool for tool in answers[1]["result"]["tools"]}
    assert tools["average"]["description"] == "The average of numbers."
    assert tools["shout"]["inputSchema"]["required"] == ["text"]
    assert answers[2]["result"]["content"][0]["text"] == "1.5"
    assert answers[3]["result"]["structuredContent"] == {"text": "AA"}
    assert b"for its author" in done.stderr
