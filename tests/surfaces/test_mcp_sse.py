"""The doors of the old SSE transport, held to account without a socket."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from comity.kernel import outbox
from comity.surfaces import streams
from comity.wire import jsonrpc
from tests.surfaces.old_client import HELLO, HOST, JSON, old_doors

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
NOTICE = jsonrpc.notification("notifications/message", {"data": "x"})
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
        second.told(NOTICE)
        first.answered(jsonrpc.result(first.asker_id, {"n": 1}))
        next(iter(doors.sessions)).tell(jsonrpc.notification("notifications/standalone"))
        second.answered(jsonrpc.result(second.asker_id, {"n": 2}))
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
        assert call.outbox.final
        call.answered(jsonrpc.result(1, {}))
        await doors.post(endpoint, {"jsonrpc": "2.0", "id": 2, "method": "initialize"})
        assert (await stream.message())["id"] == 2


async def test_the_end_of_the_stream_ends_the_session_and_withdraws_its_calls() -> None:
    async with old_doors() as doors:
        stream, endpoint = await doors.connect()
        await doors.post(endpoint, _call(1))
        call = await doors.desk.calls.get()
        stream.leave()
        await stream.task
        assert call.outbox.final
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
        call.answered(jsonrpc.result(1, {"first": True}))
        assert (await stream.message())["result"] == {"first": True}


@pytest.mark.parametrize(
    "query", ["", "?session_id=", "?session_id=a&session_id=b", "?" + "a=b&" * 50]
)
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


@pytest.mark.parametrize(
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
        session.used = float("-inf")
        with patch.object(doors.sessions, "_nudged", float("-inf")):
            doors.sessions.look(patience=15)
        await _turns()
        assert stream.raw.endswith(b": still here\n\n")
        assert len(doors.sessions) == 1


async def test_a_reader_that_falls_too_far_behind_loses_its_session_and_no_other_does() -> None:
    with patch.object(outbox, "MOST_FRAMES", 8), patch.object(streams, "SEND_SECONDS", 0.05):
        async with old_doors() as doors:
            slow, endpoint = await doors.connect()
            await doors.post(endpoint, _call(1))
            stuck = await doors.desk.calls.get()
            other, elsewhere = await doors.connect()
            await doors.post(elsewhere, _call(1))
            lively = await doors.desk.calls.get()
            slow.stall()
            for _ in range(20):
                stuck.told(NOTICE)
            assert stuck.outbox.final
            lively.answered(jsonrpc.result(1, {}))
            assert (await other.message())["id"] == 1
            await slow.task
            assert await doors.post(endpoint, _call(2)) == 404
            assert len(doors.sessions) == 1


async def test_a_reader_that_stops_reading_is_given_up_after_a_while() -> None:
    with patch.object(streams, "SEND_SECONDS", 0.05):
        async with old_doors() as doors:
            stream, endpoint = await doors.connect()
            await doors.post(endpoint, _call(1))
            call = await doors.desk.calls.get()
            stream.stall()
            call.told(NOTICE)
            await stream.task
            assert call.outbox.final
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
