"""What one peer may hold of the listener, tried with the peers that would hold more."""

import asyncio
import itertools
import logging
from datetime import timedelta

from comity.http.connection import ListenerLimits
from tests.support.listening import (
    GET,
    GET_AND_CLOSE,
    Receive,
    Scope,
    Send,
    answer,
    listening,
    on_both_loops,
)

SOON = timedelta(milliseconds=500)
NEVER = timedelta(minutes=5)


@on_both_loops
async def test_half_open_requests_are_closed_while_an_honest_client_is_served() -> None:
    async with listening(limits=ListenerLimits(header_time=SOON)) as door:
        honest = await door.connect()
        assert await honest.ask(GET) == b"host|"
        for number in range(300):
            peer = await door.connect()
            peer.say((b"", b"G", b"GET / HTTP/1.1\r\nhost: ", b"\r\n")[number % 4])
        assert await honest.ask(GET) == b"host|"
        ended = [await peer.until_closed() for peer in door.peers[1:]]
        assert len(ended) == 300
        # None gets anything but the refusal, and the client beside them kept its connection.
        assert {text[:12] for text in ended} <= {b"HTTP/1.1 408", b""}
        assert await honest.ask(GET) == b"host|"


@on_both_loops
async def test_a_head_that_drips_does_not_move_its_deadline() -> None:
    async with listening(limits=ListenerLimits(header_time=SOON)) as door:
        peer = await door.connect()
        closed = asyncio.ensure_future(peer.until_closed())
        peer.say(b"GET / HTTP/1.1\r\n")
        while not closed.done():
            peer.say(b"x: y\r\n")
            await asyncio.wait((closed,), timeout=0.01)
        assert b" 408 " in closed.result() or closed.result() == b""


@on_both_loops
async def test_a_second_request_begun_on_a_kept_connection_has_the_same_deadline() -> None:
    async with listening(limits=ListenerLimits(header_time=SOON)) as door:
        peer = await door.connect()
        assert await peer.ask(GET) == b"host|"
        peer.say(b"GET / HT")
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 408")


@on_both_loops
async def test_blank_lines_do_not_hold_a_kept_connection() -> None:
    async with listening(limits=ListenerLimits(header_time=SOON)) as door:
        peer = await door.connect()
        assert await peer.ask(GET) == b"host|"
        peer.say(b"\r\n")
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 408")


@on_both_loops
async def test_an_idle_kept_connection_and_a_long_answer_outlive_the_head_deadline() -> None:
    release = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await release.wait()
        await answer(send, b"done")

    async with listening(app, ListenerLimits(header_time=SOON)) as door:
        idle = await door.connect()
        assert await idle.ask(GET) == b"done"
        waiting = await door.connect()
        long_answer = asyncio.ensure_future(waiting.ask(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"))
        # The deadline has passed for certain once a connection opened later has met it.
        await (await door.connect()).until_closed()
        release.set()
        assert await long_answer == b"done"
        assert await idle.ask(GET) == b"done"


@on_both_loops
async def test_an_idle_kept_connection_is_closed_after_its_own_time() -> None:
    limits = ListenerLimits(keep_alive=timedelta(seconds=1), header_time=NEVER)
    async with listening(limits=limits) as door:
        peer = await door.connect()
        assert await peer.ask(GET) == b"host|"
        assert await peer.until_closed() == b""


@on_both_loops
async def test_the_head_of_a_request_has_an_exact_length_limit() -> None:
    async with listening(limits=ListenerLimits(header_bytes=1000)) as door:
        fits = b"GET / HTTP/1.1\r\nx: " + b"a" * (1000 - 23) + b"\r\n\r\n"
        assert len(fits) == 1000
        assert await (await door.connect()).ask(fits) == b"x|"
        peer = await door.connect()
        peer.say(fits.replace(b"x:", b"xx:"))
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 431")


@on_both_loops
async def test_an_endless_head_is_refused_also_in_small_pieces() -> None:
    async with listening(limits=ListenerLimits(header_bytes=1000)) as door:
        peer = await door.connect()
        closed = asyncio.ensure_future(peer.until_closed())
        peer.say(b"GET / HTTP/1.1\r\nx: ")
        while not closed.done():
            peer.say(b"a" * 100)
            await asyncio.wait((closed,), timeout=0.001)
        assert closed.result() == b"" or closed.result().startswith(b"HTTP/1.1 431")


@on_both_loops
async def test_a_body_longer_than_the_head_limit_arrives_whole_and_so_does_the_next_request() -> (
    None
):
    async with listening(limits=ListenerLimits(header_bytes=1000)) as door:
        peer = await door.connect()
        body = b"b" * 300_000
        post = b"POST / HTTP/1.1\r\ncontent-length: 300000\r\n\r\n" + body
        assert await peer.ask(post) == b"content-length|" + body
        # The second head begins in the piece in which the first body ends.
        second = b"GET / HTTP/1.1\r\nx: " + b"a" * 960 + b"\r\n\r\n"
        peer.say(post + second[:9])
        assert (await peer.reader.readuntil(b"0\r\n\r\n")).count(b"b") == 300_000
        assert await peer.ask(second[9:]) == b"x|"


@on_both_loops
async def test_a_long_url_is_refused() -> None:
    async with listening(limits=ListenerLimits(url_bytes=100)) as door:
        peer = await door.connect()
        peer.say(b"GET /" + b"a" * 100 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 414")
        assert await (await door.connect()).ask(GET) == b"host|"


@on_both_loops
async def test_a_malformed_request_is_refused_and_closed() -> None:
    async with listening() as door:
        peer = await door.connect()
        peer.say(b"\x16\x03\x01 what is this\r\n\r\n")
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 400")


@on_both_loops
async def test_trailers_do_not_become_headers() -> None:
    async with listening() as door:
        peer = await door.connect()
        request = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
        assert await peer.ask(request + b"x-evil: 1\r\n\r\n") == b"transfer-encoding|abc"


@on_both_loops
async def test_an_endless_trailer_is_cut() -> None:
    async with listening(limits=ListenerLimits(header_bytes=1000)) as door:
        peer = await door.connect()
        closed = asyncio.ensure_future(peer.until_closed())
        peer.say(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: ")
        while not closed.done():
            peer.say(b"a" * 500)
            await asyncio.wait((closed,), timeout=0.001)
        assert closed.result() == b""


@on_both_loops
async def test_heads_that_come_apart_from_their_bodies_never_add_up_to_a_cut() -> None:
    async with listening(limits=ListenerLimits(header_bytes=200)) as door:
        peer = await door.connect()
        for _ in range(20):
            peer.say(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
            assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            assert await peer.ask(b"abc") == b"expect,content-length|abc"


@on_both_loops
async def test_the_body_of_an_upgrade_is_never_read_as_a_request() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await answer(send, b"ok")

    async with listening(app) as door:
        peer = await door.connect()
        head = b"POST /outer HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        peer.say(head + b"content-length: %d\r\n\r\n" % len(GET) + GET)
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 400")
        # Without a body an upgrade may be ignored, as HTTP allows.
        assert await (await door.connect()).ask(head + b"\r\n") == b"ok"
    assert seen == ["/outer"]


H2C = (
    b"POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings, close-not\r\n"
    b"Host: here\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n"
)


@on_both_loops
async def test_an_offer_of_another_protocol_is_ignored() -> None:
    framed = (
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    )
    for body, size in itertools.product(framed, (1, 7, 10_000)):
        named = body.partition(b":")[0].lower()
        async with listening() as door:
            peer = await door.connect()
            for _ in range(3):
                sent = H2C + body
                for at in range(0, len(sent), size):
                    peer.say(sent[at : at + size])
                    await asyncio.sleep(0)
                assert await peer.answer() == b"connection,host," + named + b"|body"
            # The connection goes on as one of HTTP/1.1.
            assert await peer.ask(GET) == b"host|"


@on_both_loops
async def test_what_follows_an_ignored_offer_is_read_by_the_same_rules() -> None:
    async with listening() as door:
        peer = await door.connect()
        inner = b"GET /inner HTTP/1.1"
        first = H2C + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
        assert await peer.ask(first + GET) == b"connection,host,content-length|" + inner
        assert await peer.answer() == b"host|"
        both = H2C + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        peer.say(both)
        assert (await peer.until_closed()).startswith(b"HTTP/1.1 400")
        flood = await door.connect()
        flood.say((H2C + b"\r\n") * 1000)
        assert (await flood.until_closed()).count(b"HTTP/1.1 200") < 1000


@on_both_loops
async def test_a_flood_of_pipelined_requests_is_cut() -> None:
    async with listening() as door:
        peer = await door.connect()
        assert (await peer.ask(GET + GET)) == b"host|"
        flood = await door.connect()
        flood.say(GET * 1000)
        assert (await flood.until_closed()).count(b"HTTP/1.1 200") < 1000


@on_both_loops
async def test_a_body_sent_on_after_its_answer_is_cut_in_the_end() -> None:
    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"too long")

    async with listening(impatient) as door:
        peer = await door.connect()
        assert await peer.ask(b"POST / HTTP/1.1\r\ncontent-length: 9999999\r\n\r\n") == b"too long"
        closed = asyncio.ensure_future(peer.until_closed())
        sent = 0
        while not closed.done() and sent < 9_000_000:
            peer.say(b"b" * 50_000)
            sent += 50_000
            await asyncio.wait((closed,), timeout=0.001)
        assert await closed == b""


@on_both_loops
async def test_the_total_of_connections_is_capped() -> None:
    async with listening(limits=ListenerLimits(connections=2, header_time=NEVER)) as door:
        first, second = await door.connect(), await door.connect()
        assert await first.ask(GET) == await second.ask(GET) == b"host|"
        third = await door.connect()
        assert (await third.until_closed()).startswith(b"HTTP/1.1 503")
        first.close()
        await first.writer.wait_closed()
        # The place is free once the listener has seen the end of the first.
        while b" 200 " not in await door.answer_to_a_stranger():
            pass


@on_both_loops
async def test_one_address_cannot_take_the_places_of_another() -> None:
    limits = ListenerLimits(
        connections_per_address=2, uncounted_addresses=frozenset(), header_time=NEVER
    )
    async with listening(limits=limits) as door:
        greedy = [await door.connect() for _ in range(2)]
        assert [await peer.ask(GET) for peer in greedy] == [b"host|"] * 2
        third = await door.connect()
        assert (await third.until_closed()).startswith(b"HTTP/1.1 503")
        other = await door.connect(source="127.0.0.2")
        assert await other.ask(GET) == b"host|"
        greedy[0].close()
        while b" 200 " not in await door.answer_to_a_stranger():
            pass


@on_both_loops
async def test_addresses_that_speak_for_many_are_not_counted() -> None:
    async with listening(limits=ListenerLimits(connections_per_address=1)) as door:
        peers = [await door.connect() for _ in range(3)]
        assert [await peer.ask(GET) for peer in peers] == [b"host|"] * 3


@on_both_loops
async def test_a_finished_answer_that_nobody_reads_does_not_hold_its_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"a" * 20_000_000)

    async with listening(app, ListenerLimits(connections=1, header_time=SOON)) as door:
        deaf = await door.connect()
        deaf.say(GET_AND_CLOSE)
        # Once this much is read the answer is written; the stream reads no further by itself.
        await deaf.reader.readexactly(1)
        while b" 200 " not in await door.answer_to_a_stranger():
            pass
        assert len(await deaf.until_closed()) < 20_000_000


@on_both_loops
async def test_a_client_of_http_1_0_is_sent_no_chunks() -> None:
    async with listening() as door:
        peer = await door.connect()
        peer.say(b"GET / HTTP/1.0\r\nhost: x\r\n\r\n")
        assert await peer.until_closed() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhost|"


@on_both_loops
async def test_a_response_to_head_has_the_headers_and_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"body"})

    async with listening(app) as door:
        peer = await door.connect()
        peer.say(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + GET_AND_CLOSE)
        first, _, second = (await peer.until_closed()).partition(b"\r\n\r\n")
        assert first == b"HTTP/1.1 200 OK\r\ncontent-length: 4"
        assert second.endswith(b"\r\n\r\nbody")


WRONG: dict[str, list[dict[str, object]]] = {
    "nothing": [],
    "a body first": [{"type": "http.response.body", "body": b""}],
    "a header with a line break": [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\r\nc: d")]}
    ],
    "a header without a name": [
        {"type": "http.response.start", "status": 200, "headers": [(b"", b"b")]}
    ],
}
TOO_LATE: dict[str, list[dict[str, object]]] = {
    "no end": [],
    "a second start": [{"type": "http.response.start", "status": 200}],
    "too long": [{"type": "http.response.body", "body": b"12345"}],
    "too short": [{"type": "http.response.body", "body": b"123"}],
}


@on_both_loops
async def test_a_response_that_breaks_the_rules_is_never_taken_for_a_whole_one() -> None:
    sent: list[dict[str, object]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in sent:
            await send(message)

    logging.disable(logging.ERROR)
    try:
        async with listening(app) as door:
            for sent[:] in WRONG.values():
                assert (await door.answer_to_a_stranger()).startswith(b"HTTP/1.1 500")
            head = [(b"content-length", b"4")]
            start: dict[str, object] = {
                "type": "http.response.start",
                "status": 200,
                "headers": head,
            }
            for rest in TOO_LATE.values():
                sent[:] = [start, *rest]
                assert (await door.answer_to_a_stranger()).endswith(b"\r\n\r\n")
    finally:
        logging.disable(logging.NOTSET)
