"""News of asks for somewhere else: what is told, to whom the links are, how often it is tried."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.ask_notices import TRIES, Authorities, Notices, text_of, type_of
from comity.kernel.grants import Grants
from comity.kernel.inbox import Inbox
from comity.rules.access import Access
from comity.rules.ask_links import Links
from comity.wire.asks import ANSWER, Answer, Ask, Kind, State, Verdict
from comity.wire.errors import Unavailable
from comity.wire.grants import Effect, Grant, Source
from comity.wire.parties import Actor, PartyKind

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ANA, BEN = "person:ana@example.org", "person:ben@example.org"
GRANTS = [
    Grant(ANA, ANSWER, "files/*", Effect.ALLOW),
    Grant(BEN, ANSWER, "mail/*", Effect.ALLOW),
    Grant("agent:helpful", ANSWER, "*", Effect.ALLOW),
    Grant("person:gone", ANSWER, "*", Effect.ALLOW),
    Grant("person:local", "*", "*", Effect.ALLOW, source=Source.BUILT_IN),
    Grant("person:denied", ANSWER, "*", Effect.DENY),
    Grant("*", ANSWER, "open/*", Effect.ALLOW),
]


class Told:
    """Takes posts, of which the first few fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.tried = 0
        self.bodies: list[dict[str, Any]] = []

    async def post(self, body: bytes) -> None:
        self.tried += 1
        if self.tried <= self.failures:
            raise Unavailable("not now")
        self.bodies.append(json.loads(body))


def named(party: str, key: str) -> Actor | None:
    if party == "person:gone":
        return None
    kind = PartyKind.PERSON if party.startswith("person:") else PartyKind.AGENT
    return Actor(party, kind, "link")


def an_inbox(grants: Sequence[Grant] = GRANTS) -> tuple[Inbox, Grants]:
    judge = Grants(Access.of(grants))
    options = AskOptions(public_url="https://comity.example.org")
    approvals = Approvals(MemoryRecords().asks, judge, options=options, clock=lambda: NOW)
    return Inbox(approvals, Links(b"pepper"), named), judge


def an_ask(**changed: Any) -> Ask:
    about = {"tool": "files__write", "risk": "dangerous", "arguments": {"path": "/a"}}
    ask = Ask(
        *("ask1", Kind.CONFIRM, "agent:ci", "files", "write", "digest", "message"),
        *(about, NOW, NOW + timedelta(minutes=15)),
    )
    return replace(ask, **changed)


def notices(told: Told, most: int = 10, slept: list[float] | None = None) -> Notices:
    async def sleep(seconds: float) -> None:
        (slept if slept is not None else []).append(seconds)

    inbox, judge = an_inbox()
    return Notices(inbox, Authorities(judge, inbox), told, sleep, most)


async def until_told(found: Notices) -> None:
    async with asyncio.timeout(20):
        while len(found):
            await asyncio.sleep(0)


async def test_a_new_ask_is_told_in_words_and_fields_with_a_link_for_each_named_authority() -> None:
    told = Told()
    found = notices(told)
    found.hear(an_ask())
    await until_told(found)
    (body,) = told.bodies
    assert body["type"] == "ask.opened"
    assert body["text"] == (
        "agent:ci wants to call files__write (dangerous); "
        "it can be answered until 2026-11-15 12:15:00 UTC"
    )
    assert body["ask"]["about"]["arguments"] == {"path": "/a"}
    assert body["url"] == "https://comity.example.org/asks/ask1"
    ((link),) = body["links"]
    assert link["party"] == ANA
    token = link["url"].partition("?t=")[2]
    sealed = Links(b"pepper").unseal(token, "ask1", NOW)
    assert sealed is not None
    assert (sealed.party, sealed.expires_at) == (ANA, NOW + timedelta(minutes=15))


async def test_an_end_is_told_without_a_link() -> None:
    told = Told()
    found = notices(told)
    word = Answer(ANA, Verdict.DECLINE, NOW, "no")
    found.hear(an_ask(state=State.DECLINED, answers=(word,)))
    found.hear(an_ask(state=State.EXPIRED))
    await until_told(found)
    assert [each["type"] for each in told.bodies] == ["ask.answered", "ask.ended"]
    assert [each["links"] for each in told.bodies] == [[], []]
    assert len({each["id"] for each in told.bodies}) == 2
    assert f"{ANA} declined it: no." in told.bodies[0]["text"]


async def test_what_does_not_arrive_is_tried_again_ever_later() -> None:
    told, slept = Told(failures=TRIES - 1), list[float]()
    found = notices(told, slept=slept)
    found.hear(an_ask())
    await until_told(found)
    assert (told.tried, len(told.bodies)) == (TRIES, 1)
    assert len(slept) == TRIES - 1
    assert slept[0] >= 0.5
    assert slept[-1] >= 4.0


async def test_it_is_given_up_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(failures=100)
    found = notices(told)
    found.hear(an_ask())
    await until_told(found)
    assert told.tried == TRIES
    assert "tried 5 times" in caplog.text


async def test_what_does_not_fit_is_dropped_and_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    found = notices(told, most=3)
    for _ in range(10):
        found.hear(an_ask())
    assert len(found) == 3
    await until_told(found)
    assert len(told.bodies) == 3
    assert caplog.text.count("are not sent") == 1
    found.hear(an_ask())
    await until_told(found)
    assert len(told.bodies) == 4


async def test_what_would_be_too_long_is_told_without_its_arguments() -> None:
    told = Told()
    found = notices(told)
    found.hear(an_ask(about={"tool": "files__write", "arguments": {"text": "x" * 100_000}}))
    await until_told(found)
    assert told.bodies[0]["ask"]["is_shortened"] is True
    assert "xxxx" not in json.dumps(told.bodies[0])


async def test_it_is_stopped_in_the_midst_of_its_tries() -> None:
    forever = asyncio.Event()

    class Silent:
        async def post(self, body: bytes) -> None:
            await forever.wait()

    inbox, judge = an_inbox()
    found = Notices(inbox, Authorities(judge, inbox), Silent())
    found.hear(an_ask())
    await asyncio.sleep(0)
    found.stop()
    await until_told(found)


async def test_whoever_is_named_later_gets_a_link_too() -> None:
    inbox, judge = an_inbox()
    authorities = Authorities(judge, inbox)
    assert await authorities.of(an_ask()) == [ANA]
    judge.replace(Access.of([*GRANTS, Grant(BEN, "ask/*", "files/write", Effect.ALLOW)]))
    assert await authorities.of(an_ask()) == [ANA, BEN]
    # Nobody gets one for what it asks itself.
    assert await authorities.of(an_ask(asker=ANA)) == [BEN]


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_type_and_words(state: State) -> None:
    assert type_of(an_ask(state=state)) in ("ask.opened", "ask.answered", "ask.ended")
    assert text_of(an_ask(state=state))
