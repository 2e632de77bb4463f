"""A server asks to act beyond its scopes: what is clear, what a person says, and for how long."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.asks import MemoryAsks
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.live.elevating import ENRICHED, Elevating
from comity.kernel.live.hosted import Hosted, Told
from comity.kernel.live.noting import Noting
from comity.ports import Kept
from comity.rules.live_policy import LivePolicy
from comity.wire import jsonrpc
from comity.wire.asks import Ask, Kind, Verdict
from comity.wire.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage, Unavailable
from comity.wire.features import Bounds
from tests.kernel.asking import ANA, Grants
from tests.kernel.live.live_link import DECLARED, LinkRoom, breath

BOUNDS = Bounds(("/project/**",), ("**/.env",))
OPTIONS = AskOptions(
    expires=timedelta(minutes=5),
    lasts=timedelta(minutes=10),
    declined_for=timedelta(minutes=1),
    most_of_one=3,
)


class House:
    """An inbox with a clock that a test turns, and a server that asks."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        asks = MemoryAsks(self._told)
        self.approvals = Approvals(asks, Grants(), None, OPTIONS, self.clock)
        self.elevating = Elevating(self.approvals, Noting(), lambda said: said, b"key")
        policy = LivePolicy(scopes={"files": BOUNDS})
        self.host = Hosted("srv", LinkRoom(), DECLARED, policy, frozenset({"files"}))

    def _told(self, what: Kept, ids: object) -> None:
        """Nobody else looks at these records."""

    def clock(self) -> datetime:
        return self.now

    async def elevate(self, label: str, feature: str = "files", **payload: Any) -> Any:
        scope = {"label": label, "payload": payload}
        params = jsonrpc.to_raw({"featureSet": feature, "scope": scope})
        return await self.elevating.answer(Told(self.host, "scope/elevate", params))

    async def asks(self) -> list[Ask]:
        await breath()
        return [each for each in await self.approvals.asks.page((), "", 100) if each.is_open]

    async def answered(self, verdict: Verdict, *args: Any, **payload: Any) -> Any:
        """What an elevation comes to, of which a person says so."""
        asked = asyncio.ensure_future(self.elevate(*args, **payload))
        (ask,) = await self.asks()
        assert ask.kind is Kind.SCOPE
        await self.approvals.answer(ANA, ask.id, verdict, "because")
        return await asyncio.wait_for(asked, 30)


async def test_what_is_clear_is_said_at_once_and_asks_nobody() -> None:
    house = House()
    allowed = await house.elevate("/project/x", path="/project/x")
    assert allowed["approved"] is True
    assert allowed["payload"] == {"path": "/project/x", ENRICHED: {"label": "/project/x"}}
    denied = await house.elevate("/project/.env", path="/project/.env")
    assert denied["approved"] is False
    assert "payload" not in denied
    assert await house.asks() == []


async def test_what_a_person_allows_is_not_asked_again_until_it_ends() -> None:
    house = House()
    found = await house.answered(Verdict.ACCEPT, "/etc/x", path="/etc/x")
    assert found["approved"] is True
    assert found["payload"][ENRICHED]["until"].startswith("2026-01-01T00:10")
    assert (await house.elevate("/etc/x", path="/etc/x"))["approved"] is True
    house.now += timedelta(minutes=11)
    found = await house.answered(Verdict.DECLINE, "/etc/x", path="/etc/x")
    assert found == {"approved": False, "reason": "because"}


@pytest.mark.parametrize(
    "other", [("/etc/y", {"path": "/etc/x"}), ("/etc/x", {"path": "/etc/x", "mode": "w"})], ids=str
)
async def test_it_is_bound_to_the_label_and_the_payload(other: tuple[str, dict[str, Any]]) -> None:
    house = House()
    await house.answered(Verdict.ACCEPT, "/etc/x", path="/etc/x")
    label, payload = other
    assert (await house.answered(Verdict.DECLINE, label, **payload))["approved"] is False


async def test_it_is_bound_to_the_server_and_the_feature_set() -> None:
    house = House()
    await house.answered(Verdict.ACCEPT, "/etc/x", path="/etc/x")
    house.host = replace(house.host, server="other")
    assert (await house.answered(Verdict.DECLINE, "/etc/x", path="/etc/x"))["approved"] is False
    house.host = replace(house.host, server="srv", enabled=frozenset({"memory.read"}))
    found = await house.answered(Verdict.DECLINE, "/etc/x", "memory.read", path="/etc/x")
    assert found["approved"] is False


async def test_what_was_declined_is_not_asked_again_at_once() -> None:
    house = House()
    await house.answered(Verdict.DECLINE, "/etc/x", path="/etc/x")
    again = await house.elevate("/etc/x", path="/etc/x")
    assert again == {"approved": False, "reason": "because"}
    house.now += timedelta(minutes=2)
    assert (await house.answered(Verdict.ACCEPT, "/etc/x", path="/etc/x"))["approved"] is True


async def test_two_who_ask_the_same_share_one_question() -> None:
    house = House()
    one = asyncio.ensure_future(house.elevate("/etc/x", path="/etc/x"))
    found = await house.answered(Verdict.ACCEPT, "/etc/x", path="/etc/x")
    assert (await asyncio.wait_for(one, 30)) == found


async def test_what_nobody_answers_in_time_is_not_allowed() -> None:
    house = House()
    asked = asyncio.ensure_future(house.elevate("/etc/x", path="/etc/x"))
    (ask,) = await house.asks()
    house.now += timedelta(minutes=6)
    house.approvals.wake(ask.id)
    found = await asyncio.wait_for(asked, 30)
    assert found["approved"] is False
    assert "expired" in found["reason"]


async def test_one_server_asks_no_more_at_once_than_it_may() -> None:
    house = House()
    waiting = [
        asyncio.ensure_future(house.elevate(f"/etc/{number}", path=f"/etc/{number}"))
        for number in range(3)
    ]
    await breath()
    with pytest.raises(Unavailable):
        await house.elevate("/etc/more", path="/etc/more")
    for each in waiting:
        each.cancel()


@pytest.mark.parametrize(
    ("feature", "fault"), [("nowhere", FEATURE_UNKNOWN), ("memory.read", FEATURE_NOT_ENABLED)]
)
async def test_a_set_that_is_not_there_or_not_enabled_elevates_nothing(
    feature: str, fault: object
) -> None:
    with pytest.raises(MalformedMessage) as refused:
        await House().elevate("/project/x", feature, path="/project/x")
    assert refused.value.fault is fault
