"""The files that the house rules are about, each read once."""

import ast
import functools
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "comity"
WALLED = (SOURCE, ROOT / "tests", ROOT / "bench")


def _python_files(*folders: Path) -> list[Path]:
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(path for path in found if "node_modules" not in path.parts)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FACES = [path for path in _python_files(*WALLED) if path.name == "__init__.py"]
ROOMS = [path for path in _python_files(SOURCE) if path not in FACES]
PURE_ROOMS = [path for path in ROOMS if path.relative_to(SOURCE).parts[0] in ("wire", "rules")]
EVERY_ROOM = [path for path in _python_files(*WALLED) if path not in FACES]
TESTS = [path for path in EVERY_ROOM if path.name.startswith("test_")]

each_face = pytest.mark.parametrize("face", FACES, ids=_name)
each_room = pytest.mark.parametrize("room", ROOMS, ids=_name)
each_pure_room = pytest.mark.parametrize("room", PURE_ROOMS, ids=_name)
every_room = pytest.mark.parametrize("room", EVERY_ROOM, ids=_name)
each_test_module = pytest.mark.parametrize("room", TESTS, ids=_name)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(tree_of(path))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]


def tracked_files() -> list[Path]:
    """What a clone of the project holds, and what it would hold after the next commit."""
    git = shutil.which("git")
    assert git is not None, "the tracked files are known to git alone"
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]
