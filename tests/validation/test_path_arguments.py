"""Which arguments are held against a tool's scope."""

from comity.validation import service
from comity.validation.arguments import ToolDefinition
from comity.validation.paths import PathScope
from comity.validation.rules import UNRULED, ValidationRules
from comity.validation.shell_parser import is_glob_match
from tests.support.cases import loop_over

RULES = ValidationRules(paths=PathScope(("/project/**",)))
TOOL = ToolDefinition("files", "read")


@loop_over(
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
    verdict = service.paths_refusal_reason(TOOL, arguments, RULES, is_glob_match)
    assert verdict is not None
    assert verdict.suggestions == ("Use a path within /project/**.",)


@loop_over("arguments", [{"path": "/project/x"}, {"q": "a / b"}, {"q": "text"}, {"n": 5}, {}])
def test_what_is_none_is_not(arguments: dict[str, object]) -> None:
    assert service.paths_refusal_reason(TOOL, arguments, RULES, is_glob_match) is None


def test_without_a_scope_nothing_is_and_of_too_much_everything() -> None:
    assert service.paths_refusal_reason(TOOL, {"path": "/etc"}, UNRULED, is_glob_match) is None
    assert (
        service.paths_refusal_reason(TOOL, {"a": ["x"] * 20_000}, RULES, is_glob_match) is not None
    )
