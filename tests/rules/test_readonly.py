"""What `readonly` believes of a tool; the named cases are in `tests/security/cases`."""

from comity.adapters.shell_words import read
from comity.rules import readonly
from comity.rules.validators import UNRULED, Verdict
from comity.wire.tools import Tool


def examined(tool: Tool, arguments: dict[str, object]) -> Verdict:
    return readonly.examine(tool, arguments, UNRULED, read)


def test_what_a_tool_says_of_itself_is_believed_only_against_it() -> None:
    said = {"annotations": {"readOnlyHint": True}}
    assert examined(Tool("files", "write_file", said), {}) is not None
    assert examined(Tool("files", "look", {"annotations": {"readOnlyHint": False}}), {}) is not None
    assert (
        examined(Tool("files", "look", {"annotations": {"destructiveHint": True}}), {}) is not None
    )
    assert examined(Tool("files", "look", {"annotations": "x"}), {}) is None


def test_the_first_verb_of_a_name_counts() -> None:
    assert examined(Tool("files", "get_deleted_files"), {}) is None
    assert examined(Tool("files", "delete_listed"), {}) is not None


def test_a_refusal_names_the_argument() -> None:
    verdict = examined(Tool("web", "call"), {"request": {"method": "POST"}})
    assert verdict is not None
    assert verdict.field == "request.method"
    assert examined(Tool("web", "call"), {"a": ["x"] * 20_000}) is not None
