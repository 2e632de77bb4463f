"""What a registration may say, and how little of it is more than a wish. (MGP §15.4, §15.5)"""

from typing import Any

import pytest

from comity.wire import jsonrpc, registration
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.registration import MOST_CODE, Wanted, unwanted, wanted

EXAMPLE: dict[str, Any] = {
    "id": "night.almanac",
    "command": "python",
    "args": ["almanac.py"],
    "transport": "stdio",
    "mgp": {
        "extensions": ["security"],
        "permissions_required": ["system.info"],
        "trust_level": "sandboxed",
    },
    "created_by": "agent.night_watch",
    "justification": "Tides are not told by any server here",
}


def raw(said: dict[str, Any]) -> dict[str, Any]:
    return {name: jsonrpc.to_raw(value) for name, value in said.items()}


def test_a_whole_registration_is_read() -> None:
    found = wanted(raw(EXAMPLE))
    assert found.words == ("python", "almanac.py")
    assert (found.transport, found.id) == ("stdio", "night.almanac")
    assert (found.claimed_by, found.claimed_trust) == ("agent.night_watch", "sandboxed")
    assert (found.permissions, found.extensions) == (("system.info",), ("security",))


def test_a_url_is_http_and_code_is_a_program() -> None:
    url = "https://tools.example.org/mcp"
    assert wanted(raw({"id": "a", "transport": "http", "url": url})).transport == "http"
    assert wanted(raw({"id": "a", "code": "def f(): ..."})).transport == "stdio"


def test_what_belongs_to_every_request_is_no_part_of_the_wish() -> None:
    said = {"id": "a", "command": "x", "_meta": {"progressToken": 1}}
    assert wanted(raw(said)) == Wanted("a", "x")


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"id": "a"},
        {"id": "", "command": "x"},
        {"id": "a" * 65, "command": "x"},
        {"id": 1, "command": "x"},
        {"id": "a", "command": ["x"]},
        {"id": "a", "command": "x", "code": "y"},
        {"id": "a", "command": "x", "url": "https://e.org"},
        {"id": "a", "command": "x", "transport": "http"},
        {"id": "a", "url": "https://e.org"},
        {"id": "a", "transport": "sse", "url": "https://e.org"},
        {"id": "a", "args": ["y"], "code": "x"},
        {"id": "a", "command": "x", "args": "y"},
        {"id": "a", "command": "x", "args": [1]},
        {"id": "a", "command": "x", "args": ["y"] * 65},
        {"id": "a", "command": "x", "args": ["y" * 2049]},
        {"id": "a", "command": "x", "args": ["y" * 2048] * 9},
        {"id": "a", "code": "x" * (MOST_CODE + 1)},
        {"id": "a", "command": "x", "env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"id": "a", "command": "x", "cwd": "/"},
        {"id": "a", "command": "x", "mgp": {"trust": "trusted"}},
        {"id": "a", "command": "x", "mgp": {"permissions_required": ["p"] * 65}},
        {"id": "a", "command": "x", "justification": "y" * 2001},
    ],
    ids=lambda said: str(said)[:60],
)
def test_anything_else_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        wanted(raw(said))
    assert refused.value.fault is INVALID_PARAMS
    assert len(str(refused.value)) <= 300


def test_what_is_to_go_is_named_with_a_reason() -> None:
    found = unwanted(raw({"id": "night.almanac", "reason": "no_longer_needed"}))
    assert (found.id, found.reason) == ("night.almanac", "no_longer_needed")
    for said in ({}, {"id": ""}, {"id": "a", "force": True}, {"id": "a", "reason": 1}):
        with pytest.raises(MalformedMessage):
            unwanted(raw(said))


def test_what_is_kept_is_read_again_without_what_was_only_claimed() -> None:
    wish = wanted(raw(EXAMPLE))
    again = registration.kept(wish.id, registration.entry(wish))
    assert again.words == wish.words
    assert again.permissions == wish.permissions
    assert again.claimed_by == again.claimed_trust == ""
    with pytest.raises(MalformedMessage):
        registration.kept("a", {"args": 1})
