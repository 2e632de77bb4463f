"""Killed again and again under load: what was done is in the journal, and nothing is done twice.

32 callers never stop; the gateway is killed with -9, and so is PostgreSQL. Afterwards the journal,
the replies that callers got and the effects of the tools themselves are held against each other.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.app.records import open_store
from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.audit.chain import AuditFilter
from comity.audit.events import AuditEvent, AuditResult, AuditType, event_of
from tests.cluster.postgres import Postgres
from tests.interop.processes import Program, accepts, free_port, operator_headers, running

KILLS = int(os.environ.get("COMITY_CRASH_KILLS", "2"))
STORE_KILLS = int(os.environ.get("COMITY_CRASH_STORE_KILLS", "1"))
"""The full size is 20 and 5."""

CALLERS = 32
ASKERS = 4
PEPPER = {"COMITY_PEPPER": "pepper-" * 8}

pytestmark = pytest.mark.timeout(120 + 40 * (KILLS + STORE_KILLS))


@dataclass
class Scene:
    """A gateway that may die at any time, before a server that does not."""

    postgres: Postgres
    folder: Path
    upstream: int
    effects: Path
    port: int = 0
    gateway: Program | None = None
    done: set[str] = field(default_factory=set[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    unanswered: set[str] = field(default_factory=set[str])
    opened: set[str] = field(default_factory=set[str])
    accepted: set[str] = field(default_factory=set[str])

    async def start(self) -> None:
        self.port = self.port or free_port()
        config = self.folder / "comity.toml"
        config.write_text(_settings(self))
        command = [sys.executable, "-m", "comity.cli", "serve", "-c", str(config)]
        self.gateway = Program(command, PEPPER)
        await asyncio.to_thread(self.gateway.wait_for_line, "server 'effects' is ready")

    def kill(self) -> None:
        assert self.gateway is not None
        os.killpg(self.gateway.pid, signal.SIGKILL)
        self.gateway.stop()
        self.gateway = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ran(self) -> Counter[str]:
        """How often each call took effect, by the tool's own word."""
        return Counter(self.effects.read_text().split("\n")[:-1])


def _settings(scene: Scene) -> str:
    return f"""
port = {scene.port}
[store]
url = {json.dumps(scene.postgres.url)}
policy_max_staleness = "10m"
[audit]
node = "crash"
key_file = {json.dumps(str(scene.folder / "journal-key"))}
arguments = "all"
write_timeout = "2s"
max_queued = 200
[approvals]
client_wait = "500ms"
request_ttl = "10m"
approval_ttl = "10m"
[[servers]]
id = "effects"
url = "http://127.0.0.1:{scene.upstream}/mcp"
[servers.tools.write]
risk = "dangerous"
[servers.tools.look]
risk = "safe"
[servers.tools.wipe]
risk = "dangerous"
require_approval = "always"
"""


@asynccontextmanager
async def a_scene(postgres: Postgres, folder: Path) -> AsyncGenerator[Scene]:
    scene = Scene(postgres, folder, free_port(), folder / "effects")
    scene.effects.touch()
    command = ["-m", "tests.cluster.effects_server", str(scene.upstream), str(scene.effects)]
    with running([sys.executable, *command]) as effects:
        effects.wait_until(lambda: accepts(scene.upstream))
        try:
            await scene.start()
            yield scene
        finally:
            if scene.gateway is not None:
                scene.gateway.stop()


async def post(scene: Scene, web: aiohttp.ClientSession, path: str, body: object) -> Any:
    """What was answered; None where nobody did."""
    try:
        shown = operator_headers(scene.url(path))
        async with web.post(scene.url(path), json=body, headers=shown) as answer:
            return await answer.json()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def keep_calling(scene: Scene, web: aiohttp.ClientSession, ends: asyncio.Event) -> None:
    """Each call once, with a name of its own; whoever gets no answer does not ask again."""
    number = 0
    me = random.randbytes(4).hex()  # noqa: S311  # a name, no secret
    while not ends.is_set():
        number += 1
        n = f"{me}-{number}"
        said = await post(scene, web, "/tools/effects__write", {"n": n})
        if said is None:
            scene.unanswered.add(f"write {n}")
            await asyncio.sleep(0.05)
        elif "error" in said:
            scene.refused[said["error"]["data"]["error_type"]] += 1
            await asyncio.sleep(0.02)
        else:
            scene.done.add(f"write {n}")


async def keep_asking(
    scene: Scene, web: aiohttp.ClientSession, ends: asyncio.Event, who: int
) -> None:
    """Have a call approved, and make it again until it ran; through every death."""
    number = 0
    while not ends.is_set():
        number += 1
        n = f"ask-{who}-{number}"
        ask = ""
        while not ends.is_set():
            said = await post(scene, web, "/tools/effects__wipe", {"n": n})
            if said is None:
                if ask:
                    # It may have run: made again it would need another approval.
                    scene.unanswered.add(f"wipe {n}")
                    break
                await asyncio.sleep(0.05)
            elif "error" not in said:
                scene.done.add(f"wipe {n}")
                break
            else:
                ask = said["error"]["data"].get("details", {}).get("approval_id", "") or ask
                if ask and ask not in scene.accepted:
                    scene.opened.add(ask)
                    yes = await post(
                        scene, web, f"/api/approvals/{ask}/answer", {"verdict": "accept"}
                    )
                    if yes is not None and "error" not in yes:
                        scene.accepted.add(ask)
                await asyncio.sleep(0.02)


async def entries(postgres: Postgres) -> list[AuditEvent]:
    found, sought = list[AuditEvent](), AuditFilter()
    records = open_store(postgres.url)
    await records.open()
    try:
        while page := await records.audit_log.find(sought, 2_000):
            found += [event_of(line.body) for line in page]
            last = page[-1]
            sought = AuditFilter(after=(last.at, last.node, last.seq))
    finally:
        await records.close()
    return found


async def asks(postgres: Postgres) -> dict[str, ApprovalRequest]:
    records = open_store(postgres.url)
    await records.open()
    found, after = dict[str, ApprovalRequest](), ""
    try:
        while page := await records.approval_requests.page((), after):
            found |= {ask.id: ask for ask in page}
            after = page[-1].id
    finally:
        await records.close()
    return found


async def live_through(scene: Scene) -> None:
    """All the deaths, with everybody calling all the time."""
    ends = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as web:
        callers = [asyncio.ensure_future(keep_calling(scene, web, ends)) for _ in range(CALLERS)]
        callers += [
            asyncio.ensure_future(keep_asking(scene, web, ends, who)) for who in range(ASKERS)
        ]
        deaths = ["gateway"] * KILLS + ["store"] * STORE_KILLS
        random.Random(5).shuffle(deaths)  # noqa: S311  # an order, no secret
        for death in deaths:
            had = len(scene.done)
            async with asyncio.timeout(60):
                while len(scene.done) < had + 40:
                    await asyncio.sleep(0.02)
            if death == "gateway":
                scene.kill()
                await scene.start()
            else:
                await asyncio.to_thread(scene.postgres.kill)
                await asyncio.sleep(0.5)
                await asyncio.to_thread(scene.postgres.start)
        had = len(scene.done)
        async with asyncio.timeout(60):
            while len(scene.done) < had + 40:
                await asyncio.sleep(0.02)
        ends.set()
        await asyncio.gather(*callers)


async def test_nothing_is_lost_and_nothing_is_done_twice(
    postgres: Postgres, tmp_path: Path
) -> None:
    async with a_scene(postgres, tmp_path) as scene:
        await live_through(scene)
        # One more death and start: whatever is in doubt is told then.
        scene.kill()
        await scene.start()
    found = await entries(postgres)
    ran, kept = scene.ran(), await asks(postgres)
    calls: dict[str, str] = {}
    for event in found:
        if event.type == AuditType.CALL_INTENDED:
            arguments: Any = event.details["arguments"]
            calls[event.call] = f"{event.tool} {arguments['n']}"
    intended = set(calls.values())
    outcomes = [
        each for each in found if each.call in calls and each.type != AuditType.CALL_INTENDED
    ]
    told = {calls[each.call] for each in outcomes if each.result == AuditResult.SUCCESS}
    # Nothing ran twice.
    assert [name for name, count in ran.items() if count > 1] == []
    # No dangerous call reached the server without a durable intent.
    assert ran.keys() - intended == set()
    # No reply without its outcome in the journal.
    assert scene.done - told == set()
    # What was answered with a result has run.
    assert scene.done - ran.keys() == set()
    # Every intent has an ending, if only that nobody knows it; and what hid it was a death.
    settled = {each.call for each in outcomes}
    assert calls.keys() - settled == set()
    unknown = {calls[each.call] for each in outcomes if each.type == AuditType.OUTCOME_UNKNOWN}
    assert unknown & scene.done == set()
    # No ask and no answer was lost, and each authorised one call.
    assert scene.opened - kept.keys() == set()
    lost = [
        id
        for id in scene.accepted
        if kept[id].state not in (ApprovalState.APPROVED, ApprovalState.CONSUMED)
    ]
    assert lost == []
    used = Counter(ask.call for ask in kept.values() if ask.state is ApprovalState.CONSUMED)
    assert [call for call, count in used.items() if count > 1] == []
    wiped = [name for name in ran if name.startswith("wipe")]
    assert len(wiped) <= len([ask for ask in kept.values() if ask.state is ApprovalState.CONSUMED])
    print(
        f"\n  crash: {KILLS} + {STORE_KILLS} deaths, {len(scene.done)} answered, {len(ran)} ran, "
        f"{len(unknown)} unknown ({len(unknown & ran.keys())} of them ran), "
        f"{len(scene.accepted)} asks approved, refused {dict(scene.refused)}"
    )


async def test_without_its_store_what_must_be_kept_is_refused_and_the_rest_goes_on_up_to_a_cap(
    postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        a_scene(postgres, tmp_path) as scene,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as web,
    ):
        assert "error" not in await post(scene, web, "/tools/effects__look", {"n": "before"})
        await asyncio.to_thread(postgres.kill)
        try:
            refused = await post(scene, web, "/tools/effects__write", {"n": "never"})
            assert refused["error"]["data"]["retryable"] is True
            assert "cannot be written" in refused["error"]["data"]["reason"]
            went = 0
            async with asyncio.timeout(60):
                while True:
                    said = await post(scene, web, "/tools/effects__look", {"n": f"safe-{went}"})
                    if "error" in said:
                        break
                    went += 1
            assert 20 <= went <= 200
            assert said["error"]["data"]["retryable"] is True
        finally:
            await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(60):
            while "error" in await post(scene, web, "/tools/effects__write", {"n": "after"}):
                await asyncio.sleep(0.1)
        found = await entries(postgres)
    looked = {str(each.details.get("arguments")) for each in found if each.tool == "look"}
    assert {f"{{'n': 'safe-{number}'}}" for number in range(went)} <= looked
    assert scene.ran()["write never"] == 0
    assert scene.ran()["write after"] >= 1
