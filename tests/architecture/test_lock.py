"""The lock holds everything that the project asks for, and a hash for everything that it holds."""

import re
import tomllib

from tests.architecture.sources import ROOT

NAME = re.compile(r"[A-Za-z0-9_.-]+")


def _wanted() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"].values()
    in_groups = [each for group in groups for each in group if isinstance(each, str)]
    found = (NAME.match(each) for each in [*project["project"]["dependencies"], *in_groups])
    return {name.group().lower() for name in found if name}


def _locked() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {entry.partition("==")[0].partition("[")[0]: entry for entry in entries}


def test_the_lock_holds_everything_that_is_asked_for() -> None:
    assert _wanted() - _locked().keys() == set()


def test_every_package_in_the_lock_has_its_hash() -> None:
    assert [name for name, entry in _locked().items() if "--hash=sha256:" not in entry] == []
