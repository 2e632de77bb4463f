"""Pushes under /api/pushes: the last first, without what was in them, and tried again."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from comity.adapters.memory.pushes import MemoryPushes
from comity.ports.pushes import PAGE, Claim
from comity.surfaces.asked import Asked
from comity.surfaces.pushes_api import PushesApi
from comity.wire.contents import said
from comity.wire.errors import MalformedMessage
from comity.wire.parties import LOCAL
from comity.wire.pushes import Goal, KeptPush, Push, PushState, Route

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
HELD = Claim("h", NOW)
KEPT = KeptPush(
    Push("ci", "e", NOW, said("secret words"), "ci.builds", {"token": "hidden"}),
    Route(Goal.TURN, "", "ops"),
    NOW,
    NOW,
)


class Desk:
    def __init__(self) -> None:
        self.records = MemoryPushes()
        self.stirs = 0
        self.api = PushesApi(self.records, lambda: NOW, self.stir)

    def stir(self) -> None:
        self.stirs += 1

    async def has(self, count: int, server: str = "ci") -> None:
        for each in range(count):
            push = replace(KEPT.push, id=f"e{each}", server=server)
            await self.records.add(replace(KEPT, push=push), HELD, 1_000)

    async def ask(self, method: str = "GET", *place: str, **query: str) -> dict[str, Any]:
        room = self.api.rooms["pushes"]
        return dict(await room(Asked(method, place, query, {}, LOCAL)))


async def test_the_last_pushes_are_shown_without_what_was_in_them() -> None:
    desk = Desk()
    await desk.has(2)
    found = await desk.ask()
    assert [each["event"] for each in found["pushes"]] == ["e1", "e0"]
    assert (found["waiting"], found["done"], found["failed"]) == (2, 0, 0)
    first = found["pushes"][0]
    assert (first["server"], first["to"], first["conversation"]) == ("ci", "turn", "ops")
    assert "secret words" not in str(found)
    assert "hidden" not in str(found)


async def test_many_pushes_are_shown_page_by_page_and_of_one_server() -> None:
    desk = Desk()
    await desk.has(PAGE + 5)
    await desk.has(1, "cd")
    first = await desk.ask(server="ci")
    assert len(first["pushes"]) == PAGE
    second = await desk.ask(server="ci", cursor=first["next"])
    assert len(second["pushes"]) == 5
    assert "next" not in second
    assert [each["server"] for each in (await desk.ask(server="cd"))["pushes"]] == ["cd"]


async def test_one_that_failed_is_done_again_where_somebody_says_so() -> None:
    desk = Desk()
    await desk.has(1)
    (kept,) = await desk.records.page()
    with pytest.raises(MalformedMessage):
        await desk.ask("POST", "1", "retry")
    await desk.records.settle("h", replace(kept, state=PushState.FAILED, done_at=NOW))
    assert (await desk.ask("POST", "1", "retry"))["state"] == "waiting"
    assert desk.stirs == 1


@pytest.mark.parametrize(
    ("method", "place", "query"),
    [
        ("GET", ("1",), {}),
        ("DELETE", (), {}),
        ("POST", ("x", "retry"), {}),
        ("POST", ("9" * 40, "retry"), {}),
        ("GET", (), {"cursor": "-1"}),
        ("GET", (), {"cursor": "٣"}),
    ],
)
async def test_whatever_else_is_asked_for_is_not_there(
    method: str, place: tuple[str, ...], query: dict[str, str]
) -> None:
    with pytest.raises(MalformedMessage):
        await Desk().ask(method, *place, **query)
