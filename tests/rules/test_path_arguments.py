"""Which arguments are held against a tool's scope."""

import pytest

from comity.adapters.path_patterns import matches
from comity.rules import path_arguments
from comity.rules.paths import Scope
from comity.rules.validators import UNRULED, Rules
from comity.wire.tools import Tool

RULES = Rules(paths=Scope(("/project/**",)))
TOOL = Tool("files", "read")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "/etc/passwd"},
        {"x": "/etc/passwd"},
        {"x": {"y": ["../x"]}},
        {"x": "file:///etc/passwd"},
        {"x": "~/.ssh"},
        {"x": "a/../b"},
        {"cwd": "relative"},
    ],
)
def test_what_is_or_looks_like_a_path_is_held_against_it(arguments: dict[str, object]) -> None:
    verdict = path_arguments.examine(TOOL, arguments, RULES, matches)
    assert verdict is not None
    assert verdict.suggestions == ("Use a path within /project/**.",)


@pytest.mark.parametrize(
    "arguments", [{"path": "/project/x"}, {"q": "a / b"}, {"q": "text"}, {"n": 5}, {}]
)
def test_what_is_none_is_not(arguments: dict[str, object]) -> None:
    assert path_arguments.examine(TOOL, arguments, RULES, matches) is None


def test_without_a_scope_nothing_is_and_of_too_much_everything() -> None:
    assert path_arguments.examine(TOOL, {"path": "/etc"}, UNRULED, matches) is None
    assert path_arguments.examine(TOOL, {"a": ["x"] * 20_000}, RULES, matches) is not None
