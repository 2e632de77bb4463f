"""The lists of names are about names that there are, and do not contradict each other."""

import builtins
import importlib
import types

from comity.validation.python_code import (
    ALLOWED_MODULES,
    BLOCKED_ATTRIBUTES,
    BLOCKED_MODULES,
    BLOCKED_NAMES,
    BUILTINS,
)
from tests.support.cases import loop_over

NEWER = {
    "collections.abc": set[str](),
    "itertools": {"batched"},
    "math": {"cbrt", "exp2", "sumprod"},
}


@loop_over("name", ALLOWED_MODULES)
def test_what_is_allowed_of_a_module_is_there_and_is_no_module(name: str) -> None:
    module = importlib.import_module(name)
    for each in ALLOWED_MODULES[name] - NEWER.get(name, set()):
        assert not isinstance(getattr(module, each), types.ModuleType)


def test_nothing_is_allowed_and_blocked() -> None:
    assert ALLOWED_MODULES.keys() & BLOCKED_MODULES == set()
    assert set() == BUILTINS & BLOCKED_NAMES
    for allowed in ALLOWED_MODULES.values():
        assert allowed & BLOCKED_ATTRIBUTES == set()


def test_a_name_that_is_allowed_is_built_in() -> None:
    assert [name for name in BUILTINS if not hasattr(builtins, name)] == []
