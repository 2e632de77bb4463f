"""Two gateways on one PostgreSQL: an ask of one is heard, and answered, at the other."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.adapters import stores
from comity.kernel.minting import mint
from comity.ports import Records
from comity.wire.asks import ANSWER
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Key, Party, PartyKind
from comity.wire.sse import EventParser
from tests.cli.program import EXAMPLE
from tests.cluster.callers import call
from tests.cluster.postgres import Postgres, a_postgres
from tests.interop.processes import comity

PEPPER = "pepper-" * 8
ANA, AGENT = "person:ana@example.org", "agent:ci"
SECONDS = 60.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def postgres() -> Generator[Postgres]:
    with a_postgres() as server:
        asyncio.run(stores.upgrade(server.url))
        yield server


async def a_key(records: Records, party: Party) -> str:
    whole, record = mint(PEPPER.encode(), Key("", party.id, b""))
    await records.parties.put(party)
    await records.keys.put(record, datetime.now(UTC))
    return whole


@asynccontextmanager
async def keys(url: str) -> AsyncGenerator[tuple[str, str]]:
    """Those of the agent, and of the person who may answer it."""
    records = stores.open_store(url)
    await records.open()
    try:
        await records.grants.put(
            Grant(AGENT, CALL, "example/*", Effect.ALLOW),
            Grant(ANA, ANSWER, "example/*", Effect.ALLOW),
        )
        agent = await a_key(records, Party(AGENT))
        yield agent, await a_key(records, Party(ANA, PartyKind.PERSON))
    finally:
        await records.close()


def configuration(postgres: Postgres, folder: Path) -> Path:
    path = folder / "comity.toml"
    arguments = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
    path.write_text(
        f"""
[identity]
mode = "required"
[store]
url = "{postgres.url}"
[asks]
hold = "60s"
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
        self._parser = EventParser()
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
    async with keys(postgres.url) as (agent, person), aiohttp.ClientSession() as session:
        with ExitStack() as started:
            environment = {"COMITY_PEPPER": PEPPER}
            one, other = (started.enter_context(comity(config, environment)) for _ in range(2))
            shown = {"authorization": f"Bearer {person}"}
            async with (
                session.get(f"{one}/api/asks/stream", headers=shown) as at_one,
                session.get(f"{other}/api/asks/stream", headers=shown) as at_other,
            ):
                here, there = Watching(at_one), Watching(at_other)
                await here.until("current")
                await there.until("current")
                said = {"message": "hello"}
                calling = asyncio.ensure_future(call(session, one, agent, "example__echo", said))
                asked = await there.until("ask", "pending")
                assert asked["may_answer"] is True
                answer = f"{other}/api/asks/{asked['id']}/answer"
                async with session.post(answer, json={"verdict": "accept"}, headers=shown) as told:
                    assert told.status == 200
                _, _, body = await calling
                assert body["result"]["content"][0]["text"] == "hello"
                for watching in (here, there):
                    used = await watching.until("ask", "used")
                    assert used["id"] == asked["id"]
                    assert used["answers"][0]["by"] == ANA
