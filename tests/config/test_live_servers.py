"""The table `live` of a server, as it is written and as it is taken."""

from pathlib import Path

import pytest

from comity.config import load
from comity.config.live_servers import live_policy_of
from comity.rules.live_policy import BESIDE_USER, LivePolicy
from comity.wire.errors import Misconfigured
from comity.wire.features import Bounds
from comity.wire.hooks import Position

SERVER = '[[servers]]\nid = "x"\ncommand = "x"\n[servers.live]\n'


def taken(folder: Path, live: str) -> LivePolicy:
    file = folder / "comity.toml"
    file.write_text(SERVER + live)
    return live_policy_of(load(file, {}).servers[0].live)


def test_without_a_word_nothing_is_enabled(tmp_path: Path) -> None:
    assert taken(tmp_path, "") == LivePolicy()
    assert LivePolicy().positions == BESIDE_USER


def test_everything_that_can_be_decided_is(tmp_path: Path) -> None:
    found = taken(
        tmp_path,
        """
enabled = ["*", "memory.*"]
disabled = ["memory.forget"]
positions = ["system"]
rewrites = true
on_failure = "closed"
order = 7
[servers.live.scopes."files.edit"]
whitelist = ["/p/**"]
[servers.live.scopes."*"]
blacklist = ["**/.env"]
[servers.live.scope_of]
edit = "/path"
""",
    )
    assert found == LivePolicy(
        ("*", "memory.*"),
        ("memory.forget",),
        {"files.edit": Bounds(("/p/**",)), "*": Bounds((), ("**/.env",))},
        frozenset({Position.SYSTEM}),
        rewrites=True,
        fails_closed=True,
        scope_of={"edit": "/path"},
        order=7,
    )


@pytest.mark.parametrize(
    ("live", "told"),
    [
        ('enabled = ["memory*"]', "feature set"),
        ('enabled = "memory"', "enabled"),
        ('positions = ["top"]', "positions"),
        ('on_failure = "perhaps"', "on_failure"),
        ("order = -1", "order"),
        ('scope_of = { edit = "path" }', "as /path"),
        ("scopes = { x = { greylist = [] } }", "greylist"),
        ("anything = 1", "anything"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, live: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        taken(tmp_path, live)
