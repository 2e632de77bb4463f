"""Rows of `[[channels]]`: read into routes and talks; each mistake is named."""

from pathlib import Path

import pytest

from comity.config.channels import channels_of
from comity.rules.channels import Grouping, Route, Talk
from comity.wire.errors import Misconfigured
from tests.config.writing import from_text

ROWS = """
[[channels]]
server = "mail"
channel = "mail:*"
conversation = "thread"
mirror = "topic:post"
per_minute = 5
repeats = true

[[channels]]
server = "chat"
to = "topic:ops"
say_in = ["topic:ops", "channel:mail/a/b"]

[[channels]]
topic = "ops"
hears = "all"
conversation = "author"
party = "agent:helper"
"""


def test_rows_become_routes_and_talks(tmp_path: Path) -> None:
    found = channels_of(from_text(tmp_path, ROWS).channel_rows)
    assert found.routes == (
        Route(
            "mail",
            "mail:*",
            conversation=Grouping.THREAD,
            mirror="post",
            per_minute=5,
            repeats=True,
        ),
        Route("chat", to="topic:ops", say_in=("topic:ops", "channel:mail/a/b")),
    )
    assert found.talks == (
        Talk("ops", hears_all=True, conversation=Grouping.AUTHOR, party="agent:helper"),
    )


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("", "name one of them"),
        ('server = "a"\ntopic = "b"', "name one of them"),
        ('server = "a"\nhears = "all"', "has hears"),
        ('topic = "a"\nmirror = "topic:b"', "has mirror"),
        ('topic = "a"\nto = "nothing"', "is about a topic"),
        ('server = "a"\nto = "channel:b/c"', "must be nothing, turn or topic:NAME"),
        ('server = "a"\nto = "everywhere"', "must be nothing, turn or topic:NAME"),
        ('server = "a"\nmirror = "ops"', "must be written as topic:NAME"),
        ('server = "a"\nsay_in = ["ops"]', "is no place"),
        ('server = "a"\nconversation = "day"', "must be one of"),
        ('server = "a"\nparty = "person:ana"', "must be written as agent:host"),
        ('server = "a"\nper_minute = 0', "must be between 1"),
        ('server = "a"\ncolour = "red"', "colour"),
    ],
)
def test_a_mistake_in_a_row_is_named(tmp_path: Path, row: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, f"[[channels]]\n{row}\n")


def test_one_topic_has_one_row(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="twice"):
        from_text(tmp_path, '[[channels]]\ntopic = "a"\n' * 2)
