"""Whether and when a server is started again, and how its health is shown. (MGP §11.3, §11.5)"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.realm import offer
from tests.conformance.ways import Entry, Frame, Talk, Way, on_pipes
from tests.interop.crowds import Gateway, serving
from tests.interop.hand_client import SECONDS, over_http
from tests.interop.processes import operator_headers

NOTICE = "notifications/mgp.lifecycle"
NOTHING: Mapping[str, str] = {}
SOON: Entry = {"backoff_base": "20ms", "backoff_max": "40ms"}

pytestmark = pytest.mark.timeout(120)


class Lifetime:
    """One server of `servers/lifetime`, and what it wrote down."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"

    def entry(self, *, env: Mapping[str, str] = NOTHING, **settings: object) -> Entry:
        """One era only, so that each start is one process."""
        pipes = on_pipes("lifetime", LIFETIME_LOG=str(self.log), **env)
        return {**pipes, "protocol": "2025-11-25", **settings}

    def notes(self) -> list[Frame]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def starts(self) -> list[float]:
        return [note["at"] for note in self.notes() if "began" in note]

    def asked(self, method: str) -> list[Frame]:
        return [note["params"] for note in self.notes() if note.get("method") == method]


class Watched:
    """A gateway, a client that is told of every step, and what an operator sees."""

    def __init__(self, gateway: Gateway, talk: Talk) -> None:
        self.gateway = gateway
        self.talk = talk
        self._http = aiohttp.ClientSession(headers=operator_headers(gateway.origin))

    async def steps(self, server: str, last: str) -> list[tuple[str, str, str]]:
        """The states before and after, and the reason, up to that last state."""
        told: list[tuple[str, str, str]] = []
        async with asyncio.timeout(SECONDS * 2):
            while not told or told[-1][1] != last:
                step = (await self.talk.told(NOTICE))["params"]
                if step["server_id"] == server:
                    told.append((step["previous_state"], step["new_state"], step["reason"]))
        return told

    async def view(self, server: str) -> Frame:
        async with self._http.get(f"{self.gateway.origin}/api/servers/{server}") as reply:
            return await reply.json()

    async def until(self, server: str, state: str) -> Frame:
        async with asyncio.timeout(SECONDS * 2):
            while (view := await self.view(server))["state"] != state:
                await asyncio.sleep(0.02)
        return view

    async def exit(self, server: str, status: int) -> None:
        await self.talk.client.request(
            "tools/call", {"name": f"{server}__exit", "arguments": {"status": status}}
        )

    async def close(self) -> None:
        await self._http.close()


@asynccontextmanager
async def watching(folder: Path, servers: Mapping[str, Entry]) -> AsyncGenerator[Watched]:
    with serving(folder, servers) as gateway:
        way = Way("", lambda: over_http(gateway.door()), "")
        async with way.talk(offer("lifecycle")) as talk:
            await talk.client.listen()
            watched = Watched(gateway, talk)
            try:
                yield watched
            finally:
                await watched.close()


def states(steps: list[tuple[str, str, str]]) -> list[str]:
    return [steps[0][0], *(after for _, after, _ in steps)]


@pytest.fixture
def one(tmp_path: Path) -> Lifetime:
    return Lifetime(tmp_path, "one")


@pytest.mark.requirement("MGP-11.5-never", "MGP-11.2-error")
async def test_with_the_policy_never_a_server_that_fails_stays_in_error(
    tmp_path: Path, one: Lifetime
) -> None:
    async with watching(tmp_path, {"one": one.entry(restart_policy="never", **SOON)}) as watched:
        await watched.until("one", "connected")
        await watched.exit("one", 3)
        view = await watched.until("one", "error")
        assert "status 3" in view["reason"]
        assert (await watched.view("one"))["restarts"] == 0
        assert len(one.starts()) == 1


@pytest.mark.requirement("MGP-11.5-on_failure", "MGP-11.2-t-errrestart")
async def test_with_the_policy_on_failure_only_an_error_has_a_server_started_again(
    tmp_path: Path, one: Lifetime
) -> None:
    async with watching(tmp_path, {"one": one.entry(**SOON)}) as watched:
        await watched.until("one", "connected")
        await watched.exit("one", 3)
        steps = await watched.steps("one", "error") + await watched.steps("one", "connected")
        assert states(steps)[-4:] == ["error", "restarting", "connecting", "connected"]
        await watched.exit("one", 0)
        await watched.until("one", "disconnected")
        assert len(one.starts()) == 2
        called = await watched.talk.client.request("tools/call", {"name": "one__exit"})
        error = called.response["error"]
        assert (error["code"], error["data"]["_mgp"]["retryable"]) == (2000, True)
        await watched.until("one", "connected")
        assert len(one.starts()) == 3, "it was started because it was used"


@pytest.mark.parametrize("status", [0, 3])
async def test_with_the_policy_always_any_end_has_a_server_started_again(
    tmp_path: Path, one: Lifetime, status: int
) -> None:
    entry = one.entry(mgp={"restart_policy": "always", "backoff_base_ms": 20})
    async with watching(tmp_path, {"one": entry}) as watched:
        await watched.until("one", "connected")
        await watched.exit("one", status)
        steps = await watched.steps("one", "restarting") + await watched.steps("one", "connected")
        ended = "error" if status else "disconnected"
        assert states(steps)[-4:] == [ended, "restarting", "connecting", "connected"]


@pytest.mark.requirement("MGP-11.5-max_restarts", "MGP-11.5-restart_window_secs")
@pytest.mark.requirement("MGP-11.5-backoff_base_ms", "MGP-11.5-exceeded")
async def test_unless_told_otherwise_the_sixth_end_within_five_minutes_is_the_last(
    tmp_path: Path, one: Lifetime
) -> None:
    """The whole of it in real time: 1, 2, 4, 8 and 16 s at the most, and half of that at least."""
    async with watching(tmp_path, {"one": one.entry(env={"LIFETIME_BROKEN": "1"})}) as watched:
        async with asyncio.timeout(100):
            while "restart_limit_exceeded" not in (view := await watched.view("one"))["reason"]:
                await asyncio.sleep(0.2)
        assert view["state"] == "error"
        assert "started again 5 times in 300 s" in view["reason"]
        starts = one.starts()
        waits = [later - before for before, later in itertools.pairwise(starts)]
        assert len(starts) == 6
        for number, wait in enumerate(waits):
            assert wait >= 0.5 * 2**number
        await asyncio.sleep(1)
        assert len(one.starts()) == 6, "nobody tries any more"


@pytest.mark.requirement("MGP-11.5-backoff_max_ms", "MGP-11.5-config")
async def test_the_waits_are_those_that_the_table_of_the_server_says(
    tmp_path: Path, one: Lifetime
) -> None:
    table = {"max_restarts": 8, "backoff_base_ms": 400, "backoff_max_ms": 400}
    entry = one.entry(env={"LIFETIME_BROKEN": "1"}, mgp={**table, "restart_window_secs": 60})
    async with watching(tmp_path, {"one": entry}) as watched:
        async with asyncio.timeout(60):
            while "restart_limit_exceeded" not in (view := await watched.view("one"))["reason"]:
                await asyncio.sleep(0.1)
        assert "started again 8 times in 60 s" in view["reason"]
        starts = one.starts()
        assert len(starts) == 9
        # Doubled without a bound, the waits alone would add up to a minute and more.
        assert starts[-1] - starts[0] < sum(0.2 * 2**number for number in range(8))


@pytest.mark.requirement("MGP-11.3-nodepend")
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"status": "degraded", "checks": "none", "resources": []}, "degraded"),
        ({"status": "unhealthy"}, "unhealthy"),
        ({"anything": "else"}, None),
    ],
    ids=["odd details", "no details", "no status"],
)
async def test_what_a_server_says_of_its_health_is_shown_and_nothing_else_follows(
    tmp_path: Path, one: Lifetime, answer: Frame, shown: str | None
) -> None:
    entry = one.entry(env={"LIFETIME_HEALTH": json.dumps(answer)}, health_interval="50ms")
    async with watching(tmp_path, {"one": entry}) as watched:
        async with asyncio.timeout(SECONDS):
            while not one.log.exists() or len(one.asked("mgp/health/ping")) < 5:
                await asyncio.sleep(0.05)
        view = await watched.view("one")
        assert (view["state"], view["health"]) == ("connected", shown)
        assert one.asked("ping") == []
        assert all(str(ping["timestamp"]).endswith("Z") for ping in one.asked("mgp/health/ping"))
