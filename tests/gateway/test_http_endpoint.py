"""The streamable HTTP endpoint for legacy clients, and the fast path of its replies."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.gateway.http_endpoint import McpHttp, McpHttpReply
from comity.http import asgi
from comity.http.fast_path import Continuation, FastPathRequest, RequestHead
from comity.mcp import jsonrpc
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from tests.support.cases import loop_over
from tests.support.upstream import Exchange, Upstream, encode, scripted
from tests.support.visitor import BOTH, ENVELOPE, MODERN, SECONDS, Visitor, at, request, visiting

JSON_HEADERS = (("content-type", "application/json"), ("accept", BOTH))
PING = json.dumps(request(1, "ping")).encode()


@dataclass
class Scene:
    """A scripted server, and a visitor at its door."""

    server: Upstream
    visitor: Visitor


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        yield Scene(server, visitor)


def note(text: str) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": "info", "data": text}}


def text_of(frame: dict[str, Any]) -> str:
    return frame["result"]["content"][0]["text"]


async def stream_of_two(exchange: Exchange) -> None:
    """A note, then the answer, on one stream."""
    await exchange.stream()
    await exchange.event(note("on the way"))
    await exchange.event({"id": exchange.id, "result": {"content": []}})
    exchange.hang_up()


@pytest.mark.requirement("MCP-3.2-reply", "MCP-3.2-post", "MCP-3.2-endpoint")
async def test_one_answer_of_the_server_is_one_json_document(scene: Scene) -> None:
    await scene.visitor.greet()
    reply = await scene.visitor.call("plain", named="mine")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    answer = await reply.json()
    assert (answer["id"], text_of(answer)) == ("mine", "done")


@pytest.mark.requirement("MCP-3.2-reply")
async def test_a_stream_of_the_server_is_a_stream_to_the_client(scene: Scene) -> None:
    scene.server.act("two")(stream_of_two)
    await scene.visitor.greet()
    reply = await scene.visitor.call("two", named=7)
    assert reply.is_stream
    told, answer = await reply.frames()
    assert told["params"]["data"] == "on the way"
    assert (answer["id"], answer["result"]) == (7, {"content": []})


async def test_a_client_that_names_streams_first_is_answered_by_a_stream(scene: Scene) -> None:
    await scene.visitor.greet()
    reply = await scene.visitor.call("plain", accept="text/event-stream, application/json")
    assert reply.is_stream
    assert [text_of(frame) for frame in await reply.frames()] == ["done"]


async def test_a_stream_opens_with_an_id_and_a_wait_for_clients_that_know_of_it(
    scene: Scene,
) -> None:
    scene.server.act("two")(stream_of_two)
    await scene.visitor.greet("2025-11-25")
    first, second, third = await (await scene.visitor.call("two")).events()
    assert (first.data, first.retry) == (b"", 500)
    assert [first.id, second.id, third.id] == ["1-1", "1-2", "1-3"]


async def test_an_older_client_is_sent_no_event_without_data(scene: Scene) -> None:
    scene.server.act("two")(stream_of_two)
    await scene.visitor.greet("2025-06-18")
    events = await (await scene.visitor.call("two")).events()
    assert [(event.id, event.retry) for event in events] == [("1-1", None), ("1-2", None)]
    assert all(event.data for event in events)


@pytest.mark.requirement("MCP-3.2-resume")
async def test_a_client_that_vanished_takes_its_answer_up_again(scene: Scene) -> None:
    go_on = asyncio.Event()

    @scene.server.act("slow")
    async def slow(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(note("before"))
        await go_on.wait()
        await exchange.event(note("after"))
        await exchange.event({"id": exchange.id, "result": {"content": []}})
        exchange.hang_up()

    await scene.visitor.greet()
    reply = await scene.visitor.call("slow", named="kept")
    primed, before = await reply.event(), await reply.event()
    assert before.frame["params"]["data"] == "before"
    reply.leave()
    go_on.set()
    assert primed.id is not None
    resumed = await scene.visitor.get(last=primed.id)
    frames = await resumed.frames()
    said = [frame["params"]["data"] for frame in frames[:-1]]
    assert (said, frames[-1]["id"]) == (["before", "after"], "kept")


async def test_an_answer_can_be_fetched_again_after_it_was_read(scene: Scene) -> None:
    scene.server.act("two")(stream_of_two)
    await scene.visitor.greet()
    events = await (await scene.visitor.call("two")).events()
    again = await (await scene.visitor.get(last=events[1].id)).events()
    assert [(event.id, event.data) for event in again] == [(events[2].id, events[2].data)]


async def test_the_newest_reader_of_a_stream_has_it(scene: Scene) -> None:
    await scene.visitor.greet()
    older = await scene.visitor.get()
    newer = await scene.visitor.get()
    assert all(event.comment for event in await older.events())
    (session,) = scene.visitor.parts.sessions
    session.standalone.put(encode(note("to the newest")))
    while (event := await newer.event()).comment is not None:
        pass
    assert event.frame["params"]["data"] == "to the newest"


async def test_a_reader_that_is_stuck_holds_nothing_back_from_the_next(scene: Scene) -> None:
    """What was taken for a reader that never read it waits for the one who comes after."""
    await scene.visitor.greet()
    stuck = await scene.visitor.get()
    stuck.peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    (session,) = scene.visitor.parts.sessions
    size = 2**18
    # More than the sockets between them hold, so that the first reader's task waits for room.
    for number in range(40):
        assert session.standalone.put(encode(note(f"{number}" + "." * size)))
    async with asyncio.timeout(SECONDS):
        while session.standalone.frames:
            await asyncio.sleep(0)
    session.standalone.put(encode(note("small")))
    newer = await scene.visitor.get(
        last=f"0-{session.standalone_resumable().last_event_number - 1}"
    )
    told: list[str] = []
    while "small" not in told:
        event = await newer.event()
        told += [event.frame["params"]["data"].rstrip(".")] if event.data else []
    first = int(told[0])
    assert first < 39, "the first reader was never stuck"
    assert told == [*(str(number) for number in range(first, 40)), "small"]


@pytest.mark.requirement("MCP-3.2-get")
async def test_what_belongs_to_no_call_waits_until_the_client_listens(scene: Scene) -> None:
    @scene.server.act("GET")
    async def stand(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(note("told to nobody in particular"))
        await exchange.left()

    await scene.visitor.greet()
    (session,) = scene.visitor.parts.sessions
    async with asyncio.timeout(SECONDS):
        while not session.standalone.frames:
            await asyncio.sleep(0.01)
    event = await (await scene.visitor.get()).event()
    assert event.frame["params"]["data"] == "told to nobody in particular"


@pytest.mark.requirement("MCP-3.2-session", "MCP-4.3-http")
async def test_a_session_that_was_ended_is_unknown_from_then_on(scene: Scene) -> None:
    await scene.visitor.greet()
    assert (await scene.visitor.send("DELETE", scene.visitor.session.items())).status == 200
    ended = scene.visitor.session["mcp-session-id"]
    reply = await scene.visitor.call("plain")
    assert reply.status == 404
    error = (await reply.json())["error"]
    assert error["data"]["error_type"] == "session_unknown"
    assert ended not in json.dumps(error)
    assert (await scene.visitor.get()).status == 404
    assert (await scene.visitor.send("DELETE", scene.visitor.session.items())).status == 404
    # The session with the server behind was ended too, and only that one.
    assert (await scene.server.arrival("DELETE")).headers["mcp-session-id"] == "session-2"


async def test_ending_a_session_ends_its_streams(scene: Scene) -> None:
    @scene.server.act("endless")
    async def endless(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(note("begun"))
        await exchange.left()

    await scene.visitor.greet()
    call = await scene.visitor.call("endless")
    await call.event()
    standing = await scene.visitor.get()
    assert (await scene.visitor.send("DELETE", scene.visitor.session.items())).status == 200
    assert [each.frame for each in await call.events() if each.data][1:] == []
    assert await standing.events() == []


async def test_a_request_without_a_session_is_told_to_begin_with_initialize(scene: Scene) -> None:
    reply = await scene.visitor.call("plain")
    assert reply.status == 400
    assert "initialize" in (await reply.json())["error"]["message"]


@pytest.mark.requirement("MCP-2.3-notif")
async def test_a_notification_is_taken_and_not_answered(scene: Scene) -> None:
    await scene.visitor.greet()
    reply = await scene.visitor.post({"jsonrpc": "2.0", "method": "notifications/custom"})
    assert (reply.status, await reply.body()) == (202, b"")
    assert (await scene.server.arrival("notifications/custom")).frame.get("id") is None


async def test_a_handshake_that_the_server_refuses_leaves_no_session(scene: Scene) -> None:
    @scene.server.act("initialize")
    async def refuse(exchange: Exchange) -> None:
        error = {"code": -32602, "message": "not with you"}
        await exchange.respond(200, encode({"id": exchange.id, "error": error}))

    reply = await scene.visitor.post(request(0, "initialize", {"protocolVersion": "2025-11-25"}))
    assert (await reply.json())["error"]["message"] == "not with you"
    assert "mcp-session-id" not in reply.headers
    assert len(scene.visitor.parts.sessions) == 0


async def test_unknown_http_method_is_answered_with_those_allowed(scene: Scene) -> None:
    for verb in ("PUT", "OPTIONS"):
        reply = await scene.visitor.send(verb)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, POST, DELETE")
    for verb in ("GET", "DELETE", "PUT"):
        reply = await scene.visitor.send(verb, [("mcp-protocol-version", MODERN)])
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


async def test_client_must_accept_json_and_event_streams(scene: Scene) -> None:
    for accept in ("application/json", "text/event-stream", "text/html"):
        assert (await scene.visitor.post(request(1, "ping"), accept)).status == 406, accept
    await scene.visitor.greet()
    for accept in ("*/*", "application/*, text/*", "text/event-stream , */*;q=0.1"):
        assert (await scene.visitor.call("plain", accept=accept)).status == 200, accept
    headers = {"accept": "application/json", **scene.visitor.session}
    assert (await scene.visitor.send("GET", headers.items())).status == 406


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"),
        *("application/json-patch+json", "application/json, text/plain"),
    ],
)
async def test_a_body_that_is_not_said_to_be_json_is_refused(scene: Scene, kind: str) -> None:
    headers = [("content-type", kind), ("accept", BOTH)]
    assert (await scene.visitor.send("POST", headers, PING)).status == 415


async def test_a_body_said_to_be_too_large_is_refused_before_it_comes(scene: Scene) -> None:
    headers = [*JSON_HEADERS, ("content-length", "99999999")]
    assert (await scene.visitor.send("POST", headers)).status == 413


async def test_a_body_that_grows_too_large_is_refused_on_the_way() -> None:
    async with (
        scripted() as server,
        visiting(at(server.url), limits_max_message_bytes=65536) as visitor,
    ):
        piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        headers = [*JSON_HEADERS, ("transfer-encoding", "chunked")]
        assert (await visitor.send("POST", headers, piece * 3)).status == 413


@pytest.mark.parametrize("begun", [b"", b'{"jsonrpc"'])
async def test_a_body_that_does_not_come_is_not_waited_for(
    scene: Scene, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.05)
    headers = [*JSON_HEADERS, ("content-length", "100")]
    assert (await scene.visitor.send("POST", headers, begun)).status == 408


@pytest.mark.requirement("MCP-2.2-32700", "MCP-2.2-32600")
@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600)],
)
async def test_what_is_no_message_is_refused_without_an_id(
    scene: Scene, body: bytes, code: int
) -> None:
    reply = await scene.visitor.send("POST", JSON_HEADERS, body)
    error = await reply.json()
    assert (reply.status, error["id"], error["error"]["code"]) == (400, None, code)


async def test_white_space_around_header_values_is_no_part_of_them(scene: Scene) -> None:
    await scene.visitor.greet()
    session = f" \t{scene.visitor.session['mcp-session-id']} \t"
    headers = [*JSON_HEADERS, ("mcp-session-id", session), ("mcp-protocol-version", " 2025-11-25 ")]
    assert (await scene.visitor.send("POST", headers, PING)).status == 200


async def test_too_many_sessions_are_refused_for_the_time_being() -> None:
    async with scripted() as server, visiting(at(server.url), limits_max_sessions=1) as visitor:
        await visitor.greet()
        hello = request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        reply = await visitor.other().post(hello)
        assert reply.status == 503
        await visitor.send("DELETE", visitor.session.items())
        assert (await visitor.other().post(hello)).status == 200


async def test_two_calls_under_one_id_are_not_confused(scene: Scene) -> None:
    go_on = asyncio.Event()

    @scene.server.act("slow")
    async def slow(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.text("the first")

    await scene.visitor.greet()
    first = asyncio.ensure_future(scene.visitor.call("slow", named=5))
    await scene.server.arrival("tools/call")
    second = await scene.visitor.call("slow", named=5)
    assert (await second.json())["error"]["code"] == -32600
    go_on.set()
    assert text_of(await (await first).json()) == "the first"


async def test_the_envelope_is_not_needed_to_be_told_what_is_wrong(scene: Scene) -> None:
    reply = await scene.visitor.ask_modern("tools/list", {"_meta": {}})
    assert (reply.status, (await reply.json())["error"]["code"]) == (400, -32602)
    bare = json.dumps({"jsonrpc": "2.0", "id": 1, "result": ENVELOPE}).encode()
    headers = [*JSON_HEADERS, ("mcp-protocol-version", MODERN)]
    assert (await scene.visitor.send("POST", headers, bare)).status == 400


# Replies on the fast path.


class Lane:
    """Notes what becomes of a request."""

    address = "192.0.2.1"

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.continued_with: list[Continuation] = []

    def written(self, request: FastPathRequest, data: bytes) -> None:
        self.said.append(data)

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        self.continued_with.append(continuation)


def begun() -> tuple[Lane, FastPathRequest, ClientStream, McpHttpReply]:
    lane, outbox = Lane(), ClientStream()
    request = FastPathRequest(lane, RequestHead(b"/mcp", {}, [], True), b"")

    endpoint = McpHttp("", cast("Any", None), cast("Any", None), jsonrpc.LIMITS)
    return lane, request, outbox, McpHttpReply(endpoint, request, outbox, None)


def call_on(outbox: ClientStream) -> Call:
    return Call(jsonrpc.make_request(1, "tools/call", {}), outbox, None, 0.0)


async def test_nothing_of_an_answered_call_waits_for_a_sweep() -> None:
    """What holds itself is found by the garbage collector alone, at the cost of every call."""
    _, request, outbox, reply = begun()

    async def ask() -> Call:
        return call_on(outbox)

    reply.wait_for(ask())
    assert request.on_lost is not None
    outbox.finish(b"{}")
    assert request.on_lost is None


async def test_a_client_that_goes_while_its_call_is_at_the_gate_withdraws_it_too() -> None:
    lane, request, outbox, reply = begun()
    passes = asyncio.Event()

    async def ask() -> Call:
        await passes.wait()
        return call_on(outbox)

    reply.wait_for(ask())
    request.lose()
    assert not outbox.is_final
    passes.set()
    async with asyncio.timeout(5):
        while not outbox.is_final:
            await asyncio.sleep(0)
    assert lane.said == []


@loop_over(
    ("error", "status"),
    [(Unavailable("full", EXHAUSTED), b"503"), (RuntimeError("a bug"), b"500")],
    ids=["refused", "bug"],
)
async def test_a_call_that_could_not_begin_is_refused(error: Exception, status: bytes) -> None:
    lane, _, _, reply = begun()

    async def ask() -> Call:
        raise error

    reply.wait_for(ask())
    assert lane.said[0].startswith(b"HTTP/1.1 " + status)
    assert b"a bug" not in lane.said[0]
