"""`comity dev serve-functions` and `comity dev new server`, for authors of servers."""

import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from comity.app.settings_reader import load_settings
from comity.cli.main import main
from comity.errors import Misconfigured
from comity.sdk.commands import KINDS
from comity.sdk.module_server import ModuleFunctionServer, RegisteredFunction, load_functions
from tests.cli.program import Desk

SOURCE = '''
"""Tools for a test."""
from dataclasses import dataclass
from typing import Annotated

from comity.catalog.signatures import ValueConstraints


@dataclass
class Place:
    name: str
    height: float = 0.0


def add(one: int, other: Annotated[int, ValueConstraints(min_value=0)] = 1) -> int:
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
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, RegisteredFunction]:
    (tmp_path / "some_tools.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "some_tools", raising=False)
    return load_functions("some_tools")


def result(held: dict[str, RegisteredFunction], name: str, **arguments: object) -> dict[str, Any]:
    given = ModuleFunctionServer(held, io.StringIO(), io.StringIO()).call(name, arguments, {})
    assert given is not None
    return given


def test_every_public_function_is_a_tool(held: dict[str, RegisteredFunction]) -> None:
    tools = {
        tool["name"]: tool
        for tool in ModuleFunctionServer(held, io.StringIO(), io.StringIO()).tools()
    }
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


def test_a_result_has_both_forms(held: dict[str, RegisteredFunction]) -> None:
    assert result(held, "add", one=2) == {
        "content": [{"type": "text", "text": "3"}],
        "isError": False,
        "structuredContent": {"result": 3},
    }
    # A whole number is one however it is written.
    assert result(held, "add", one=2.0)["structuredContent"] == {"result": 3}
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
    held: dict[str, RegisteredFunction], arguments: dict[str, object], said: str
) -> None:
    refused = result(held, "add", **arguments)
    assert refused == {"content": [{"type": "text", "text": said}], "isError": True}


def test_a_function_that_raises_has_failed_and_nothing_else(
    held: dict[str, RegisteredFunction],
) -> None:
    failed = result(held, "fail")
    assert failed == {"content": [{"type": "text", "text": "ValueError: no luck"}], "isError": True}


def test_functions_can_be_chosen_and_a_file_can_be_named(
    held: dict[str, RegisteredFunction],
) -> None:
    assert list(load_functions("some_tools:climb,add")) == ["climb", "add"]
    assert list(load_functions("./some_tools.py:add")) == ["add"]


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
    held: dict[str, RegisteredFunction], named: str, told: str
) -> None:
    Path("this_is_empty.py").write_text("__all__ = []")
    with pytest.raises(Misconfigured, match=told):
        load_functions(named)


@pytest.mark.requirement("MGP-2.2-ignore")
def test_the_command_speaks_mcp_and_what_is_printed_goes_elsewhere(
    held: dict[str, RegisteredFunction], monkeypatch: pytest.MonkeyPatch
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
    main(["dev", "serve-functions", "some_tools:add"])
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "comity-functions"
    assert answers[0]["result"]["capabilities"] == {"tools": {}}
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["add"]
    assert answers[2]["error"]["code"] == -32601


FILES = {
    *("pyproject.toml", "README.md", ".gitignore", "comity.toml", "tests/conftest.py"),
    *("src/my_notes/__init__.py", "src/my_notes/__main__.py", "src/my_notes/server.py"),
    "tests/test_server.py",
}
MODEL = {"MODEL_URL": "http://127.0.0.1:1/v1", "MODEL_KEY": "k"}


def files_in(folder: Path) -> set[str]:
    every = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    return {each for each in every if "__pycache__" not in each}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_works_as_it_is_written(desk: Desk, kind: str) -> None:
    ran = desk.run("dev", "new", "server", "my-notes", "--with", kind, "-o", "json")
    assert ran.status == 0, ran.err
    folder = desk.folder / "my-notes"
    assert files_in(folder) == set(ran.json["files"]) == FILES
    assert ran.json["folder"] == str(folder)
    assert not any("{{" in (folder / each).read_text() for each in FILES)
    # A stranger has pytest and what the kit brings along, and no other plugin.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "anyio"]
    tested = subprocess.run(
        command, cwd=folder, env=alone, capture_output=True, text=True, timeout=300, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("my-notes", ["comity[sdk]"])
    settings = load_settings(folder / "comity.toml", {**os.environ, **MODEL})
    assert [each.id for each in settings.servers] == ["my-notes"]


def test_without_a_choice_it_begins_with_a_tool(desk: Desk) -> None:
    ran = desk.run("dev", "new", "server", "notes")
    assert ran.status == 0
    assert "Wrote 9 files" in ran.out
    assert "rollback=True" in (desk.folder / "notes/src/notes/server.py").read_text()
    # An empty folder is as good as none.
    (desk.folder / "empty").mkdir()
    assert desk.run("dev", "new", "server", "my-notes", "--to", "empty").status == 0
    assert files_in(desk.folder / "empty") == FILES


def test_a_folder_that_holds_anything_is_left_alone(desk: Desk) -> None:
    kept = desk.folder / "notes" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    (desk.folder / "file").write_text("mine")
    (desk.folder / "elsewhere").symlink_to(desk.folder / "nowhere")
    for to in ("notes", "file", "elsewhere"):
        ran = desk.run("dev", "new", "server", "notes", "--to", to)
        assert ran.status == 2
        assert "exists; name another folder" in ran.err
    # What cannot be written leaves nothing behind.
    assert desk.run("dev", "new", "server", "notes", "--to", "file/notes").status == 2
    assert files_in(desk.folder) == {"notes/mine.txt", "file"}


@pytest.mark.parametrize(
    "name",
    [
        *("", "My-Notes", "my_notes", "my--notes", "-notes", "notes-", "2notes", "a/b", "../up"),
        *("nötes", "a" * 41, "a b", "import", "comity", "json", "mcp", "my.notes", "notes\n"),
    ],
)
def test_what_cannot_be_a_name_is_refused(desk: Desk, name: str) -> None:
    ran = desk.run("dev", "new", "server", "--", name)
    assert ran.status == 2
    assert "name" in ran.err
    assert "Traceback" not in ran.err
    assert list(desk.folder.iterdir()) == []
