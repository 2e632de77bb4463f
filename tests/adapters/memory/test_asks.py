"""Asks in memory: what the contract cannot say of every store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from comity.adapters.memory.asks import MemoryAsks
from comity.ports import Kept
from comity.wire.asks import Answer, Ask, Kind, State, Verdict

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
ASK = Ask("0a", Kind.CONFIRM, "agent:ci", "files", "delete", "d1", "may it?", {}, NOW, LATER)
YES = Answer("person:ana@example.org", Verdict.ACCEPT, NOW)


def ask_no(number: int, digest: str = "") -> Ask:
    return replace(ASK, id=f"{number:02}", digest=digest or f"d{number}")


async def test_of_those_that_have_ended_the_oldest_are_forgotten() -> None:
    asks = MemoryAsks(lambda what, whose: None, ended_kept=2)
    for number in range(5):
        await asks.open(ask_no(number, "same" if number < 2 else ""))
        if number != 3:
            await asks.end(f"{number:02}", State.WITHDRAWN, NOW)
    # The third is open still, however old it is.
    assert [ask.id for ask in await asks.page()] == ["02", "03", "04"]
    assert await asks.get("00") is None
    assert await asks.latest("same") is None
    assert await asks.count([State.WITHDRAWN]) == 2


async def test_what_was_given_back_is_not_forgotten() -> None:
    asks = MemoryAsks(lambda what, whose: None, ended_kept=1)
    await asks.open(ask_no(0))
    await asks.answer("00", YES, LATER)
    await asks.use("00", "call-1", NOW)
    await asks.restore("00", "call-1")
    for number in (1, 2):
        await asks.open(ask_no(number))
        await asks.end(f"{number:02}", State.WITHDRAWN, NOW)
    assert [ask.id for ask in await asks.page()] == ["00", "02"]
    assert await asks.use("00", "call-2", NOW) is not None


async def test_what_was_forgotten_is_not_expired() -> None:
    asks = MemoryAsks(lambda what, whose: None, ended_kept=1)
    for number in (1, 2):
        await asks.open(ask_no(number))
        await asks.end(f"{number:02}", State.WITHDRAWN, NOW)
    assert await asks.expire(LATER) == []


async def test_each_step_is_told_by_the_id_of_the_ask() -> None:
    told: list[tuple[Kept, list[str]]] = []
    asks = MemoryAsks(lambda what, whose: told.append((what, list(whose))))
    await asks.open(ASK)
    await asks.answer("0a", YES, LATER)
    assert await asks.answer("0a", YES, LATER) is None
    await asks.use("0a", "call-1", NOW)
    assert await asks.use("0a", "call-2", NOW) is None
    assert told == [(Kept.ASKS, ["0a"])] * 3
