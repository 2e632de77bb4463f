"""Risk of tools: what an operator judged, what a tool declares, and who is asked. (MGP §4, §8.2)"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.guarding import answer_to, asked, frames, guarded, guarding
from tests.conformance.ways import Entry, Frame, House, on_pipes

METADATA = "http://169.254.169.254/latest/meta-data/"
LEVELS = ("safe", "moderate", "dangerous")
TOOLS: list[Frame] = [
    *({"name": level, "security": {"risk_level": level}} for level in LEVELS),
    {"name": "granted", "security": {"risk_level": "dangerous"}},
    {"name": "careful", "security": {"risk_level": "safe", "confirmation_required": True}},
    {"name": "unlabelled", "annotations": {"readOnlyHint": True}},
    {"name": "mirrored", "_meta": {"dev.comity/security": {"risk_level": "dangerous"}}},
]
FETCH: Frame = {
    "name": "fetch",
    "inputSchema": {"type": "object", "properties": {"url": {"type": "string"}}},
}
SETTINGS = """
[policy]
require_approval = "dangerous"
fallback_validators = "on"
approval_policy = "config_only"

[approvals]
client_wait = "200ms"

[[grants]]
subject = "person:local"
verb = "tools/call"
target = "trusted/granted"
effect = "allow"
"""


def plain_server() -> Entry:
    """A server of plain MCP: it says nothing of MGP, whatever it is asked."""
    entry = on_pipes("guarded", GUARDED=json.dumps({"tools": [FETCH]}))
    return {**entry, "policy": {"risk": "moderate"}}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with guarding(
        tmp_path_factory.mktemp("risk"),
        SETTINGS,
        trusted=guarded(tools=TOOLS, trust="trusted"),
        standard=guarded(tools=TOOLS),
        plain=plain_server(),
        talker=on_pipes("talker", TALKER_NAME="talker") | {"policy": {"risk": "safe"}},
    ) as house:
        yield house


async def runs(house: House, server: str, tool: str) -> bool:
    """Whether a call is done; where it is not, a person's word is wanted."""
    answer = await answer_to(house, server, tool)
    if "error" in answer:
        assert (answer["error"]["code"], answer["error"]["data"]["error_type"]) == (
            1000,
            "pending_approval",
        )
    return "result" in answer


@pytest.mark.requirement("MGP-4.4-safe", "MGP-4.4-moderate", "MGP-4.4-dangerous", "MGP-1.2-secure")
async def test_a_dangerous_call_needs_a_persons_word_and_others_none(house: House) -> None:
    assert await runs(house, "trusted", "safe")
    assert await runs(house, "trusted", "moderate")
    assert not await runs(house, "trusted", "dangerous")
    assert not await runs(house, "trusted", "mirrored")


@pytest.mark.requirement("MGP-4.4-dangerous", "MGP-1.2-secure")
async def test_who_was_granted_a_dangerous_tool_by_name_needs_no_other_word(house: House) -> None:
    assert await runs(house, "trusted", "granted")


@pytest.mark.requirement("MGP-4.3-confirmation_required")
async def test_a_tool_that_wants_to_be_confirmed_is(house: House) -> None:
    assert not await runs(house, "trusted", "careful")
    called = [each for each in await frames(house, "trusted") if each["method"] == "tools/call"]
    assert "careful" not in [each["params"]["name"] for each in called]


async def test_no_label_or_hint_of_a_server_makes_its_tools_safer(house: House) -> None:
    """Nobody judged this server: whatever it says, its tools count as dangerous. (S2, D-14)"""
    for tool in ("safe", "moderate", "unlabelled"):
        assert not await runs(house, "standard", tool)
    found = await asked(house, "definitions", server="standard", all="true")
    assert {each["risk"] for each in found["tools"]} == {"dangerous"}


@pytest.mark.requirement("MGP-8.2-fallbackvalidators", "MGP-8.2-enforce")
async def test_a_plain_servers_arguments_are_looked_at_by_what_they_are_called(
    house: House,
) -> None:
    blocked = (await answer_to(house, "plain", "fetch", url=METADATA))["error"]
    assert blocked["code"] == 1010
    found = await asked(house, "definitions", server="plain", all="true")
    assert [each["validators"] for each in found["tools"] if each["tool"] == "fetch"] == [
        ["network_restricted"]
    ]


@pytest.mark.requirement("MGP-8.2-check")
async def test_a_server_without_a_word_of_mgp_is_one_of_plain_mcp(house: House) -> None:
    assert (await asked(house, "permissions", server="talker"))["permissions"] == []
    assert "result" in await answer_to(house, "talker", "echo")
    async with house.own("talker").talk() as talk:
        heard = [each["method"] for each in await talk.seen()]
    assert not [method for method in heard if method.startswith("mgp/")]


HINTED: list[Frame] = [
    {"name": "reads", "annotations": {"readOnlyHint": True}},
    {"name": "adds", "annotations": {"destructiveHint": False}},
    {"name": "writes", "annotations": {"readOnlyHint": False}},
    {"name": "wipes", "annotations": {"readOnlyHint": False, "destructiveHint": True}},
    {"name": "silent"},
]
PRESET = """
[policy]
require_approval = "destructive"

[approvals]
client_wait = "200ms"
"""


async def test_the_preset_asks_only_about_tools_that_may_destroy_something(tmp_path: Path) -> None:
    """What the operator wrote of a server still comes before the preset."""
    with guarding(
        tmp_path,
        PRESET,
        mine=guarded(tools=HINTED),
        doubted=guarded(tools=HINTED, trust="standard"),
        judged=guarded(tools=HINTED, risk="dangerous"),
    ) as house:
        free = [each["name"] for each in HINTED if await runs(house, "mine", each["name"])]
        assert free == ["reads", "adds"]
        for tool in HINTED:
            assert not await runs(house, "doubted", tool["name"])
            assert not await runs(house, "judged", tool["name"])
