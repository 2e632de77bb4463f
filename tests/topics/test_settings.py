"""The topics of a file: what holds in one of them, and what cannot be read."""

from typing import Any

import pytest

from comity.config.document import ConfigValue
from comity.errors import Misconfigured
from comity.topics.settings import OVERRIDES, TopicOverride
from tests.support.cases import loop_over


def read(*rooms: Any) -> Any:
    return OVERRIDES.read(ConfigValue(list(rooms), "comity.toml", ("topics", "rooms")))


def test_everything_can_be_other_than_usual() -> None:
    said = {
        "name": "ops",
        "access": "private",
        "capabilities": ["mcp/proposal:*", "chat"],
        "max_members": 1_000,
        "history": 50,
        "kinds": "later",
        "servers": ["files", "web"],
        "approvals": True,
    }
    (room,) = read(said)
    assert room == TopicOverride(
        *("ops", "private", ("mcp/proposal:*", "chat"), 1_000, 50, "later"),
        servers=("files", "web"),
        approvals=True,
    )


@loop_over(
    "wrong",
    [
        {},
        {"name": "a b"},
        {"name": ""},
        {"name": "ops", "acess": "public"},
        {"name": "ops", "access": "open"},
        {"name": "ops", "capabilities": ["with space"]},
        {"name": "ops", "capabilities": "chat"},
        {"name": "ops", "max_members": 0},
        {"name": "ops", "history": 10_001},
        {"name": "ops", "history": -1},
        {"name": "ops", "kinds": "all"},
        {"name": "ops", "servers": ["../x"]},
        {"name": "ops", "approvals": "yes"},
        "ops",
    ],
)
def test_what_cannot_be_read_is_said(wrong: object) -> None:
    with pytest.raises(Misconfigured):
        read(wrong)


def test_one_topic_stands_once() -> None:
    with pytest.raises(Misconfigured, match="twice"):
        read({"name": "ops"}, {"name": "ops", "max_members": 3})
    assert len(read({"name": "ops"}, {"name": "Ops"})) == 2
