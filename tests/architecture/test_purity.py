"""Rules, models and messages decide from their arguments; import-linter cannot see the rest."""

import ast
from pathlib import Path

from tests.architecture.sources import each_pure_module, nodes_of

# `datetime` and `urllib` are allowed for their types and parsers; these would read a clock.
CLOCKS = {"now", "utcnow", "today"}
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


def _called_names(path: Path) -> set[str]:
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def _called_attributes(path: Path) -> set[str]:
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    return {func.attr for func in calls if isinstance(func, ast.Attribute)}


@each_pure_module
def test_a_pure_module_never_waits(path: Path) -> None:
    """It may declare the interface of a store, whose methods are asynchronous."""
    waiting = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node for node in nodes_of(path) if isinstance(node, waiting)] == []


@each_pure_module
def test_a_pure_module_reads_no_clock(path: Path) -> None:
    assert _called_attributes(path) & CLOCKS == set()


@each_pure_module
def test_a_pure_module_does_nothing_outside_itself(path: Path) -> None:
    assert _called_names(path) & EFFECTS == set()


@each_pure_module
def test_a_pure_module_fetches_nothing(path: Path) -> None:
    imports = (node for node in nodes_of(path) if isinstance(node, ast.Import))
    whole = {alias.name for node in imports for alias in node.names}
    froms = (node for node in nodes_of(path) if isinstance(node, ast.ImportFrom))
    parts = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    fetching = [name for name in whole | parts if name.startswith("urllib.request")]
    assert fetching == []
