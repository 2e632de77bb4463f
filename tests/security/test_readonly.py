"""What a tool that may only read is not told to do, whatever form the order takes."""

from comity.errors import VALIDATION_BLOCKED
from comity.validation import readonly
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import UNRULED, Verdict
from comity.validation.shell_parser import parse_command_words
from tests.security.corpus import is_few, section
from tests.support.cases import loop_over

SQL = section("readonly.toml", "hostile-sql")
ARGUMENTS = section("readonly.toml", "hostile-arguments")
TOOLS = section("readonly.toml", "hostile-tools")
HARMLESS: dict[str, tuple[str, dict[str, object]]] = {
    **{
        f"sql {n}": ("look", {"sql": s})
        for n, s in section("readonly.toml", "harmless-sql").items()
    },
    **{f"{n}": ("look", a) for n, a in section("readonly.toml", "harmless-arguments").items()},
    **{f"tool {t}": (t, {}) for t in section("readonly.toml", "harmless-tools").values()},
}


def examined(arguments: dict[str, object], tool: str = "look") -> Verdict:
    return readonly.write_refusal_reason(
        ToolDefinition("data", tool), arguments, UNRULED, parse_command_words
    )


@loop_over("name", SQL)
def test_a_statement_that_may_write_is_blocked(name: str) -> None:
    verdict = examined({"sql": SQL[name]})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED


@loop_over("name", ARGUMENTS)
def test_an_argument_that_tells_a_tool_to_write_is_blocked(name: str) -> None:
    assert examined(ARGUMENTS[name]) is not None


@loop_over("name", TOOLS.values())
def test_a_tool_that_says_by_its_name_that_it_writes_is_blocked(name: str) -> None:
    assert examined({}, name) is not None


def test_what_only_reads_passes() -> None:
    alarms = [name for name, (tool, each) in HARMLESS.items() if examined(each, tool) is not None]
    assert is_few(alarms, HARMLESS), alarms
