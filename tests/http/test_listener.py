"""How the listener opens, tells where it is, and ends within a bound."""

import asyncio
import os
import signal
import socket
import sys
import textwrap
import time
from datetime import timedelta

import pytest

from comity.errors import Misconfigured
from comity.http.connection import ListenerLimits
from comity.http.server import run_http_server
from tests.support.cases import loop_over
from tests.support.listening import (
    GET,
    PATIENCE_SECONDS,
    Receive,
    Scope,
    Send,
    answer,
    echo,
    listening,
    on_both_loops,
)

pytestmark = pytest.mark.integration

AT_ONCE = timedelta(milliseconds=50)
LONG = timedelta(minutes=5)


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends one event and then nothing more, until the client goes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"event", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def deaf_stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Never looks whether its client is still there."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"event", "more_body": True})
    await asyncio.Event().wait()


@on_both_loops
async def test_port_zero_is_answered_with_the_address_that_was_bound() -> None:
    async with listening() as door:
        assert door.address.startswith("http://127.0.0.1:")
        assert not door.address.endswith(":0")
        assert await (await door.connect()).ask(GET) == b"host|"


@on_both_loops
async def test_an_ipv6_address_is_told_in_brackets() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(run_http_server(echo, "::1", 0, started=told.set_result))
    await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    await asyncio.wait((task,))
    assert told.result().startswith("http://[::1]:")


@on_both_loops
async def test_a_port_that_is_taken_is_the_operators_to_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=rf"port {port}.*--port"):
            await run_http_server(echo, "127.0.0.1", port, started=_never)


@loop_over(("host", "port"), [("127.0.0.1", 99999), ("a" * 70 + ".invalid", 0)])
async def test_an_impossible_address_is_the_operators_to_mend(host: str, port: int) -> None:
    with pytest.raises(Misconfigured, match="cannot listen on"):
        await run_http_server(echo, host, port, started=_never)


def _never(address: str) -> None:
    pytest.fail(f"nothing should listen on {address}")


@on_both_loops
async def test_a_response_carries_no_header_that_the_application_did_not_set() -> None:
    async with listening() as door:
        answer_text = await door.answer_to_a_stranger()
        names = {line.split(b":")[0] for line in answer_text.split(b"\r\n\r\n")[0].split(b"\r\n")}
        assert names == {b"HTTP/1.1 200 OK", b"connection", b"transfer-encoding"}


@on_both_loops
async def test_forwarded_headers_are_not_believed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, scope["client"][0].encode() + scope["scheme"].encode())

    async with listening(app) as door:
        forwarded = b"x-forwarded-for: 192.0.2.9\r\nx-forwarded-proto: https\r\nhost"
        peer = await door.connect()
        assert await peer.ask(GET.replace(b"host", forwarded)) == b"127.0.0.1http"


@on_both_loops
async def test_open_streams_delay_the_end_by_the_grace_and_no_more() -> None:
    async with listening(stream, ListenerLimits(grace=AT_ONCE)) as door:
        peers = [await door.connect() for _ in range(3)]
        for peer in peers:
            peer.say(GET)
            await peer.reader.readuntil(b"event")
        door.task.cancel()
        await asyncio.wait((door.task,))
        for peer in peers:
            assert b"event" not in await peer.until_closed()


@on_both_loops
async def test_an_open_stream_is_told_that_its_client_is_gone_before_it_is_cancelled() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream(scope, receive, send)
        told.append("gone")

    async with listening(app, ListenerLimits(grace=AT_ONCE)) as door:
        peer = await door.connect()
        peer.say(GET)
        await peer.reader.readuntil(b"event")
        door.task.cancel()
        await asyncio.wait((door.task,))
    assert told == ["gone"]


@on_both_loops
async def test_the_grace_is_given_also_after_a_time_without_connections() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        if scope["path"] == "/slow":
            await release.wait()
        await answer(send, b"done")

    def stopping() -> None:
        asyncio.get_running_loop().call_later(0.2, release.set)

    async with listening(app, ListenerLimits(grace=LONG), stopping) as door:
        assert b"done" in await door.answer_to_a_stranger()
        asked.clear()
        busy = await door.connect()
        busy.say(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await asked.wait()
        door.task.cancel()
        assert b"done" in await busy.until_closed()


@on_both_loops
async def test_an_application_that_ignores_the_end_is_cancelled() -> None:
    async with listening(deaf_stream, ListenerLimits(grace=AT_ONCE)) as door:
        peer = await door.connect()
        peer.say(GET)
        await peer.reader.readuntil(b"event")
        cycles = [task for task in asyncio.all_tasks() if "AsgiCycle.run" in repr(task)]
        door.task.cancel()
        await asyncio.wait((door.task,))
    assert [task.cancelled() for task in cycles] == [True]


@on_both_loops
async def test_a_request_under_way_is_answered_before_the_end_and_no_new_one_is_taken() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await release.wait()
        await answer(send, b"done")

    async with listening(app, ListenerLimits(grace=LONG), stopping=release.set) as door:
        busy, idle = await door.connect(), await door.connect()
        busy.say(GET)
        await asked.wait()
        door.task.cancel()
        assert b"done" in await busy.until_closed()
        assert await idle.until_closed() == b""
        await asyncio.wait((door.task,))
        with pytest.raises(OSError, match=r"."):
            await door.connect()


@on_both_loops
async def test_a_second_cancellation_cuts_the_grace_short() -> None:
    stopping = asyncio.Event()
    async with listening(stream, ListenerLimits(grace=LONG), stopping=stopping.set) as door:
        peer = await door.connect()
        peer.say(GET)
        await peer.reader.readuntil(b"event")
        door.task.cancel()
        await stopping.wait()
        door.task.cancel()
        await asyncio.wait((door.task,))


PROGRAM = textwrap.dedent(
    """
    import asyncio
    from datetime import timedelta
    from comity.http.connection import ListenerLimits
    from comity.http.server import event_loop, run_http_server
    from tests.http.test_listener import stream

    async def main():
        limits = ListenerLimits(grace=timedelta(seconds=GRACE))
        def started(url):
            print(url, flush=True)

        await run_http_server(stream, "127.0.0.1", 0, limits=limits, started=started)
        print("ended", type(asyncio.get_running_loop()).__module__, flush=True)

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(main())
    """
)


@loop_over("number", [signal.SIGTERM, signal.SIGINT])
@loop_over(("grace_seconds", "signals"), [(0.1, 1), (3600, 2)])
async def test_a_signal_ends_it_and_a_second_one_ends_it_now(
    number: signal.Signals, grace_seconds: float, signals: int
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.replace("GRACE", str(grace_seconds)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = int((await process.stdout.readline()).rpartition(b":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await reader.readuntil(b"event")
            for _ in range(signals):
                process.send_signal(number)
                await _until_nothing_listens(port)
            assert (await process.stdout.read()).startswith(b"ended")
            assert await process.wait() == 0
            writer.transport.abort()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until_nothing_listens(port: int) -> None:
    """The first signal is heard, and the second cannot be taken for it."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return
        writer.transport.abort()
