"""`comity new server`: a project whose tests pass at once, and that replaces nothing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from comity.cli.new import KINDS
from comity.config import load
from tests.cli.program import Desk

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
    ran = desk.run("new", "server", "my-notes", "--with", kind, "--json")
    assert ran.status == 0, ran.err
    folder = desk.folder / "my-notes"
    assert files_in(folder) == set(ran.json["files"]) == FILES
    assert ran.json["folder"] == str(folder)
    assert not any("{{" in (folder / each).read_text() for each in FILES)
    # A stranger has pytest and what the kit brings along, and no other plugin.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "anyio"]
    tested = subprocess.run(
        command, cwd=folder, env=alone, capture_output=True, text=True, timeout=300, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("my-notes", ["comity[sdk]"])
    settings = load(folder / "comity.toml", {**os.environ, **MODEL})
    assert [each.id for each in settings.servers] == ["my-notes"]


def test_without_a_choice_it_begins_with_a_tool(desk: Desk) -> None:
    ran = desk.run("new", "server", "notes")
    assert ran.status == 0
    assert "Wrote 9 files" in ran.out
    assert "rollback=True" in (desk.folder / "notes/src/notes/server.py").read_text()


def test_a_folder_that_holds_anything_is_left_alone(desk: Desk) -> None:
    kept = desk.folder / "notes" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    (desk.folder / "file").write_text("mine")
    (desk.folder / "elsewhere").symlink_to(desk.folder / "nowhere")
    for to in ("notes", "file", "elsewhere"):
        ran = desk.run("new", "server", "notes", "--to", to)
        assert ran.status == 2
        assert "left alone" in ran.err
    assert files_in(desk.folder) == {"notes/mine.txt", "file"}


def test_an_empty_folder_is_as_good_as_none(desk: Desk) -> None:
    (desk.folder / "empty").mkdir()
    assert desk.run("new", "server", "my-notes", "--to", "empty").status == 0
    assert files_in(desk.folder / "empty") == FILES


@pytest.mark.parametrize(
    "name",
    [
        *("", "My-Notes", "my_notes", "my--notes", "-notes", "notes-", "2notes", "a/b", "../up"),
        *("nötes", "a" * 41, "a b", "import", "comity", "json", "mcp", "my.notes", "notes\n"),
    ],
)
def test_what_cannot_be_a_name_is_refused(desk: Desk, name: str) -> None:
    ran = desk.run("new", "server", "--", name)
    assert ran.status == 2
    assert "name" in ran.err
    assert "Traceback" not in ran.err
    assert list(desk.folder.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing_behind(desk: Desk) -> None:
    (desk.folder / "file").write_text("mine")
    ran = desk.run("new", "server", "notes", "--to", "file/notes")
    assert ran.status == 2
    assert "Traceback" not in ran.err
    assert files_in(desk.folder) == {"file"}
