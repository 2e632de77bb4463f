"""Webhooks as every store keeps them: what waits, who posts it, and what came of that."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.audit import chain
from comity.audit.chain import AuditRecord
from comity.errors import MalformedMessage
from comity.events.model import Severity
from comity.events.webhooks.model import (
    DeliveryResult,
    JournalCursor,
    WebhookMessage,
    WebhookState,
    WebhookStore,
    WebhookSubscription,
)
from comity.toolkit.jobs import QueuedJob, WorkClaim
from tests.contracts.stores import Open

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
SOON = NOW + HOUR
HOOK = WebhookSubscription(
    *("sub_1", "agent:ci", "key:1", "https://hooks.example.org/a?b=c", "tool.*", Severity.WARNING),
    *(NOW, NOW + HOUR, (b"\0new", b"old"), SOON),
)
MOST = 1000


def post_no(number: int, of: str = "sub_1", at: datetime = NOW) -> WebhookMessage:
    return WebhookMessage(of, f"evt_{number}", b'{"n":%d}' % number, at, at)


async def waiting(hooks: WebhookStore, number: int = 3, of: str = "sub_1") -> None:
    await hooks.put(replace(HOOK, id=of))
    assert await hooks.add([post_no(each, of) for each in range(number)], MOST)


async def kept(hooks: WebhookStore, id: str = "sub_1") -> WebhookSubscription:
    found = await hooks.get(id)
    assert found is not None
    return found


type Claimed = tuple[QueuedJob, WebhookSubscription]


async def claimed_by(
    hooks: WebhookStore, holder: str = "h", now: datetime = NOW, until: datetime = SOON
) -> list[Claimed]:
    """The subscriptions for which a holder posts, each with its job."""
    jobs = await hooks.jobs.claim(WorkClaim(holder, until), now, 9)
    return [(job, await kept(hooks, job.key)) for job in jobs]


async def test_a_webhook_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    await records.webhooks.put(HOOK)
    other = (await again()).webhooks
    assert await other.get("sub_1") == HOOK
    assert await other.list_of_party("agent:ci") == [HOOK]
    assert await other.page() == [HOOK]
    assert await other.page("sub_1") == []
    assert await other.get("sub_2") is None
    assert await other.get("\0") is None
    assert await other.list_of_party("agent:other") == []


async def test_what_cannot_be_written_down_is_refused(records: RecordStores) -> None:
    for wrong in (replace(HOOK, party="\0"), replace(HOOK, url="https://x\0")):
        with pytest.raises(MalformedMessage):
            await records.webhooks.put(wrong)


async def test_a_change_of_a_webhook_is_told_and_its_posts_are_not(records: RecordStores) -> None:
    hooks, changes = records.webhooks, records.changes
    before = (await changes.since(0)).version
    await hooks.put(HOOK)
    news = await changes.since(before)
    assert [tuple(change) for change in news.changes or ()] == [("webhooks", "sub_1")]
    await hooks.add([post_no(1)], MOST)
    ((job, claimed),) = await claimed_by(hooks)
    (post,) = await hooks.due("sub_1", NOW, 9)
    await hooks.settle(job, DeliveryResult(claimed, NOW, (post.number,)))
    assert (await changes.since(news.version)).version == news.version
    await hooks.remove("sub_1")
    assert (await changes.since(news.version)).version > news.version


async def test_what_is_renewed_keeps_what_waits_for_it(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks)
    ((job, claimed),) = await claimed_by(hooks)
    off = replace(
        claimed, state=WebhookState.DISABLED, failures=7, failing_since=NOW, last_error="x"
    )
    assert await hooks.settle(job, DeliveryResult(off, NOW, rest_until=SOON))
    assert await claimed_by(hooks) == []
    renewed = replace(HOOK, expires_at=None, sealed=(b"newer",), created_at=SOON)
    await hooks.put(renewed)
    found = await kept(hooks)
    assert (found.state, found.failures, found.failing_since) == (WebhookState.ACTIVE, 0, None)
    assert (found.sealed, found.expires_at, found.created_at) == ((b"newer",), None, NOW)
    assert (found.waiting, found.last_error) == (3, "x")
    assert len(await claimed_by(hooks)) == 1


async def test_what_is_removed_takes_its_posts_with_it(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks)
    assert await hooks.remove("sub_1")
    assert not await hooks.remove("sub_1")
    assert await hooks.posts("sub_1") == []
    assert await hooks.add([post_no(9)], MOST)
    assert await hooks.posts("sub_1") == []


async def test_posts_are_due_in_the_order_of_writing(records: RecordStores, again: Open) -> None:
    await waiting(records.webhooks, 5)
    later = post_no(9, at=NOW + SECOND)
    await records.webhooks.add([later], MOST)
    other = (await again()).webhooks
    found = await other.due("sub_1", NOW, 3)
    assert [post.event for post in found] == ["evt_0", "evt_1", "evt_2"]
    assert found[0] == replace(post_no(0), number=found[0].number)
    assert [post.event for post in await other.due("sub_1", NOW + SECOND, 99)][-1] == "evt_9"
    assert (await kept(other)).waiting == 6


async def test_an_event_waits_once_and_is_remembered_when_it_was_delivered(
    records: RecordStores,
) -> None:
    hooks = records.webhooks
    await waiting(hooks, 1)
    await hooks.add([post_no(0)], MOST)
    assert (await kept(hooks)).waiting == 1
    ((job, claimed),) = await claimed_by(hooks)
    (post,) = await hooks.due("sub_1", NOW, 9)
    assert await hooks.settle(job, DeliveryResult(claimed, NOW, (post.number,)))
    await hooks.add([post_no(0)], MOST)
    assert (await kept(hooks)).waiting == 0
    assert await claimed_by(hooks) == []
    await hooks.prune(NOW, NOW + SECOND)
    await hooks.add([post_no(0)], MOST)
    assert (await kept(hooks)).waiting == 1


async def test_no_more_wait_than_there_is_room_for(records: RecordStores) -> None:
    hooks = records.webhooks
    await hooks.put(HOOK)
    await hooks.add([post_no(each) for each in range(5)], 3)
    await hooks.add([post_no(9)], 3)
    found = await kept(hooks)
    assert (found.waiting, found.dropped) == (3, 3)


async def test_a_mark_moves_with_its_posts_and_for_one_only(
    records: RecordStores, again: Open
) -> None:
    hooks, other = records.webhooks, (await again()).webhooks
    await hooks.put(HOOK)
    assert await hooks.add([post_no(1)], MOST, JournalCursor("n", 0, 7))
    assert not await other.add([post_no(2)], MOST, JournalCursor("n", 0, 5))
    assert await other.add([], MOST, JournalCursor("n", 7, 9))
    assert await hooks.marks() == {"n": 9}
    assert [post.event for post in await hooks.posts("sub_1")] == ["evt_1"]
    tries = (hooks.add([post_no(10 + each)], MOST, JournalCursor("n", 9, 10)) for each in range(8))
    assert sum(await asyncio.gather(*tries)) == 1
    assert (await kept(hooks)).waiting == 2


async def test_the_first_webhook_hears_what_comes_after_it(records: RecordStores) -> None:
    head = await records.audit_log.open("n")
    body = b"{}"
    linked = chain.entry_hash(head.hash, b"n", 1, body)
    line = AuditRecord("n", 1, NOW, "t", "", "x", "a", "", "", "SUCCESS", body, linked)
    await records.audit_log.append([line])
    await records.webhooks.initialize_marks()
    assert await records.webhooks.marks() == {"n": 1}
    await records.webhooks.put(HOOK)
    await records.webhooks.add([], MOST, JournalCursor("n", 1, 3))
    await records.webhooks.initialize_marks()
    assert await records.webhooks.marks() == {"n": 3}


async def test_a_claim_of_the_dead_lapses_and_settles_nothing(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks, 1)
    ((lapsed, dead),) = await claimed_by(hooks, "dead", until=NOW + SECOND)
    assert await claimed_by(hooks, "heir") == []
    ((job, taken),) = await claimed_by(hooks, "heir", NOW + SECOND)
    (post,) = await hooks.due("sub_1", NOW, 9)
    assert not await hooks.settle(lapsed, DeliveryResult(dead, NOW, (post.number,)))
    assert await hooks.settle(job, DeliveryResult(taken, NOW, (post.number,)))
    assert (await kept(hooks)).waiting == 0
    assert not await hooks.settle(job, DeliveryResult(taken, NOW))


async def test_what_failed_is_due_again_later_and_its_place_rests(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks, 2)
    ((job, claimed),) = await claimed_by(hooks)
    first, second = await hooks.due("sub_1", NOW, 9)
    tried = replace(first, attempts=1, due_at=NOW + 2 * SECOND, last_error="timeout")
    failing = replace(claimed, failures=1, failing_since=NOW, last_error="timeout")
    rests = DeliveryResult(failing, NOW, (), (tried,), NOW + SECOND)
    assert await hooks.settle(job, rests)
    assert await claimed_by(hooks) == []
    ((job, found),) = await claimed_by(hooks, now=NOW + SECOND)
    assert (found.failures, found.failing_since, found.last_error) == (1, NOW, "timeout")
    assert await hooks.due("sub_1", NOW + SECOND, 9) == [second]
    assert await hooks.due("sub_1", NOW + 2 * SECOND, 9) == [tried, second]
    well = replace(found, failures=0, failing_since=None, delivered_at=NOW + SECOND)
    assert await hooks.settle(job, DeliveryResult(well, NOW, (second.number,)))
    assert await claimed_by(hooks, now=NOW + SECOND) == []
    assert len(await claimed_by(hooks, now=NOW + 2 * SECOND)) == 1
    assert (await kept(hooks)).delivered_at == NOW + SECOND


async def test_what_has_failed_for_good_stays_and_can_be_tried_again(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks, 2)
    ((job, claimed),) = await claimed_by(hooks)
    first, _ = await hooks.due("sub_1", NOW, 9)
    lost = replace(first, attempts=9, failed=True, last_error="http_5xx")
    off = replace(claimed, state=WebhookState.DISABLED, last_error="http_5xx", failing_since=NOW)
    assert await hooks.settle(job, DeliveryResult(off, NOW, (), (lost,)))
    found = await kept(hooks)
    assert (found.state, found.waiting, found.failed) == (WebhookState.DISABLED, 1, 1)
    assert await hooks.posts("sub_1", 0, 1) == [lost]
    assert len(await hooks.posts("sub_1", first.number)) == 1
    assert await hooks.retry("sub_1", NOW + HOUR) == 1
    assert await hooks.retry("nobody", NOW) == 0
    found = await kept(hooks)
    assert (found.state, found.waiting, found.failed) == (WebhookState.ACTIVE, 2, 0)
    ((job, claimed),) = await claimed_by(hooks, now=NOW + HOUR, until=SOON + HOUR)
    again = (await hooks.due("sub_1", NOW + HOUR, 9))[0]
    assert (again.event, again.at, again.failed) == ("evt_0", NOW + HOUR, False)


async def test_what_has_ended_goes(records: RecordStores) -> None:
    hooks = records.webhooks
    await waiting(hooks, 1)
    await hooks.put(replace(HOOK, id="sub_2", expires_at=None))
    assert await hooks.prune(NOW, NOW) == []
    assert [each.id for each in await hooks.prune(NOW + HOUR, NOW)] == ["sub_1"]
    assert [each.id for each in await hooks.page()] == ["sub_2"]
