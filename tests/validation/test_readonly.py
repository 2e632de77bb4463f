"""What `readonly` believes of a tool; the named cases are in `tests/security/cases`."""

from comity.validation import readonly
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import UNRULED, Verdict
from comity.validation.shell_parser import parse_command_words


def examined(tool: ToolDefinition, arguments: dict[str, object]) -> Verdict:
    return readonly.write_refusal_reason(tool, arguments, UNRULED, parse_command_words)


def test_what_a_tool_says_of_itself_is_believed_only_against_it() -> None:
    said = {"annotations": {"readOnlyHint": True}}
    assert examined(ToolDefinition("files", "write_file", said), {}) is not None
    assert (
        examined(ToolDefinition("files", "look", {"annotations": {"readOnlyHint": False}}), {})
        is not None
    )
    assert (
        examined(ToolDefinition("files", "look", {"annotations": {"destructiveHint": True}}), {})
        is not None
    )
    assert examined(ToolDefinition("files", "look", {"annotations": "x"}), {}) is None


def test_the_first_verb_of_a_name_counts() -> None:
    assert examined(ToolDefinition("files", "get_deleted_files"), {}) is None
    assert examined(ToolDefinition("files", "delete_listed"), {}) is not None


def test_a_refusal_names_the_argument() -> None:
    verdict = examined(ToolDefinition("web", "call"), {"request": {"method": "POST"}})
    assert verdict is not None
    assert verdict.field == "request.method"
    assert examined(ToolDefinition("web", "call"), {"a": ["x"] * 20_000}) is not None
