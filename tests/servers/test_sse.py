"""The old SSE transport towards a server: where it posts, in what order, and how it ends."""

import asyncio
import time
from unittest.mock import patch

import pytest

from comity.errors import EXHAUSTED, Misconfigured, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.protocol import UNKNOWN, Era
from comity.servers.transports import sse
from comity.servers.transports import sse as posts
from comity.servers.transports.sse import SseMessageStream, SseTransportFactory
from comity.toolkit.resilience import BURST, EACH_SECOND
from tests.servers.old_server import (
    ENDPOINT,
    STREAM_HEAD,
    TOKEN,
    Listener,
    OldServer,
    old_server,
)
from tests.support.http_script import on_both_loops, pooled

pytestmark = pytest.mark.integration

QUESTION = jsonrpc.make_request(1, "tools/list")
NOTICE = jsonrpc.make_notification("notifications/initialized")
ANSWER = jsonrpc.make_result("theirs", {})
READ_AT_ONCE = 1024 * 1024


def _endpoint(data: bytes) -> bytes:
    return STREAM_HEAD + b"event: endpoint\ndata: " + data + b"\n\n"


@on_both_loops
@pytest.mark.requirement("MCP-3.3-legacy")
async def test_messages_are_posted_where_the_stream_said_and_come_on_the_stream() -> None:
    async with old_server() as server, server.opened() as (carrier, listener):
        opened = await server.requests.get()
        assert opened.startswith(b"GET /sse?tenant=a HTTP/1.1\r\n")
        assert b"accept: text/event-stream\r\n" in opened
        server.take_all()
        carrier.send(QUESTION, 1)
        posted = await server.requests.get()
        assert posted.startswith(b"POST /messages?session_id=s3cret HTTP/1.1\r\n")
        assert posted.endswith(jsonrpc.encode_frame(QUESTION))
        await server.say(b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')
        heard = await listener.messages.get()
        assert heard == (b'{"jsonrpc":"2.0","id":1,"result":{}}', UNKNOWN)
        assert not carrier.has_separate_streams


@on_both_loops
async def test_configured_headers_go_with_the_stream_and_with_every_message() -> None:
    async with old_server() as server, server.opened() as (carrier, _):
        server.take_all()
        carrier.send(QUESTION, 1)
        for _ in range(2):
            request = await server.requests.get()
            assert b"authorization: %b\r\n" % TOKEN.encode() in request


@pytest.mark.parametrize(
    ("named", "target"),
    [
        (b"messages/?sessionId=1", b"/messages/?sessionId=1"),
        (b"?sessionId=1", b"/sse?sessionId=1"),
        (b"/a/../b", b"/b"),
    ],
)
@on_both_loops
async def test_an_endpoint_is_resolved_against_the_url(named: bytes, target: bytes) -> None:
    async with old_server(_endpoint(named)) as server, server.opened() as (carrier, _):
        server.take_all()
        carrier.send(QUESTION, 1)
        await server.requests.get()
        assert (await server.requests.get()).startswith(b"POST %b HTTP/1.1\r\n" % target)


@on_both_loops
async def test_an_absolute_endpoint_of_the_same_origin_is_used() -> None:
    async with old_server() as server:
        server.opening = _endpoint(server.url.replace("/sse?tenant=a", "/in").encode())
        async with server.opened() as (carrier, _):
            server.take_all()
            carrier.send(QUESTION, 1)
            await server.requests.get()
            assert (await server.requests.get()).startswith(b"POST /in HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "named",
    [
        b"http://127.0.0.1:1/messages",
        b"https://evil.example/messages",
        b"//evil.example/messages",
        b"http://127.0.0.1@evil.example/messages",
        b"/\\evil.example/messages",
        b"/messages HTTP/1.1\ndata: x-injected: 1",
        b"/mess\ndata: ages",
        b"file:///etc/passwd",
        b"http://[::1/messages",
        b"/\xc3\xa9",
        b"/" + b"a" * 5000,
    ],
)
@on_both_loops
async def test_an_endpoint_elsewhere_is_refused_and_never_asked(named: bytes) -> None:
    async with old_server(_endpoint(named)) as server:
        listener = Listener()
        with pytest.raises(Unavailable, match="endpoint") as refused:
            await server.carrier().open(listener)
        await server.left.wait()
        assert TOKEN not in str(refused.value)
        assert listener.reasons == []
        assert server.requests.qsize() == 1


@on_both_loops
async def test_a_second_endpoint_changes_nothing() -> None:
    twice = STREAM_HEAD + ENDPOINT + b"event: endpoint\ndata: /elsewhere\n\n"
    async with old_server(twice) as server, server.opened() as (carrier, _):
        server.take_all()
        carrier.send(QUESTION, 1)
        await server.requests.get()
        assert (await server.requests.get()).startswith(b"POST /messages?")


@on_both_loops
async def test_what_is_said_before_the_endpoint_or_is_no_message_is_passed_over() -> None:
    message = b'event: message\ndata: {"jsonrpc":"2.0","method":"early"}\n\n'
    other = b": alive\n\nevent: ping\ndata: now\n\nevent: message\ndata:\n\n"
    async with (
        old_server(STREAM_HEAD + message + ENDPOINT + other) as server,
        server.opened() as (_, listener),
    ):
        await server.say(b'data: {"jsonrpc":"2.0","method":"late"}\n\n')
        assert await listener.messages.get() == (b'{"jsonrpc":"2.0","method":"late"}', UNKNOWN)
        assert listener.messages.empty()


@on_both_loops
async def test_the_end_of_the_stream_is_told_once_and_ends_the_link() -> None:
    async with old_server() as server, server.opened() as (carrier, listener):
        carrier.send(QUESTION, 1)
        await server.asked(2)
        server.streams[0].writer.close()
        await listener.gone.wait()
        assert listener.reasons == ["the server ended its stream"]
        with pytest.raises(Unavailable, match="not open"):
            carrier.send(QUESTION, 2)
        await carrier.close()
        assert len(listener.reasons) == 1
        assert server.reach is not None
        assert server.reach.open_streams == 0


@on_both_loops
async def test_closing_hangs_up_without_telling_the_receiver() -> None:
    async with old_server() as server:
        async with server.opened() as (carrier, listener):
            carrier.send(QUESTION, 1)
            await server.asked(2)
        await server.left.wait()
        assert listener.reasons == []
        assert listener.endings.empty()


@pytest.mark.parametrize(
    ("opening", "because"),
    [
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "credentials"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "URL"),
        (b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n", "streamable HTTP"),
        (b"HTTP/1.1 307 There\r\nLocation: http://evil.example/\r\n\r\n", "leads to"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + ENDPOINT, "else than a stream"),
        (STREAM_HEAD + b"data: " + b"x" * 6000, "broken"),
    ],
)
@on_both_loops
async def test_a_stream_that_cannot_be_opened_says_what_to_check(
    opening: bytes, because: str
) -> None:
    async with old_server(opening, FrameLimits(frame_bytes=1000)) as server:
        with pytest.raises(Unavailable, match=because):
            await server.carrier().open(Listener())
        assert server.reach is not None
        assert server.reach.open_streams == 0


@on_both_loops
async def test_a_server_that_names_no_endpoint_is_not_waited_for_forever() -> None:
    async with old_server(STREAM_HEAD) as server:
        with (
            patch.object(sse, "ENDPOINT_TIMEOUT_SECONDS", 0.1),
            pytest.raises(Unavailable, match="names an endpoint"),
        ):
            await server.carrier().open(Listener())
        await server.left.wait()


@on_both_loops
async def test_a_message_over_the_limit_ends_the_link() -> None:
    async with (
        old_server(limits=FrameLimits(frame_bytes=1000)) as server,
        server.opened() as (_, listener),
    ):
        await server.say(b"data: " + b"x" * 3000)
        await listener.gone.wait()
        assert "larger than" in listener.reasons[0]
        await server.left.wait()


@on_both_loops
async def test_an_event_without_end_ends_the_link() -> None:
    for line in (b"data: a\n", b"event: a\n", b"other: a\n"):
        async with (
            old_server(limits=FrameLimits(frame_bytes=1000)) as server,
            server.opened() as (_, listener),
        ):
            await server.say(line * 1000)
            await listener.gone.wait()
            assert "larger than" in listener.reasons[0]
            await server.left.wait()


@pytest.mark.parametrize(
    ("opening", "line"),
    [
        (STREAM_HEAD, b"event: other\n"),
        (STREAM_HEAD, b"event: message\n"),
        (STREAM_HEAD + ENDPOINT, b"event: other\n"),
        (STREAM_HEAD + ENDPOINT, b"event: endpoint\n"),
    ],
)
@on_both_loops
async def test_a_flood_of_events_that_nobody_awaits_is_read_at_a_limited_rate(
    opening: bytes, line: bytes
) -> None:
    read = 0
    inner = SseMessageStream.data

    def count(self: SseMessageStream, chunk: bytes) -> None:
        nonlocal read
        read += len(chunk)
        inner(self, chunk)

    began = time.monotonic()
    with patch.object(SseMessageStream, "data", count):
        async with old_server(opening) as server:
            opens = asyncio.ensure_future(server.carrier().open(Listener()))
            await server.asked(1)
            pours = asyncio.ensure_future(_pour(server, line + b"data: " + b"a" * 1000 + b"\n\n"))
            while read < BURST / 2:
                await asyncio.sleep(0.01)
            while time.monotonic() < began + 1:
                await asyncio.sleep(0.05)
            # An event costs some two times its size. A read may bring more than is left.
            earned = BURST + EACH_SECOND * (time.monotonic() - began)
            assert read <= earned * 2 / 3 + READ_AT_ONCE
            for task in (opens, pours):
                task.cancel()
            await asyncio.gather(opens, pours, return_exceptions=True)


async def _pour(server: OldServer, event: bytes) -> None:
    while True:
        await server.say(event * 500)


@on_both_loops
async def test_a_refused_question_ends_and_others_go_on() -> None:
    async with old_server() as server, server.opened() as (carrier, listener):
        server.replies.put_nowait(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
        server.take_all()
        carrier.send(QUESTION, 7)
        stream, because = await listener.endings.get()
        assert stream == 7
        assert "credentials" in str(because)
        carrier.send(QUESTION, 8)
        await server.say(b'data: {"jsonrpc":"2.0","id":8,"result":{}}\n\n')
        await listener.messages.get()
        await server.asked(3)
        assert listener.endings.empty()


@on_both_loops
async def test_what_follows_a_notice_waits_until_the_server_has_taken_it() -> None:
    async with old_server() as server, server.opened() as (carrier, _):
        await server.requests.get()
        carrier.send(NOTICE, UNKNOWN)
        carrier.send(QUESTION, 1)
        carrier.send(ANSWER, UNKNOWN)
        assert b"initialized" in await server.requests.get()
        carrier.send(QUESTION, 2)
        await asyncio.sleep(0.05)
        assert server.requests.empty()
        server.take_all()
        after = [await server.requests.get() for _ in range(3)]
        assert sum(b"tools/list" in request for request in after) == 2


@on_both_loops
async def test_questions_do_not_wait_for_each_other() -> None:
    async with old_server() as server, server.opened() as (carrier, _):
        await server.requests.get()
        for stream in range(1, 4):
            carrier.send(QUESTION, stream)
        for _ in range(3):
            await server.requests.get()
        assert server.replies.empty()


@on_both_loops
async def test_a_notice_that_is_never_taken_holds_up_the_rest_only_for_a_while() -> None:
    with patch.object(posts, "STATUS_TIMEOUT_SECONDS", 0.05):
        async with old_server() as server, server.opened() as (carrier, listener):
            await server.requests.get()
            carrier.send(NOTICE, UNKNOWN)
            carrier.send(QUESTION, 1)
            assert b"initialized" in await server.requests.get()
            assert b"tools/list" in await server.requests.get()
            assert listener.endings.empty()


@on_both_loops
async def test_an_abandoned_question_that_still_waits_is_never_sent() -> None:
    async with old_server() as server, server.opened() as (carrier, _):
        await server.requests.get()
        carrier.send(NOTICE, UNKNOWN)
        carrier.send(QUESTION, 1)
        carrier.send(jsonrpc.make_request(2, "ping"), 2)
        carrier.drop_stream(1)
        server.take_all()
        assert b"initialized" in await server.requests.get()
        assert b"ping" in await server.requests.get()


@on_both_loops
async def test_what_waits_for_a_server_is_bounded() -> None:
    with patch.object(posts, "MAX_POSTS", 3):
        async with old_server() as server, server.opened() as (carrier, _):
            for stream in range(1, 4):
                carrier.send(QUESTION, stream)
            with pytest.raises(Unavailable) as refused:
                carrier.send(QUESTION, 4)
            assert refused.value.fault is EXHAUSTED
            await server.asked(4)


@on_both_loops
async def test_the_body_of_a_reply_is_read_within_a_bound() -> None:
    endless = b"HTTP/1.1 202 Accepted\r\nContent-Type: text/plain\r\n\r\n" + b"x" * 100_000
    async with old_server() as server, server.opened() as (carrier, listener):
        server.replies.put_nowait(endless)
        carrier.send(QUESTION, 1)
        await server.hung_up.wait()
        assert listener.endings.empty()


@on_both_loops
async def test_streams_leave_connections_for_messages() -> None:
    with patch.object(sse, "MAX_STREAMS", 1):
        async with old_server() as server:
            async with server.opened():
                with pytest.raises(Unavailable) as refused:
                    await server.carrier().open(Listener())
                assert refused.value.fault is EXHAUSTED
            async with server.opened():
                pass


@on_both_loops
async def test_the_modern_era_is_refused_without_asking_the_server() -> None:
    async with old_server() as server:
        carrier = server.carrier(Era.MODERN)
        with pytest.raises(Unavailable, match="does not support MCP 2026-07-28"):
            await carrier.open(Listener())
        await carrier.close()
        assert server.streams == []


@on_both_loops
async def test_a_header_that_holds_a_line_break_is_refused_at_once() -> None:
    async with pooled() as pool:
        with pytest.raises(Misconfigured):
            SseTransportFactory(pool, "http://127.0.0.1:1/sse", {"x-token": "a\r\nb: c"})
