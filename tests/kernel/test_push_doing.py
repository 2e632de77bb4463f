"""What follows from pushes is done: in spite of failures, by others, and with one effect."""

import asyncio

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.live.push_doing import AT_ONCE, PRUNED_EVERY, Times
from comity.kernel.live.pushes import PushOptions
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.pushes import KeptPush, PushState
from tests.kernel.pushed import SECOND, TIMES, Effects, Node

AWAY = Unavailable("away", EXHAUSTED)


async def kept(node: Node, id: str = "e1") -> KeptPush:
    found = await node.records.get("ci", id)
    assert found is not None
    return found


async def test_what_fails_is_tried_again_when_it_is_due() -> None:
    node = Node()
    node.effects.problems = [AWAY, AWAY]
    assert await node.push("e1") == {"accepted": True}
    assert (await kept(node)).last_error == "away"
    await node.round()
    assert node.effects.tried == ["e1"], "it is not due"
    for seconds in (1, 2):
        node.later(seconds)
        await node.round()
    assert node.effects.tried == ["e1"] * 3
    assert (await kept(node)).state is PushState.DONE
    assert node.types == ["push_received", "push_done"]


async def test_what_cannot_be_done_at_all_fails_at_once_and_is_written_down() -> None:
    node = Node()
    node.effects.problems = [MalformedMessage("no such conversation", INVALID_PARAMS)]
    await node.push("e1")
    found = await kept(node)
    assert (found.state, found.last_error) == (PushState.FAILED, "no such conversation")
    assert node.types == ["push_received", "push_failed"]
    assert await node.records.retry(found.number, node.now)
    await node.round()
    assert (await kept(node)).state is PushState.DONE


async def test_what_is_tried_for_too_long_has_failed() -> None:
    node = Node()
    node.effects.problems = [AWAY] * 99
    await node.push("e1")
    for _ in range(20):
        node.later(9)
        await node.round()
    assert (await kept(node)).state is PushState.FAILED


async def test_a_bug_in_one_effect_keeps_no_other_from_being_done() -> None:
    node = Node()
    node.effects.problems = [ValueError("a bug")]
    await node.push("e1")
    assert (await node.push("e2"))["inferenceId"] == "inf_1"
    found = await kept(node)
    assert (found.state, "bug" in found.last_error) == (PushState.WAITING, True)


async def test_what_takes_too_long_is_given_up_and_tried_again() -> None:
    node = Node(times=Times(deadline=SECOND / 50, patience=TIMES.patience))
    node.effects.gate.clear()
    await node.push("e1")
    assert "too long" in (await kept(node)).last_error


async def test_what_a_dead_node_had_claimed_another_does_when_its_time_is_over() -> None:
    records, effects = MemoryRecords().pushes, Effects()
    dead, heir = Node(records, effects=effects), Node(records, effects=effects)
    effects.gate.clear()
    pushing = asyncio.ensure_future(dead.push("e1"))
    while not effects.tried:
        await asyncio.sleep(0)
    await heir.round()
    assert effects.tried == ["e1"], "it is the other's"
    heir.later(31)
    await heir.doing.look()
    effects.gate.set()
    await asyncio.gather(heir.doing.finish(), pushing)
    # Both have tried, and it was done once; what the one that was late says counts no more.
    assert effects.tried == ["e1", "e1"]
    assert effects.done == {"push:ci/e1": "inf_1"}
    assert (await kept(heir)).inference == "inf_1"
    assert [*dead.types, *heir.types].count("push_done") == 1


async def test_who_ends_leaves_what_it_held_to_others_at_once() -> None:
    records, effects = MemoryRecords().pushes, Effects()
    one, other = Node(records, effects=effects), Node(records, effects=effects)
    effects.gate.clear()
    pushing = asyncio.ensure_future(one.push("e1"))
    while not effects.tried:
        await asyncio.sleep(0)
    await one.doing.stop()
    assert (await pushing)["accepted"] is True
    effects.gate.set()
    await other.round()
    assert effects.done == {"push:ci/e1": "inf_1"}


async def test_it_goes_on_by_itself_and_what_is_old_is_forgotten() -> None:
    node = Node(times=Times(look=SECOND / 1000, remembered=SECOND, patience=TIMES.patience))
    node.effects.problems = [AWAY]
    await node.push("e1")
    node.later(1)
    running = asyncio.ensure_future(node.doing.run())
    async with asyncio.timeout(20):
        while (await kept(node)).state is not PushState.DONE:
            await asyncio.sleep(0.001)
        node.later(PRUNED_EVERY.total_seconds())
        node.doing.stirred.set()
        while await node.records.page():
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_no_more_is_begun_at_once_than_a_node_can_do_and_the_rest_is_not_forgotten() -> None:
    node = Node(
        options=PushOptions(of_server=None), times=Times(look=SECOND * 60, patience=TIMES.patience)
    )
    node.effects.gate.clear()
    count = 3 * AT_ONCE
    for each in range(count):
        assert (await node.push(f"e{each}", "ci.told"))["accepted"] is True
    assert len(node.effects.tried) == AT_ONCE
    running = asyncio.ensure_future(node.doing.run())
    node.effects.gate.set()
    async with asyncio.timeout(20):
        while len(node.effects.done) < count:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(node.effects.tried) == count
