"""Notices of approval requests: who gets one, when, once, and what a failure does."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from comity.approvals.model import ApprovalState
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    DigestSchedule,
    NotifierSettings,
    QuietHours,
)
from comity.approvals.notifiers.service import RETRY_SCHEDULE
from comity.errors import Misconfigured
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.risk import Risk
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob
from tests.support.notifier_scene import (
    ANA,
    BEN,
    EVE,
    NOW,
    KeptMessages,
    NotifierScene,
    an_entry,
    the_posts,
)

QUIET = QuietHours(time(11), time(13), UTC)


def a_scene(channel: KeptMessages, **settings: Any) -> NotifierScene:
    return NotifierScene({"it": (an_entry(**settings), channel)})


async def test_each_person_who_may_answer_gets_one_message() -> None:
    kept = KeptMessages()
    scene = a_scene(kept)
    ask = await scene.ask()
    await scene.run()
    assert sorted(kept.told) == [("requested", ANA), ("requested", BEN)]
    assert {notice.request.id for notice, _ in kept.sent} == {ask.id}
    await scene.run_after(seconds=30)
    assert len(kept.sent) == 2


async def test_only_people_named_in_to_get_a_message() -> None:
    kept = KeptMessages()
    scene = a_scene(kept, to=(BEN, EVE, "group:sre"))
    scene.groups["sre"] = [ANA, EVE]
    await scene.ask()
    await scene.run()
    # Eve is named twice, but may not answer.
    assert sorted(kept.told) == [("requested", ANA), ("requested", BEN)]


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"min_risk": Risk.DANGEROUS}, False),
        ({"min_risk": Risk.MODERATE}, True),
        ({"servers": ("mail",)}, False),
        ({"servers": ("mail", "fil*")}, True),
        ({"kinds": ("permission",)}, False),
        ({"kinds": ("permission", "confirm")}, True),
    ],
)
async def test_a_notifier_tells_only_what_its_settings_name(
    settings: dict[str, Any], is_told: bool
) -> None:
    kept = KeptMessages()
    scene = a_scene(kept, to=(ANA,), **settings)
    await scene.ask(risk="moderate")
    await scene.run()
    assert bool(kept.sent) is is_told


async def test_an_answer_changes_each_message_that_was_sent() -> None:
    kept = KeptMessages(personal=False)
    scene = a_scene(kept)
    ask = await scene.ask(quorum=2)
    await scene.run()
    await scene.answer(ask, ANA)
    await scene.run()
    await scene.answer(ask, BEN)
    await scene.run()
    phases = [(str(notice.phase), reference) for notice, reference in kept.sent]
    assert phases == [("requested", ""), ("changed", "message 1"), ("changed", "message 1")]
    states = [notice.request.state for notice, _ in kept.sent]
    assert states == [ApprovalState.PENDING, ApprovalState.PENDING, ApprovalState.APPROVED]


async def test_a_request_that_was_answered_before_its_message_is_not_announced() -> None:
    kept = KeptMessages()
    scene = a_scene(kept)
    await scene.answer(await scene.ask())
    await scene.run()
    assert kept.told == []


async def test_a_feed_hears_every_change_and_the_expiry() -> None:
    kept = KeptMessages(personal=False, feed=True)
    scene = a_scene(kept)
    await scene.ask()
    await scene.run()
    scene.clock.now += timedelta(hours=1)
    assert await scene.approvals.expire_overdue() == 1
    await scene.run()
    assert [each[0].request.state for each in kept.sent] == ["pending", "expired"]
    assert kept.sent[0][0].approvers == (ANA, BEN)


async def test_a_person_who_lost_the_permission_gets_no_message() -> None:
    kept = KeptMessages(failures=1)
    scene = a_scene(kept, to=(ANA,))
    await scene.ask()
    await scene.run()
    assert kept.tried == 1
    scene.snapshot.replace(GrantSet.from_grants(list[Grant]()))
    await scene.run_after(minutes=1)
    assert (kept.tried, kept.told) == (1, [])


async def test_the_members_of_a_group_with_the_grant_get_a_message() -> None:
    kept = KeptMessages()
    grant = Grant("group:sre", "approval/*", "files/*", Effect.ALLOW)
    scene = NotifierScene({"it": (an_entry(), kept)}, grants=[grant])
    scene.groups["sre"] = [ANA, BEN]

    def find_actor(party: str, _key: str) -> Actor:
        groups = ("sre",) if party in scene.groups["sre"] else ()
        return Actor(party, PrincipalKind.PERSON, groups=groups)

    scene.inbox.find_actor = find_actor
    await scene.ask()
    await scene.run()
    assert sorted(kept.told) == [("requested", ANA), ("requested", BEN)]
    scene.groups["sre"] = [BEN]
    scene.snapshot.generation.advance()
    await scene.ask(2)
    await scene.run()
    assert kept.told[2:] == [("requested", BEN)]


# Failures and restarts.


async def test_a_failed_message_is_tried_again_ever_later() -> None:
    kept = KeptMessages(failures=3)
    scene = a_scene(kept, to=(ANA,))
    await scene.ask()
    await scene.run()
    assert kept.tried == 1
    await scene.run_after(seconds=2)
    assert kept.tried == 2
    await scene.run_after(seconds=1)
    assert kept.tried == 2
    await scene.run_after(seconds=3)
    await scene.run_after(seconds=8)
    assert (kept.tried, len(kept.sent)) == (4, 1)
    assert scene.service.metrics.sent["it"] == 1
    assert scene.service.last_error("it") == ""


async def test_a_message_is_given_up_after_some_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = KeptMessages(failures=1000)
    scene = a_scene(kept, to=(ANA,))
    await scene.ask(expires_at=NOW + timedelta(days=2))
    for _ in range(20):
        await scene.run_after(minutes=3)
    assert kept.tried == RETRY_SCHEDULE.max_attempts
    assert scene.service.metrics.failed["it"] == 1
    assert scene.service.last_error("it") == "not now"
    assert "gave up a message: not now" in caplog.text


async def test_a_lasting_error_is_not_tried_again() -> None:
    kept = KeptMessages(failures=1000, problem=Misconfigured("invalid_auth"))
    scene = a_scene(kept, to=(ANA,))
    await scene.ask()
    await scene.run()
    await scene.run_after(minutes=5)
    assert (kept.tried, scene.service.metrics.failed["it"]) == (1, 1)


async def test_a_bug_in_one_channel_does_not_stop_the_others() -> None:
    bad, good = KeptMessages(1000, problem=ValueError("secret text")), KeptMessages()
    scene = NotifierScene(
        {"bad": (an_entry("bad", to=(ANA,)), bad), "good": (an_entry("good", to=(ANA,)), good)}
    )
    await scene.ask()
    await scene.run()
    assert good.told == [("requested", ANA)]
    assert scene.service.last_error("bad") == "ValueError"


class SilentChannel(KeptMessages):
    """A channel that never answers."""

    def __init__(self) -> None:
        super().__init__(personal=False)
        self.forever = asyncio.Event()

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        self.tried += 1
        await self.forever.wait()
        return ""


async def test_a_silent_notifier_delays_no_other_one() -> None:
    silent, good = SilentChannel(), KeptMessages(personal=False)
    scene = NotifierScene(
        {"silent": (an_entry("silent"), silent), "good": (an_entry("good"), good)}
    )
    for number in range(60):
        await scene.ask(number)
    async with asyncio.timeout(30):
        while len(good.sent) < 60:
            await scene.service.runner.start_due_jobs()
            scene.clock.now += timedelta(seconds=1)
            await asyncio.sleep(0)
    assert silent.tried == 4
    await scene.service.runner.stop()


async def test_messages_wait_ever_longer_for_a_slow_notifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = SilentChannel()
    scene = NotifierScene({"silent": (an_entry("silent"), silent)})
    queue = scene.records.approval_requests.notices
    settle, delays = queue.settle, list[float]()

    async def note_delay(job: QueuedJob, outcome: JobOutcome) -> bool:
        if outcome.state is JobState.WAITING:
            delays.append((outcome.at - scene.clock.now).total_seconds())
        return await settle(job, outcome)

    monkeypatch.setattr(queue, "settle", note_delay)
    for number in range(5):
        await scene.ask(number)
    for _ in range(100):
        for _ in range(20):
            await scene.service.runner.start_due_jobs()
            await asyncio.sleep(0)
        scene.clock.now += timedelta(milliseconds=500)
    await scene.service.runner.stop()
    assert silent.tried == 4
    assert delays[:6] == [0.5, 0.5, 1, 2, 4, 8]
    assert set(delays[6:]) == {15}


async def test_a_restart_loses_no_message() -> None:
    before, after = KeptMessages(), KeptMessages()
    scene = a_scene(before, to=(ANA,))
    # The process ends before it looks into the queue.
    await scene.ask()
    again = replace(scene, channels={"it": (an_entry(to=(ANA,)), after)})
    await again.run()
    assert (before.told, after.told) == ([], [("requested", ANA)])


async def test_a_restart_in_the_midst_of_a_message_sends_it_again() -> None:
    silent, kept = SilentChannel(), KeptMessages(personal=False)
    scene = a_scene(silent)
    await scene.ask()
    await scene.service.runner.start_due_jobs()
    async with asyncio.timeout(30):
        while not silent.tried:
            await scene.service.runner.start_due_jobs()
            await asyncio.sleep(0)
    await scene.service.runner.stop()
    again = replace(scene, channels={"it": (an_entry(), kept)})
    await again.run()
    assert len(kept.sent) == 1


async def test_two_nodes_send_one_message() -> None:
    kept = KeptMessages()
    one = a_scene(kept, to=(ANA,), escalate_after=timedelta(minutes=5), escalate_to=BEN)
    other = replace(one)
    await one.ask()
    await other.ask(2)
    await asyncio.gather(one.run(), other.run())
    assert len(kept.sent) == 2
    one.clock.now += timedelta(minutes=6)
    await asyncio.gather(one.run(), other.run())
    assert sorted(each for each, _ in kept.told) == ["escalated"] * 2 + ["requested"] * 2
    escalated = one.service.metrics.escalated["it"] + other.service.metrics.escalated["it"]
    assert escalated == 2


async def test_a_request_and_its_notice_are_stored_together() -> None:
    scene = a_scene(KeptMessages())
    ask = await scene.ask()
    (job,) = await scene.records.approval_requests.notices.page()
    assert job.key == f"change/{ask.id}/pending.0"
    assert b"reports" not in job.payload
    assert job.state is JobState.WAITING


async def test_without_notifiers_nothing_is_queued() -> None:
    scene = NotifierScene({})
    await scene.ask()
    assert await scene.records.approval_requests.notices.page() == []


# Quiet hours, digests and escalations.


async def test_a_small_request_waits_for_the_end_of_the_quiet_hours() -> None:
    kept = KeptMessages()
    scene = a_scene(kept, to=(ANA,), quiet_hours=QUIET)
    await scene.ask(risk="moderate", expires_at=NOW + timedelta(hours=3))
    await scene.ask(2, risk="dangerous")
    await scene.run()
    assert [each[0].request.about["risk"] for each in kept.sent] == ["dangerous"]
    await scene.run_after(minutes=59)
    assert len(kept.sent) == 1
    await scene.run_after(minutes=1)
    assert len(kept.sent) == 2


async def test_a_request_that_ended_in_the_quiet_hours_is_not_announced() -> None:
    kept = KeptMessages()
    scene = a_scene(kept, to=(ANA,), quiet_hours=QUIET)
    await scene.ask(risk="safe")
    await scene.run()
    await scene.run_after(hours=2)
    assert kept.sent == []


async def test_a_digest_tells_small_requests_together_and_once() -> None:
    kept = KeptMessages()
    scene = a_scene(kept, to=(ANA,), digest=DigestSchedule(timedelta(minutes=10)))
    asks = [await scene.ask(number, risk="safe") for number in range(3)]
    await scene.ask(9, risk="dangerous")
    await scene.run()
    assert kept.told == [("requested", ANA)]
    await scene.answer(asks[0], BEN)
    await scene.run_after(minutes=10)
    notice = kept.sent[-1][0]
    assert (notice.phase, notice.recipient) == ("digest", ANA)
    # The first one was answered meanwhile.
    assert {each.id for each in notice.requests} == {each.id for each in asks[1:]}
    await scene.ask(4, risk="safe")
    await scene.run()
    await scene.run_after(minutes=10)
    assert [len(each[0].requests) for each in kept.sent] == [1, 2, 1]


async def test_of_two_nodes_one_sends_the_digest() -> None:
    kept = KeptMessages()
    one = a_scene(kept, to=(ANA,), digest=DigestSchedule(timedelta(minutes=10)))
    other = replace(one)
    await one.ask(1, risk="safe")
    await other.ask(2, risk="safe")
    await asyncio.gather(one.run(), other.run())
    one.clock.now += timedelta(minutes=10)
    await asyncio.gather(one.run(), other.run())
    assert [len(each[0].requests) for each in kept.sent] == [2]


async def test_a_request_that_comes_while_the_digest_is_sent_is_told_alone() -> None:
    kept = KeptMessages(failures=1)
    every = DigestSchedule(timedelta(minutes=10))
    scene = a_scene(kept, to=(ANA,), digest=every)
    await scene.ask(1, risk="safe", expires_at=NOW + timedelta(hours=2))
    await scene.run()
    scene.clock.now = datetime(2026, 11, 15, 12, 10, tzinfo=UTC)
    await scene.service.runner.start_due_jobs()
    await scene.service.runner.finish()
    # A node whose clock is behind still adds to the digest that was claimed.
    late = replace(scene, clock=type(scene.clock)(NOW))
    await late.ask(2, risk="safe", expires_at=NOW + timedelta(hours=2))
    await late.run()
    await scene.run_after(minutes=1)
    await scene.run_after(minutes=10)
    told = sorted(len(each[0].requests) for each in kept.sent)
    assert sum(told) == 2


def with_escalation(
    **settings: Any,
) -> tuple[NotifierScene, KeptMessages, KeptMessages, NotifierSettings]:
    first, second = KeptMessages(personal=False), KeptMessages(personal=False)
    entry = an_entry("first", escalate_after=timedelta(minutes=5), escalate_to="second", **settings)
    scene = NotifierScene(
        {"first": (entry, first), "second": (an_entry("second", servers=("none",)), second)}
    )
    return scene, first, second, entry


async def test_an_undecided_request_is_escalated_once_to_another_notifier() -> None:
    scene, first, second, _ = with_escalation()
    ask = await scene.ask()
    await scene.run_after(minutes=4)
    assert (len(first.sent), len(second.sent)) == (1, 0)
    await scene.run_after(minutes=1)
    await scene.run_after(minutes=5)
    assert second.told == [("escalated", "")]
    assert scene.service.metrics.escalated["first"] == 1
    await scene.answer(ask)
    await scene.run()
    # Both messages are changed after the decision.
    assert (first.told[-1], second.told[-1]) == (("changed", ""), ("changed", ""))


async def test_a_decided_request_is_not_escalated() -> None:
    scene, _, second, _ = with_escalation()
    ask = await scene.ask()
    await scene.run()
    await scene.answer(ask)
    await scene.run_after(minutes=10)
    assert second.told == []


async def test_a_request_without_its_quorum_is_escalated() -> None:
    scene, _, second, _ = with_escalation()
    ask = await scene.ask(quorum=2)
    await scene.run()
    await scene.answer(ask, ANA)
    await scene.run_after(minutes=10)
    assert second.told == [("escalated", "")]


async def test_an_escalation_to_a_group_tells_its_people() -> None:
    kept = KeptMessages()
    after = timedelta(minutes=5)
    scene = a_scene(kept, to=(ANA,), escalate_after=after, escalate_to="group:sre")
    scene.groups["sre"] = [BEN, EVE]
    await scene.ask()
    await scene.run_after(minutes=6)
    # Eve is in the group, but may not answer.
    assert kept.told == [("requested", ANA), ("escalated", BEN)]


async def test_notifiers_that_escalate_to_each_other_do_not_loop() -> None:
    one, two = KeptMessages(personal=False), KeptMessages(personal=False)
    after = timedelta(minutes=1)
    scene = NotifierScene(
        {
            "one": (an_entry("one", escalate_after=after, escalate_to="two"), one),
            "two": (
                an_entry("two", servers=("x",), escalate_after=after, escalate_to="one"),
                two,
            ),
        }
    )
    await scene.ask()
    for _ in range(8):
        await scene.run_after(minutes=1)
    assert [each for each, _ in one.told] == ["requested", "escalated"]
    assert [each for each, _ in two.told] == ["escalated"]


async def test_a_test_message_says_why_it_failed() -> None:
    scene = a_scene(KeptMessages(failures=1))
    with pytest.raises(Exception, match="the test message failed: not now"):
        await scene.service.send_test("it", ANA)
    await scene.service.send_test("it", ANA)
    with pytest.raises(Exception, match="no notifier of this name"):
        await scene.service.send_test("other", ANA)


def test_a_push_service_inside_the_network_is_refused() -> None:
    posts = the_posts()
    for url in ("https://169.254.169.254/x", "http://push.example.org/x", "https://10.0.0.1/x"):
        with pytest.raises(Exception, match="url"):
            posts.check_public(url)
