"""Two gateways on one PostgreSQL: what is revoked is void on both within a second, or denied.

Real processes, a real database and 32 callers that never stop calling.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.adapters import stores
from comity.kernel.minting import mint
from comity.ports import Records
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Key, Party
from tests.cli.program import EXAMPLE
from tests.cluster.callers import Ended, calling
from tests.cluster.postgres import Postgres, a_postgres
from tests.interop.processes import comity, running

CALLERS = 32
WITHIN = 1.0
"""What is promised of a revocation, in seconds."""

AGE = 4.0
"""How long calls go on without the store here, in seconds."""

PEPPER = "pepper-" * 8
ENVIRONMENT = {"COMITY_PEPPER": PEPPER}
GRANT = Grant("agent:ci", CALL, "example/echo", Effect.ALLOW)
SAID = {"message": "hello"}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def postgres() -> Generator[Postgres]:
    with a_postgres() as server:
        asyncio.run(stores.upgrade(server.url))
        yield server


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Records]:
    """The records, as some third process changes them."""
    records = stores.open_store(url)
    await records.open()
    try:
        yield records
    finally:
        await records.close()


@pytest.fixture
async def records(postgres: Postgres) -> AsyncGenerator[Records]:
    async with opened(postgres.url) as found:
        yield found


@pytest.fixture
async def key(records: Records) -> str:
    """What a granted agent shows at the doors."""
    whole, record = mint(PEPPER.encode(), Key("", "agent:ci", b""))
    await records.parties.put(Party("agent:ci"))
    for old in await records.keys.of("agent:ci"):
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
snapshot_max_age = {AGE}
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = [{arguments}]
# Who waits for no journal goes on without a store.
[servers.tools.echo]
risk = "safe"
[journal]
most_waiting = 1000000
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


def unknown(call: Ended) -> bool:
    return call.error_type == "policy_unknown"


async def test_no_call_that_starts_a_second_after_a_revocation_succeeds(
    gateways: list[str], records: Records, key: str
) -> None:
    late: list[float] = []
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        for _ in range(5):
            await calls.everywhere(gateways, succeeded)
            calls.ended.clear()
            assert await records.grants.revoke("agent:ci", CALL, "example/echo")
            revoked = time.monotonic()
            await calls.everywhere(gateways, denied)
            await asyncio.sleep(max(0.0, revoked + WITHIN - time.monotonic()))
            await calls.everywhere(gateways, denied)
            began = [call.began - revoked for call in calls.ended if call.succeeded]
            late.append(max(began, default=0.0))
            assert late[-1] < WITHIN
            # On a starved machine a gateway may refuse for a moment, and never lets one pass.
            ends = {call.error_type for call in calls.ended}
            assert ends <= {"", "access_denied", "policy_unknown"}
            await records.grants.put(GRANT)
    print(f"the last call to succeed began {max(late) * 1000:.0f} ms after the revocation")


async def test_a_key_that_is_revoked_opens_no_door_a_second_later(
    gateways: list[str], records: Records, key: str
) -> None:
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        await calls.everywhere(gateways, succeeded)
        (own,) = [each for each in await records.keys.of("agent:ci") if each.revoked_at is None]
        assert await records.keys.revoke(own.id, datetime.now(UTC))
        revoked = time.monotonic()
        await calls.everywhere(gateways, lambda call: call.error_type == "unauthenticated")
        await asyncio.sleep(max(0.0, revoked + WITHIN - time.monotonic()))
        await calls.everywhere(gateways, lambda call: call.error_type == "unauthenticated")
        assert [
            call for call in calls.ended if call.succeeded and call.began > revoked + WITHIN
        ] == []


async def test_a_gateway_that_stood_still_through_a_revocation_lets_nothing_pass(
    config: Path, records: Records, key: str
) -> None:
    """It could not hear of it; and what is known would be young enough for a store that is gone."""
    command = [str(Path(sys.executable).with_name("comity")), "serve", str(config), "--port", "0"]
    with running(command, ENVIRONMENT) as program:
        listening = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
        origin = listening.group(1)
        async with calling([origin], key, "example__echo", SAID, 2) as calls:
            await calls.everywhere([origin], succeeded)
        os.kill(program.pid, signal.SIGSTOP)
        assert await records.grants.revoke("agent:ci", CALL, "example/echo")
        await asyncio.sleep(WITHIN)
        async with calling([origin], key, "example__echo", SAID, CALLERS) as calls:
            # They have been sent, and lie before its door.
            await asyncio.sleep(0.3)
            os.kill(program.pid, signal.SIGCONT)
            await calls.everywhere([origin], denied)
            assert [call for call in calls.ended if call.succeeded] == []


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
            await calls.everywhere(gateways, unknown)
            await asyncio.sleep(max(0.0, stopped + AGE - time.monotonic()))
            await calls.everywhere(gateways, unknown)
            assert [
                call for call in calls.ended if call.succeeded and call.began > stopped + AGE
            ] == []
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
            revoked = time.monotonic()
            await calls.everywhere(gateways, denied)
            await asyncio.sleep(max(0.0, revoked + WITHIN - time.monotonic()))
            await calls.everywhere(gateways, denied)
        assert [
            call for call in calls.ended if call.succeeded and call.began > revoked + WITHIN
        ] == []


async def test_a_store_that_only_falls_silent_is_gone_by_no_longer_than_one_that_is_stopped(
    gateways: list[str], postgres: Postgres, records: Records, key: str
) -> None:
    async with calling(gateways, key, "example__echo", SAID, CALLERS) as calls:
        await calls.everywhere(gateways, succeeded)
        postgres.fall_silent()
        silent = time.monotonic()
        try:
            await calls.everywhere(gateways, unknown)
            await asyncio.sleep(max(0.0, silent + AGE - time.monotonic()))
            await calls.everywhere(gateways, unknown)
        finally:
            postgres.speak_again()
        late = [call for call in calls.ended if call.succeeded and call.began > silent + AGE]
        assert late == []
        assert max(call.began for call in calls.ended if call.succeeded) > silent + 1
        await calls.everywhere(gateways, succeeded)
        assert await records.grants.revoke("agent:ci", CALL, "example/echo")
        revoked = time.monotonic()
        await calls.everywhere(gateways, denied)
        await asyncio.sleep(max(0.0, revoked + WITHIN - time.monotonic()))
        await calls.everywhere(gateways, denied)
        assert [
            call for call in calls.ended if call.succeeded and call.began > revoked + WITHIN
        ] == []


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


async def test_a_gateway_that_stood_still_refuses_nobody_whose_grant_still_holds(
    config: Path, records: Records, key: str
) -> None:
    """Whatever held it: it asks the store first, and judges the calls that wait by the answer."""
    command = [str(Path(sys.executable).with_name("comity")), "serve", str(config), "--port", "0"]
    with running(command, ENVIRONMENT) as program:
        listening = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
        origin = listening.group(1)
        async with calling([origin], key, "example__echo", SAID, 2) as calls:
            await calls.everywhere([origin], succeeded)
        os.kill(program.pid, signal.SIGSTOP)
        await asyncio.sleep(WITHIN)
        async with calling([origin], key, "example__echo", SAID, CALLERS) as calls:
            # They have been sent, and lie before its door.
            await asyncio.sleep(0.3)
            os.kill(program.pid, signal.SIGCONT)
            await calls.everywhere([origin], succeeded)
            assert {call.error_type for call in calls.ended} == {""}
