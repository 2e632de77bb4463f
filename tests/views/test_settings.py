"""The tables `[[views]]`: what a file may say, and how a mistake is told."""

from pathlib import Path

import pytest

from comity.app.settings_reader import load_settings
from comity.errors import Misconfigured
from comity.views.model import PrefixRule, ToolOverride, View

WHOLE = """
[[views]]
name = "payments"
title = "Payments"
description = "For the team."
select = ["files", "mail/search_*", "*/ping"]
prefix = "always"

[[views.tools]]
tool = "bank/pay"
name = "pay_eu"
title = "Pay"
description = "Pays."
arguments = { region = "eu", limits = { daily = 5 }, tags = ["a"] }
defaults = { amount = 1.5 }
annotations = { destructiveHint = true }
definition = "0123456789ab"
"""


def read(tmp_path: Path, text: str) -> tuple[View, ...]:
    file = tmp_path / "comity.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, {}).views


def test_a_view_has_every_member(tmp_path: Path) -> None:
    override = ToolOverride(
        "bank",
        "pay",
        name="pay_eu",
        title="Pay",
        description="Pays.",
        arguments={"region": "eu", "limits": {"daily": 5}, "tags": ["a"]},
        defaults={"amount": 1.5},
        annotations={"destructiveHint": True},
        definition="0123456789ab",
    )
    assert read(tmp_path, WHOLE) == (
        View(
            "payments",
            "Payments",
            "For the team.",
            ("files/*", "mail/search_*", "*/ping"),
            PrefixRule.ALWAYS,
            (override,),
        ),
    )


TOOL = '\n[[views.tools]]\ntool = "a/b"\n'


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('name = "a b"\nselect = ["x"]', "must be written as payments"),
        ('select = ["x"]', "needs its name"),
        ('name = "v"', "selects no tools"),
        ('name = "v"\nselect = ["view:other"]', "not other views"),
        ('name = "v"\nselect = ["a b/c"]', "must be server/tool"),
        ('name = "v"\nselect = ["x"]\nprefix = "maybe"', "must be one of"),
        ('name = "v"\nselect = ["x"]\nfoo = 1', "foo"),
        ('name = "v"\n[[views.tools]]\ntool = "a/*"', "must name one tool"),
        ('name = "v"\n[[views.tools]]\nname = "x"', "needs its tool"),
        (f'name = "v"{TOOL}name = "a/b"', "must be written as read_file"),
        (f'name = "v"{TOOL}{TOOL}', "two entries of tools have the tool 'a/b'"),
        (f'name = "v"{TOOL}name = "x"\n[[views.tools]]\ntool = "a/c"\nname = "x"', "the name 'x'"),
        (f'name = "v"{TOOL}annotations = {{ title = true }}', "title"),
        (f'name = "v"{TOOL}annotations = {{ readOnlyHint = "x" }}', "must be true or false"),
        (f'name = "v"{TOOL}arguments = {{ x = nan }}', "a finite number"),
        (f'name = "v"{TOOL}arguments = {{ x = 2026-01-01 }}', "a finite number"),
        (f'name = "v"{TOOL}arguments = {{ x = 1 }}\ndefaults = {{ x = 2 }}', "both fixed and"),
        (f'name = "v"{TOOL}definition = "xyz"', "must be written as"),
        (f'name = "v"{TOOL}description = "a\\u200bb"', "readers do not see"),
        ('name = "v"\nselect = ["x"]\n[[views]]\nname = "V"\nselect = ["y"]', "two views have"),
    ],
)
def test_a_mistake_in_a_view_is_located(tmp_path: Path, said: str, told: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        read(tmp_path, f"[[views]]\n{said}\n")
    assert told in str(refused.value)
    assert "comity.toml:" in str(refused.value)
