"""Gateways on one store: a change counts at each within a second.

Real processes, a real database and 32 callers that never stop calling.
"""

import asyncio
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.app.records import RecordStores, open_store
from comity.approvals.model import ANSWER_VERB
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL
from comity.mcp.framing import SseParser
from comity.policy.grants import Effect, Grant
from tests.cli.program import EXAMPLE
from tests.cluster.callers import Calls, Ended, call, calling
from tests.cluster.postgres import Postgres
from tests.interop.processes import comity, free_port, running
from tests.support.principals import add_principals

pytestmark = pytest.mark.timeout(300)

PEPPER = "pepper-" * 8
ANA, AGENT = "person:ana@example.org", "agent:asking"
SECONDS = 60.0


def configuration(postgres: Postgres, folder: Path) -> Path:
    path = folder / "comity.toml"
    arguments = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
    path.write_text(
        f"""
[identity]
mode = "required"
[store]
url = "{postgres.url}"
[approvals]
client_wait = "60s"
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = [{arguments}]
""",
        encoding="utf-8",
    )
    return path


class Watching:
    """A stream of asks at one gateway."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply
        self._parser = SseParser()
        self._events: list[tuple[str, Any]] = []

    async def until(self, name: str, state: str = "") -> Any:
        async with asyncio.timeout(SECONDS):
            while True:
                while self._events:
                    event, said = self._events.pop(0)
                    if event == name and state in ("", said.get("state")):
                        return said
                piece = await self._reply.content.readany()
                assert piece, "the stream has ended"
                found = self._parser.feed(piece)
                self._events += [(each.event, json.loads(each.data)) for each in found if each.data]


async def test_an_ask_of_one_gateway_is_heard_and_answered_at_the_other(
    postgres: Postgres, tmp_path: Path
) -> None:
    config = configuration(postgres, tmp_path)
    keys = await add_principals(
        postgres.url,
        PEPPER,
        (AGENT, ANA),
        Grant(AGENT, CALL, "example/*", Effect.ALLOW),
        Grant(ANA, ANSWER_VERB, "example/*", Effect.ALLOW),
    )
    async with aiohttp.ClientSession() as session:
        with ExitStack() as started:
            environment = {"COMITY_PEPPER": PEPPER}
            one, other = (started.enter_context(comity(config, environment)) for _ in range(2))
            shown = {"authorization": f"Bearer {keys[ANA]}"}
            async with (
                session.get(f"{one}/api/approvals/stream", headers=shown) as at_one,
                session.get(f"{other}/api/approvals/stream", headers=shown) as at_other,
            ):
                here, there = Watching(at_one), Watching(at_other)
                await here.until("current")
                await there.until("current")
                echo = call(session, one, keys[AGENT], "example__echo", SAID)
                made = asyncio.ensure_future(echo)
                asked = await there.until("approval", "pending")
                assert asked["may_answer"] is True
                answer = f"{other}/api/approvals/{asked['id']}/answer"
                async with session.post(answer, json={"verdict": "accept"}, headers=shown) as told:
                    assert told.status == 200
                _, _, body = await made
                assert body["result"]["content"][0]["text"] == "hello"
                for watching in (here, there):
                    used = await watching.until("approval", "consumed")
                    assert used["id"] == asked["id"]
                    assert used["answers"][0]["by"] == ANA


CALLERS = 32
WITHIN = 1.0
"""What is promised of a revocation, in seconds."""

AGE = 4.0
"""How long calls go on without the store here, in seconds."""

ENVIRONMENT = {"COMITY_PEPPER": PEPPER}
GRANT = Grant("agent:ci", CALL, "example/echo", Effect.ALLOW)
SAID = {"message": "hello"}


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[RecordStores]:
    """The records, as some third process changes them."""
    records = open_store(url)
    await records.open()
    try:
        yield records
    finally:
        await records.close()


@pytest.fixture
async def records(postgres: Postgres) -> AsyncGenerator[RecordStores]:
    async with opened(postgres.url) as found:
        yield found


@pytest.fixture
async def key(records: RecordStores) -> str:
    """What a granted agent shows at the doors."""
    whole, record = mint_key(PEPPER.encode(), ApiKey("", "agent:ci", b""))
    await records.parties.put(Principal("agent:ci"))
    for old in await records.keys.list_of_party("agent:ci"):
        await records.keys.revoke(old.id, datetime.now(UTC))
    await records.keys.put(record, datetime.now(UTC))
    await records.grants.put(GRANT)
    return whole


@pytest.fixture
def config(postgres: Postgres, tmp_path: Path) -> Path:
    path = tmp_path / "comity.toml"
    arguments = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
    path.write_text(
        f"""
[identity]
mode = "required"
[store]
url = "{postgres.url}"
policy_max_staleness = {AGE}
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = [{arguments}]
# Who waits for no journal goes on without a store.
[servers.tools.echo]
risk = "safe"
[audit]
max_queued = 1000000
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def gateways(config: Path, key: str) -> Generator[list[str]]:
    """Two of them, for which the agent and its grant are there already."""
    assert key
    with ExitStack() as started:
        yield [started.enter_context(comity(config, ENVIRONMENT)) for _ in range(2)]


def succeeded(call: Ended) -> bool:
    return call.succeeded


def denied(call: Ended) -> bool:
    return call.error_type == "access_denied"


def unauthenticated(call: Ended) -> bool:
    return call.error_type == "unauthenticated"


def unknown(call: Ended) -> bool:
    return call.error_type == "policy_unknown"


async def none_succeeds(
    calls: Calls, origins: list[str], is_so: Callable[[Ended], bool], since: float, within: float
) -> None:
    """Each gateway refuses in this way, and no call succeeds that began so long after `since`."""
    await calls.everywhere(origins, is_so)
    await asyncio.sleep(max(0.0, since + within - time.monotonic()))
    await calls.everywhere(origins, is_so)
    assert [call for call in calls.ended if call.succeeded and call.began > since + within] == []


async def test_no_call_that_starts_a_second_after_a_revocation_succeeds(
    gateways: list[str], records: RecordStores, key: str
) -> None:
    late: list[float] = []
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        for _ in range(5):
            await calls.everywhere(gateways, succeeded)
            calls.ended.clear()
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
            revoked = time.monotonic()
            await none_succeeds(calls, gateways, denied, revoked, WITHIN)
            began = [call.began - revoked for call in calls.ended if call.succeeded]
            late.append(max(began, default=0.0))
            # On a starved machine a gateway may refuse for a moment, and never lets one pass.
            ends = {call.error_type for call in calls.ended}
            assert ends <= {"", "access_denied", "policy_unknown"}
            await records.grants.put(GRANT)
    print(f"the last call to succeed began {max(late) * 1000:.0f} ms after the revocation")


async def test_a_key_that_is_revoked_opens_no_door_a_second_later(
    gateways: list[str], records: RecordStores, key: str
) -> None:
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        await calls.everywhere(gateways, succeeded)
        (own,) = [
            each for each in await records.keys.list_of_party("agent:ci") if each.revoked_at is None
        ]
        assert await records.keys.revoke(own.id, datetime.now(UTC))
        await none_succeeds(calls, gateways, unauthenticated, time.monotonic(), WITHIN)


@pytest.mark.parametrize("is_revoked", [True, False], ids=["revoked", "granted"])
async def test_gateway_that_stood_still_asks_its_store_before_it_decides(
    config: Path, records: RecordStores, key: str, is_revoked: bool
) -> None:
    """It could not hear of a change; and what it knows would be young enough without a store."""
    command = [
        str(Path(sys.executable).with_name("comity")),
        "serve",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    with running(command, ENVIRONMENT) as program:
        listening = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
        origin = listening.group(1)
        async with calling([origin], key, "example__echo", SAID, 2) as calls:
            await calls.everywhere([origin], succeeded)
        os.kill(program.pid, signal.SIGSTOP)
        if is_revoked:
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
        await asyncio.sleep(WITHIN)
        async with calling([origin], key, "example__echo", SAID, CALLERS) as calls:
            # They have been sent, and lie before its door.
            await asyncio.sleep(0.3)
            os.kill(program.pid, signal.SIGCONT)
            await calls.everywhere([origin], denied if is_revoked else succeeded)
            if is_revoked:
                assert [call for call in calls.ended if call.succeeded] == []
            else:
                assert {call.error_type for call in calls.ended} == {""}


async def test_without_the_store_calls_go_on_for_the_stated_age_and_then_none_does(
    gateways: list[str], postgres: Postgres, key: str
) -> None:
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        await calls.everywhere(gateways, succeeded)
        await asyncio.to_thread(postgres.stop)
        stopped = time.monotonic()
        try:
            # They are judged by what is known, on both gateways, long after a notice was due.
            await asyncio.sleep(AGE / 2)
            await calls.everywhere(gateways, succeeded)
            # Then none is: all of what is known was asked for before the store was stopped.
            await none_succeeds(calls, gateways, unknown, stopped, AGE)
            refused = [call for call in calls.ended if unknown(call)]
            assert all(call.is_retryable for call in refused)
            assert {call.retry_after_ms for call in refused} == {1000}
            # A call that waited long for the store has its stream, and its status, already.
            assert {call.status for call in refused} <= {200, 503}
            assert {call.retry_after for call in refused if call.status == 503} <= {"1"}
        finally:
            await asyncio.to_thread(postgres.start)
        # And all is well again, by itself; also for changes.
        await calls.everywhere(gateways, succeeded)
        async with opened(postgres.url) as records:
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
            await none_succeeds(calls, gateways, denied, time.monotonic(), WITHIN)


async def test_a_store_that_only_falls_silent_is_gone_by_no_longer_than_one_that_is_stopped(
    gateways: list[str], postgres: Postgres, records: RecordStores, key: str
) -> None:
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        await calls.everywhere(gateways, succeeded)
        postgres.fall_silent()
        silent = time.monotonic()
        try:
            await none_succeeds(calls, gateways, unknown, silent, AGE)
        finally:
            postgres.speak_again()
        assert max(call.began for call in calls.ended if call.succeeded) > silent + 1
        await calls.everywhere(gateways, succeeded)
        assert await records.grants.revoke("agent:ci", CALL, "example/echo")
        await none_succeeds(calls, gateways, denied, time.monotonic(), WITHIN)


async def test_a_gateway_that_never_met_its_store_allows_nothing_until_it_does(
    postgres: Postgres, config: Path, key: str
) -> None:
    await asyncio.to_thread(postgres.stop)
    try:
        with ExitStack() as started:
            starting = comity(config, ENVIRONMENT, path="/health")
            origin = await asyncio.to_thread(started.enter_context, starting)
            async with calling([origin], key, "example__echo", SAID, 2) as calls:
                await calls.everywhere([origin], unknown)
                assert not any(call.succeeded for call in calls.ended)
                await asyncio.to_thread(postgres.start)
                await calls.everywhere([origin], succeeded)
    finally:
        if not postgres.runs:
            await asyncio.to_thread(postgres.start)


def write_config(folder: Path) -> tuple[Path, str]:
    """A configuration, and the address of its store."""
    url = f"sqlite:///{folder / 'comity.db'}"
    arguments = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
    config = folder / "comity.toml"
    config.write_text(
        f'[identity]\nmode = "required"\n[store]\nurl = "{url}"\n'
        f'[[servers]]\nid = "example"\ncommand = "{EXAMPLE["command"]}"\nargs = [{arguments}]\n',
        encoding="utf-8",
    )
    return config, url


async def test_what_another_process_grants_counts_and_is_there_after_a_restart(
    tmp_path: Path,
) -> None:
    config, url = write_config(tmp_path)
    whole, record = mint_key(PEPPER.encode(), ApiKey("", "agent:ci", b""))
    records = open_store(url)
    with comity(config, ENVIRONMENT) as origin:
        # The gateway has made the file by now, and only its owner may read it.
        assert os.stat(url.removeprefix("sqlite:///")).st_mode & 0o077 == 0  # noqa: PTH116
        await records.open()
        await records.parties.put(Principal("agent:ci"))
        await records.keys.put(record, datetime.now(UTC))
        async with calling([origin], whole, "example__echo", {"message": "x"}, 4) as calls:
            await calls.everywhere([origin], denied)
            await records.grants.put(GRANT)
            await calls.everywhere([origin], succeeded)
    with comity(config, ENVIRONMENT) as origin:
        async with calling([origin], whole, "example__echo", {"message": "x"}, 4) as calls:
            await calls.everywhere([origin], succeeded)
            assert not any(denied(call) for call in calls.ended)
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
            revoked = time.monotonic()
            await calls.until(lambda ended: any(call.began > revoked + WITHIN for call in ended))
            late = [call for call in calls.ended if call.began > revoked + WITHIN]
            assert [call for call in late if call.succeeded] == []
    used = await records.keys.get(record.id)
    assert used is not None
    assert used.last_used is not None
    await records.close()


def _ready(origin: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{origin}/ready", timeout=10) as reply:  # noqa: S310 - loopback
            return reply.status, json.load(reply)["status"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["status"]


def test_a_gateway_whose_store_never_answered_is_not_ready(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text(f'[store]\nurl = "postgresql://127.0.0.1:{free_port()}/none"\n')
    command = [
        str(Path(sys.executable).with_name("comity")),
        "serve",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    with running(command, {"COMITY_PEPPER": "p" * 64}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        for _ in range(20):
            assert _ready(origin) == (503, "store unreachable")
        warnings = [line for line in program.said.splitlines() if "WARNING" in line]
    assert len(warnings) == len(set(warnings)), warnings
