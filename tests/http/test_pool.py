"""The pool against a scripted server on real sockets."""

import asyncio
import ssl
from datetime import timedelta

import pytest

from comity.errors import Misconfigured
from comity.http.client.connection import HttpClientRequest
from comity.http.client.dial import HttpOrigin, request_head
from comity.http.client.pool import PoolLimits
from tests.support.http_script import (
    OK,
    Recorder,
    Visit,
    answer_always,
    on_both_loops,
    pooled,
    post,
    serving,
)


@on_both_loops
async def test_a_request_is_written_with_its_length_and_body() -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        seen.append(await visit.request())
        await visit.say(OK)

    async with serving(script) as server, pooled() as pool:
        recorder = Recorder()
        head = request_head("POST", "/mcp?x=1", server.origin, [("Accept", "text/html")])
        pool.send(server.origin, head, b'{"a":1}', recorder)
        assert await recorder.response() == (200, b"ok")
    host = server.origin.authority.encode()
    assert seen == [
        b"POST /mcp?x=1 HTTP/1.1\r\nhost: %b\r\nAccept: text/html\r\n"
        b'content-length: 7\r\n\r\n{"a":1}' % host
    ]


@pytest.mark.parametrize(
    ("method", "has_length"), [("GET", False), ("DELETE", False), ("POST", True), ("PUT", True)]
)
@on_both_loops
async def test_only_methods_with_a_body_state_an_empty_one(method: str, has_length: bool) -> None:
    seen: list[bytes] = []

    async def script(visit: Visit) -> None:
        seen.append(await visit.request())
        await visit.say(OK)

    async with serving(script) as server, pooled() as pool:
        recorder = Recorder()
        pool.send(server.origin, request_head(method, "/", server.origin, []), b"", recorder)
        await recorder.response()
    assert (b"content-length: 0\r\n\r\n" in seen[0]) is has_length
    assert seen[0].count(b"\r\n\r\n") == 1


@on_both_loops
async def test_requests_one_after_another_share_a_connection() -> None:
    async with serving(answer_always) as server, pooled() as pool:
        for body in (b"one", b"two", b"three"):
            assert await post(pool, server.origin, body).response() == (200, body)
        assert len(server.visits) == 1


@on_both_loops
async def test_a_reader_that_sends_again_at_once_finds_its_connection_idle() -> None:
    async with serving(answer_always) as server, pooled() as pool:
        second = Recorder()

        class Chaining(Recorder):
            def ended(self) -> None:
                super().ended()
                head = request_head("POST", "/", server.origin, [])
                pool.send(server.origin, head, b"next", second)

        pool.send(server.origin, request_head("POST", "/", server.origin, []), b"first", Chaining())
        assert await second.response() == (200, b"next")
        assert len(server.visits) == 1


@on_both_loops
async def test_the_connection_released_last_is_taken_first() -> None:
    answered: list[int] = []
    gates = [asyncio.Event(), asyncio.Event()]

    async def script(visit: Visit) -> None:
        await visit.request()
        await gates[visit.number - 1].wait()
        await visit.say(OK)
        while await visit.request():
            answered.append(visit.number)
            await visit.say(OK)

    async with serving(script) as server, pooled() as pool:
        first, second = post(pool, server.origin), post(pool, server.origin)
        while len(server.visits) < 2:
            await asyncio.sleep(0)
        gates[1].set()  # visit 2 is released first, so visit 1 is released last
        await asyncio.wait(
            [asyncio.ensure_future(each.over.wait()) for each in (first, second)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        gates[0].set()
        await first.response()
        await second.response()
        await post(pool, server.origin).response()
        assert answered == [1]


@on_both_loops
async def test_idle_connections_beyond_the_limit_are_hung_up() -> None:
    async with serving(answer_always) as server, pooled(PoolLimits(idle=1)) as pool:
        both = [post(pool, server.origin), post(pool, server.origin)]
        for recorder in both:
            await recorder.response()
        assert len(server.visits) == 2
        await asyncio.wait(
            [asyncio.ensure_future(visit.writer.wait_closed()) for visit in server.visits],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await post(pool, server.origin).response()
        assert len(server.visits) == 2


@on_both_loops
async def test_a_connection_idle_for_too_long_is_hung_up() -> None:
    hung_up = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        await visit.left()
        hung_up.set()

    async with (
        serving(script) as server,
        pooled(PoolLimits(idle_time=timedelta(milliseconds=20))) as pool,
    ):
        await post(pool, server.origin).response()
        await hung_up.wait()


@on_both_loops
async def test_a_slow_response_is_not_taken_for_an_idle_connection() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await asyncio.sleep(0.15)
        await visit.say(OK)

    async with (
        serving(script) as server,
        pooled(PoolLimits(idle_time=timedelta(milliseconds=10))) as pool,
    ):
        assert await post(pool, server.origin).response() == (200, b"ok")


@on_both_loops
async def test_a_connection_on_which_the_server_speaks_unasked_is_dropped() -> None:
    dropped = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        if visit.number == 1:
            await may_speak.wait()
            await visit.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            await visit.left()
            dropped.set()

    may_speak = asyncio.Event()
    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        may_speak.set()
        await dropped.wait()
        assert await post(pool, server.origin).response() == (200, b"ok")
        assert len(server.visits) == 2


@on_both_loops
async def test_a_connection_that_the_server_closed_while_idle_is_not_used() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        if visit.number == 1:
            visit.writer.write_eof()
            await visit.left()
            parted.set()

    parted = asyncio.Event()
    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        await parted.wait()
        assert await post(pool, server.origin).response() == (200, b"ok")
        assert len(server.visits) == 2


@on_both_loops
async def test_a_redirect_is_passed_on_and_not_followed() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(b"HTTP/1.1 307 Go\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n")
        assert not await visit.request()

    async with serving(script) as server, pooled() as pool:
        recorder = post(pool, server.origin)
        assert await recorder.response() == (307, b"")
        assert (b"location", b"/there") in recorder.headers
        assert len(server.visits) == 1


@on_both_loops
async def test_a_response_that_is_not_read_holds_the_server_back() -> None:
    written = 0
    chunk = b"x" * 65536

    async def script(visit: Visit) -> None:
        nonlocal written
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (400 * len(chunk)))
        for _ in range(400):
            await visit.say(chunk)
            written += 1

    async with serving(script) as server, pooled() as pool:
        sized = Sized()
        head = request_head("GET", "/", server.origin, [])
        sized.sending = pool.send(server.origin, head, b"", sized)
        before = -1
        while before != written or not written:  # until the server can write no more
            before = written
            await asyncio.sleep(0.05)
        assert written < 400
        assert sized.size < 400 * len(chunk)
        sized.sending.resume()
        await sized.over.wait()
        assert sized.size == 400 * len(chunk)


class Sized(Recorder):
    """Pauses at the head and counts what comes after it."""

    sending: HttpClientRequest
    size = 0

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().started(status, headers)
        self.sending.pause()

    def data(self, chunk: bytes) -> None:
        self.size += len(chunk)


@on_both_loops
async def test_a_large_request_reaches_a_slow_server_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving(answer_always) as server, pooled() as pool:
        assert await post(pool, server.origin, body).response() == (200, body)
        assert await post(pool, server.origin, b"next").response() == (200, b"next")
        assert len(server.visits) == 1


@on_both_loops
async def test_an_answer_before_the_whole_request_was_taken_ends_the_connection() -> None:
    async def script(visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        await visit.say(OK)
        await release.wait()

    release = asyncio.Event()
    async with serving(script) as server, pooled() as pool:
        assert await post(pool, server.origin, b"x" * 50_000_000).response() == (200, b"ok")
        assert await post(pool, server.origin).response() == (200, b"ok")
        assert len(server.visits) == 2
        release.set()


@on_both_loops
async def test_a_response_that_drips_byte_by_byte_arrives_whole() -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )

    async def script(visit: Visit) -> None:
        while await visit.request():
            for byte in answer:
                await visit.say(bytes([byte]))

    async with serving(script) as server, pooled() as pool:
        for _ in range(2):
            assert await post(pool, server.origin).response() == (200, b"abcde")
        assert len(server.visits) == 1


@on_both_loops
async def test_closing_fails_what_is_under_way_and_what_waits_and_what_comes_later() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        asked.set()
        await visit.left()
        hung_up.set()

    asked, hung_up = asyncio.Event(), asyncio.Event()
    async with serving(script) as server, pooled(PoolLimits(connections=1)) as pool:
        active, waiting = post(pool, server.origin), post(pool, server.origin)
        await asked.wait()
        await pool.close()
        later = [post(pool, server.origin), post(pool, HttpOrigin("http", "127.0.0.1", 1))]
        for recorder in (active, waiting, *later):
            assert "closing" in await recorder.failure()
        await hung_up.wait()


@on_both_loops
async def test_closing_does_not_wait_for_a_connection_that_is_being_opened() -> None:
    async with (
        serving(Visit.left) as server,
        pooled(tls=ssl.create_default_context()) as pool,
    ):
        recorder = post(pool, server.origin._replace(scheme="https"))
        while not server.visits:
            await asyncio.sleep(0)
        await pool.close()
        assert "closing" in await recorder.failure()


@on_both_loops
async def test_an_https_origin_without_a_tls_context_is_a_misconfiguration() -> None:
    async with pooled() as pool:
        with pytest.raises(Misconfigured, match="TLS"):
            post(pool, HttpOrigin("https", "localhost", 443))
