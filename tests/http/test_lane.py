"""Requests that wait for a connection, connections that fail, requests that are sent again."""

import asyncio
import ssl
import weakref
from collections.abc import Callable
from datetime import timedelta

import pytest

from comity.errors import EXHAUSTED, UPSTREAM_DOWN
from comity.http.client.connection import HttpClientConnection, HttpClientRequest
from comity.http.client.dial import HttpOrigin, OriginDialler, request_head
from comity.http.client.pool import OriginPool, PoolLimits
from tests.http.talk import Wire
from tests.support.http_script import (
    OK,
    Recorder,
    Script,
    Visit,
    answer_always,
    on_both_loops,
    pooled,
    post,
    serving,
)


@on_both_loops
async def test_requests_beyond_the_connections_wait_their_turn_in_order() -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        while request := await visit.request():
            seen.append(request[-1:])
            await visit.say(OK)

    async with serving(script) as server, pooled(PoolLimits(connections=1)) as pool:
        recorders = [post(pool, server.origin, b"%d" % number) for number in range(5)]
        for recorder in recorders:
            await recorder.response()
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        assert len(server.visits) == 1


@on_both_loops
async def test_many_requests_over_few_connections_each_get_their_own_answer() -> None:
    async with serving(answer_always) as server, pooled(PoolLimits(connections=4)) as pool:
        bodies = [b"%d" % number * (number + 1) for number in range(200)]
        recorders = [post(pool, server.origin, body) for body in bodies]
        answers = [await recorder.response() for recorder in recorders]
        assert answers == [(200, body) for body in bodies]
        assert len(server.visits) <= 4


@pytest.mark.parametrize(
    "limits",
    [
        PoolLimits(connections=1, waiting=2),
        PoolLimits(connections=1, waiting_bytes=200),
    ],
)
@on_both_loops
async def test_a_request_beyond_those_that_may_wait_fails_unsent(limits: PoolLimits) -> None:
    finish = asyncio.Event()

    async def script(visit: Visit) -> None:
        while await visit.request():
            await finish.wait()
            await visit.say(OK)

    async with serving(script) as server, pooled(limits) as pool:
        served = [post(pool, server.origin, b"x" * 20) for _ in range(2)]
        refused = [post(pool, server.origin, b"x" * 20) for _ in range(2)]
        assert "nothing was sent" in await refused[1].failure()
        assert refused[1].error is not None
        assert refused[1].error.fault is EXHAUSTED
        finish.set()
        for recorder in served:
            await recorder.response()


@on_both_loops
async def test_a_request_withdrawn_while_it_waits_is_never_sent() -> None:
    seen: list[bytes] = []
    finish = asyncio.Event()

    async def script(visit: Visit) -> None:
        while request := await visit.request():
            seen.append(request[-1:])
            await finish.wait()
            await visit.say(OK)

    async with (
        serving(script) as server,
        pooled(PoolLimits(connections=1, waiting=2)) as pool,
    ):
        head = request_head("POST", "/", server.origin, [])
        first, gone, last, extra = Recorder(), Recorder(), Recorder(), Recorder()
        pool.send(server.origin, head, b"1", first)
        waiting = pool.send(server.origin, head, b"2", gone)
        waiting.pause()
        waiting.abort()
        waiting.abort()
        pool.send(server.origin, head, b"3", last)
        finish.set()
        await first.response()
        await last.response()
        pool.send(server.origin, head, b"4", extra)
        await extra.response()
        assert seen == [b"1", b"3", b"4"]
        assert gone.endings == []


@on_both_loops
async def test_an_abandoned_reader_is_not_kept_alive() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        asked.set()
        await visit.left()
        hung_up.set()

    asked, hung_up = asyncio.Event(), asyncio.Event()
    async with serving(script) as server, pooled() as pool:
        head = request_head("POST", "/", server.origin, [])
        recorder = Recorder()
        sending = pool.send(server.origin, head, b"", recorder)
        await asked.wait()
        sending.abort()
        trace = weakref.ref(recorder)
        del recorder
        assert trace() is None
        await hung_up.wait()


@on_both_loops
async def test_a_server_that_is_not_there_fails_all_who_wait_for_it() -> None:
    async with serving(answer_always) as server:
        gone = server.origin
    async with pooled(PoolLimits(connections=1)) as pool:
        recorders = [post(pool, gone, may_repeat=True) for _ in range(3)]
        for recorder in recorders:
            because = await recorder.failure()
            assert str(gone) in because
            assert "nothing was sent" in because


@on_both_loops
async def test_a_host_that_cannot_be_a_name_fails() -> None:
    async with pooled() as pool:
        recorder = post(pool, HttpOrigin("http", "a" * 70 + ".invalid", 80))
        assert "nothing was sent" in await recorder.failure()
        assert recorder.error is not None
        assert recorder.error.fault is UPSTREAM_DOWN


@on_both_loops
async def test_a_server_that_never_finishes_the_handshake_fails_in_time() -> None:
    async with (
        serving(Visit.left) as server,
        pooled(
            PoolLimits(connections=1, connect_timeout=timedelta(milliseconds=50)),
            ssl.create_default_context(),
        ) as pool,
    ):
        recorders = [post(pool, server.origin._replace(scheme="https")) for _ in range(3)]
        for recorder in recorders:
            assert "no connection in time" in await recorder.failure()
        assert len(server.visits) <= 1  # the others do not each wait for an attempt of their own


def forgetful(seen: list[bytes], forgets: set[int]) -> Script:
    """Answer the first request of a connection; on some, swallow the second and hang up."""

    async def script(visit: Visit) -> None:
        requests = 0
        while request := await visit.request():
            requests += 1
            seen.append(b"%d:%b" % (visit.number, request[-1:]))
            if visit.number in forgets and requests == 2:
                return
            await visit.say(OK)

    return script


@on_both_loops
async def test_a_request_swallowed_by_a_reused_connection_is_sent_again_if_it_may_be() -> None:
    seen: list[bytes] = []
    async with serving(forgetful(seen, {1})) as server, pooled() as pool:
        await post(pool, server.origin, b"a").response()
        assert await post(pool, server.origin, b"b", may_repeat=True).response() == (200, b"ok")
    assert seen == [b"1:a", b"1:b", b"2:b"]


@on_both_loops
async def test_a_request_swallowed_by_a_reused_connection_is_not_sent_again_on_its_own() -> None:
    seen: list[bytes] = []
    async with serving(forgetful(seen, {1})) as server, pooled() as pool:
        await post(pool, server.origin, b"a").response()
        because = await post(pool, server.origin, b"b").failure()
        assert "whether the request was carried out is unknown" in because
        await post(pool, server.origin, b"c").response()
    assert seen == [b"1:a", b"1:b", b"2:c"]


@on_both_loops
async def test_what_is_sent_again_goes_to_a_fresh_connection_and_no_idle_one() -> None:
    seen: list[bytes] = []
    async with serving(forgetful(seen, {1, 2})) as server, pooled() as pool:
        both = [post(pool, server.origin, b"a"), post(pool, server.origin, b"a")]
        for recorder in both:
            await recorder.response()
        assert await post(pool, server.origin, b"b", may_repeat=True).response() == (200, b"ok")
    assert seen[-1] == b"3:b"
    assert [each for each in seen if each.endswith(b"b")][1:] == [b"3:b"]


@on_both_loops
async def test_a_request_swallowed_by_a_fresh_connection_is_never_sent_again() -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        seen.append(await visit.request())

    async with serving(script) as server, pooled() as pool:
        assert "unknown" in await post(pool, server.origin, may_repeat=True).failure()
    assert len(seen) == 1


@on_both_loops
async def test_a_request_is_sent_again_only_once() -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        seen.append(await visit.request())
        if visit.number == 1:
            await visit.say(OK)
            seen.append(await visit.request())

    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        assert "unknown" in await post(pool, server.origin, may_repeat=True).failure()
    assert len(seen) == 3


@on_both_loops
async def test_a_request_that_was_half_answered_is_not_sent_again() -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        seen.append(await visit.request())
        await visit.say(OK)
        seen.append(await visit.request())
        await visit.say(b"H")

    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        because = await post(pool, server.origin, may_repeat=True).failure()
        assert "in the middle of its answer" in because
    assert len(seen) == 2


@on_both_loops
async def test_waiting_requests_are_served_when_a_connection_is_lost() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        if visit.number > 1:
            await visit.say(OK)

    async with serving(script) as server, pooled(PoolLimits(connections=1)) as pool:
        lost, served = post(pool, server.origin), post(pool, server.origin)
        await lost.failure()
        assert await served.response() == (200, b"ok")


class Closing(OriginDialler):
    """Dials connections that the other end has closed already."""

    async def dial(self, make: Callable[[], HttpClientConnection]) -> HttpClientConnection:
        connection = make()
        wire = Wire()
        connection.connection_made(wire)
        wire.close()
        return connection


@on_both_loops
async def test_a_connection_that_closes_as_it_opens_carries_nothing() -> None:
    lane = OriginPool(
        Closing(HttpOrigin("http", "server", 80), None, None), PoolLimits(), closed=False
    )
    recorder = Recorder()
    lane.dispatch(HttpClientRequest(lane, b"request", recorder, may_repeat=False))
    assert "closed the connection" in await recorder.failure()


@on_both_loops
async def test_an_idle_connection_that_is_closing_carries_nothing() -> None:
    lane = OriginPool(
        Closing(HttpOrigin("http", "server", 80), None, None), PoolLimits(), closed=False
    )
    wire = Wire()
    connection = HttpClientConnection(lane, "http://server")
    connection.connection_made(wire)
    lane.release(connection)
    wire.close()
    recorder = Recorder()
    lane.dispatch(HttpClientRequest(lane, b"request", recorder, may_repeat=False))
    assert "nothing was sent" in await recorder.failure()
    assert wire.written == b""
