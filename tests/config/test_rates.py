"""Limits in a configuration: read whole, or refused with what to do."""

from pathlib import Path

import pytest

from comity.rules.rates import Limit, Quota, Rate
from comity.wire.errors import Misconfigured
from tests.config.writing import from_text


def read(tmp_path: Path, text: str) -> tuple[Limit, ...]:
    return from_text(tmp_path, f"[[limits.rates]]\n{text}").rates


def test_a_rate_is_enough_and_counts_each_party(tmp_path: Path) -> None:
    assert read(tmp_path, 'rate = "60/m"') == (Limit(rate=Rate(60, 60.0, 60)),)


def test_everything_of_a_limit_can_be_said(tmp_path: Path) -> None:
    text = 'subject = "agent:*"\ntarget = "files/*"\nper = ["tool", "party"]\n'
    (limit,) = read(tmp_path, text + 'rate = "10/s"\nburst = 3\nquota = "500000/mo"')
    expected = Limit(
        "agent:*", "files/*", ("party", "tool"), Rate(10, 1.0, 3), Quota(500_000, "month")
    )
    assert limit == expected


def test_one_count_can_be_for_all(tmp_path: Path) -> None:
    assert read(tmp_path, 'per = []\nquota = "1/d"') == (Limit(per=(), quota=Quota(1, "day")),)


def test_limits_stand_beside_the_other_ones(tmp_path: Path) -> None:
    settings = from_text(tmp_path, '[limits]\ndepth = 32\n[[limits.rates]]\nrate = "1/s"')
    assert (settings.depth, len(settings.rates)) == (32, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('subject = "agent:ci"', "limits nothing; give it a rate"),
        ('rate = "60"', "must be a number in a time, as 60/m"),
        ('rate = "0/m"', "must be a number in a time, as 60/m"),
        ('quota = "5/h"', "must be a number in a time, as 10000/d"),
        ('quota = "5/d"\nburst = 2', "belongs to a rate, and there is none"),
        ('rate = "1/s"\nburst = 0', "between 1 and"),
        ('rate = "1/s"\nper = ["user"]', "must be one of: party, key, server, tool"),
        ('rate = "1/s"\nper = ["key", "key"]', "names one thing twice"),
        ('rate = "1/s"\ntarget = "a/b/c"', "must be server/tool"),
        ('rate = "1/s"\ntarget = "files"', "must be server/tool"),
        ('rate = "1/s"\nsubject = ""', "must be a party"),
        ('rates = "1/s"', "did you mean 'rate'"),
    ],
)
def test_a_mistake_about_a_limit_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        read(tmp_path, text)
