"""Accounts on two nodes: each call has the right one, and a node that dies loses none."""

import asyncio
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.storage import stores
from tests.accounts.scene import AGENT, ANA, BEN, SECONDS, SERVER, AccountScene, an_account_scene
from tests.cluster.nats_cluster import a_nats_cluster
from tests.cluster.nodes import modern
from tests.cluster.postgres import a_postgres
from tests.cluster.test_workers import lines_to_both

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def scene(tmp_path: Path) -> Generator[AccountScene]:
    with a_nats_cluster(tmp_path, 1) as bus, a_postgres() as postgres:
        asyncio.run(stores.upgrade_store(postgres.url))
        with an_account_scene(tmp_path, store=postgres.url, nats=bus.urls[0], nodes=2) as made:
            yield made


@pytest.fixture
def worker_scene(tmp_path: Path) -> Generator[AccountScene]:
    with an_account_scene(tmp_path, workers=2) as made:
        yield made


async def test_both_nodes_use_the_right_account_and_a_killed_refresh_leaves_one(
    scene: AccountScene,
) -> None:
    for place, person in enumerate((ANA, BEN)):
        scene.realm.person = person.partition(":")[2]
        await scene.connect(person, node=place)
    scene.wait_for_server()
    for node in (0, 1):
        assert await scene.call(ANA, node=node) == "ana"
        assert await scene.call(BEN, node=node) == "ben"
        assert await scene.call(AGENT, node=node) == "ana"
    # Both nodes find the token expired at the same time. One of them refreshes it.
    scene.realm.expire_all()
    calls = (scene.call(ANA, node=node) for node in (0, 1, 0, 1))
    assert await asyncio.gather(*calls) == ["ana"] * 4
    assert scene.realm.grants.count("refresh_token") == 1
    # The node that refreshes dies before its request was answered.
    scene.realm.may_refresh.clear()
    scene.realm.expire_all()
    begun = scene.realm.refreshes_begun
    lost = asyncio.create_task(scene.call(ANA))
    async with asyncio.timeout(SECONDS):
        while scene.realm.refreshes_begun == begun:
            await asyncio.sleep(0.02)
    os.kill(scene.programs[0].pid, signal.SIGKILL)
    scene.realm.drops_held = True
    scene.realm.may_refresh.set()
    await asyncio.gather(lost, return_exceptions=True)
    # The other node takes over once the lease of the dead one has ended.
    assert await scene.call(ANA, node=1) == "ana"
    valid = [each for each in scene.realm.refreshing.values() if each.user == "ana"]
    assert len(valid) == 1


async def test_no_node_uses_an_account_that_was_disconnected_at_another(
    scene: AccountScene,
) -> None:
    scene.realm.person = "ben"
    await scene.connect(BEN)
    scene.wait_for_server()
    # Each node has the token at hand, and a plan of the call.
    for node in (0, 0, 1, 1):
        assert await scene.call(BEN, node=node) == "ben"
    (account,) = (await scene.api("GET", "/api/accounts", BEN))["accounts"]
    granted = dict(scene.realm.access)
    await scene.api("POST", f"/api/accounts/{account['id']}/disconnect", BEN)
    # An authorization server may answer that a token is revoked, and accept it all the same.
    scene.realm.access |= granted
    for node in (0, 1):
        async with asyncio.timeout(SECONDS):
            while await scene.call(BEN, node=node) == "ben":
                await asyncio.sleep(0.05)


async def test_both_workers_use_an_account_that_a_person_changed(
    worker_scene: AccountScene,
) -> None:
    """The page of the sign-in is served by one worker. The other one has a plan and a token."""
    scene = worker_scene
    (origin,) = scene.origins
    scene.realm.person = "ana"
    await scene.connect(ANA)
    scene.wait_for_server()
    async with lines_to_both(origin, scene.keys[ANA]) as lines:
        assert len(lines) == 2
        for http in lines.values():
            for _ in range(2):
                assert await _name_at_server(http, origin) == "ana"
        scene.realm.person = "ben"
        await scene.connect(ANA)
        for http in lines.values():
            async with asyncio.timeout(SECONDS):
                while await _name_at_server(http, origin) != "ben":
                    await asyncio.sleep(0.05)
        for http in lines.values():
            for _ in range(3):
                assert await _name_at_server(http, origin) == "ben"


async def _name_at_server(http: aiohttp.ClientSession, origin: str) -> str:
    call = {"name": f"{SERVER}__whoami", "arguments": dict[str, Any]()}
    return (await modern(http, origin, "tools/call", call)).text
