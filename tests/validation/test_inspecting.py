"""Who looks at arguments, as it is assembled; what is not installed blocks and says so."""

import builtins
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from comity.http.client.dial import Resolver
from comity.mcp.entries import CatalogEntry
from comity.mcp.refusals import Refusal
from comity.policy.risk import ServerPolicy, ToolPolicy
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import STANDARD, UNRULED, ValidationRules
from comity.validation.wiring import RulesOf, load_validators
from comity.validation.worker import ValidationWorker

EXTRA = ("comity.validation.shell_parser", "comity.validation.shell_parser")


async def test_the_standard_validators_are_there() -> None:
    examiner = ValidationWorker()
    assert {*STANDARD, "paths"} <= load_validators(examiner, Resolver(lambda: 0.0)).keys()
    await examiner.close()


async def test_without_the_extra_the_validators_that_need_it_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in EXTRA:
        monkeypatch.delitem(sys.modules, name, raising=False)
    usual = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name in ("tree_sitter", "wcmatch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    examiner = ValidationWorker()
    found = load_validators(examiner, Resolver(lambda: 0.0))
    monkeypatch.undo()
    importlib.invalidate_caches()
    for name in ("sandbox", "readonly", "paths"):
        verdict = found[name](ToolDefinition("x", "run"), {"command": "ls"}, UNRULED)
        assert isinstance(verdict, Refusal)
        assert "comity[validators]" in verdict.suggestions[0]
    await examiner.close()


def test_the_rules_of_a_tool_are_worked_out_once_for_each_definition() -> None:
    policy = ServerPolicy(
        tools={"run": ToolPolicy(validators=("sandbox",), arguments={"a": "command"})}
    )
    policies: Mapping[str, ServerPolicy] = {"x": policy}
    rules_of = RulesOf(policies.__getitem__)
    offer = CatalogEntry("x__run", "x", "run", msgspec.json.encode({"name": "run"}))
    rules = rules_of(offer)
    assert rules == ValidationRules(validators=("sandbox",), arguments={"a": "command"})
    assert rules_of(offer) is rules
    changed = CatalogEntry("x__run", "x", "run", msgspec.json.encode({"name": "run", "title": "x"}))
    assert rules_of(changed) is not rules
