"""Pushes are admitted once, as far as an operator lets them, and told what came of them."""

import asyncio

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.live.pushes import PushOptions
from comity.rules.rates import Rate
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.pushes import PushState
from tests.kernel.pushed import Effects, Lately, Node, told


async def test_a_push_begins_its_turn_and_is_told_which() -> None:
    node = Node()
    assert await node.push("e1") == {"accepted": True, "inferenceId": "inf_1"}
    kept = await node.records.get("ci", "e1")
    assert kept is not None
    assert (kept.state, kept.inference) == (PushState.DONE, "inf_1")
    assert node.types == ["push_received", "push_done"]


async def test_a_push_that_comes_again_is_told_what_came_of_the_first() -> None:
    node = Node()
    await node.push("e1")
    again = await node.push("e1")
    assert (again["accepted"], again["inferenceId"]) == (False, "inf_1")
    assert again["reason"].startswith("duplicate")
    assert node.effects.tried == ["e1"]
    assert node.types == ["push_received", "push_done"]


async def test_of_many_at_once_one_is_accepted() -> None:
    node = Node()
    answers = await asyncio.gather(*(node.push("e1") for _ in range(20)))
    assert [each["accepted"] for each in answers].count(True) == 1
    assert node.effects.tried == ["e1"]


async def test_what_nobody_routes_is_not_accepted_and_not_kept() -> None:
    node = Node()
    answer = await node.push("e1", "ci.other")
    assert (answer["accepted"], answer["reason"][:8]) == (False, "no route")
    assert await node.records.page() == []
    assert node.types == ["push_refused"]


async def test_what_is_routed_to_nothing_is_accepted_and_counts_as_done() -> None:
    node = Node()
    assert await node.push("e1", "ci.noise") == {"accepted": True}
    assert node.effects.tried == []
    assert (await node.push("e1", "ci.noise"))["accepted"] is False
    kept = await node.records.get("ci", "e1")
    assert kept is not None
    assert kept.state is PushState.DONE


async def test_who_waits_for_no_turn_is_answered_before_it_is_done() -> None:
    node = Node()
    node.effects.gate.clear()
    assert await node.push("e1", "ci.told") == {"accepted": True}
    node.effects.gate.set()
    await node.doing.finish()
    assert list(node.effects.done) == ["push:ci/e1"]


async def test_a_server_pushes_no_more_in_a_minute_than_it_may() -> None:
    node = Node(options=PushOptions(of_server=Rate(3, 60.0, 3)))
    answers = [await node.push(f"e{each}") for each in range(5)]
    assert [each["accepted"] for each in answers] == [True] * 3 + [False] * 2
    assert answers[3]["reason"].startswith("rate: ")
    node.later(20)
    # What was refused for its number was not kept, so that it can come again.
    assert (await node.push("e3"))["accepted"] is True


async def test_each_feature_set_has_a_rate_of_its_own() -> None:
    node = Node(options=PushOptions(of_set=Rate(2, 60.0, 2)))
    builds = [(await node.push(f"e{each}"))["accepted"] for each in range(3)]
    assert builds == [True, True, False]
    assert (await node.push("n", "ci.noise"))["accepted"] is True


async def test_a_flood_is_written_down_in_few_words() -> None:
    node = Node(options=PushOptions(of_server=Rate(1, 60.0, 1)))
    for each in range(1_000):
        await node.push(f"e{each}")
    assert node.types.count("push_refused") <= 100


async def test_a_push_that_is_too_large_is_an_error() -> None:
    node = Node(options=PushOptions(most_bytes=500))
    with pytest.raises(MalformedMessage) as refused:
        await node.push("e1", origin={"x": "y" * 500})
    assert refused.value.fault is INVALID_PARAMS


async def test_no_server_pushes_in_the_name_of_a_webhook() -> None:
    with pytest.raises(MalformedMessage):
        await Node().pushes.answer(told({}, server="hook:github"))


async def test_no_more_wait_than_there_is_room_for_and_the_server_is_told() -> None:
    node = Node(options=PushOptions(most_waiting=1))
    node.effects.problems = [Unavailable("away", EXHAUSTED)] * 9
    await node.push("e1")
    answer = await node.push("e2")
    assert (answer["accepted"], "wait already" in answer["reason"]) == (False, True)


async def test_no_word_of_a_push_is_in_the_journal() -> None:
    node = Node()
    await node.push("e1", origin={"token": "hidden"})
    await node.push("e2", "ci.other")
    assert "secret words" not in str(node.entries)
    assert "hidden" not in str(node.entries)


# Several nodes


def two(options: PushOptions | None = None) -> tuple[Node, Node, Lately]:
    records, effects, lately = MemoryRecords().pushes, Effects(), Lately()
    nodes = [Node(records, options, effects=effects) for _ in range(2)]
    for node in nodes:
        node.pushes.firsts = lately
    return nodes[0], nodes[1], lately


async def test_what_one_node_took_another_knows() -> None:
    one, other, _ = two()
    await one.push("e1")
    assert (await other.push("e1"))["inferenceId"] == "inf_1"
    assert one.effects.tried == ["e1"]


async def test_what_a_node_took_that_died_before_it_was_kept_is_taken_again() -> None:
    one, _, lately = two()
    lately.keys.add("push:ci/e1")
    assert (await one.push("e1"))["accepted"] is True


async def test_without_jetstream_the_store_knows_enough() -> None:
    one, other, lately = two()
    lately.is_away = True
    assert (await one.push("e1"))["accepted"] is True
    assert (await other.push("e1"))["accepted"] is False


async def test_without_a_store_jetstream_is_believed_and_needed() -> None:
    fleeting = PushOptions(is_lasting=False)
    one, _, lately = two(fleeting)
    other = Node(options=fleeting)
    other.pushes.firsts = lately
    assert (await one.push("e1"))["accepted"] is True
    assert (await other.push("e1"))["accepted"] is False
    lately.is_away = True
    with pytest.raises(Unavailable):
        await other.push("e2")
