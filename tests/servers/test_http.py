"""The HTTP transport: sessions, streams, failures, and how responses are read."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from comity.errors import Unavailable
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.protocol import STANDALONE, UNKNOWN, Era
from comity.servers.transports.http import (
    MAX_OPEN_NOTICES,
    MAX_WAITING_NOTICES,
    HttpTransportFactory,
    IgnoredResponse,
    StandaloneStream,
    UpstreamResponse,
)
from comity.sessions.upstream import AccountTransport, TransportListener, UpstreamTransport
from comity.toolkit.resilience import BURST, EACH_SECOND, FEE
from tests.interop.processes import free_port
from tests.servers.hearer import SECONDS, Hearer
from tests.support.cases import loop_over
from tests.support.upstream import Exchange, Upstream, encode, scripted

pytestmark = pytest.mark.integration

NOTE = {"method": "notifications/message", "params": {"data": "told"}}

HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}


@dataclass
class Scene:
    """A scripted server, the carrier to it, and who hears what comes."""

    server: Upstream
    carrier: UpstreamTransport
    hearer: Hearer

    def ask(self, named: int, tool: str = "plain") -> None:
        frame = jsonrpc.make_request(named, "tools/call", {"name": tool})
        self.carrier.send(frame, named)

    async def greet(self) -> None:
        self.carrier.send(jsonrpc.make_request(1, "initialize", HELLO), 1)
        await self.hearer.answer(1)
        self.carrier.set_version("2025-11-25")


@asynccontextmanager
async def reaching(
    era: Era = Era.HANDSHAKE,
    limits: FrameLimits | None = None,
    headers: dict[str, str] | None = None,
    url: str = "",
) -> AsyncGenerator[Scene]:
    async with scripted(modern=era is Era.MODERN) as server:
        pool = HttpConnectionPool()
        reach = HttpTransportFactory(
            pool, url or server.url, headers or {}, limits or FrameLimits()
        )
        carrier, hearer = reach.create_transport(era), Hearer()
        await carrier.open(hearer)
        try:
            yield Scene(server, carrier, hearer)
        finally:
            await carrier.close()
            await pool.close()


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with reaching() as scene:
        await scene.greet()
        yield scene


def forgetting(server: Upstream, *forgotten: str) -> None:
    """Have the server refuse the calls of these sessions."""

    @server.act("tools/call")
    async def call(exchange: Exchange) -> None:
        if exchange.headers["mcp-session-id"] in forgotten:
            await exchange.respond(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600}}')
        else:
            await exchange.text("done")


async def test_the_session_and_its_version_are_named_in_every_later_request(scene: Scene) -> None:
    first = scene.server.of("initialize")[0]
    assert "mcp-session-id" not in first.headers
    scene.ask(2)
    await scene.hearer.answer(2)
    sent = scene.server.of("tools/call")[0]
    assert sent.headers["mcp-session-id"] == "session-1"
    assert sent.headers["mcp-protocol-version"] == "2025-11-25"
    assert sent.headers["accept"] == "application/json, text/event-stream"


async def test_configured_headers_go_with_every_request() -> None:
    async with reaching(headers={"Authorization": "Bearer configured"}) as scene:
        await scene.greet()
        scene.carrier.listen()
        await scene.server.arrival("GET")
        await scene.carrier.close()
        await scene.server.arrival("DELETE")
        told = [each.headers.get("authorization") for each in scene.server.heard]
        assert told == ["Bearer configured"] * len(scene.server.heard)


async def test_what_comes_on_a_stream_is_heard_as_that_questions(scene: Scene) -> None:
    @scene.server.act("streams")
    async def streams(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE)
        await exchange.event({"id": exchange.id, "result": {}})
        exchange.hang_up()

    scene.ask(2, "streams")
    await scene.hearer.answer(2)
    assert [(frame.get("method"), on) for frame, on, _ in scene.hearer.messages[1:]] == [
        ("notifications/message", 2),
        (None, 2),
    ]
    assert scene.hearer.opened == [2]


async def test_what_comes_on_the_standing_stream_is_nobodys(scene: Scene) -> None:
    @scene.server.act("GET")
    async def stand(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE)
        await exchange.left()

    scene.carrier.listen()
    scene.carrier.listen()
    found = await scene.hearer.until(lambda: scene.hearer.messages[1:])
    assert [(frame["method"], on) for frame, on, _ in found] == [
        ("notifications/message", STANDALONE)
    ]
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 1


async def test_a_server_without_a_standing_stream_is_asked_for_it_once(scene: Scene) -> None:
    scene.carrier.listen()
    await scene.server.arrival("GET")
    scene.ask(2)
    await scene.hearer.answer(2)
    scene.carrier.listen()
    scene.ask(3)
    await scene.hearer.answer(3)
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 1


@loop_over(
    ("named", "said"),
    [("e-1", b""), ("e-2", b"data: " + b"x" * 8192 + b"\n\n")],
    ids=["ended", "over the limit"],
)
async def test_standing_stream_is_opened_again_after_its_last_event(
    named: str, said: bytes
) -> None:
    async with reaching(limits=FrameLimits(frame_bytes=1024)) as scene:
        await scene.greet()

        @scene.server.act("GET")
        async def stand(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(None, named=named, retry=1)
            if said:
                await exchange.say(said)
                await exchange.left()
            exchange.hang_up()

        scene.carrier.listen()
        again = await scene.server.arrival("GET", 2)
        assert again.headers["last-event-id"] == named


async def test_a_forgotten_session_is_opened_again_and_the_call_repeated_once(
    scene: Scene,
) -> None:
    forgetting(scene.server, "session-1")
    scene.ask(2)
    answer, status = await scene.hearer.answer(2)
    assert (answer["result"]["content"][0]["text"], status) == ("done", 200)
    calls = [each.headers["mcp-session-id"] for each in scene.server.of("tools/call")]
    assert calls == ["session-1", "session-2"]
    greetings = scene.server.of("initialize")
    assert greetings[0].frame == greetings[1].frame
    assert "mcp-session-id" not in greetings[1].headers
    told = scene.server.of("notifications/initialized")
    assert [each.headers["mcp-session-id"] for each in told] == ["session-2"]
    assert scene.hearer.renewals == 1


async def test_calls_refused_together_share_one_new_session(scene: Scene) -> None:
    forgetting(scene.server, "session-1")
    for named in (2, 3, 4):
        scene.ask(named)
    for named in (2, 3, 4):
        await scene.hearer.answer(named)
    assert len(scene.server.of("tools/call")) == 6
    assert scene.hearer.renewals == len(scene.server.of("initialize")) - 1


async def test_a_call_that_is_refused_in_the_new_session_too_fails(scene: Scene) -> None:
    forgetting(scene.server, "session-1", "session-2")
    scene.ask(2)
    _, status = await scene.hearer.answer(2)
    assert status == 404
    assert len(scene.server.of("tools/call")) == 2


async def test_a_session_that_could_not_be_opened_again_is_tried_at_the_next_call(
    scene: Scene,
) -> None:
    forgetting(scene.server, "session-1")

    @scene.server.act("initialize")
    async def busy(exchange: Exchange) -> None:
        await exchange.respond(503)

    scene.ask(2)
    assert "would not open another" in await scene.hearer.ending(2)
    assert scene.hearer.renewals == 0
    del scene.server.acts["initialize"]
    scene.ask(3)
    answer, _ = await scene.hearer.answer(3)
    assert answer["result"]["content"][0]["text"] == "done"


async def test_a_stream_that_ended_early_is_taken_up_by_its_last_event(scene: Scene) -> None:
    minted: list[Any] = []

    @scene.server.act("polls")
    async def polls(exchange: Exchange) -> None:
        minted.append(exchange.id)
        await exchange.stream()
        await exchange.event(None, named="p-1", retry=1)
        exchange.hang_up()

    @scene.server.act("GET")
    async def resume(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE, named="p-2")
        await exchange.event({"id": minted[0], "result": {"plain": True}}, named="p-3")
        await exchange.left()

    scene.ask(2, "polls")
    answer, _ = await scene.hearer.answer(2)
    assert answer["result"] == {"plain": True}
    assert scene.hearer.suspended == [2]
    (resumed,) = [each for each in scene.server.heard if each.verb == "GET"]
    assert resumed.headers["last-event-id"] == "p-1"
    assert resumed.headers["mcp-session-id"] == "session-1"
    assert len(scene.server.of("tools/call")) == 1


async def test_a_stream_is_not_taken_up_for_ever(scene: Scene) -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named="again", retry=1)
        exchange.hang_up()

    scene.server.act("breaks")(break_off)
    scene.server.act("GET")(break_off)
    scene.ask(2, "breaks")
    assert await scene.hearer.ending(2)
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 8


def end_early(server: Upstream, named: str) -> None:
    """The tool `odd` begins a stream with an event of this id, and hangs up."""

    @server.act("odd")
    async def odd(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named=named, retry=1)
        exchange.hang_up()


@pytest.mark.parametrize("named", ["\x01", "a\x7fb", "x" * 4000, "\u2028"])
async def test_event_id_that_no_header_can_carry_ends_the_stream(scene: Scene, named: str) -> None:
    end_early(scene.server, named)
    scene.ask(2, "odd")
    assert await scene.hearer.ending(2)
    assert [each for each in scene.server.heard if each.verb == "GET"] == []


async def test_event_id_beyond_ascii_is_repeated_unchanged(scene: Scene) -> None:
    end_early(scene.server, "\u2603")
    scene.ask(2, "odd")
    resumed = await scene.server.arrival("GET")
    assert resumed.headers["last-event-id"].encode("latin-1").decode() == "\u2603"


async def test_call_whose_stream_had_begun_is_never_sent_again(scene: Scene) -> None:
    """The session is forgotten between the stream and its resumption: the tool may have run."""
    end_early(scene.server, "r-1")

    @scene.server.act("GET")
    async def forgotten(exchange: Exchange) -> None:
        await exchange.respond(404)

    scene.ask(2, "odd")
    assert "404" in await scene.hearer.ending(2)
    assert len(scene.server.of("tools/call")) == 1


@loop_over("era", Era)
async def test_withdrawn_call_is_cancelled_in_words_or_by_closing_its_connection(era: Era) -> None:
    async with reaching(era) as scene:
        left = asyncio.Event()

        @scene.server.act("long")
        async def long(exchange: Exchange) -> None:
            await exchange.left()
            left.set()

        if era is Era.HANDSHAKE:
            await scene.greet()
        scene.ask(2, "long")
        await scene.server.arrival("tools/call")
        cancelled = jsonrpc.make_notification("notifications/cancelled", {"requestId": 2})
        scene.carrier.send(cancelled, UNKNOWN)
        scene.carrier.drop_stream(2)
        if era is Era.HANDSHAKE:
            told = await scene.server.arrival("notifications/cancelled")
            assert told.headers["mcp-session-id"] == "session-1"
        else:
            async with asyncio.timeout(SECONDS):
                await left.wait()
            assert scene.server.of("notifications/cancelled") == []


async def test_closing_ends_the_session_and_waits_for_no_dead_server() -> None:
    async with reaching() as scene:
        await scene.greet()

        @scene.server.act("DELETE")
        async def never(exchange: Exchange) -> None:
            await exchange.left()

        async with asyncio.timeout(SECONDS):
            await scene.carrier.close()
            await scene.carrier.close()
        deleted = [each for each in scene.server.heard if each.verb == "DELETE"]
        assert [each.headers["mcp-session-id"] for each in deleted] == ["session-1"]


async def test_a_paused_stream_is_read_on_when_its_reader_is_ready(scene: Scene) -> None:
    @scene.server.act("much")
    async def much(exchange: Exchange) -> None:
        await exchange.stream()
        for _ in range(64):
            await exchange.event({**NOTE, "params": {"data": "x" * 65536}})
        await exchange.event({"id": exchange.id, "result": {}})
        exchange.hang_up()

    scene.ask(2, "much")
    await scene.hearer.until(lambda: scene.hearer.opened)
    scene.carrier.pause(2)
    paused_at = len(scene.hearer.messages)
    scene.ask(3)
    await scene.hearer.answer(3)
    assert len(scene.hearer.messages) < 64, "the stream was read on while it was paused"
    assert len(scene.hearer.messages) >= paused_at
    scene.carrier.resume(2)
    await scene.hearer.answer(2)


async def test_configured_header_is_neither_logged_nor_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with reaching(headers={"Authorization": "Bearer canary-in-a-header"}) as scene:
        await scene.greet()

        @scene.server.act("fails")
        async def fails(exchange: Exchange) -> None:
            await exchange.respond(500, b"canary-free")

        scene.ask(2, "fails")
        ending = await scene.hearer.ending(2)
        assert "canary" not in ending + caplog.text + repr(scene.carrier)


async def test_a_session_is_ended_only_when_what_was_told_in_it_has_been_taken() -> None:
    taken = asyncio.Event()
    async with reaching() as scene:
        await scene.greet()

        @scene.server.act("notifications/cancelled")
        async def hesitate(exchange: Exchange) -> None:
            await taken.wait()
            await exchange.respond(202, b"")

        scene.carrier.send(jsonrpc.make_notification("notifications/cancelled"), UNKNOWN)
        await scene.server.arrival("notifications/cancelled")
        closing = asyncio.ensure_future(scene.carrier.close())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await scene.server.arrival("DELETE")
        taken.set()
        async with asyncio.timeout(SECONDS):
            await scene.server.arrival("DELETE")
            await closing


async def test_notifications_arrive_in_the_order_in_which_they_were_sent(scene: Scene) -> None:
    arrived: list[int] = []
    free = asyncio.Event()

    @scene.server.act("notifications/progress")
    async def progress(exchange: Exchange) -> None:
        if not arrived:
            await free.wait()
        arrived.append(json.loads(exchange.body)["params"]["progress"])
        await exchange.respond(202)

    for number in range(20):
        told = {"progressToken": 1, "progress": number}
        scene.carrier.send(jsonrpc.make_notification("notifications/progress", told), STANDALONE)
    await scene.server.arrival("notifications/progress")
    scene.ask(2)
    await scene.hearer.answer(2)
    assert len(scene.server.of("notifications/progress")) == 1
    free.set()
    async with asyncio.timeout(SECONDS):
        while len(arrived) < 20:
            await asyncio.sleep(0.01)
    assert arrived == list(range(20))


async def test_a_server_that_takes_no_notification_gets_the_next_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.servers.transports.http.NOTICE_TIMEOUT_SECONDS", 0.05)
    free = asyncio.Event()

    @scene.server.act("notifications/progress")
    async def progress(exchange: Exchange) -> None:
        await free.wait()
        await exchange.respond(202)

    for number in range(3):
        told = {"progressToken": 1, "progress": number}
        scene.carrier.send(jsonrpc.make_notification("notifications/progress", told), STANDALONE)
    async with asyncio.timeout(SECONDS):
        while len(scene.server.of("notifications/progress")) < 3:
            await asyncio.sleep(0.01)
    free.set()


def notify(scene: Scene, count: int) -> None:
    for number in range(count):
        told = {"progressToken": 1, "progress": number}
        scene.carrier.send(jsonrpc.make_notification("notifications/progress", told), STANDALONE)


async def test_few_connections_wait_for_a_server_that_answers_no_notification(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.servers.transports.http.NOTICE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("comity.servers.transports.http.NOTICE_ANSWER_SECONDS", 1.0)
    is_open = most = 0
    is_hanging = True

    @scene.server.act("notifications/progress")
    async def progress(exchange: Exchange) -> None:
        nonlocal is_open, most
        if not is_hanging:
            await exchange.respond(202)
            return
        is_open += 1
        most = max(most, is_open)
        await exchange.left()
        is_open -= 1

    notify(scene, MAX_WAITING_NOTICES)
    await scene.server.arrival("notifications/progress", MAX_OPEN_NOTICES)
    async with asyncio.timeout(SECONDS):
        while is_open:
            await asyncio.sleep(0.01)
    assert most == MAX_OPEN_NOTICES
    is_hanging = False
    before = len(scene.server.of("notifications/progress"))
    notify(scene, 1)
    await scene.server.arrival("notifications/progress", before + 1)
    scene.ask(2)
    await scene.hearer.answer(2)
    assert scene.hearer.closings == []


async def test_a_server_that_answers_no_notification_of_very_many_is_left(scene: Scene) -> None:
    ended = asyncio.Event()

    @scene.server.act("notifications/progress")
    async def progress(exchange: Exchange) -> None:
        await exchange.left()
        ended.set()

    notify(scene, MAX_WAITING_NOTICES + 1)
    assert scene.hearer.closings == []
    notify(scene, 10)
    await scene.hearer.until(lambda: scene.hearer.closings)
    assert scene.hearer.closings == ["the server takes no messages"]
    async with asyncio.timeout(SECONDS):
        await scene.carrier.close()
        if scene.server.of("notifications/progress"):
            await ended.wait()
    assert len(scene.server.of("notifications/progress")) <= 1


async def test_two_servers_at_one_origin_share_no_connection() -> None:
    async with scripted() as server:
        pool = HttpConnectionPool()
        honest, hostile = (
            HttpTransportFactory(pool, server.url, {}).create_transport(Era.HANDSHAKE)
            for _ in range(2)
        )
        hearers = Hearer(), Hearer()
        await hostile.open(hearers[0])
        await honest.open(hearers[1])

        try:
            for carrier, hearer in zip(
                (hostile, honest, hostile), (*hearers, hearers[0]), strict=True
            ):
                number = len(hearer.messages) + 1
                carrier.send(jsonrpc.make_request(number, "tools/call", {"name": "plain"}), number)
                await hearer.answer(number)
            (load,) = pool.loads().values()
            assert load.idle == 2
            writers = [each.writer for each in server.of("tools/call")]
            assert writers[0] is writers[2]
            assert writers[0] is not writers[1]
        finally:
            for carrier in (honest, hostile):
                await carrier.close()
            await pool.close()
        assert all(not any(load) for load in pool.loads().values())


async def test_unreachable_server_is_reported_as_failing_in_the_call() -> None:
    async with reaching(url=f"http://127.0.0.1:{free_port()}/mcp") as scene:
        scene.ask(1)
        assert "cannot be reached" in await scene.hearer.ending(1)
        ((why, in_a_call),) = scene.hearer.falterings
        assert in_a_call
        assert "cannot be reached" in why


ERROR_ANSWER = encode({"id": 1, "error": {"code": -32603, "message": "oops"}})


@loop_over(
    ("status", "body", "is_failing"),
    [
        *((status, b"<html>Bad Gateway</html>", True) for status in (500, 502, 503, 504)),
        *((status, b"", False) for status in (400, 401, 403, 404, 429)),
        # An error that answers the call is an answer.
        (500, ERROR_ANSWER, False),
        # The server hangs up.
        (0, b"", True),
    ],
)
async def test_server_fails_by_status_or_by_hanging_up_and_not_by_a_refusal(
    status: int, body: bytes, is_failing: bool
) -> None:
    async with reaching() as scene:

        @scene.server.act("plain")
        async def respond(exchange: Exchange) -> None:
            if status:
                await exchange.respond(status, body)
            else:
                exchange.hang_up()

        scene.ask(1)
        if body is ERROR_ANSWER:
            await scene.hearer.answer(1)
        else:
            assert str(status or "") in await scene.hearer.ending(1)
        assert [in_a_call for _, in_a_call in scene.hearer.falterings] == [True] * is_failing
        assert all(str(status or "") in why for why, _ in scene.hearer.falterings)


async def test_broken_standing_stream_is_a_failure_outside_any_call(scene: Scene) -> None:
    @scene.server.act("GET")
    async def break_off(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        exchange.writer.transport.abort()

    scene.carrier.listen()
    await scene.hearer.until(lambda: scene.hearer.falterings)
    assert not scene.hearer.falterings[0][1]


JSON_TYPE = [(b"content-type", b"application/json")]

STREAM_TYPE = [(b"content-type", b"text/event-stream; charset=utf-8")]

ANSWER = b'{"jsonrpc":"2.0","id":2,"result":{}}'

REFUSAL: dict[str, Any] = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}


class Owner:
    """A carrier of which only the record is kept."""

    def __init__(self, limits: FrameLimits | None = None, *, resumes: bool = True) -> None:
        self.limits = limits or FrameLimits()
        self.hearer = Hearer()
        self.listener: TransportListener = self.hearer
        self.resumes = resumes
        self.forgets = False
        self.sessions: list[bytes] = []
        self.done: list[int] = []
        self.again: list[UpstreamResponse] = []
        self.taken_up: list[str] = []
        self.listening: list[int] = []
        self.released = 0

    def on_session_started(self, session: bytes) -> None:
        self.sessions.append(session)

    def on_finished(self, stream: int) -> None:
        self.done.append(stream)

    def can_authorize(self, reply: UpstreamResponse, status: int) -> bool:
        return False

    def authorize_again(self, reply: UpstreamResponse, status: int, challenge: str) -> None:
        raise AssertionError("it has no account")

    def is_session_lost(self, status: int) -> bool:
        return self.forgets and status == 404

    def resend_in_new_session(self, reply: UpstreamResponse) -> None:
        self.again.append(reply)

    def resume_stream(self, reply: UpstreamResponse) -> None:
        self.taken_up.append(reply.last_event_id)

    def reopen_standalone(self, standing: StandaloneStream, status: int) -> None:
        self.listening.append(status)

    def send_held_back(self) -> None:
        self.released += 1


@pytest.fixture
async def owner() -> Owner:
    return Owner()


def reply_of(owner: Owner) -> UpstreamResponse:
    return UpstreamResponse(owner, 2, b"{}", ())


async def test_a_body_in_pieces_is_one_message(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, JSON_TYPE)
    for number in range(len(ANSWER)):
        reply.data(ANSWER[number : number + 1])
    reply.ended()
    assert owner.hearer.messages == [(json.loads(ANSWER), 2, 200)]
    assert (owner.done, owner.hearer.opened) == ([2], [])


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "check the credentials"),
        (403, "check the credentials"),
        (404, "check its URL"),
        (500, "HTTP 500"),
        (202, "HTTP 202"),
        (302, "HTTP 302"),
    ],
)
async def test_a_refusal_without_json_is_told_in_words(
    owner: Owner, status: int, told: str
) -> None:
    reply = reply_of(owner)
    reply.started(status, [(b"content-type", b"text/html")])
    reply.data(b"<h1>canary</h1>")
    reply.ended()
    assert told in owner.hearer.endings[2]
    assert "canary" not in owner.hearer.endings[2]


@pytest.mark.parametrize(
    ("status", "fault"),
    [(500, "upstream_failed"), (503, "upstream_down"), (504, "upstream_slow")],
)
async def test_a_status_tells_whether_a_server_failed_or_was_not_there(
    owner: Owner, status: int, fault: str
) -> None:
    reply = reply_of(owner)
    reply.started(status, [])
    reply.ended()
    assert owner.hearer.faults == [fault]


@pytest.mark.parametrize(
    ("status", "shown"), [(400, 400), (404, 404), (401, 200), (403, 200), (500, 200), (503, 200)]
)
async def test_a_refusal_in_json_is_the_answer_under_the_questions_id(
    owner: Owner, status: int, shown: int
) -> None:
    """Only what concerns the request keeps its status; a 401 is about the gateway."""
    reply = reply_of(owner)
    reply.started(status, JSON_TYPE)
    reply.data(json.dumps(REFUSAL).encode())
    reply.ended()
    assert owner.hearer.messages == [({**REFUSAL, "id": 2}, 2, shown)]
    assert owner.hearer.endings == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","method":"notifications/message"}',
        b'{"jsonrpc":"2.0","id":9,"method":"roots/list"}',
    ],
)
async def test_a_body_that_is_no_answer_leaves_the_question_unanswered(
    owner: Owner, body: bytes
) -> None:
    reply = reply_of(owner)
    reply.started(200, JSON_TYPE)
    reply.data(body)
    reply.ended()
    assert "no JSON-RPC answer" in owner.hearer.endings[2]


async def test_a_body_over_the_limit_is_given_up_and_not_kept() -> None:
    owner = Owner(FrameLimits(frame_bytes=1000))
    reply = reply_of(owner)
    reply.started(200, JSON_TYPE)
    for _ in range(4):
        reply.data(b" " * 300)
        if owner.done:
            break
    assert "larger than a message may be" in owner.hearer.endings[2]
    assert owner.done == [2]


async def test_an_event_over_the_limit_ends_the_stream() -> None:
    owner = Owner(FrameLimits(frame_bytes=1000))
    reply = reply_of(owner)
    reply.started(200, STREAM_TYPE)
    reply.data(b'data: {"jsonrpc":"2.0","method":"a"}\n\ndata: ' + b"x" * 4000)
    assert [frame["method"] for frame, _, _ in owner.hearer.messages] == ["a"]
    assert "stream is broken" in owner.hearer.endings[2]


async def test_a_stream_with_a_status_that_is_no_success_is_a_refusal(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(500, STREAM_TYPE)
    reply.data(b"data: " + ANSWER + b"\n\n")
    reply.ended()
    assert owner.hearer.messages == []
    assert "HTTP 500" in owner.hearer.endings[2]


async def test_a_session_of_absurd_length_is_not_kept(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, [*JSON_TYPE, (b"mcp-session-id", b"s" * 2000)])
    reply.started(200, [*JSON_TYPE, (b"mcp-session-id", b"")])
    assert owner.sessions == []


async def test_a_refused_question_is_asked_again_only_once(owner: Owner) -> None:
    owner.forgets = True
    reply = reply_of(owner)
    for _ in range(2):
        reply.started(404, JSON_TYPE)
        reply.data(json.dumps(REFUSAL).encode())
        reply.ended()
    assert owner.again == [reply]
    assert [status for _, _, status in owner.hearer.messages] == [404]


async def test_a_stream_is_taken_up_from_its_last_event_id(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM_TYPE)
    reply.data(b"id: a\nretry: 7\ndata:\n\nid: b\ndata:\n\n")
    reply.ended()
    assert (owner.taken_up, reply.retry_seconds) == (["b"], 0.007)
    assert owner.hearer.suspended == [2]
    reply.started(200, STREAM_TYPE)
    reply.data(b"id: c\ndata: " + ANSWER + b"\n\n")
    assert owner.done == [2]
    assert owner.hearer.opened == [2]


async def test_a_stream_that_breaks_without_an_id_has_failed(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM_TYPE)
    reply.data(b"data: half of an ev")
    reply.ended()
    assert 2 in owner.hearer.endings
    assert owner.taken_up == []


async def test_a_stream_of_the_modern_era_is_never_taken_up() -> None:
    owner = Owner(resumes=False)
    reply = reply_of(owner)
    reply.started(200, STREAM_TYPE)
    reply.data(b"id: a\ndata:\n\n")
    reply.ended()
    assert owner.taken_up == []
    assert 2 in owner.hearer.endings


async def test_what_follows_the_answer_on_its_stream_ends_nothing_twice(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM_TYPE)
    reply.data(b"data: " + ANSWER + b"\n\n")
    reply.ended()
    assert (owner.done, owner.hearer.endings) == ([2], {})


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (405, JSON_TYPE, 405),
        (200, JSON_TYPE, 405),
        (404, JSON_TYPE, 404),
        (200, STREAM_TYPE, 200),
        (503, [], 503),
    ],
)
async def test_a_standing_stream_tells_why_it_ended(
    owner: Owner, status: int, headers: list[tuple[bytes, bytes]], told: int
) -> None:
    standing = StandaloneStream(owner)
    standing.started(status, headers)
    standing.ended()
    assert owner.listening == [told]


async def test_a_standing_stream_waits_longer_each_time_it_fails(owner: Owner) -> None:
    standing = StandaloneStream(owner)
    standing.started(200, STREAM_TYPE)
    standing.data(b"retry: 0\n\n")
    shortest = standing.wait_seconds()
    assert shortest >= 0.1
    waits: list[float] = []
    for _ in range(8):
        standing.started(503, [])
        standing.ended()
        waits.append(standing.wait_seconds())
    assert waits == sorted(waits)
    assert waits[-1] == 32 * shortest
    standing.started(200, STREAM_TYPE)
    assert standing.wait_seconds() == shortest


async def test_a_discarded_response_tells_when_it_is_over(owner: Owner) -> None:
    for status, headers in (
        (200, [(b"mcp-session-id", b"new")]),
        (500, [(b"mcp-session-id", b"x")]),
    ):
        discard = IgnoredResponse(owner)
        discard.started(status, headers)
        discard.data(b"ignored")
        discard.ended()
        async with asyncio.timeout(5):
            await discard.done
        assert discard.named_a_session is (status == 200)
    assert owner.sessions == [b"new"]


async def test_whoever_waits_for_a_standing_stream_goes_on_once_whatever_came_of_it(
    owner: Owner,
) -> None:
    standing = StandaloneStream(owner)
    standing.failed(Unavailable("refused"))
    assert (owner.released, standing.is_answered) == (1, True)
    standing.started(200, [(b"content-type", b"text/event-stream")])
    assert owner.released == 1


async def test_flood_on_a_standing_stream_is_read_at_a_limited_rate() -> None:
    began = time.monotonic()
    async with reaching() as scene:

        @scene.server.act("GET")
        async def pour(exchange: Exchange) -> None:
            await exchange.stream()
            while True:
                await exchange.say((b"data: " + encode(NOTE) + b"\n\n") * 500)

        await scene.greet()
        scene.carrier.listen()
        heard = scene.hearer.messages
        await scene.hearer.until(lambda: len(heard) > BURST / FEE / 2)
        async with asyncio.timeout(SECONDS):
            while time.monotonic() < began + 1:
                await asyncio.sleep(0.05)
        # A socket may bring more at once than a pipe.
        earned = BURST + EACH_SECOND * (time.monotonic() - began)
        assert len(heard) <= earned / FEE + 5 * 64 * 1024 / 50


class ListReader:
    """The account that reads the lists, which calls must not use."""

    def is_needed(self) -> bool:
        return True

    def authorization(self, *, is_for_caller: bool = False) -> bytes:
        return b"" if is_for_caller else b"Bearer old"

    async def prepare(self) -> None:
        return

    async def renew(
        self, refused: bytes, status: int, challenge: str, *, is_for_caller: bool = False
    ) -> bytes:
        if is_for_caller:
            raise Unavailable("sign in", challenge=challenge)
        return b"Bearer new"


async def test_the_account_of_the_lists_goes_with_no_request_of_a_caller() -> None:
    async with reaching(Era.MODERN) as scene:

        @scene.server.act("tools/call")
        async def call(exchange: Exchange) -> None:
            if exchange.headers.get("authorization") == "Bearer new":
                await exchange.text("done")
            else:
                await exchange.respond(401, www_authenticate="Bearer")

        assert isinstance(scene.carrier, AccountTransport)
        scene.carrier.account = ListReader()
        scene.carrier.attach(scene.hearer)
        scene.hearer.of_callers = {3}
        scene.ask(2)
        await scene.hearer.answer(2)
        scene.ask(3)
        await scene.hearer.ending(3)
        shown = [each.headers.get("authorization") for each in scene.server.of("tools/call")]
        assert shown == ["Bearer old", "Bearer new", None]
        assert scene.hearer.endings == {3: "sign in"}
