"""What an operator writes about how a tool's arguments are looked at."""

from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.validation.paths import PathScope
from comity.validation.python_code import CodePolicy, CodeSafetyLevel
from comity.validation.rules import ValidationRules
from comity.validation.settings import MEMBERS
from tests.support.writing import one

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "validate-arguments.md"


def test_every_member_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in MEMBERS if f"`{name}`" not in page] == []


def inspected(tmp_path: Path, table: object) -> ValidationRules:
    entry = {"command": "x", "tools": {"run": {"inspect": table}}}
    return one(tmp_path, entry).tools["run"].inspect


def test_every_member_is_read(tmp_path: Path) -> None:
    rules = inspected(
        tmp_path,
        {
            "commands": ["make"],
            "denied_commands": ["git"],
            "hosts": ["DB.example.org", ".intra.example.org"],
            "schemes": ["https"],
            "paths": ["/project/**"],
            "denied_paths": ["**/.env"],
            "code_level": "strict",
            "max_code_bytes": 500,
            "allowed_imports": ["numpy"],
            "blocked_imports": ["json"],
            "blocked_patterns": ["secret"],
            "settings": {"no_spaces": {"most": 3}},
        },
    )
    assert rules == ValidationRules(
        more_commands=frozenset({"make"}),
        fewer_commands=frozenset({"git"}),
        hosts=frozenset({"db.example.org", ".intra.example.org"}),
        schemes=frozenset({"https"}),
        paths=PathScope(("/project/**",), ("**/.env",)),
        code=CodePolicy(
            CodeSafetyLevel.STRICT,
            most_bytes=500,
            blocked_imports=frozenset({"json"}),
            blocked_patterns=("secret",),
            more_imports=frozenset({"numpy"}),
        ),
        settings={"no_spaces": {"most": 3}},
    )


def test_where_only_denials_stand_all_else_is_allowed(tmp_path: Path) -> None:
    assert inspected(tmp_path, {"denied_paths": ["**/.env"]}).paths == PathScope(
        ("/**",), ("**/.env",)
    )


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"commands": ["bash"]}, "runs other commands"),
        ({"commands": ["/bin/ls"]}, "must be written as a command"),
        ({"paths": ["project/*"]}, "must begin with /"),
        ({"paths": ["/project/../x"]}, "only dots"),
        ({"paths": ["/a/{b,c}"]}, "no signs of patterns"),
        ({"paths": ["/*a*a*a*a*a*a*a*"]}, "at most 6 stars"),
        ({"code_level": "lax"}, "must be one of: unrestricted, standard, strict, readonly"),
        ({"max_code_bytes": 0}, "must be between"),
        ({"command": ["x"]}, "did you mean 'commands'"),
        ({"settings": {"x": 1}}, "must be a table"),
    ],
)
def test_a_mistake_is_named_by_where_it_stands(tmp_path: Path, table: object, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        inspected(tmp_path, table)
