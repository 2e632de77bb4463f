"""The function on the page about REST is a tool, under the configuration that the page shows."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from comity.sdk.module_server import load_functions
from tests.docs.pages import snippets

PAGE = "how-to/call-tools-over-rest.md"


def written(language: str) -> str:
    (found,) = [each.text for each in snippets(language) if PAGE in str(each)]
    return found


def test_the_function_of_the_page_is_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = tomllib.loads(written("toml"))["servers"]
    *_, module = entry["args"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(module).write_text(written("python"), encoding="utf-8")
    held = load_functions(module)
    tool = held["convert"].signature.to_mcp_tool()
    assert tool["description"] == "Converts an amount into euros."
    given = held["convert"].call({"amount": 2.5, "currency": "EUR"})
    assert given["structuredContent"] == {"result": 2.5}
    assert held["convert"].call({"amount": -1, "currency": "EUR"})["isError"]
    assert json.dumps(tool)
