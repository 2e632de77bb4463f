"""What every validator that comes as a plugin has to be, and what becomes of one that is not."""

import inspect
from collections.abc import Awaitable, Mapping
from importlib.metadata import EntryPoint

import pytest

from comity.app.plugins import (
    VALIDATOR_GROUP,
    adapt_validator,
    contract_problem,
    load_plugin_validators,
)
from comity.errors import VALIDATION_BLOCKED, Misconfigured
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import UNRULED, ValidationRules, Verdict
from comity.validation.service import Validator

type Values = Mapping[str, object]
TOOL = ToolDefinition("x", "run", {"name": "run"})


class NoSpaces:
    """Refuses arguments with more words than the operator allows."""

    name = "no_spaces"

    def examine(self, tool: ToolDefinition, arguments: Values, settings: Values) -> str | None:
        most = settings.get("most", 1)
        assert isinstance(most, int)
        words = max((len(str(each).split()) for each in arguments.values()), default=0)
        return f"over {most} words" if words > most else None


class Waiting:
    name = "waiting"

    async def examine(
        self, tool: ToolDefinition, arguments: Values, settings: Values
    ) -> str | None:
        return "no" if arguments else None


class Meddling:
    """Changes what it is shown."""

    name = "meddling"

    def examine(self, tool: ToolDefinition, arguments: Values, settings: Values) -> str | None:
        for shown in (arguments, settings, tool.definition):
            assert isinstance(shown, dict)
            shown.clear()
        return None


PLUGINS: list[Validator] = [NoSpaces(), Waiting(), Meddling()]


def point(value: str, name: str = "mine") -> EntryPoint:
    return EntryPoint(name, value, VALIDATOR_GROUP)


async def outcome(found: Verdict | Awaitable[Verdict]) -> Verdict:
    return await found if inspect.isawaitable(found) else found


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
async def test_a_validator_keeps_to_its_port(plugin: Validator) -> None:
    assert contract_problem(plugin) is None
    assert await outcome(adapt_validator(plugin)(TOOL, {}, UNRULED)) is None


@pytest.mark.requirement("REG-p4-validators")
async def test_a_validator_is_found_by_its_entry_point_and_blocks_by_its_settings() -> None:
    found = load_plugin_validators([point(f"{__name__}:NoSpaces")])
    assert found.keys() == {"no_spaces"}
    verdict = await outcome(found["no_spaces"](TOOL, {"a": "two words"}, UNRULED))
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED
    assert verdict.reason == "the validator no_spaces blocked this call: over 1 words"
    rules = ValidationRules(settings={"no_spaces": {"most": 2}})
    assert await outcome(found["no_spaces"](TOOL, {"a": "two words"}, rules)) is None


async def test_one_that_waits_is_waited_for() -> None:
    assert await outcome(adapt_validator(Waiting())(TOOL, {"a": 1}, UNRULED)) is not None


async def test_nothing_that_it_is_shown_can_be_changed_by_it() -> None:
    arguments: dict[str, object] = {"a": {"b": 1}}
    rules = ValidationRules(settings={"meddling": {"c": 1}})
    assert await outcome(adapt_validator(Meddling())(TOOL, arguments, rules)) is None
    assert arguments == {"a": {"b": 1}}
    assert rules.settings == {"meddling": {"c": 1}}
    assert TOOL.definition == {"name": "run"}


@pytest.mark.parametrize("said", [True, 0, "", [], object(), "a\x1b[2J" * 200])
async def test_whatever_is_not_none_blocks(said: object) -> None:
    class Odd:
        name = "odd"

        def examine(self, tool: ToolDefinition, arguments: Values, settings: Values) -> object:
            return said

    verdict = await outcome(adapt_validator(Odd())(TOOL, {}, UNRULED))  # type: ignore[arg-type]
    assert verdict is not None
    assert verdict.reason.isprintable()
    assert len(verdict.reason) < 400


class Nameless:
    def examine(self, tool: ToolDefinition, arguments: Values, settings: Values) -> str | None: ...


class Impostor(NoSpaces):
    name = "sandbox"


class Mute:
    name = "mute"


class Curt:
    name = "curt"

    def examine(self, arguments: Values) -> str | None: ...


class Broken:
    name = "broken"

    def __init__(self) -> None:
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("Nameless", "its name must be"),
        ("Impostor", "'sandbox' is the gateway's own"),
        ("Mute", "no method examine"),
        ("Curt", "exactly tool, arguments and settings"),
        ("Broken", "does not load: RuntimeError"),
        ("Absent", "does not load: AttributeError"),
    ],
)
def test_one_that_does_not_keep_to_its_port_stops_the_start(named: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        load_plugin_validators([point(f"{__name__}:{named}")])


def test_two_of_one_name_stop_the_start() -> None:
    with pytest.raises(Misconfigured, match="another one is called 'no_spaces'"):
        load_plugin_validators(
            [point(f"{__name__}:NoSpaces"), point(f"{__name__}:NoSpaces", "other")]
        )


def test_without_plugins_there_are_none() -> None:
    assert load_plugin_validators([]) == {}
