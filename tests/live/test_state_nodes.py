"""Two gateways on one PostgreSQL, with one server's state between them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from comity.adapters.sql import migrating, postgres
from tests.contracts.stores import a_database
from tests.live.state_scene import Desk, House
from tests.pace import at_length

pytestmark = pytest.mark.timeout(600)
MANY = at_length(40, 16)


@pytest.fixture
async def desks(tmp_path: Path) -> AsyncGenerator[list[Desk]]:
    async with a_database() as url, AsyncExitStack() as stack:
        fresh = postgres.product(url)
        await migrating.upgrade(fresh.engine)
        await fresh.close()
        houses: list[Desk] = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            house = House(folder, f'[journal]\nnode = "{name}"\n', store=url)
            houses.append(await stack.enter_async_context(house.open()))
        yield houses


@pytest.mark.requirement("MCPL-8.3-store", "MCPL-8.4-state", "MCPL-8.2-tree")
async def test_what_one_node_was_left_the_other_carries(desks: list[Desk]) -> None:
    one, two = desks
    await one.call("add_note", text="one")
    assert (await two.call("add_note", text="two"))["beside"] == {"state": {"notes": ["one"]}}
    assert await one.current() == {"state": {"notes": ["one", "two"]}}
    root = (await one.get("desk", "notes.edit"))["checkpoints"][0]["checkpoint"]
    await two.raw("say", knows=[root])
    assert (await two.rollback(root))["success"]
    assert await one.current() == {"state": {"notes": ["one"]}}
    assert await one.get("desk", "notes.edit") == await two.get("desk", "notes.edit")


@pytest.mark.requirement("MCPL-8.3-apply", "MCPL-8.2-tree")
async def test_calls_at_both_nodes_at_once_lose_nothing(desks: list[Desk]) -> None:
    await desks[0].say("root", data={"pad": "x" * 300})

    async def leave(number: int) -> None:
        patch = [{"op": "add", "path": f"/{number}", "value": number}]
        await desks[number % 2].say(f"c{number}", parent="root", patch=patch)

    await asyncio.gather(*map(leave, range(MANY)))
    trees = [await desk.get("desk", "notes.edit") for desk in desks]
    assert trees[0] == trees[1]
    found = [each["checkpoint"] for each in trees[0]["checkpoints"]]
    assert sorted(found) == sorted(["root", *(f"c{number}" for number in range(MANY))])
    # What counts is the last that was written.
    assert trees[0]["head"] == found[-1]
    for number in range(0, MANY, 5):
        state = await desks[1].get("desk", "notes.edit", f"c{number}")
        assert state["data"] == {"pad": "x" * 300, str(number): number}
    carried = [await desk.current() for desk in desks]
    assert carried[0] == carried[1]
    assert carried[0]["state"].keys() == {"pad", trees[0]["head"][1:]}


@pytest.mark.requirement("MCPL-8.3-apply")
async def test_one_name_of_both_nodes_keeps_all_that_was_patched(desks: list[Desk]) -> None:
    """The hardest for two nodes: each patch is of what the other may just have written."""
    await desks[0].say("now", data={})

    async def leave(number: int) -> None:
        patch = [{"op": "add", "path": f"/{number}", "value": number}]
        await desks[number % 2].say("now", parent="now", patch=patch)

    await asyncio.gather(*map(leave, range(MANY)))
    assert (await desks[0].current())["state"] == {str(number): number for number in range(MANY)}
    assert len((await desks[1].get("desk", "notes.edit"))["checkpoints"]) == 1
