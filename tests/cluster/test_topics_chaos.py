"""Topics at three nodes, while each part that they stand on fails in turn, and comes back.

300 members over three gateways, three NATS servers and PostgreSQL; a gateway is killed, a NATS
server, PostgreSQL, and one node is cut off as by a pulled cable. Nobody is given what is not for
it, nothing twice, each sender in order; what is lost is told; of the one server that only one node
may run, one acts at a time; no ask and no answer is lost.

The full size: `COMITY_CHAOS_ROUNDS=10`.
"""

import asyncio
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from secrets import token_hex

import aiohttp
import pytest

from comity.app.records import open_store
from comity.approvals.model import ApprovalState
from tests.cluster.chaos_scene import MEMBERS, PERSON, ROUNDS, SECONDS, Scene, a_scene, all_ready
from tests.cluster.namespaces import can_be_made
from tests.cluster.topic_crowd import unexplained, until

_ANSWERED = (ApprovalState.APPROVED, ApprovalState.CONSUMED)

pytestmark = [
    pytest.mark.timeout(240 + 240 * ROUNDS),
    pytest.mark.skipif(not can_be_made(), reason="network namespaces need root"),
]


async def keep_calling(scene: Scene, web: aiohttp.ClientSession, ends: asyncio.Event) -> None:
    """The one server, through any node; each call once, with a name of its own."""
    for number in itertools.count():
        if ends.is_set():
            return
        node, name = scene.chance.choice(scene.nodes), f"{token_hex(4)}-{number}"
        status, _ = await scene.post(web, node, "/tools/fenced__write", {"n": name})
        if status == 200:
            scene.done.add(name)
        await asyncio.sleep(0.05)


async def keep_asking(scene: Scene, web: aiohttp.ClientSession, ends: asyncio.Event) -> None:
    """Something dangerous: asked for at one node, answered at another, done through a third."""
    for number in itertools.count():
        name = f"wipe-{number}"
        while not ends.is_set() and not await _is_wiped(scene, web, name):
            await asyncio.sleep(0.2)
        if ends.is_set():
            return


async def _is_wiped(scene: Scene, web: aiohttp.ClientSession, name: str) -> bool:
    """Whether it was done, perhaps by a call whose answer was lost: nobody may do it again."""
    node = scene.chance.choice(scene.nodes)
    status, said = await scene.post(web, node, "/tools/fenced__wipe", {"n": name})
    if status == 200:
        scene.wiped.add(name)
    if any(line[:2] == ["wipe", name] for line in scene.lines()):
        return True
    scene.refused = f"{status} {said}"[:300]
    found = re.search(r'"approval_id": "([a-z0-9]+)"', json.dumps(said))
    if found is not None:
        # An approval that was spent on a call that failed has to be given again.
        path, word = f"/api/approvals/{found[1]}/answer", {"verdict": "accept", "reason": "chaos"}
        node = scene.chance.choice(scene.nodes)
        status, answered = await scene.post(web, node, path, word, PERSON)
        if status == 200:
            scene.accepted.add(found[1])
        scene.refused += f"; answered: {status} {answered}"[:300]
    return False


async def keep_talking(scene: Scene, ends: asyncio.Event) -> None:
    speakers = [member for n, member in enumerate(scene.members) if n % 10 == 0]
    while not ends.is_set():
        for member in speakers:
            await member.say()
        await asyncio.sleep(0.5)


# What fails


async def _all_talk_again(scene: Scene) -> None:
    """Everybody is in its topic, and hears what somebody says from now on."""
    await until(
        lambda: all(member.is_welcome.is_set() for member in scene.members), SECONDS, "all are back"
    )
    marks = {member.topic: (member, member.sent) for member in scene.members if member.sent}

    def is_heard() -> bool:
        return all(
            max(member.visits[-1].heard.get(marks[member.topic][0].party) or [0])
            > marks[member.topic][1]
            for member in scene.members
            if member.topic in marks and member.visits
        )

    await until(is_heard, SECONDS, "everybody hears what is said now")


async def _server_acts_again(scene: Scene) -> None:
    before = len(scene.lines())
    await until(lambda: len(scene.lines()) > before + 3, SECONDS, "the one server acts again")


async def kill_a_gateway(scene: Scene) -> None:
    # The one that runs the server, so that another has to.
    owner = scene.lines()[-1][-1].rpartition("-")[0]
    node = next((each for each in scene.nodes if each.name == owner), scene.nodes[0])
    node.kill()
    await _server_acts_again(scene)
    node.start()
    await all_ready(scene)


async def kill_a_nats_server(scene: Scene) -> None:
    server = scene.chance.choice(scene.nats.servers)
    server.kill()
    await _server_acts_again(scene)
    server.start()
    await scene.nats.ready()


async def kill_postgres(scene: Scene) -> None:
    await asyncio.to_thread(scene.postgres.kill)
    talked = sum(member.sent for member in scene.members)
    await until(
        lambda: sum(member.sent for member in scene.members) > talked + 20, SECONDS, "talk goes on"
    )
    await asyncio.to_thread(scene.postgres.start)


async def cut_a_node_off(scene: Scene) -> None:
    far = scene.nodes[-1]
    assert far.space is not None
    far.space.cut()
    try:
        await _server_acts_again(scene)
        here = {node.place for node in scene.nodes[:-1]}
        await until(
            lambda: all(
                member.is_welcome.is_set() and member.visits[-1].node in here
                for member in scene.members
            ),
            SECONDS,
            "all are at the nodes that are left",
        )
    finally:
        far.space.heal()
    await all_ready(scene)


FAULTS = (kill_a_gateway, kill_a_nats_server, kill_postgres, cut_a_node_off)


async def test_nothing_is_lost_untold_whoever_fails(tmp_path: Path) -> None:
    ends = asyncio.Event()
    timeout = aiohttp.ClientTimeout(15)
    async with a_scene(tmp_path) as scene, aiohttp.ClientSession(timeout=timeout) as web:
        living = [asyncio.create_task(member.live(ends)) for member in scene.members]
        await until(
            lambda: all(member.is_welcome.is_set() for member in scene.members), SECONDS, "all join"
        )
        work = [
            asyncio.create_task(keep_talking(scene, ends)),
            asyncio.create_task(keep_asking(scene, web, ends)),
            *(asyncio.create_task(keep_calling(scene, web, ends)) for _ in range(2)),
        ]
        try:
            await _server_acts_again(scene)
            for _ in range(ROUNDS):
                for fault in FAULTS:
                    await fault(scene)
                    await _all_talk_again(scene)
                    await _server_acts_again(scene)
        finally:
            ends.set()
            await asyncio.gather(*work)
            for member in scene.members:
                if member.line is not None:
                    await member.line.close()
            await asyncio.gather(*living)
        asks = await _asks(scene)
    _tell(scene, asks)
    _judge(scene, asks)


async def _asks(scene: Scene) -> Counter[ApprovalState]:
    records = open_store(scene.postgres.url)
    await records.open()
    try:
        found = await records.approval_requests.page(limit=1000)
        lost = scene.accepted - {ask.id for ask in found if ask.state in _ANSWERED}
        assert not lost, "answers that were taken are gone"
        return Counter(ask.state for ask in found)
    finally:
        await records.close()


def _judge(scene: Scene, asks: Counter[ApprovalState]) -> None:
    assert [fault for member in scene.members for fault in member.faults] == []
    assert unexplained(scene.members) == []
    lines = scene.lines()
    fences = [int(fence) for _, _, fence, _ in lines]
    assert fences == sorted(fences), "a server acted after another had taken its place"
    owners = {(fence, node) for _, _, fence, node in lines}
    assert len(owners) == len({fence for fence, _ in owners}), "two nodes had one fence"
    ran = Counter(n for _, n, _, _ in lines)
    assert [n for n, times in ran.items() if times > 1] == []
    assert scene.done <= ran.keys()
    assert scene.wiped <= ran.keys()
    # One may be open or accepted still when all ends; of the others each was used, and once.
    assert asks[ApprovalState.CONSUMED] >= len(scene.wiped) > 0
    assert asks.total() - asks[ApprovalState.CONSUMED] <= 1


def _tell(scene: Scene, asks: Counter[ApprovalState]) -> None:
    visits = [visit for member in scene.members for visit in member.visits]
    heard = sum(len(numbers) for visit in visits for numbers in visit.heard.values())
    sent = sum(member.sent for member in scene.members)
    taken = sum(len(member.taken) for member in scene.members)
    missed = sum(visit.missed for visit in visits)
    print(
        f"{MEMBERS} members, {len(visits)} connections: {sent} said, {taken} taken, {heard} given, "
        f"{missed} told as missed; {len(scene.lines())} calls at "
        f"{len({line[2] for line in scene.lines()})} owners, {len(scene.wiped)} approved and "
        f"done; asks: {dict(asks)}; last refused: {scene.refused}",
        file=sys.stderr,
    )
