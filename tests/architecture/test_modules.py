"""Rules that every module keeps: docstring, exceptions, imports and caught errors."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.architecture.sources import (
    SOURCE,
    classes_of,
    each_init,
    each_module,
    every_module,
    functions_of,
    nodes_of,
    tree_of,
)

# The first of them reads every file there is.
pytestmark = pytest.mark.timeout(300)

EXCEPTIONS = {"MalformedMessage", "Unavailable", "Misconfigured"}
BANNER = re.compile(r"^\s*#\s*([-=#*~_]{3,}|.*SPDX-|Copyright)")
MAX_FUNCTION_LINES = 60
MAX_STRAIGHT_LINES = 100
MAX_POSITIONAL = 6
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)


@every_module
def test_a_module_has_a_docstring_that_begins_with_its_subject(path: Path) -> None:
    first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
    assert 10 <= len(first) <= 100
    assert not first.startswith(("This module", "Module", "Location", "A module"))


@every_module
def test_a_function_fits_on_one_page(path: Path) -> None:
    """One without any branch, such as a builder, may be longer."""
    lengths = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in functions_of(path)}
    branched = {
        each.name
        for each in functions_of(path)
        if any(isinstance(node, BRANCHES) for node in ast.walk(each))
    }
    assert {
        name: size
        for name, size in lengths.items()
        if size > (MAX_FUNCTION_LINES if name in branched else MAX_STRAIGHT_LINES)
    } == {}


@each_module
def test_a_function_has_at_most_six_positional_parameters(path: Path) -> None:
    """More are given by name, so that a reader sees which is which."""
    counts = {
        each.name: len(each.args.posonlyargs) + len(each.args.args) for each in functions_of(path)
    }
    # A builder of the composition root is called once, with parts that carry the same names.
    assert {
        name: count
        for name, count in counts.items()
        if count > MAX_POSITIONAL + 1 and not name.lstrip("_").startswith("build")
    } == {}


@every_module
def test_an_import_inside_a_function_says_why(path: Path) -> None:
    """An optional extra, or the time that a start takes; in a comment beside it or above."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = [node for each in functions_of(path) for node in ast.walk(each)]
    imports = [node for node in inside if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [
        node.lineno
        for node in imports
        if not any("#" in line for line in lines[node.lineno - 2 : node.end_lineno])
    ] == []


@every_module
def test_no_import_is_for_the_type_checker_alone(path: Path) -> None:
    """Import circles begin there."""
    names = {node.id for node in nodes_of(path) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    assert "TYPE_CHECKING" not in names | attributes


@each_init
def test_an_init_file_holds_no_code(path: Path) -> None:
    """A docstring, and at most the names that others take from the package."""
    body = [node for node in tree_of(path).body if not _is_docstring(node)]
    assert [node.lineno for node in body if not _is_offering(node)] == []


@each_module
def test_only_the_three_exceptions_that_say_whose_fault_it_is_exist(path: Path) -> None:
    exceptions = {each.name for each in classes_of(path) if _is_exception(each)}
    assert exceptions == (EXCEPTIONS if path == SOURCE / "errors.py" else set())


@each_module
def test_a_handler_that_catches_everything_logs_the_traceback(path: Path) -> None:
    handlers = [node for node in nodes_of(path) if isinstance(node, ast.ExceptHandler)]
    silent = [each.lineno for each in handlers if _catches_everything(each) and _is_silent(each)]
    assert silent == []


@every_module
def test_no_banner_stands_in_a_module(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if BANNER.match(line)] == []


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_offering(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)] == ["__all__"]
    return isinstance(node, ast.ImportFrom)


def _is_exception(node: ast.ClassDef) -> bool:
    names = {base.id for base in node.bases if isinstance(base, ast.Name)}
    if names & EXCEPTIONS:
        return True
    known = (getattr(builtins, name, None) for name in names)
    return any(isinstance(each, type) and issubclass(each, BaseException) for each in known)


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {each.id for each in caught if isinstance(each, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def _is_silent(handler: ast.ExceptHandler) -> bool:
    for node in (inner for statement in handler.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Attribute) and node.attr == "exception":
            return False
    return True
