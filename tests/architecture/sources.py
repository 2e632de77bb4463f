"""The files that the rules of the codebase are about, each read once."""

import ast
import functools
import gc
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "comity"
CHECKED = (SOURCE, ROOT / "tests", ROOT / "bench")


def _python_files(*folders: Path) -> list[Path]:
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(path for path in found if "node_modules" not in path.parts)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


INITS = [path for path in _python_files(*CHECKED) if path.name == "__init__.py"]
MODULES = [path for path in _python_files(SOURCE) if path not in INITS]
PURE_MODULES = [
    path
    for path in MODULES
    if path.stem in ("model", "rules", "messages") or path.parent == SOURCE / "mcp"
]
ALL_MODULES = [path for path in _python_files(*CHECKED) if path not in INITS]
TEST_MODULES = [path for path in ALL_MODULES if path.name.startswith("test_")]

type Rule = Callable[[Path], None]


def _about(paths: list[Path]) -> Callable[[Rule], Callable[[], None]]:
    """One test for all of them: a test for each took longer than its work."""

    def made(rule: Rule) -> Callable[[], None]:
        def test() -> None:
            broken: dict[str, str] = {}
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken[_name(path)] = str(error)
            assert broken == {}, "\n".join(f"{name}: {why}" for name, why in broken.items())

        test.__name__, test.__doc__, test.__module__ = rule.__name__, rule.__doc__, rule.__module__
        return test

    return made


each_init = _about(INITS)
each_module = _about(MODULES)
each_pure_module = _about(PURE_MODULES)
every_module = _about(ALL_MODULES)
each_test_module = _about(TEST_MODULES)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    # The trees stay for the whole run: collections that look at them take most of the time.
    gc.freeze()
    return tree


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


@functools.cache
def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]


def tracked_files() -> list[Path]:
    """What a clone of the project holds, and what it would hold after the next commit."""
    git = shutil.which("git")
    assert git is not None, "the tracked files are known to git alone"
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]
