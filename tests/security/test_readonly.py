"""What a tool that may only read is not told to do, whatever form the order takes."""

import pytest

from comity.adapters.shell_words import read
from comity.rules import readonly
from comity.rules.validators import UNRULED, Verdict
from comity.wire.errors import VALIDATION_BLOCKED
from comity.wire.tools import Tool
from tests.security.corpus import is_few, section

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
    return readonly.examine(Tool("data", tool), arguments, UNRULED, read)


@pytest.mark.parametrize("name", SQL)
def test_a_statement_that_may_write_is_blocked(name: str) -> None:
    verdict = examined({"sql": SQL[name]})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_tells_a_tool_to_write_is_blocked(name: str) -> None:
    assert examined(ARGUMENTS[name]) is not None


@pytest.mark.parametrize("name", TOOLS.values())
def test_a_tool_that_says_by_its_name_that_it_writes_is_blocked(name: str) -> None:
    assert examined({}, name) is not None


def test_what_only_reads_passes() -> None:
    alarms = [name for name, (tool, each) in HARMLESS.items() if examined(each, tool) is not None]
    assert is_few(alarms, HARMLESS), alarms
