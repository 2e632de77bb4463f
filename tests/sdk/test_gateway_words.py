"""What the gateway says is read as carefully as what anybody says."""

from typing import Any

import pytest

from comity.sdk.events import Missed, Notice, Presence, Refused, Welcome
from comity.sdk.gateway_words import MOST_CAPABILITIES, from_gateway
from comity.wire import envelope as wire
from comity.wire.parties import GATEWAY
from tests.sdk.made import ANA, BOT, ME, frame


def said(kind: str, payload: dict[str, Any], me: str = ME, **more: Any) -> object:
    return from_gateway(wire.decode(frame(kind, payload, GATEWAY, **more)), payload, me)


def test_a_welcome_says_who_we_are_and_who_else_is_there() -> None:
    others = [{"id": ANA, "capabilities": ["mcp/*"]}, {"id": BOT}, {"id": ME}, {"x": 1}, 3]
    payload = {"you": {"id": ME, "capabilities": ["chat", 5, "two words"]}, "participants": others}
    assert said("system/welcome", payload, to=[ME]) == Welcome(
        ME, ("chat",), {ANA: ("mcp/*",), BOT: ()}
    )


def test_a_welcome_that_is_for_another_is_not_ours() -> None:
    payload = {"you": {"id": BOT, "capabilities": ["mcp/*"]}}
    assert said("system/welcome", payload, to=[BOT]) is None
    assert said("system/welcome", payload, me="", to=[ANA]) == "the welcome is another's"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("system/welcome", {}),
        ("system/welcome", {"you": {"id": ""}}),
        ("system/welcome", {"you": {"id": ME, "capabilities": "chat"}}),
        ("system/welcome", {"you": {"id": ME}, "participants": {}}),
        ("system/presence", {"event": "came", "participant": {"id": ANA}}),
        ("system/presence", {"event": "join"}),
        ("system/error", {"error": 3}),
        ("system/error", {"error": "x", "message": 3}),
        ("system/missed", {"count": "3"}),
        ("system/missed", {"count": True}),
        ("system/missed", {"count": -1}),
        ("system/else", {}),
        ("chat", {"text": "hello"}),
    ],
)
def test_what_cannot_be_is_told_as_that(kind: str, payload: dict[str, Any]) -> None:
    assert isinstance(said(kind, payload), str)


def test_presence_errors_and_losses_are_told() -> None:
    came = {"event": "join", "participant": {"id": ANA, "capabilities": ["chat"]}}
    assert said("system/presence", came) == Presence("join", ANA, ("chat",))
    error = {"error": "rate_limited", "message": "m" * 5_000, "attempted_kind": "chat"}
    refused = said("system/error", error, correlation_id="mine")
    assert refused == Refused("mine", "rate_limited", "m" * 1_000, "chat")
    lost = {"count": 3, "first": "a", "last": None, "because": "slow"}
    assert said("system/missed", lost) == Missed(3, "a", "", "slow")


def test_no_list_of_capabilities_is_endless() -> None:
    many = [f"x/{number}" for number in range(MOST_CAPABILITIES + 5)]
    welcome = said("system/welcome", {"you": {"id": ME, "capabilities": many}})
    assert isinstance(welcome, Welcome)
    assert len(welcome.capabilities) == MOST_CAPABILITIES


def test_a_notice_says_what_became_of_what_we_said() -> None:
    payload = {"notice": "pending", "message": "people are asked", "ask": "06gt"}
    told = said("system/notice", payload, to=[ME], correlation_id="p-1")
    assert told == Notice("p-1", "pending", "people are asked", "06gt")
    assert isinstance(told, Notice)
    assert not told.is_over
    over = said("system/notice", {"notice": "declined"}, to=[ME], correlation_id="p-1")
    assert isinstance(over, Notice)
    assert over.is_over
    assert said("system/notice", {"notice": 1}, to=[ME]) == "a notice has a name and a message"
    assert said("system/notice", payload, to=[ANA]) is None
