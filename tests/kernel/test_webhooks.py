"""Who has events posted where: what that needs, and what ends it."""

from dataclasses import replace

import pytest

from comity.adapters.sealing import Unsealed
from comity.kernel.webhooks import secrets_of
from comity.ports.webhooks import Answered
from comity.rules.standard_channels import told
from comity.rules.webhooks import Places
from comity.wire import audit
from comity.wire.audit import Type
from comity.wire.errors import (
    CALLBACK_FAILED,
    EVENTS_FORBIDDEN,
    EXHAUSTED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.events import Event
from comity.wire.grants import Effect, Grant
from comity.wire.mcp_events import Named
from comity.wire.parties import Actor, PartyKind
from comity.wire.webhooks import Problem, State
from tests.kernel.hooked import ANA, BEA, MAY, NOW, OPTIONS, SECOND, SECRET, URL, Hooked, wanted


def called(actor: Actor = ANA) -> Event:
    entry = audit.Event(Type.TOOL_EXECUTED, actor.party, NOW + SECOND, actor.kind, "files", "read")
    return told(entry, "tool.completed", "e1")


async def test_whoever_has_no_grant_for_the_host_is_refused() -> None:
    hooked = Hooked()
    for actor in (BEA, Actor("", PartyKind.SYSTEM), Actor("server:files", PartyKind.SERVER)):
        with pytest.raises(MalformedMessage) as refused:
            await hooked.subscribe(actor=actor)
        assert refused.value.fault is EVENTS_FORBIDDEN
    hooked.grant(Grant(ANA.party, "events/subscribe", "webhooks/other.example.org", Effect.ALLOW))
    with pytest.raises(MalformedMessage, match=r"webhooks/hooks\.example\.org"):
        await hooked.subscribe()
    assert hooked.poster.headings == [], "nobody was asked anything"


async def test_a_place_is_asked_once_for_one_party_and_url() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    assert len(hooked.poster.headings) == 1
    assert await hooked.subscribe() == one
    await hooked.subscribe(name="*")
    assert len(hooked.poster.headings) == 1
    await hooked.subscribe(f"{URL}/other")
    assert len(hooked.poster.headings) == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Problem.TIMEOUT, "timeout"),
        (Answered(500), "http_5xx"),
        (Answered(302), "http_3xx"),
        (Answered(200, body=b'{"challenge":"guessed"}'), "challenge_failed"),
    ],
)
async def test_one_that_does_not_want_it_is_not_kept(
    answer: Answered | Problem, problem: str
) -> None:
    hooked = Hooked()
    hooked.poster.replies["verify hooks.example.org"] = [answer]
    with pytest.raises(MalformedMessage, match=problem) as refused:
        await hooked.subscribe()
    assert refused.value.fault is CALLBACK_FAILED
    assert await hooked.records.webhooks.page() == []


async def test_nobody_has_strangers_asked_over_and_over() -> None:
    hooked = Hooked()
    hooked.poster.replies["verify hooks.example.org"] = [Problem.TIMEOUT] * 20
    for _ in range(20):
        with pytest.raises(MalformedMessage):
            await hooked.subscribe()
    with pytest.raises(Unavailable):
        await hooked.subscribe()
    hooked.later(61)
    await hooked.subscribe()


async def test_a_party_has_only_so_many() -> None:
    hooked = Hooked()
    for name in ("tool.*", "security.*", "system.*"):
        await hooked.subscribe(name=name)
    with pytest.raises(MalformedMessage) as refused:
        await hooked.subscribe(name="*")
    assert refused.value.fault is EXHAUSTED
    await hooked.subscribe(name="tool.*")


async def test_a_secret_is_drawn_where_none_is_given_and_told_once() -> None:
    hooked = Hooked()
    made = await hooked.subscribing.subscribe(ANA, wanted(secret=None))
    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    again = await hooked.subscribing.subscribe(ANA, wanted(secret=None))
    assert again.secret is None
    assert again.subscription.sealed == made.subscription.sealed
    assert await hooked.kept(made.subscription) == again.subscription


async def test_with_another_secret_both_count_for_an_hour() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    assert secrets_of(one, Unsealed(), NOW) == [b"s" * 33]
    given = "whsec_" + "QUFB" * 8
    two = (await hooked.subscribing.subscribe(ANA, wanted(secret=given))).subscription
    assert secrets_of(two, Unsealed(), NOW) == [b"A" * 24, b"s" * 33]
    assert secrets_of(two, Unsealed(), NOW + 3600 * SECOND) == [b"A" * 24]
    assert SECRET.decode() not in repr(two)


async def test_what_is_subscribed_and_ended_is_written_down_without_the_url() -> None:
    hooked = Hooked()
    noted: list[audit.Event] = []
    hooked.journal.noted.append(noted.append)
    one = await hooked.subscribe()
    assert not await hooked.subscribing.unsubscribe(BEA, Named("tool.*"), URL)
    assert await hooked.subscribing.unsubscribe(ANA, Named("tool.*"), URL)
    assert not await hooked.subscribing.remove(ANA, one.id)
    assert [each.type for each in noted] == [Type.WEBHOOK_SUBSCRIBED, Type.WEBHOOK_REMOVED]
    assert noted[0].details["host"] == "hooks.example.org"
    assert "/ana" not in str(noted)


async def test_an_event_is_for_those_who_want_it_and_may_hear_it() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    assert hooked.hooks.hearing(called()) == [one]
    assert hooked.hooks.hearing(called(BEA)) == [], "it is somebody else's doing"
    others = await hooked.subscribe(name="security.*")
    assert others not in hooked.hooks.hearing(called())


async def test_a_grant_a_party_and_a_place_are_looked_at_with_every_event() -> None:
    hooked = Hooked()
    one = await hooked.subscribe("https://near.internal/x")
    assert hooked.hooks.hearing(called()) == [one]
    hooked.grant(*MAY[1:])
    assert hooked.hooks.hearing(called()) == []
    hooked.grant(*MAY)
    del hooked.known.actors[ANA.party]
    assert hooked.hooks.hearing(called()) == []
    hooked.known.actors[ANA.party] = ANA
    assert hooked.hooks.hearing(called()) == [one]
    hooked.hooks.options = replace(OPTIONS, places=Places())
    assert hooked.hooks.hearing(called()) == []
    assert hooked.hooks.place_of(one) is None


async def test_one_that_was_disabled_is_asked_again_before_it_is_active() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.poster.replies["hooks.example.org"] = [Answered(410)]
    await hooked.round()
    assert (await hooked.kept(one)).state is State.DISABLED
    assert hooked.hooks.hearing(called()) == []
    await hooked.subscribe()
    assert hooked.hooks.hearing(called()) != []
    verified = [each for each in hooked.poster.headings if "verification" in each["webhook-id"]]
    assert len(verified) == 2
