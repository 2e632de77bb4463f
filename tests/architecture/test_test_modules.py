"""The name of a test is a sentence, and a test is a function."""

import ast
import re
from pathlib import Path

from tests.architecture.sources import each_test_module, functions_of, tree_of

SENTENCE = re.compile(r"test(_[a-z0-9]+){3,}")


@each_test_module
def test_the_name_of_a_test_is_a_sentence(path: Path) -> None:
    names = [each.name for each in functions_of(path) if each.name.startswith("test")]
    assert [name for name in names if not SENTENCE.fullmatch(name)] == []


@each_test_module
def test_tests_are_functions_and_not_methods_of_a_class(path: Path) -> None:
    classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    assert [each.name for each in classes if each.name.startswith("Test")] == []
