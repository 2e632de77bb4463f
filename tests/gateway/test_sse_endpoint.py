"""The two endpoints of the old SSE transport, without a socket."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest

from comity.app.http import HttpApp
from comity.gateway import streams
from comity.gateway.sse_endpoint import McpSse
from comity.http.asgi import HostOriginCheck, Message
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.framing import SseEvent, SseParser
from comity.mcp.jsonrpc import Frame, FrameLimits
from comity.sessions import client_streams
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session, SessionStore
from comity.telemetry.tracing import Headers
from tests.support.cases import loop_over

HOST = (b"host", b"localhost:2664")
JSON = (b"content-type", b"application/json")
LIMITS = FrameLimits(frame_bytes=2000)
HELLO: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}

type HeaderPair = tuple[bytes, bytes]


class WaitingDesk:
    """Answers the handshake; keeps every other call until the test does something with it."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.heard: list[Frame] = []
        self._underway = ActiveCalls(asyncio.get_running_loop().time, 600, 600, 600)

    async def handle_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call:
        return self.start_request(session, frame, client_stream)

    def start_request(self, session: Session, frame: Frame, client_stream: ClientStream) -> Call:
        call = self._underway.begin(frame, client_stream, session)
        if frame.method == "initialize":
            session.is_initialized = True
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, {"hello": True}))
        else:
            self.calls.put_nowait(call)
        return call

    def is_visible_to(self, actor: Actor) -> bool:
        return True

    def handle_message(self, session: Session, frame: Frame, actor: Actor = ANONYMOUS) -> None:
        self.heard.append(frame)
        session.handle_message(frame)

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        raise AssertionError("the old transport knows only the handshake era")

    def start_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        raise AssertionError("the old transport knows only the handshake era")


class Stream:
    """What one GET brought, as it comes; `leave` hangs up, `stall` reads no more."""

    def __init__(self, app: HttpApp, path: str, *headers: HeaderPair) -> None:
        self.status = 0
        self.raw = b""
        self._events: asyncio.Queue[SseEvent | None] = asyncio.Queue()
        self._parser = SseParser()
        self._reads = asyncio.Event()
        self._reads.set()
        self._left = asyncio.Event()
        scope = _scope("GET", path, (HOST, *headers))
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def event(self) -> SseEvent:
        event = await self._events.get()
        assert event is not None
        return event

    async def message(self) -> Any:
        event = await self.event()
        assert event.event == "message"
        return json.loads(event.data)

    async def ended(self) -> None:
        while await self._events.get() is not None:
            pass

    def leave(self) -> None:
        self._left.set()

    def stall(self) -> None:
        self._reads.clear()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.raw += message["body"]
        for event in self._parser.feed(message["body"]):
            self._events.put_nowait(event)
        if not message.get("more_body"):
            self._events.put_nowait(None)


class OldDoors:
    """The two doors of all servers, on a real gateway and real sessions."""

    def __init__(self) -> None:
        self.desk = WaitingDesk()
        self.sessions = SessionStore(asyncio.get_running_loop().time, 100, 600)
        self.app = HttpApp(
            HostOriginCheck(),
            {
                **McpSse("", "", self.desk, self.sessions, LIMITS).endpoints,
                **McpSse("a", "/servers/a", self.desk, self.sessions, LIMITS).endpoints,
            },
        )
        self.streams: list[Stream] = []
        self._asking: list[asyncio.Future[None]] = []

    def get(self, path: str = "/sse", *headers: HeaderPair) -> Stream:
        self.streams.append(Stream(self.app, path, *headers))
        return self.streams[-1]

    async def connect(self, path: str = "/sse") -> tuple[Stream, str]:
        """A stream after the handshake, and where to post."""
        stream = self.get(path)
        endpoint = (await stream.event()).data.decode()
        assert await self.post(endpoint, HELLO) == 202
        assert (await stream.message())["result"] == {"hello": True}
        return stream, endpoint

    async def post(self, path: str, message: object, *headers: HeaderPair) -> int:
        """The HTTP status that a message is answered with."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.request("POST", path, body, *(headers or (HOST, JSON)))

    async def request(self, method: str, path: str, body: bytes, *headers: HeaderPair) -> int:
        status: list[int] = []
        answered = asyncio.Event()

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            else:
                answered.set()

        length = (b"content-length", str(len(body)).encode())
        scope = _scope(method, path, (*headers, length))
        self._asking.append(asyncio.ensure_future(self.app(scope, receive, send)))
        await answered.wait()
        assert len(status) == 1
        return status[0]


def _scope(method: str, path: str, headers: tuple[HeaderPair, ...]) -> Message:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": list(headers),
    }


@asynccontextmanager
async def old_doors() -> AsyncGenerator[OldDoors]:
    doors = OldDoors()
    try:
        async with asyncio.timeout(20):
            yield doors
    finally:
        for stream in doors.streams:
            stream.leave()
        await asyncio.gather(*(stream.task for stream in doors.streams))


CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
NOTICE = jsonrpc.make_notification("notifications/message", {"data": "x"})
ENOUGH_TURNS = 100


def _call(call_id: int | str) -> dict[str, Any]:
    return {**CALL, "id": call_id}


async def _turns() -> None:
    for _ in range(ENOUGH_TURNS):
        await asyncio.sleep(0)


@pytest.mark.requirement("MCP-3.3-legacy")
async def test_the_stream_begins_with_the_endpoint_and_brings_the_answer_to_a_post() -> None:
    async with old_doors() as doors:
        stream = doors.get()
        first = await stream.event()
        assert first.event == "endpoint"
        assert first.data.startswith(b"/messages?session_id=")
        assert await doors.post(first.data.decode(), HELLO) == 202
        answer = await stream.message()
        assert answer == {"jsonrpc": "2.0", "id": 0, "result": {"hello": True}}
        assert stream.status == 200


async def test_the_door_of_one_server_names_an_endpoint_of_its_own() -> None:
    async with old_doors() as doors:
        stream = doors.get("/servers/a/sse")
        assert (await stream.event()).data.startswith(b"/servers/a/messages?session_id=")


async def test_answers_notices_and_questions_of_all_calls_come_on_the_one_stream() -> None:
    async with old_doors() as doors:
        stream, endpoint = await doors.connect()
        for call_id in (1, "2"):
            assert await doors.post(endpoint, _call(call_id)) == 202
        first, second = await doors.desk.calls.get(), await doors.desk.calls.get()
        second.deliver_notification(NOTICE)
        first.deliver_answer(jsonrpc.make_result(first.client_request_id, {"n": 1}))
        next(iter(doors.sessions)).send_notification(
            jsonrpc.make_notification("notifications/standalone")
        )
        second.deliver_answer(jsonrpc.make_result(second.client_request_id, {"n": 2}))
        said = [await stream.message() for _ in range(4)]
        assert [one.get("method") or one["id"] for one in said] == [
            "notifications/message",
            1,
            "notifications/standalone",
            "2",
        ]


async def test_what_is_no_request_is_heard_by_the_desk() -> None:
    async with old_doors() as doors:
        _, endpoint = await doors.connect()
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert await doors.post(endpoint, told) == 202
        assert [frame.method for frame in doors.desk.heard] == ["notifications/initialized"]


async def test_a_cancelled_call_ends_without_an_answer() -> None:
    async with old_doors() as doors:
        stream, endpoint = await doors.connect()
        await doors.post(endpoint, _call(1))
        call = await doors.desk.calls.get()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert await doors.post(endpoint, cancel) == 202
        assert call.client_stream.is_final
        call.deliver_answer(jsonrpc.make_result(1, {}))
        await doors.post(endpoint, {"jsonrpc": "2.0", "id": 2, "method": "initialize"})
        assert (await stream.message())["id"] == 2


async def test_the_end_of_the_stream_ends_the_session_and_withdraws_its_calls() -> None:
    async with old_doors() as doors:
        stream, endpoint = await doors.connect()
        await doors.post(endpoint, _call(1))
        call = await doors.desk.calls.get()
        stream.leave()
        await stream.task
        assert call.client_stream.is_final
        assert len(doors.sessions) == 0
        assert await doors.post(endpoint, _call(2)) == 404


async def test_a_session_that_is_ended_elsewhere_ends_the_stream() -> None:
    async with old_doors() as doors:
        stream, _ = await doors.connect()
        await doors.sessions.close()
        await stream.ended()
        await stream.task


@pytest.mark.requirement("MCP-4.1-first")
async def test_a_request_before_the_handshake_is_refused_on_the_stream() -> None:
    async with old_doors() as doors:
        stream = doors.get()
        endpoint = (await stream.event()).data.decode()
        assert await doors.post(endpoint, _call(5)) == 202
        refusal = await stream.message()
        assert refusal["id"] == 5
        assert "initialize" in refusal["error"]["message"]
        assert doors.desk.calls.empty()


async def test_a_second_call_under_the_same_id_does_not_answer_the_first() -> None:
    async with old_doors() as doors:
        stream, endpoint = await doors.connect()
        await doors.post(endpoint, _call(1))
        await doors.post(endpoint, _call(1))
        refusal = await stream.message()
        assert refusal["id"] is None
        assert "in use" in refusal["error"]["message"]
        call = await doors.desk.calls.get()
        call.deliver_answer(jsonrpc.make_result(1, {"first": True}))
        assert (await stream.message())["result"] == {"first": True}


@loop_over("query", ["", "?session_id=", "?session_id=a&session_id=b", "?" + "a=b&" * 50])
async def test_a_post_that_names_no_session_is_refused(query: str) -> None:
    async with old_doors() as doors:
        assert await doors.post(f"/messages{query}", HELLO) == 400


async def test_a_session_is_known_only_at_the_door_where_it_began() -> None:
    async with old_doors() as doors:
        _, endpoint = await doors.connect()
        assert await doors.post(f"/servers/a{endpoint}", _call(1)) == 404
        assert await doors.post("/messages?session_id=" + "0" * 32, _call(1)) == 404
        assert doors.sessions.find(endpoint.rpartition("=")[2], "") is None
        foreign = doors.sessions.begin("")
        assert await doors.post(f"/messages?session_id={foreign.id}", _call(1)) == 404


@loop_over(
    ("method", "path", "status"),
    [
        ("POST", "/sse", 405),
        ("DELETE", "/sse", 405),
        ("GET", "/messages?session_id=a", 405),
    ],
)
async def test_a_method_that_a_door_does_not_have_is_refused(
    method: str, path: str, status: int
) -> None:
    async with old_doors() as doors:
        assert await doors.request(method, path, b"", HOST, JSON) == status
        assert len(doors.sessions) == 0


async def test_host_origin_type_and_size_are_checked_before_anything_begins() -> None:
    async with old_doors() as doors:
        _, endpoint = await doors.connect()
        evil = (b"origin", b"http://evil.example")
        assert await doors.post(endpoint, CALL, HOST, JSON, evil) == 403
        assert await doors.post(endpoint, CALL, (b"host", b"evil.example"), JSON) == 421
        assert await doors.post(endpoint, CALL, HOST, (b"content-type", b"text/plain")) == 415
        assert await doors.post(endpoint, b" " * 3000) == 413
        assert await doors.post(endpoint, b"[]") == 400
        assert await doors.request("GET", "/sse", b"", HOST, evil) == 403
        assert await doors.request("GET", "/sse", b"", HOST, (b"accept", b"image/png")) == 406
        assert doors.desk.calls.empty()
        assert len(doors.sessions) == 1


async def test_a_silent_stream_shows_signs_of_life_and_is_no_idle_session() -> None:
    async with old_doors() as doors:
        stream, _ = await doors.connect()
        session = next(iter(doors.sessions))
        session.used_at = float("-inf")
        with patch.object(doors.sessions, "_last_nudge_at", float("-inf")):
            doors.sessions.check(keep_alive_seconds=15)
        await _turns()
        assert stream.raw.endswith(b": still here\n\n")
        assert len(doors.sessions) == 1


async def test_a_reader_that_falls_too_far_behind_loses_its_session_and_no_other_does() -> None:
    with (
        patch.object(client_streams, "MAX_QUEUED_FRAMES", 8),
        patch.object(streams, "SEND_TIMEOUT_SECONDS", 0.05),
    ):
        async with old_doors() as doors:
            slow, endpoint = await doors.connect()
            await doors.post(endpoint, _call(1))
            stuck = await doors.desk.calls.get()
            other, elsewhere = await doors.connect()
            await doors.post(elsewhere, _call(1))
            lively = await doors.desk.calls.get()
            slow.stall()
            for _ in range(20):
                stuck.deliver_notification(NOTICE)
            assert stuck.client_stream.is_final
            lively.deliver_answer(jsonrpc.make_result(1, {}))
            assert (await other.message())["id"] == 1
            await slow.task
            assert await doors.post(endpoint, _call(2)) == 404
            assert len(doors.sessions) == 1


async def test_a_reader_that_stops_reading_is_given_up_after_a_while() -> None:
    with patch.object(streams, "SEND_TIMEOUT_SECONDS", 0.05):
        async with old_doors() as doors:
            stream, endpoint = await doors.connect()
            await doors.post(endpoint, _call(1))
            call = await doors.desk.calls.get()
            stream.stall()
            call.deliver_notification(NOTICE)
            await stream.task
            assert call.client_stream.is_final
            assert len(doors.sessions) == 0


async def test_a_trace_that_a_post_names_is_the_calls() -> None:
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with old_doors() as doors:
        _, endpoint = await doors.connect()
        assert await doors.post(endpoint, _call(1), HOST, JSON, (b"traceparent", parent)) == 202
        assert await doors.post(endpoint, _call(2)) == 202
        traced, untraced = await doors.desk.calls.get(), await doors.desk.calls.get()
        assert traced.trace_id() == parent[3:35].decode()
        assert untraced.trace_id() is None
