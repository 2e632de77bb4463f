"""From the journal to what is posted: each entry once, whoever dies when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.kernel.journal import Journal
from comity.kernel.webhook_intake import EVERY, UNMARKED, Intake
from comity.ports.webhooks import Mark
from comity.rules.standard_channels import SERVER_STATE, STARTED
from comity.wire.audit import Event as Entry
from comity.wire.audit import Type
from comity.wire.events import Event, Severity
from comity.wire.parties import Actor
from comity.wire.webhooks import Subscription
from tests.kernel.hooked import ANA, BEA, MAY, NOW, SECOND, Hooked

WITHIN = 20.0


def entry(number: int, actor: Actor = ANA, type: Type = Type.TOOL_EXECUTED) -> Entry:
    details = {"outcome": "ok"}
    return Entry(
        type, actor.party, NOW + SECOND, actor.kind, "files", f"t{number}", details=details
    )


async def tools(hooked: Hooked, one: Subscription) -> list[str]:
    """Of which calls something waits, in the order of posting."""
    found = await hooked.records.webhooks.posts(one.id)
    return [post.body.decode().partition('"tool_name":"')[2].partition('"')[0] for post in found]


@asynccontextmanager
async def living(hooked: Hooked) -> AsyncGenerator[None]:
    """The journal kept and looked through, until the end of its node."""
    looking = asyncio.create_task(hooked.intake.run())
    try:
        async with hooked.journal.kept():
            yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        hooked.intake.stop()


async def until(hooked: Hooked, one: Subscription, *expected: str) -> None:
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
    async with hooked.journal.kept():
        await hooked.journal.flush()
        one = await hooked.subscribe()
        await hooked.journal.write(entry(1))
        # It dies here: nobody has looked.
        assert await tools(hooked, one) == []
    hooked.journal.committed.clear()
    hooked.journal = Journal(hooked.records.journal, "n1", clock=lambda: hooked.now)
    hooked.intake = Intake(hooked.hooks, hooked.journal)
    async with living(hooked):
        await hooked.journal.write(entry(2))
        await until(hooked, one, "t1", "t2")


async def test_the_last_entries_of_a_dead_node_are_found_by_others() -> None:
    hooked = Hooked()
    other = Journal(hooked.records.journal, "n2", clock=lambda: hooked.now)
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe()
        async with other.kept():
            await other.write(entry(5))
        hooked.now = NOW + SECOND + 2 * EVERY
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
        moved = Mark(head.node, marks[head.node], head.seq + 1)
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
            hooked.journal.note(entry(number))
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
    assert not hooked.intake.is_awaited(entry(0, type=Type.JOURNAL_OPENED))
    hooked.grant(*MAY[1:])
    assert not hooked.intake.is_awaited(entry(0))


async def test_what_stands_in_no_journal_is_heard_too_and_once() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="*")
        await asyncio.sleep(0)
        said = {"tool_name": "begun"}
        begun = Event("x1", STARTED, NOW, Severity.INFO, said, "files", "t", ANA.party)
        for _ in range(2):
            hooked.plane.publish(begun)
        state = {"tool_name": "state"}
        hooked.plane.publish(Event("x2", SERVER_STATE, NOW, Severity.INFO, state, "files"))
        theirs = {"tool_name": "theirs"}
        hooked.plane.publish(Event("x3", "model.usage", NOW, Severity.INFO, theirs, source="files"))
        # What stands in the journal is not taken from the plane.
        done = {"tool_name": "done"}
        hooked.plane.publish(
            Event("x4", "tool.completed", NOW, Severity.INFO, done, "files", "t", ANA.party)
        )
        async with asyncio.timeout(WITHIN):
            while len(await tools(hooked, one)) < 3:
                await asyncio.sleep(0.01)
        assert await tools(hooked, one) == ["begun", "state", "theirs"]
        await hooked.subscribing.remove(ANA, one.id)
        assert len(hooked.plane) == 0


async def test_what_is_too_long_is_told_without_its_data() -> None:
    hooked = Hooked()
    async with living(hooked):
        await hooked.journal.flush()
        one = await hooked.subscribe(name="model.*")
        await asyncio.sleep(0)
        huge = {"text": "x" * 300_000}
        hooked.plane.publish(Event("x1", "model.usage", NOW, Severity.INFO, huge, source="files"))
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
            hooked.plane.publish(Event(id, "model.usage", NOW, Severity.INFO, said, source=source))
        async with asyncio.timeout(WITHIN):
            while len(posts := await hooked.records.webhooks.posts(one.id)) < 4:
                await asyncio.sleep(0.01)
    assert len({post.event for post in posts}) == 4
    assert not any(set(post.event) - set("evt_0123456789abcdef") for post in posts)


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
                hooked.plane.publish(Event("m1", *event, source="files"))
                await asyncio.sleep(0.05)
