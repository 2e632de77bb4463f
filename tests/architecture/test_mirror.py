"""One word finds a room and its tests; a test's name is a sentence."""

import ast
import re
from pathlib import Path

from tests.architecture.rooms import (
    ROOT,
    SOURCE,
    each_pure_room,
    each_test_module,
    functions_of,
    tree_of,
)

SENTENCE = re.compile(r"test(_[a-z0-9]+){3,}")


def _mirrors_of(room: Path) -> list[Path]:
    """On the same floor of the tests, whether or not in a folder of the same name."""
    floor = room.relative_to(SOURCE).parts[0]
    return [*(ROOT / "tests" / floor).rglob(f"test_{room.name}")]


@each_pure_room
def test_a_room_has_a_test_module_of_its_own(room: Path) -> None:
    assert _mirrors_of(room) != []


@each_test_module
def test_the_name_of_a_test_is_a_sentence(room: Path) -> None:
    names = [each.name for each in functions_of(room) if each.name.startswith("test")]
    assert [name for name in names if not SENTENCE.fullmatch(name)] == []


@each_test_module
def test_tests_are_functions_and_not_methods_of_a_class(room: Path) -> None:
    classes = [node for node in tree_of(room).body if isinstance(node, ast.ClassDef)]
    assert [each.name for each in classes if each.name.startswith("Test")] == []
