"""Three gateways that are killed again and again: each event has its effect, and has it once."""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.storage import stores
from tests.cluster.nats_cluster import a_nats_cluster
from tests.cluster.postgres import a_postgres
from tests.cluster.push_storm import Deployment, Storm, deployed, event_names, killing
from tests.contracts.stores import run_on
from tests.events.webhook_gateway import Client
from tests.events.webhook_receiver import Receiver, a_receiver
from tests.live.end_to_end import models, words_in
from tests.pace import at_length, here

pytestmark = pytest.mark.timeout(7200)
EVENTS = at_length(10_000, 300)
KILLS = at_length(12, 3)
ANSWERED = at_length(1_000, 100)
SEED = 8
PATIENCE = 300.0


async def rows(deployment: Deployment, statement: str) -> list[Any]:
    return await run_on(deployment.store, statement)


async def known_everywhere(storm: Storm, receiver: Receiver) -> None:
    """Until every node posts to whoever subscribed at one of them."""
    async with asyncio.timeout(here(PATIENCE)):
        for name, origin in storm.deployment.origins.items():
            tried = 0
            while not any(f"first-{name}" in each for each in told_to(receiver)):
                tried += 1
                await storm.push(origin, [f"first-{name}-{tried}"], "ci")
                await asyncio.sleep(0.5)


def told_to(receiver: Receiver) -> list[str]:
    return [said["data"]["event_id"] for _, said in receiver.taken]


async def settled(deployment: Deployment) -> None:
    """Until nothing waits any more, wherever it was claimed when somebody died."""
    async with asyncio.timeout(here(PATIENCE)):
        waiting = "SELECT count(*) FROM comity_jobs WHERE kind = 'push' AND state = 'waiting'"
        posts = "SELECT count(*) FROM comity_webhook_deliveries WHERE state = 'waiting'"
        while (await rows(deployment, waiting))[0][0] or (await rows(deployment, posts))[0][0]:
            await asyncio.sleep(0.2)


async def show_that_each_has_one_effect(
    deployment: Deployment, storm: Storm, events: list[str], receiver: Receiver
) -> None:
    event = "substr(key, length(group_key) + 2)"
    counted = f"SELECT group_key AS server, {event} AS event, state, result AS inference"
    found = await rows(deployment, f"{counted} FROM comity_jobs WHERE kind = 'push'")
    pushes = [each for each in found if not each["event"].startswith("first-")]
    assert sorted(each["event"] for each in pushes) == sorted(events)
    assert {each["state"] for each in pushes} == {"done"}

    begun = await rows(deployment, "SELECT id, cause FROM comity_turns")
    causes = Counter(each["cause"] for each in begun)
    wanted = {
        f"push:{each['server']}/{each['event']}": each["inference"]
        for each in pushes
        if not each["event"].startswith("post")
    }
    assert causes == Counter(list(wanted))
    assert {each["cause"]: each["id"] for each in begun} == wanted
    for event, told in storm.inferences.items():
        assert told == {wanted[f"push:ci/{event}"]}

    of_posts = [each for each in events if each.startswith("post")]
    told = [each for each in told_to(receiver) if not each.startswith("first")]
    assert set(told) == set(of_posts)
    # Each under one id, by which whoever is posted to knows it again.
    ids = {(id, said["data"]["event_id"]) for id, said in receiver.taken}
    assert len(ids) == len({id for id, _ in ids}) == len({event for _, event in ids})


async def taken(deployment: Deployment) -> None:
    """Until every turn has ended, whoever took it."""
    async with asyncio.timeout(here(PATIENCE)):
        over = "SELECT count(*) FROM comity_turns WHERE state IN ('waiting', 'decided')"
        while (await rows(deployment, over))[0][0]:
            await asyncio.sleep(0.2)


@pytest.mark.requirement("MCPL-9.4-dedupe")
async def test_each_event_is_answered_once_by_a_model_though_nodes_die(tmp_path: Path) -> None:
    events = [f"turn-{each}" for each in range(ANSWERED)]
    with (
        a_nats_cluster(tmp_path / "nats", 3) as nats,
        a_postgres() as postgres,
        models() as model,
    ):
        await stores.upgrade_store(postgres.url)
        timeout = aiohttp.ClientTimeout(here(60))
        async with (
            deployed(tmp_path, nats.urls, postgres.url, model.url) as deployment,
            aiohttp.ClientSession(timeout=timeout) as http,
        ):
            storm = Storm(deployment, http, random.Random(SEED))  # noqa: S311  # a test is to be repeated
            sends = storm.plan(events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(killing(storm, len(sends), 3))
                await storm.send_all(sends)
            await settled(deployment)
            await taken(deployment)
            turns = await rows(deployment, "SELECT cause, state FROM comity_turns")
            causes = Counter(each["cause"] for each in turns)
            assert causes == Counter(f"push:ci/{each}" for each in events)
            assert {each["state"] for each in turns} == {"done"}
            asked = {
                words_in(each).partition("said of ")[2].split('"')[0] for each in model.asked()
            }
            assert asked == set(events)
            repeats = len(model.asked()) - len(events)
            print(
                f"{len(events)} turns, sent {storm.sent}, {deployment.kills} kills; the model "
                f"was asked {repeats} times more; load {os.getloadavg()[0]:.1f}"
            )


@pytest.mark.requirement("MCPL-9.4-dedupe")
async def test_each_event_has_one_effect_though_nodes_die_amid_it(tmp_path: Path) -> None:
    began, events = time.monotonic(), event_names(EVENTS)
    with a_nats_cluster(tmp_path / "nats", 3) as nats, a_postgres() as postgres:
        await stores.upgrade_store(postgres.url)
        timeout = aiohttp.ClientTimeout(here(60))
        async with (
            deployed(tmp_path, nats.urls, postgres.url) as deployment,
            aiohttp.ClientSession(timeout=timeout) as http,
            a_receiver() as receiver,
        ):
            client = Client(http, deployment.origins["a"])
            await client.greet()
            assert "result" in await client.subscribe(receiver.url, "push.received")
            storm = Storm(deployment, http, random.Random(SEED))  # noqa: S311  # a test is to be repeated
            await known_everywhere(storm, receiver)
            sends = storm.plan(events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(killing(storm, len(sends), KILLS))
                await storm.send_all(sends)
                sent_in = time.monotonic() - began
            await settled(deployment)
            await show_that_each_has_one_effect(deployment, storm, events, receiver)
            repeats = len(receiver.ids) - len(set(receiver.ids))
            print(
                f"{len(events)} events, planned {len(sends)}, sent {storm.sent} "
                f"({storm.again} again), {deployment.kills} kills, {sent_in:.0f} s of "
                f"{time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}; "
                f"{dict(storm.answers)}; posted twice: {repeats}"
            )
            assert deployment.kills == KILLS
            assert storm.answers["accepted"] + storm.answers["HTTP 202"] >= 1
