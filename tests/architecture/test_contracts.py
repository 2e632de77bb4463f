"""The import contracts name every floor that is built, and the linter finds them kept."""

import tomllib
from typing import Any

import pytest

from tests.architecture.sources import ROOT, SOURCE


def _contract(name: str) -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(each for each in contracts if each["name"] == name)


def _is_built(floor: str) -> bool:
    return (SOURCE / floor).is_dir() or (SOURCE / f"{floor}.py").is_file()


@pytest.mark.parametrize("floor", ["adapters", "config", "sdk", "plugins"])
def test_surfaces_are_kept_from_every_floor_they_may_not_name(floor: str) -> None:
    contract = _contract("Surfaces import neither adapters nor config nor sdk")
    assert (f"comity.{floor}" in contract["forbidden_modules"]) == _is_built(floor)


@pytest.mark.parametrize("floor", ["kernel", "ports"])
def test_the_kernel_and_its_ports_are_kept_from_products(floor: str) -> None:
    contract = _contract("Kernel and ports name no product")
    assert (f"comity.{floor}" in contract["source_modules"]) == _is_built(floor)


def test_brackets_mark_exactly_the_floors_that_are_not_built() -> None:
    layers = _contract("Every arrow points down")["layers"]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    planned = [name.strip("()") for name in names if name.startswith("(")]
    assert planned == [name.strip("()") for name in names if not _is_built(name.strip("()"))]
