"""The rules of the house: how a room opens, how large it may be, what it may be called."""

import ast
import builtins
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.rooms import (
    SOURCE,
    classes_of,
    each_face,
    each_room,
    every_room,
    functions_of,
    nodes_of,
    tree_of,
)

# The first of them reads every file there is.
pytestmark = pytest.mark.timeout(300)

DRAWERS = {
    *("base", "common", "core", "helpers", "manager", "misc", "service", "services", "shared"),
    *("util", "utils", "utilities", "types", "stuff"),
}
EMPTY_TITLES = ("Manager", "Handler", "Impl", "Abstract")
EXCEPTIONS = {"MalformedMessage", "Unavailable", "Misconfigured"}
BANNER = re.compile(r"^\s*#\s*([-=#*~_]{3,}|.*SPDX-|Copyright)")


@every_room
def test_a_room_opens_with_a_caption(room: Path) -> None:
    caption = (ast.get_docstring(tree_of(room)) or "").partition("\n")[0]
    assert 10 <= len(caption) <= 100
    assert not caption.startswith(("This module", "Module", "Location", "A module"))


def test_no_two_rooms_have_the_same_caption() -> None:
    rooms = [path for path in SOURCE.rglob("*.py") if path.stat().st_size]
    captions = Counter(
        (ast.get_docstring(tree_of(room)) or "").partition("\n")[0] for room in rooms
    )
    assert [caption for caption, times in captions.items() if times > 1] == []


@every_room
def test_a_room_fits_in_one_reading(room: Path) -> None:
    assert len(room.read_text(encoding="utf-8").splitlines()) <= 400


@every_room
def test_a_function_fits_on_one_page(room: Path) -> None:
    lengths = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in functions_of(room)}
    assert {name: length for name, length in lengths.items() if length > 50} == {}


@every_room
def test_no_import_hides(room: Path) -> None:
    """Neither inside a function nor behind TYPE_CHECKING: there the circles grow."""
    inside = [node for each in functions_of(room) for node in ast.walk(each)]
    assert [node.lineno for node in inside if isinstance(node, ast.Import | ast.ImportFrom)] == []
    names = {node.id for node in nodes_of(room) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes_of(room) if isinstance(node, ast.Attribute)}
    assert "TYPE_CHECKING" not in names | attributes


@every_room
def test_nothing_is_thrown_into_a_drawer(room: Path) -> None:
    names = {*room.relative_to(SOURCE.parents[1]).parent.parts, room.stem.removeprefix("test_")}
    assert names & DRAWERS == set()


@every_room
def test_a_class_is_named_for_what_it_is(room: Path) -> None:
    titles = [
        each.name
        for each in classes_of(room)
        if each.name.endswith(EMPTY_TITLES) or each.name.startswith(EMPTY_TITLES)
    ]
    assert titles == []


@each_face
def test_the_face_of_a_package_holds_no_code(face: Path) -> None:
    """A caption, and at most the names that others take from its rooms."""
    body = [node for node in tree_of(face).body if not _is_docstring(node)]
    assert [node.lineno for node in body if not _is_offering(node)] == []


@each_room
def test_only_the_three_exceptions_that_say_whose_fault_it_is_exist(room: Path) -> None:
    exceptions = {each.name for each in classes_of(room) if _is_exception(each)}
    at_home = room == SOURCE / "wire" / "errors.py"
    assert exceptions == (EXCEPTIONS if at_home else set())


@each_room
def test_what_catches_everything_says_what_it_caught(room: Path) -> None:
    """`except Exception` stands at a door or at the top of a task, and logs with traceback."""
    handlers = [node for node in nodes_of(room) if isinstance(node, ast.ExceptHandler)]
    silent = [each.lineno for each in handlers if _catches_everything(each) and _is_silent(each)]
    assert silent == []


@every_room
def test_no_banner_stands_in_a_room(room: Path) -> None:
    lines = room.read_text(encoding="utf-8").splitlines()
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
