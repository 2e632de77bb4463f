"""Wire and rules answer from the values in hand; what import-linter cannot see is seen here."""

import ast
from pathlib import Path

from tests.architecture.rooms import each_pure_room, nodes_of

# `datetime` and `urllib` are allowed for their types and parsers, which leaves these doors open.
CLOCKS = {"now", "utcnow", "today"}
DEEDS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


def _called_names(room: Path) -> set[str]:
    calls = (node.func for node in nodes_of(room) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def _called_attributes(room: Path) -> set[str]:
    calls = (node.func for node in nodes_of(room) if isinstance(node, ast.Call))
    return {func.attr for func in calls if isinstance(func, ast.Attribute)}


@each_pure_room
def test_a_pure_room_never_waits(room: Path) -> None:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node for node in nodes_of(room) if isinstance(node, waiting)] == []


@each_pure_room
def test_a_pure_room_reads_no_clock(room: Path) -> None:
    assert _called_attributes(room) & CLOCKS == set()


@each_pure_room
def test_a_pure_room_does_nothing_outside_itself(room: Path) -> None:
    assert _called_names(room) & DEEDS == set()


@each_pure_room
def test_a_pure_room_fetches_nothing(room: Path) -> None:
    imports = (node for node in nodes_of(room) if isinstance(node, ast.Import))
    whole = {alias.name for node in imports for alias in node.names}
    froms = (node for node in nodes_of(room) if isinstance(node, ast.ImportFrom))
    parts = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    fetching = [name for name in whole | parts if name.startswith("urllib.request")]
    assert fetching == []
