"""What waits is brought to its places, and one place's failure is its own."""

import asyncio
from dataclasses import replace

import pytest

from comity.audit import events
from comity.audit.events import AuditType
from comity.events.webhooks.delivery import MAX_BATCH
from comity.events.webhooks.model import DeliveryProblem, HttpReply, WebhookState
from comity.secrets.envelope import EnvelopeSealer
from comity.toolkit.jobs import WorkClaim
from tests.support.hooked import ANA, MAY, NOW, OPTIONS, SECOND, Hooked

HOST = "hooks.example.org"
BAD = HttpReply(500)


async def test_events_go_out_in_their_order() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1", "e2", "e3")
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e2", "e3"]
    found = await hooked.kept(one)
    assert (found.waiting, found.delivered_at) == (0, NOW)
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e2", "e3"]


async def test_while_a_place_fails_its_first_event_is_tried_ever_more_seldom() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1", "e2")
    hooked.poster.replies[HOST] = [BAD, DeliveryProblem.TIMEOUT]
    await hooked.round()
    await hooked.round()
    assert hooked.poster.ids == ["e1"], "it rests"
    found = await hooked.kept(one)
    assert (found.failures, found.failing_since, found.last_error) == (1, NOW, "http_5xx")
    hooked.later(0.5)
    await hooked.round()
    hooked.later(0.5)
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e1"]
    assert (await hooked.kept(one)).last_error == "timeout"
    hooked.later(0.5)
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e1", "e1", "e2"]
    found = await hooked.kept(one)
    assert (found.failures, found.failing_since, found.last_error) == (0, None, "")


async def test_from_its_fourth_try_on_the_others_pass_it() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "bad", "good")
    hooked.poster.replies[HOST] = [BAD, BAD, BAD]
    for seconds in (0, 0.5, 1, 2):
        hooked.later(seconds)
        await hooked.round()
    assert hooked.poster.ids == ["bad", "bad", "bad", "good"]
    hooked.later(1)
    await hooked.round()
    assert hooked.poster.ids[-1] == "bad"
    assert (await hooked.kept(one)).waiting == 0


async def test_a_place_that_asks_for_time_gets_it() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.poster.replies[HOST] = [HttpReply(429, 5 * SECOND)]
    await hooked.round()
    hooked.later(4)
    await hooked.round()
    assert hooked.poster.ids == ["e1"]
    hooked.later(1)
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e1"]


async def test_what_failed_for_the_whole_span_is_kept_as_failed_and_can_be_tried_again() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.poster.replies[HOST] = [BAD, BAD]
    await hooked.round()
    hooked.later(60)
    await hooked.round()
    found = await hooked.kept(one)
    assert (found.state, found.waiting, found.failed) == (WebhookState.ACTIVE, 0, 1)
    (post,) = await hooked.records.webhooks.posts(one.id)
    assert (post.failed, post.attempts, post.last_error) == (True, 2, "http_5xx")
    assert await hooked.records.webhooks.retry(one.id, hooked.now) == 1
    await hooked.round()
    assert (await hooked.kept(one)).failed == 0


async def test_one_that_failed_for_long_is_disabled_and_that_is_written_down() -> None:
    hooked = Hooked()
    noted: list[events.AuditEvent] = []
    one = await hooked.subscribe()
    hooked.journal.event_listeners.append(noted.append)
    hooked.poster.replies[HOST] = [BAD] * 99
    await hooked.wait(one, "e1")
    await hooked.round()
    hooked.later(100)
    await hooked.wait(one, "e2")
    await hooked.round()
    assert (await hooked.kept(one)).state is WebhookState.DISABLED
    assert hooked.hooks.subscriptions[one.id].state is WebhookState.DISABLED
    assert [each.type for each in noted] == [AuditType.WEBHOOK_DISABLED]
    assert noted[0].details["reason"] == "http_5xx"
    hooked.later(1000)
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e1"]


async def test_too_large_is_of_that_event_alone() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1", "e2")
    hooked.poster.replies[HOST] = [HttpReply(413)]
    await hooked.round()
    assert hooked.poster.ids == ["e1", "e2"]
    found = await hooked.kept(one)
    assert (found.failed, found.waiting, found.failures) == (1, 0, 0)


async def test_without_its_grant_nothing_is_posted() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.grant(*MAY[1:])
    await hooked.round()
    assert hooked.poster.ids == []
    assert (await hooked.kept(one)).last_error == "address_refused"
    hooked.grant(*MAY)
    hooked.later(1)
    await hooked.round()
    assert hooked.poster.ids == ["e1"]


async def test_a_secret_that_cannot_be_read_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")

    async def unreadable(_: EnvelopeSealer, sealed: bytes, context: str) -> None:
        """The pepper is another."""

    monkeypatch.setattr(EnvelopeSealer, "unseal", unreadable)
    await hooked.round()
    assert hooked.poster.ids == []
    assert (await hooked.kept(one)).last_error == "secret_unreadable"


async def test_a_slow_place_takes_few_of_the_posts_and_a_party_half() -> None:
    hooked = Hooked(
        replace(
            OPTIONS, max_subscriptions_per_principal=99, max_concurrent=8, max_concurrent_per_host=2
        )
    )
    gate = asyncio.Event()
    hooked.poster.before = None
    for number in range(4):
        one = await hooked.subscribe(f"https://slow.example.org/{number}")
        await hooked.wait(one, f"s{number}")
    for number in range(4):
        one = await hooked.subscribe(f"https://p{number}.example.org/")
        await hooked.wait(one, f"p{number}")
    hooked.poster.before = gate.wait
    for _ in range(6):
        await hooked.delivery.runner.start_due_jobs()
        await asyncio.sleep(0)
        hooked.later(0.2)
    async with asyncio.timeout(5):
        while len(hooked.poster.headings) < 8 + 4:
            await asyncio.sleep(0)
    gate.set()
    await hooked.delivery.runner.finish()
    hosts = [host for host, _ in hooked.poster.posted]
    assert len(hosts) == 4, "half of eight"
    assert hosts.count("slow.example.org") <= 2
    for _ in range(5):
        hooked.later(0.2)
        await hooked.round()
    assert len(set(hooked.poster.ids)) == 8


async def test_a_claim_is_settled_before_it_lapses() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, *(f"e{number}" for number in range(MAX_BATCH)))

    async def slowly() -> None:
        hooked.later(9)

    hooked.poster.before = slowly
    await hooked.round()
    assert len(hooked.poster.ids) == 3, "half of a claim of forty seconds"
    assert (await hooked.kept(one)).waiting == MAX_BATCH - 3


async def test_who_begins_anew_takes_up_its_own_claims_and_leaves_them_at_the_end() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    dead = WorkClaim("n1/dead", NOW + 999 * SECOND)
    assert await hooked.records.webhooks.jobs.claim(dead, NOW, 9)
    running = asyncio.create_task(hooked.delivery.runner.run("n1"))
    async with asyncio.timeout(10):
        while not hooked.poster.ids:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await hooked.delivery.runner.stop()
    assert hooked.poster.ids[:1] == ["e1"]


async def test_what_has_ended_is_forgotten() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    hooked.later(31 * 86_400)
    await hooked.round()
    assert one.id not in hooked.hooks.subscriptions
    assert ANA.party not in {each.party for each in await hooked.records.webhooks.page()}
