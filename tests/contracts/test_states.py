"""State as every store keeps it: whole steps, in order, whoever makes them at once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.live.settings import StateSettings
from comity.live.state.json_patch import JsonPatches
from comity.live.state.model import (
    CheckpointNode,
    CheckpointRemoval,
    CheckpointTree,
    CurrentState,
    NewCheckpoint,
    StateCheckpoint,
    StateForm,
    StateKey,
    StateStore,
    StateSummary,
)
from comity.live.state.service import StateService
from tests.contracts.stores import Open
from tests.pace import at_length

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOTES = StateKey("desk", "notes.edit")
WHOLE = NewCheckpoint("chk_a", NOW, None, None, StateForm.DATA, 0, b'{"notes":[]}')
PATCH = b'[{"op":"add","path":"/notes/-","value":1}]'
ROUNDS = at_length(40, 15)


def after(node: CheckpointNode, name: str, **more: Any) -> NewCheckpoint:
    new = NewCheckpoint(
        name, NOW, node.name, node.number, StateForm.PATCH, node.line + 1, b'{"n":1}', PATCH
    )
    return replace(new, **more)


async def added(states: StateStore, new: NewCheckpoint, place: StateKey = NOTES) -> CheckpointNode:
    node = await states.add(place, new)
    assert node is not None
    return node


async def test_nothing_is_kept_before_something_is(records: RecordStores) -> None:
    states = records.states
    assert await states.current(NOTES) is None
    assert await states.find(NOTES, "chk_a") is None
    assert await states.tree(NOTES) == CheckpointTree()
    assert await states.read_chain(NOTES, 1) == []
    assert await states.summaries() == []
    assert not await states.move(NOTES, 1, None, NOW)
    assert not await states.drop(NOTES, CheckpointRemoval(0, {1}, {}))
    assert await states.forget(NOTES) == 0
    await states.mark_lost(NOTES, 1)


async def test_a_checkpoint_comes_back_as_it_was_written(
    records: RecordStores, again: Open
) -> None:
    first = await added(records.states, WHOLE)
    assert first == CheckpointNode(first.number, "chk_a", NOW, None, None, StateForm.DATA, 0, 12)
    second = await added(records.states, after(first, "chk_b", why="a\0b", at=NOW + HOUR))
    other = (await again()).states
    assert await other.find(NOTES, "chk_a") == first
    assert await other.find(NOTES, "chk_b") == replace(second, why="a\N{REPLACEMENT CHARACTER}b")
    tree = await other.tree(NOTES)
    assert tree.nodes == {first.number: first, second.number: second}
    assert tree.head == second.number > first.number
    assert await other.current(NOTES) == CurrentState(second.number, "chk_b", b'{"n":1}')
    assert await other.read_chain(NOTES, second.number) == [b'{"notes":[]}', PATCH]
    assert await other.read_chain(NOTES, first.number) == [b'{"notes":[]}']
    held = StateSummary(NOTES, "chk_b", False, 2, 12 + len(PATCH), NOW + HOUR)
    assert await other.summaries() == [held]


async def test_sets_of_servers_are_apart_and_so_is_the_server_as_a_whole(
    records: RecordStores,
) -> None:
    places = [StateKey("a", ""), StateKey("a", "x"), StateKey("b", "x"), StateKey("a.x", "")]
    for number, place in enumerate(places):
        await added(records.states, replace(WHOLE, state=b"%d" % number), place)
    for number, place in enumerate(places):
        current = await records.states.current(place)
        assert current is not None
        assert current.data == b"%d" % number
    assert [each.state_key for each in await records.states.summaries()] == sorted(places)


async def test_an_opaque_checkpoint_has_a_name_and_no_state(records: RecordStores) -> None:
    first = await added(records.states, NewCheckpoint("chk_a", NOW))
    assert (first.form, first.size) == (StateForm.OPAQUE, 0)
    assert await records.states.current(NOTES) == CurrentState(first.number, "chk_a", None)
    assert await records.states.read_chain(NOTES, first.number) == []
    assert [each.is_opaque for each in await records.states.summaries()] == [True]


async def test_a_name_is_taken_once_and_what_is_rested_on_must_be_there(
    records: RecordStores,
) -> None:
    states = records.states
    first = await added(states, WHOLE)
    before = await states.tree(NOTES)
    assert await states.add(NOTES, WHOLE) is None
    assert await states.add(NOTES, after(replace(first, number=99), "chk_b")) is None
    assert await states.tree(NOTES) == before


async def test_one_takes_the_place_of_another_in_one_step(records: RecordStores) -> None:
    states = records.states
    first = await added(states, WHOLE)
    second = await added(states, after(first, "chk_b"))
    third = await added(states, after(second, "chk_c"))
    tree = await states.tree(NOTES)
    stale = CheckpointRemoval(tree.revision - 1, {second.number}, {third.number: b"3"})
    new = NewCheckpoint("chk_b", NOW, None, None, StateForm.DATA, 0, b"2")
    assert await states.add(NOTES, new, stale) is None
    assert await states.tree(NOTES) == tree
    node = await states.add(NOTES, new, replace(stale, revision=tree.revision))
    assert node is not None
    assert node.number > third.number
    found = (await states.tree(NOTES)).nodes
    assert set(found) == {first.number, third.number, node.number}
    assert (found[third.number].base, found[third.number].form) == (None, StateForm.DATA)
    assert await states.read_chain(NOTES, third.number) == [b"3"]
    assert await states.current(NOTES) == CurrentState(node.number, "chk_b", b"2")


async def test_the_head_moves_to_what_is_there(records: RecordStores) -> None:
    states = records.states
    first = await added(states, WHOLE)
    await added(states, after(first, "chk_b"))
    await states.mark_lost(NOTES, first.number)
    assert (await states.tree(NOTES)).nodes[first.number].is_lost
    assert await states.move(NOTES, first.number, b"1", NOW + HOUR)
    assert not await states.move(NOTES, 99, b"1", NOW)
    tree = await states.tree(NOTES)
    assert (tree.head, tree.nodes[first.number].is_lost) == (first.number, False)
    assert await states.current(NOTES) == CurrentState(first.number, "chk_a", b"1")
    assert [each.moved_at for each in await states.summaries()] == [NOW + HOUR]


async def test_what_is_dropped_leaves_what_rested_on_it_whole(records: RecordStores) -> None:
    states = records.states
    first = await added(states, WHOLE)
    second = await added(states, after(first, "chk_b"))
    aside = await added(states, NewCheckpoint("aside", NOW, "chk_a", first.number))
    third = await added(states, after(second, "chk_c"))
    tree = await states.tree(NOTES)
    dropped = CheckpointRemoval(tree.revision, {first.number}, {second.number: b'{"two":2}'})
    assert not await states.drop(NOTES, replace(dropped, revision=tree.revision - 1))
    assert await states.drop(NOTES, dropped)
    after_it = await states.tree(NOTES)
    assert after_it.revision > tree.revision
    assert set(after_it.nodes) == {second.number, aside.number, third.number}
    whole = after_it.nodes[second.number]
    assert (whole.form, whole.base, whole.line, whole.size) == (StateForm.DATA, None, 0, 9)
    assert after_it.nodes[aside.number].base is None
    assert await states.read_chain(NOTES, third.number) == [b'{"two":2}', PATCH]
    assert await states.current(NOTES) == CurrentState(third.number, "chk_c", b'{"n":1}')


async def test_two_are_dropped_of_which_one_rests_on_the_other(records: RecordStores) -> None:
    states = records.states
    first = await added(states, WHOLE)
    second = await added(states, after(first, "chk_b"))
    third = await added(states, after(second, "chk_c"))
    revision = (await states.tree(NOTES)).revision
    both = {first.number, second.number}
    assert await states.drop(NOTES, CheckpointRemoval(revision, both, {third.number: b"3"}))
    assert set((await states.tree(NOTES)).nodes) == {third.number}
    assert await states.read_chain(NOTES, third.number) == [b"3"]


async def test_what_is_forgotten_is_gone_and_no_number_comes_again(records: RecordStores) -> None:
    states = records.states
    first = await added(states, WHOLE)
    last = await added(states, after(first, "chk_b"))
    assert await states.forget(NOTES) == 2
    assert await states.current(NOTES) is None
    assert (await states.tree(NOTES)).nodes == {}
    assert await states.summaries() == []
    assert (await added(states, WHOLE)).number > last.number


async def test_what_cannot_be_written_down_is_refused(records: RecordStores) -> None:
    for wrong in (replace(WHOLE, name="a\0"), replace(WHOLE, at=NOW.replace(tzinfo=None))):
        with pytest.raises(MalformedMessage):
            await records.states.add(NOTES, wrong)
    assert await records.states.find(NOTES, "\0") is None
    assert await records.states.current(StateKey("\0", "")) is None


def host(records: RecordStores, most: int = 1_000) -> StateService:
    return StateService(
        records.states, JsonPatches(), StateSettings(max_checkpoints=most, retention=timedelta(0))
    )


def said(name: str, parent: str | None, number: int) -> StateCheckpoint:
    patch = b'[{"op":"add","path":"/%d","value":%d}]' % (number, number)
    return StateCheckpoint(name, parent, None, Raw(patch))


@pytest.mark.timeout(300)
async def test_all_that_is_left_at_once_on_two_nodes_is_kept(again: Open) -> None:
    nodes = [host(await again()), host(await again())]
    await nodes[0].keep(NOTES, StateCheckpoint("root", None, Raw(b'{"r":%s}' % (b"1" * 200))))
    await asyncio.gather(
        *(
            nodes[number % 2].keep(NOTES, said(f"chk_{number}", "root", number))
            for number in range(ROUNDS)
        )
    )
    tree = await nodes[0].tree(NOTES)
    assert {each.name for each in tree.nodes.values()} == {
        "root",
        *(f"chk_{number}" for number in range(ROUNDS)),
    }
    for number in range(ROUNDS):
        node = tree.find(f"chk_{number}")
        assert node is not None
        state = await nodes[1].state_of(NOTES, node)
        assert state == b'{"r":%s,"%d":%d}' % (b"1" * 200, number, number)
    # What counts is what was written last.
    assert tree.head == max(tree.nodes)
    current = await nodes[1].current(NOTES)
    assert current is not None
    assert current.data == await nodes[0].state_of(NOTES, tree.nodes[current.number])


@pytest.mark.timeout(300)
async def test_one_name_left_again_and_again_on_two_nodes_stays_one(again: Open) -> None:
    """A server that calls all of its states the same, each a patch of the one before."""
    nodes = [host(await again(), 3), host(await again(), 3)]
    await nodes[0].keep(NOTES, StateCheckpoint("now", None, Raw(b"{}")))
    await asyncio.gather(
        *(nodes[number % 2].keep(NOTES, said("now", "now", number)) for number in range(ROUNDS))
    )
    tree = await nodes[0].tree(NOTES)
    (only,) = tree.nodes.values()
    state = await nodes[0].state_of(NOTES, only)
    assert state is not None
    assert state.count(b":") == ROUNDS


@pytest.mark.timeout(300)
async def test_what_is_dropped_meanwhile_corrupts_nothing(again: Open) -> None:
    """Two nodes that keep few and patch one line, while each drops what the other rests on."""
    nodes = [host(await again(), 2), host(await again(), 2)]
    await nodes[0].keep(NOTES, StateCheckpoint("chk_0", None, Raw(b"{}")))

    async def lead(number: int) -> None:
        for step in range(ROUNDS):
            current = await nodes[number].current(NOTES)
            assert current is not None
            name = f"chk_{number}_{step}"
            await nodes[number].keep(NOTES, said(name, current.name, step))

    await asyncio.gather(lead(0), lead(1))
    tree = await nodes[0].tree(NOTES)
    assert tree.head == max(tree.nodes)
    assert len(tree.nodes) <= 4
    for node in tree.nodes.values():
        if node.form is not StateForm.OPAQUE:
            assert await nodes[1].state_of(NOTES, node) is not None
