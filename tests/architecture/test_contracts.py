"""The import contracts hold for every package, and name the modules that they are about."""

import tomllib
from typing import Any

from tests.architecture.sources import MODULES, ROOT, SOURCE


def _contract(name: str) -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(each for each in contracts if each["name"] == name)


def test_every_package_has_its_layer() -> None:
    layers = _contract("Packages import downwards only")["layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert named == packages | {"errors"}


def test_the_purity_contract_is_about_modules_that_exist() -> None:
    patterns = _contract("Rules, models and messages do no I/O")["source_modules"]
    stems = {pattern.rpartition(".")[2] for pattern in patterns if "**" in pattern}
    assert stems <= {path.stem for path in MODULES}


def test_only_stores_are_excepted_from_the_store_contract() -> None:
    ignored = _contract("Only stores import SQLAlchemy")["ignore_imports"]
    assert {line.partition(" -> ")[0] for line in ignored} == {
        "comity.**.store",
        "comity.storage.**",
    }
