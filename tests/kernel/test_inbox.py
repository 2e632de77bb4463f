"""The inbox as its doors see it: found by part of an id, likened to others, linked to."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.grants import Grants
from comity.kernel.inbox import Inbox
from comity.rules.access import Access
from comity.rules.ask_links import Links
from comity.wire.asks import ANSWER, Ask, Kind, State, Verdict
from comity.wire.errors import MalformedMessage
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor, PartyKind

ANA = Actor("person:ana@example.org", PartyKind.PERSON)
BEN = Actor("person:ben@example.org", PartyKind.PERSON)
BEGAN = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class House:
    """An inbox over asks in memory, at a time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = BEGAN
        access = Access.of([Grant(ANA.party, ANSWER, "files/*", Effect.ALLOW)])
        options = AskOptions(public_url="https://comity.example.org")
        self.approvals = Approvals(
            MemoryRecords().asks, Grants(access), options=options, clock=lambda: self.now
        )
        self.known = {ANA.party: ANA, BEN.party: BEN, "agent:ci": Actor("agent:ci")}
        self.inbox = Inbox(self.approvals, Links(b"pepper"), lambda party, _: self.known.get(party))

    async def ask(self, number: int, **changed: Any) -> Ask:
        def made(id: str, at: datetime, until: datetime) -> Ask:
            about = {"tool": "files__write", "risk": "dangerous", "arguments": {"n": number}}
            whose = ("agent:ci", "files", "write", f"digest {number}", "", about)
            return Ask(id, Kind.CONFIRM, *whose, at, until)

        return await self.approvals.open(replace(self.approvals.new(made), **changed))

    async def approve(self, number: int) -> None:
        ask = await self.ask(number)
        await self.approvals.answer(ANA, ask.id, Verdict.ACCEPT)


@pytest.fixture
def house() -> House:
    return House()


async def test_what_was_decided_in_a_day_is_counted_and_no_longer(house: House) -> None:
    for number in range(3):
        await house.approve(number)
    house.now += timedelta(minutes=1)
    ask = await house.ask(10)
    assert (await house.inbox.likeness(ask)).startswith("same tool and party approved 3 times")
    house.now += timedelta(days=1)
    assert (await house.inbox.likeness(ask)).startswith("nothing by this party")


async def test_what_was_decided_is_looked_up_only_now_and_then(house: House) -> None:
    ask = await house.ask(10)
    await house.inbox.likeness(ask)
    await house.approve(1)
    assert (await house.inbox.likeness(ask)).startswith("nothing by this party")
    house.now += timedelta(seconds=6)
    assert "approved 1 time" in await house.inbox.likeness(ask)


async def test_views_tell_each_whether_it_may_answer(house: House) -> None:
    ask = await house.ask(1)
    assert (await house.inbox.view(ANA, ask))["may_answer"] is True
    told = await house.inbox.view(BEN, ask)
    assert told["may_answer"] is False
    assert "you need the grant ask/answer" in str(told["why_not"])
    ended = replace(ask, state=State.DECLINED)
    assert (await house.inbox.view(ANA, ended))["likeness"] is None


async def test_a_part_of_an_id_finds_only_what_is_alone_and_may_be_seen(house: House) -> None:
    first = await house.ask(1)
    house.now += timedelta(minutes=1)
    second = await house.ask(2)
    alike = next(n for n in range(26) if first.id[n] != second.id[n])
    assert await house.inbox.find(ANA, first.id[: alike + 1]) == first
    assert await house.inbox.find(ANA, second.id) == second
    for actor, named in (
        (ANA, first.id[:alike]),
        (BEN, first.id),
        (BEN, first.id[:12]),
        (ANA, "x"),
    ):
        with pytest.raises(MalformedMessage):
            await house.inbox.find(actor, named)


async def test_a_link_ends_with_its_ask_and_is_for_who_may_answer(house: House) -> None:
    ask = await house.ask(1)
    url = await house.inbox.link(BEN, ask, ANA.party)
    page, _, token = url.partition("?t=")
    assert page == f"https://comity.example.org/asks/{ask.id}"
    link = Links(b"pepper").unseal(token, ask.id, house.now)
    assert link is not None
    assert link.expires_at == ask.expires_at
    for party in (BEN.party, "agent:ci", "person:nobody"):
        assert house.inbox.why_no_link(ask, party) is not None
        with pytest.raises(MalformedMessage):
            await house.inbox.link(ANA, ask, party)
    with pytest.raises(MalformedMessage):
        await house.inbox.link(ANA, replace(ask, state=State.EXPIRED), ANA.party)
    assert house.inbox.url(ask) == page
