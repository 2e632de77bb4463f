"""How busy a pool is, told while a scripted server holds a request back."""

import asyncio

from comity.adapters.telemetry_pools import PoolFigures
from comity.adapters.upstream.pool import Pool, PoolLimits
from tests.adapters.http_script import OK, Visit, on_both_loops, pooled, post, serving


def told(pool: Pool, name: str) -> dict[str, float]:
    families = {family.name: family for family in PoolFigures({"calls": pool})()}
    samples = families[name].samples
    return {labels[-1][1]: figure for labels, figure in samples if isinstance(figure, int)}


@on_both_loops
async def test_connections_are_told_by_what_they_do_and_who_waits_for_one() -> None:
    go_on = asyncio.Event()

    async def script(visit: Visit) -> None:
        while await visit.request():
            await go_on.wait()
            await visit.say(OK)

    async with serving(script) as server, pooled(limits=PoolLimits(connections=1)) as pool:
        assert PoolFigures({"calls": pool})()[0].samples == []
        first = post(pool, server.origin)
        assert told(pool, "comity_upstream_connections") == {"busy": 0, "idle": 0, "opening": 1}
        second = post(pool, server.origin)
        while not server.visits:
            await asyncio.sleep(0)
        while told(pool, "comity_upstream_connections")["busy"] != 1:
            await asyncio.sleep(0)
        assert told(pool, "comity_upstream_requests_waiting") == {str(server.origin): 1}
        go_on.set()
        await first.response()
        await second.response()
        assert told(pool, "comity_upstream_connections") == {"busy": 0, "idle": 1, "opening": 0}
        assert told(pool, "comity_upstream_requests_waiting") == {str(server.origin): 0}


@on_both_loops
async def test_an_origin_is_named_without_path_or_query() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)

    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        (labels, _), *_ = PoolFigures({"calls": pool})()[0].samples
    assert dict(labels) == {"pool": "calls", "origin": str(server.origin), "state": "busy"}
