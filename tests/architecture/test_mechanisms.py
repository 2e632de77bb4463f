"""One mechanism for each job: a test fails here where a second one appears."""

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.sources import MODULES, SOURCE, each_module, nodes_of, tree_of

RUN_LATER = ("http.py", "stdio_bridge.py")
"""Modules of `app` that join nothing: they hold the state of what runs."""


def test_a_protocol_method_has_one_answer() -> None:
    named = Counter(
        decorator.args[0].value
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "method"
        and isinstance(decorator.args[0], ast.Constant)
    )
    assert "mgp/access/query" in named
    assert {name: count for name, count in named.items() if count > 1} == {}


@each_module
def test_a_finished_object_is_not_patched_by_those_who_join_it(path: Path) -> None:
    """Builders give an object all that it needs; they assign to no attribute of it."""
    if path.name != "wiring.py" and (path.parent != SOURCE / "app" or path.name in RUN_LATER):
        return
    patched = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert patched == []


@each_module
def test_a_call_does_not_hide_its_arguments_in_a_tuple(path: Path) -> None:
    hidden = [
        f"line {each.lineno}"
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        for each in node.args
        if isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple)
    ]
    assert hidden == []
