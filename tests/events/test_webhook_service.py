"""Who has events posted where, and how each audit event becomes a post once, whoever dies when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from comity.audit import events
from comity.audit.events import AuditEvent as Entry
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    CALLBACK_FAILED,
    EVENTS_FORBIDDEN,
    EXHAUSTED,
    MalformedMessage,
    Unavailable,
)
from comity.events.model import GatewayEvent, Severity
from comity.events.standard_channels import SERVER_STATE, STARTED, to_channel_event
from comity.events.webhooks.model import (
    DeliveryProblem,
    EventSelector,
    HttpReply,
    JournalCursor,
    WebhookState,
    WebhookSubscription,
)
from comity.events.webhooks.service import POLL_INTERVAL, UNMARKED, WebhookOutbox, secrets_of
from comity.events.wiring import actor_finder
from comity.identity.authentication import Authenticator
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import LOCAL, Actor, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.support.cases import loop_over
from tests.support.credentials import GivenOut
from tests.support.hooked import (
    ANA,
    BEA,
    MAY,
    NOW,
    OPTIONS,
    SEALER,
    SECOND,
    SECRET,
    URL,
    Hooked,
    wanted,
)


def called(actor: Actor = ANA) -> GatewayEvent:
    entry = events.AuditEvent(
        AuditType.TOOL_EXECUTED, actor.party, NOW + SECOND, actor.kind, "files", "read"
    )
    return to_channel_event(entry, "tool.completed", "e1")


async def test_whoever_has_no_grant_for_the_host_is_refused() -> None:
    hooked = Hooked()
    for actor in (
        BEA,
        Actor("", PrincipalKind.SYSTEM),
        Actor("server:files", PrincipalKind.SERVER),
    ):
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


@loop_over(
    ("answer", "problem"),
    [
        (DeliveryProblem.TIMEOUT, "timeout"),
        (HttpReply(500), "http_5xx"),
        (HttpReply(302), "http_3xx"),
        (HttpReply(200, body=b'{"challenge":"guessed"}'), "challenge_failed"),
    ],
)
async def test_one_that_does_not_want_it_is_not_kept(
    answer: HttpReply | DeliveryProblem, problem: str
) -> None:
    hooked = Hooked()
    hooked.poster.replies["verify hooks.example.org"] = [answer]
    with pytest.raises(MalformedMessage, match=problem) as refused:
        await hooked.subscribe()
    assert refused.value.fault is CALLBACK_FAILED
    assert await hooked.records.webhooks.page() == []


async def test_nobody_has_strangers_asked_over_and_over() -> None:
    hooked = Hooked()
    hooked.poster.replies["verify hooks.example.org"] = [DeliveryProblem.TIMEOUT] * 20
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
    assert await secrets_of(one, SEALER, NOW) == [b"s" * 33]
    given = "whsec_" + "QUFB" * 8
    two = (await hooked.subscribing.subscribe(ANA, wanted(secret=given))).subscription
    assert await secrets_of(two, SEALER, NOW) == [b"A" * 24, b"s" * 33]
    assert await secrets_of(two, SEALER, NOW + 3600 * SECOND) == [b"A" * 24]
    assert SECRET.decode() not in repr(two)


async def test_what_is_subscribed_and_ended_is_written_down_without_the_url() -> None:
    hooked = Hooked()
    noted: list[events.AuditEvent] = []
    hooked.journal.event_listeners.append(noted.append)
    one = await hooked.subscribe()
    assert not await hooked.subscribing.unsubscribe(BEA, EventSelector("tool.*"), URL)
    assert await hooked.subscribing.unsubscribe(ANA, EventSelector("tool.*"), URL)
    assert not await hooked.subscribing.remove(ANA, one.id)
    assert [each.type for each in noted] == [
        AuditType.WEBHOOK_SUBSCRIBED,
        AuditType.WEBHOOK_DELETED,
    ]
    assert noted[0].details["host"] == "hooks.example.org"
    assert "/ana" not in str(noted)


async def test_an_event_is_for_those_who_want_it_and_may_hear_it() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    assert hooked.hooks.recipients_of(called()) == [one]
    assert hooked.hooks.recipients_of(called(BEA)) == [], "it is somebody else's doing"
    others = await hooked.subscribe(name="security.*")
    assert others not in hooked.hooks.recipients_of(called())


async def test_a_grant_a_party_and_a_place_are_looked_at_with_every_event() -> None:
    hooked = Hooked()
    one = await hooked.subscribe("https://near.internal/x")
    assert hooked.hooks.recipients_of(called()) == [one]
    hooked.grant(*MAY[1:])
    assert hooked.hooks.recipients_of(called()) == []
    hooked.grant(*MAY)
    del hooked.known.actors[ANA.party]
    assert hooked.hooks.recipients_of(called()) == []
    hooked.known.actors[ANA.party] = ANA
    assert hooked.hooks.recipients_of(called()) == [one]
    hooked.hooks.options = replace(OPTIONS, allow_hosts=())
    assert hooked.hooks.recipients_of(called()) == []
    assert hooked.hooks.target_of(one) is None


async def test_one_that_was_disabled_is_asked_again_before_it_is_active() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.poster.replies["hooks.example.org"] = [HttpReply(410)]
    await hooked.round()
    assert (await hooked.kept(one)).state is WebhookState.DISABLED
    assert hooked.hooks.recipients_of(called()) == []
    await hooked.subscribe()
    assert hooked.hooks.recipients_of(called()) != []
    verified = [each for each in hooked.poster.headings if "verification" in each["webhook-id"]]
    assert len(verified) == 2


WITHIN = 20.0


def entry(number: int, actor: Actor = ANA, type: AuditType = AuditType.TOOL_EXECUTED) -> Entry:
    details = {"outcome": "ok"}
    return Entry(
        type, actor.party, NOW + SECOND, actor.kind, "files", f"t{number}", details=details
    )


async def tools(hooked: Hooked, one: WebhookSubscription) -> list[str]:
    """Of which calls something waits, in the order of posting."""
    found = await hooked.records.webhooks.posts(one.id)
    return [post.body.decode().partition('"tool_name":"')[2].partition('"')[0] for post in found]


@asynccontextmanager
async def living(hooked: Hooked) -> AsyncGenerator[None]:
    """The journal kept and looked through, until the end of its node."""
    looking = asyncio.create_task(hooked.intake.run())
    try:
        async with hooked.journal.run():
            yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        hooked.intake.stop()


async def until(hooked: Hooked, one: WebhookSubscription, *expected: str) -> None:
    async with asyncio.timeout(WITHIN):
        while await tools(hooked, one) != list(expected):
            await asyncio.sleep(0.01)


async def test_what_is_kept_is_to_be_posted_once_and_in_order() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe()
        for number in range(3):
            await hooked.journal.write(entry(number))
        await hooked.journal.write(entry(9, BEA))
        await until(hooked, one, "t0", "t1", "t2")
    ids = [post.event for post in await hooked.records.webhooks.posts(one.id)]
    assert len(set(ids)) == 3
    assert all(id.startswith("evt_") for id in ids)


async def test_what_was_kept_before_somebody_subscribed_is_not_for_it() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.write(entry(0))
        one = await hooked.subscribe()
        await hooked.journal.write(entry(1))
        await until(hooked, one, "t1")


async def test_what_a_dead_run_left_unseen_is_found_by_the_next() -> None:
    hooked = Hooked()
    async with hooked.journal.run():
        await hooked.journal.flush()
        one = await hooked.subscribe()
        await hooked.journal.write(entry(1))
        # It dies here: nobody has looked.
        assert await tools(hooked, one) == []
    hooked.journal.commit_listeners.clear()
    hooked.journal = AuditLog(hooked.records.audit_log, "n1", clock=lambda: hooked.now)
    hooked.intake = WebhookOutbox(hooked.hooks, hooked.journal)
    async with living(hooked):
        await hooked.journal.write(entry(2))
        await until(hooked, one, "t1", "t2")


async def test_the_last_entries_of_a_dead_node_are_found_by_others() -> None:
    hooked = Hooked()
    other = AuditLog(hooked.records.audit_log, "n2", clock=lambda: hooked.now)
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe()
        async with other.run():
            await other.write(entry(5))
        hooked.now = NOW + SECOND + 2 * POLL_INTERVAL
        await until(hooked, one, "t5")


async def test_where_somebody_else_was_first_nothing_is_taken_twice() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe()
        await hooked.journal.write(entry(0))
        await until(hooked, one, "t0")
        head = hooked.journal.head
        assert head is not None
        marks = await hooked.records.webhooks.marks()
        # As another node does it that has looked through the next entries already.
        moved = JournalCursor(head.node, marks[head.node], head.seq + 1)
        assert await hooked.records.webhooks.add([], 9, moved)
        await hooked.journal.write(entry(1))
        await hooked.journal.write(entry(2))
        await until(hooked, one, "t0", "t2")


async def test_entries_for_nobody_move_the_mark_seldom() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="system.error")
        before = await hooked.records.webhooks.marks()
        await hooked.journal.write(entry(0))
        await asyncio.sleep(0)
        assert await hooked.records.webhooks.marks() == before
        for number in range(UNMARKED):
            hooked.journal.enqueue(entry(number))
        await hooked.journal.flush()
        async with asyncio.timeout(WITHIN):
            while await hooked.records.webhooks.marks() == before:
                await asyncio.sleep(0.01)
        assert await tools(hooked, one) == []


async def test_an_answer_waits_for_what_is_for_somebody_and_for_nothing_else() -> None:
    hooked = Hooked()
    assert not hooked.intake.is_awaited(entry(0))
    await hooked.subscribe()
    assert hooked.intake.is_awaited(entry(0))
    assert not hooked.intake.is_awaited(entry(0, BEA))
    assert not hooked.intake.is_awaited(entry(0, type=AuditType.AUDIT_LOG_OPENED))
    hooked.grant(*MAY[1:])
    assert not hooked.intake.is_awaited(entry(0))


async def test_what_stands_in_no_journal_is_heard_too_and_once() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="*")
        await asyncio.sleep(0)
        said = {"tool_name": "begun"}
        begun = GatewayEvent("x1", STARTED, NOW, Severity.INFO, said, "files", "t", ANA.party)
        for _ in range(2):
            hooked.plane.publish(begun)
        state = {"tool_name": "state"}
        hooked.plane.publish(GatewayEvent("x2", SERVER_STATE, NOW, Severity.INFO, state, "files"))
        theirs = {"tool_name": "theirs"}
        hooked.plane.publish(
            GatewayEvent("x3", "model.usage", NOW, Severity.INFO, theirs, source="files")
        )
        # What stands in the journal is not taken from the plane.
        done = {"tool_name": "done"}
        hooked.plane.publish(
            GatewayEvent("x4", "tool.completed", NOW, Severity.INFO, done, "files", "t", ANA.party)
        )
        async with asyncio.timeout(WITHIN):
            # That it was subscribed is an event of no tool.
            while len(heard := [each for each in await tools(hooked, one) if each]) < 3:
                await asyncio.sleep(0.01)
        assert heard == ["begun", "state", "theirs"]
        await hooked.subscribing.remove(ANA, one.id)
        assert len(hooked.plane) == 0


async def test_what_is_too_long_is_told_without_its_data() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="model.*")
        await asyncio.sleep(0)
        huge = {"text": "x" * 300_000}
        hooked.plane.publish(
            GatewayEvent("x1", "model.usage", NOW, Severity.INFO, huge, source="files")
        )
        async with asyncio.timeout(WITHIN):
            while not (posts := await hooked.records.webhooks.posts(one.id)):
                await asyncio.sleep(0.01)
        assert b'"is_shortened":true' in posts[0].body


async def test_a_server_cannot_write_into_the_head_of_a_post() -> None:
    """Nor take the name of another server's event, nor keep others' events from being posted."""
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="*")
        await asyncio.sleep(0)
        for source, id in (("files", "1"), ("mail", "1"), ("files", "a\r\nX: y"), ("files", "\0")):
            said: dict[str, object] = {"tool_name": source}
            hooked.plane.publish(
                GatewayEvent(id, "model.usage", NOW, Severity.INFO, said, source=source)
            )
        events: set[str] = set()
        async with asyncio.timeout(WITHIN):
            while len(events) < 4:
                await asyncio.sleep(0.01)
                # The gateway publishes events of its own, and the subscription is for all names.
                events = {
                    post.event
                    for post in await hooked.records.webhooks.posts(one.id)
                    if b'"model.usage"' in post.body
                }
    assert len(events) == 4
    assert not any(set(event) - set("evt_0123456789abcdef") for event in events)


async def test_who_may_again_hears_again() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="model.*")
        hooked.grant(*MAY[1:])
        await hooked.hooks.reread(one.id)
        hooked.grant(*MAY)
        async with asyncio.timeout(WITHIN):
            while not await hooked.records.webhooks.posts(one.id):
                event = ("model.usage", NOW, Severity.INFO, {"tool_name": "x"})
                hooked.plane.publish(GatewayEvent("m1", *event, source="files"))
                await asyncio.sleep(0.05)


ONE = WebhookSubscription(
    *("sub_1", "agent:ci", "key:k1", "https://hooks.example.org/", "*", Severity.DEBUG, NOW, None)
)


def test_who_hears_would_still_be_let_in() -> None:
    given_out = GivenOut()
    identity = Authenticator(given_out.register)
    recognise = actor_finder(identity)
    assert recognise(ONE) is None, "nobody knows the party"
    given_out.parties["agent:ci"] = Principal("agent:ci")
    given_out.keys["k1"] = ApiKey("k1", "agent:ci", b"mac")
    found = recognise(ONE)
    assert found is not None
    assert found.party == "agent:ci"
    given_out.keys["k1"] = ApiKey("k1", "agent:ci", b"mac", revoked_at=NOW)
    assert recognise(ONE) is None
    by_token = replace(ONE, credential="token", party="person:ana@example.org")
    known = recognise(by_token)
    assert known is not None
    assert known.kind is PrincipalKind.PERSON
    given_out.parties[by_token.party] = Principal(by_token.party, disabled=True)
    assert recognise(by_token) is None


def test_the_local_user_hears_while_the_gateway_is_local() -> None:
    local = replace(ONE, credential=LOCAL.credential, party=LOCAL.party)
    register = GivenOut().register
    assert actor_finder(Authenticator(register, is_local=True))(local) is LOCAL
    assert actor_finder(Authenticator(register))(local) is None
