"""The table `live` of a server, as it is written and as it is taken."""

from pathlib import Path

import pytest

from comity.app.settings_reader import load_settings
from comity.errors import Misconfigured
from comity.live.features import USER_POSITIONS, LivePolicy
from comity.live.hooks.model import InjectionPosition
from comity.live.settings import live_policy_of
from comity.mcp.mcpl import ScopeBounds

SERVER = '[[servers]]\nid = "x"\ncommand = "x"\n[servers.live]\n'


def taken(folder: Path, live: str) -> LivePolicy:
    file = folder / "comity.toml"
    file.write_text(SERVER + live)
    return live_policy_of(load_settings(file, {}).servers[0].live)


def test_without_a_word_nothing_is_enabled(tmp_path: Path) -> None:
    assert taken(tmp_path, "") == LivePolicy()
    assert LivePolicy().positions == USER_POSITIONS


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
        {"files.edit": ScopeBounds(("/p/**",)), "*": ScopeBounds((), ("**/.env",))},
        frozenset({InjectionPosition.SYSTEM}),
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
