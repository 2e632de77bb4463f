"""The registry's face while a person is asked: whoever waits takes nobody's place."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, cast

from comity.approvals.model import ApprovalState
from comity.approvals.settings import ApprovalSettings
from comity.gateway.all_servers import AllServersEndpoint
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.registry.service import RegistryResponse, RegistryService, RegistryTimeouts
from comity.sessions.client_streams import ClientStream
from tests.support.asking import AGENT, Bed, asking
from tests.support.carriers import settled, until

LONG = ApprovalSettings(client_wait=timedelta(hours=1))


@asynccontextmanager
async def _at_registry(
    options: ApprovalSettings | None = None, **limits: Any
) -> AsyncGenerator[tuple[Bed, RegistryService]]:
    async with asking(options=options, at_all=True) as bed:
        front = bed.front
        assert isinstance(front.desk, AllServersEndpoint)
        exports = cast("Any", None)
        yield (
            bed,
            RegistryService(
                front.desk, front.call_gate, front.underway, exports, RegistryTimeouts(**limits)
            ),
        )


def _request(disk: str = "x") -> tuple[Frame, ClientStream]:
    outbox = ClientStream()
    outbox.actor = AGENT
    params = {"name": "files__delete", "arguments": {"path": disk}}
    return jsonrpc.make_request(1, protocol.CALL_TOOL, params), outbox


async def _post(registry: RegistryService, disk: str = "x") -> RegistryResponse:
    frame, outbox = _request(disk)
    async with registry.run_request(frame, outbox) as call, asyncio.timeout(10):
        await outbox.wait_until_final()
        return registry.final_answer(call, outbox.take()[-1])


def _are_done(posted: list[asyncio.Task[RegistryResponse]], number: int) -> bool:
    return sum(each.done() for each in posted) == number


async def test_whoever_is_approved_in_time_has_its_answer() -> None:
    async with _at_registry(LONG) as (bed, registry):
        posted = asyncio.ensure_future(_post(registry))
        await bed.answer()
        assert (await posted).status == 200
        assert bed.runs == 1


async def test_a_door_has_no_more_patience_than_a_call_has_time() -> None:
    async with _at_registry(LONG, tool=0.05) as (bed, registry):
        status, _, error = await _post(registry)
        assert status == 503
        assert b"pending_approval" in bytes(error or b"")
        ask = await bed.answer()
        assert (await _post(registry)).status == 200
        assert bed.runs == 1
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.CONSUMED


async def test_whoever_waits_for_a_person_takes_no_place_at_the_server() -> None:
    async with _at_registry(LONG, calls_per_server=1, lock=0.05) as (bed, registry):
        posted = [asyncio.ensure_future(_post(registry, str(disk))) for disk in range(5)]
        async with asyncio.timeout(10):
            while await bed.asks.count((ApprovalState.PENDING,)) < len(posted):
                await asyncio.sleep(0)
        for number, ask in enumerate(await bed.asks.page((ApprovalState.PENDING,)), 1):
            await bed.answer_to(ask)
            await until(partial(_are_done, posted, number))
        answers = await asyncio.gather(*posted)
        assert {answer.status for answer in answers} == {200}
        assert bed.runs == 5


async def test_a_client_that_goes_gives_everything_back_and_its_answer_stands() -> None:
    async with _at_registry(LONG, calls_per_server=1, lock=0.05) as (bed, registry):
        posted = asyncio.ensure_future(_post(registry))
        await bed.open_ask()
        posted.cancel()
        await asyncio.gather(posted, return_exceptions=True)
        await bed.nothing_waits()
        await bed.answer()
        await settled()
        assert bed.runs == 0
        assert (await _post(registry)).status == 200
        assert bed.runs == 1
