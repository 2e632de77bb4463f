"""Which tools are always listed, as a file says it; and what of that cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from comity.config import load
from comity.config.pinned import PINNED
from comity.rules.documents import Written
from comity.rules.toolbelt import Pinned
from comity.wire.errors import Misconfigured


def read(*entries: Any) -> Any:
    return PINNED.read(Written(list(entries), "comity.toml", ("discovery", "pinned")))


def test_tools_are_pinned_for_everybody_or_for_whom_a_pattern_covers() -> None:
    assert read({"tools": ["files/read_file"]}, {"party": "agent:*", "tools": ["a/b/c"]}) == (
        Pinned("*", (("files", "read_file"),)),
        Pinned("agent:*", (("a", "b/c"),)),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"party": "agent:*"},
        {"party": "", "tools": ["a/b"]},
        {"party": "agent:*", "tool": ["a/b"]},
        {"tools": "a/b"},
        {"tools": ["a__b"]},
        {"tools": ["a/*"]},
        {"tools": ["/b"]},
        {"tools": ["a/"]},
        {"tools": ["a/b"] * 101},
        "a/b",
    ],
)
def test_what_cannot_be_read_is_said(wrong: object) -> None:
    with pytest.raises(Misconfigured):
        read(wrong)


def test_no_more_entries_than_anybody_needs() -> None:
    with pytest.raises(Misconfigured):
        read(*[{"tools": ["a/b"]}] * 1001)


def test_all_of_discovery_stands_in_its_table(tmp_path: Path) -> None:
    file = tmp_path / "comity.toml"
    file.write_text(
        """
[discovery]
mode = "on"
max_tokens = 4000
pinned_reserve = 1000
discovery_reserve = 1500
cache_limit = 1400
results = 5
log_searches = false
[[discovery.pinned]]
party = "agent:*"
tools = ["files/read_file"]
"""
    )
    found = load(file, {})
    assert (found.discovery_mode, found.tool_results, found.log_searches) == ("on", 5, False)
    assert (found.tool_tokens, found.tool_pinned_reserve) == (4000, 1000)
    assert (found.tool_discovery_reserve, found.tool_cache_limit) == (1500, 1400)
    assert found.pinned_tools == (Pinned("agent:*", (("files", "read_file"),)),)


def test_a_budget_that_has_no_room_for_the_gateways_own_tools_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "comity.toml"
    file.write_text("[discovery]\nmax_tokens = 100\n")
    with pytest.raises(Misconfigured, match="max_tokens"):
        load(file, {})
