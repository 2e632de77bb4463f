"""Calls through a real gateway, as a collector sees them."""

import asyncio
import threading
from collections.abc import Generator
from uuid import UUID

import pytest

from comity.app.gateway import assemble_gateway
from comity.app.settings import Settings
from tests.support.collector import Collected, Seen, collecting
from tests.support.commands import by_command
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import SECONDS, Frame, Visitor, at, request, visiting

TRACE = "0af7651916cd43dd8448eb211c80319c"
IN_META = f"00-{TRACE}-00f067aa0ba902b7-01"
IN_HEADER = f"00-{TRACE}-b7ad6b7169203331-01"
IN_OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01"
NOT_SAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Generator[Collected]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


def one(collected: Collected, kind: str, method: str = "tools/call") -> Seen:
    (span,) = [
        each
        for each in collected.spans
        if each.kind == kind and each.attributes["mcp.method.name"] == method
    ]
    return span


async def call(visitor: Visitor, tool: str, meta: Frame | None = None, **headers: str) -> None:
    params: Frame = {"name": tool, "arguments": {"word": "canary"}}
    if meta is not None:
        params["_meta"] = meta
    reply = await visitor.post(request("seven", "tools/call", params), **headers)
    await reply.frames()


async def test_a_call_is_a_span_at_the_door_and_one_towards_the_server(
    collected: Collected,
) -> None:
    async with scripted() as server:
        async with visiting(at(server.url), telemetry_traces=True) as visitor:
            await visitor.greet()
            await call(visitor, "plain", traceparent=IN_HEADER, tracestate="rojo=1")
            session = visitor.session["mcp-session-id"]
        (called,) = server.of("tools/call")
    inwards, outwards = one(collected, "server"), one(collected, "client")
    assert (inwards.trace_id, inwards.parent_id) == (TRACE, IN_HEADER[36:52])
    assert outwards.parent_id == inwards.span_id
    own = f"00-{TRACE}-{outwards.span_id}-01"
    assert called.headers["traceparent"] == own
    assert called.headers["tracestate"] == "rojo=1"
    assert called.frame["params"]["_meta"] == {"traceparent": own, "tracestate": "rojo=1"}
    assert inwards.attributes["jsonrpc.request.id"] == "seven"
    assert inwards.attributes["mcp.protocol.version"] == "2025-11-25"
    assert inwards.attributes["gen_ai.operation.name"] == "execute_tool"
    assert outwards.attributes["comity.server"] == "up"
    assert outwards.attributes["server.address"] == "127.0.0.1"
    assert outwards.attributes["server.port"] == int(server.url.split(":")[2].split("/")[0])
    assert len(str(inwards.attributes["mcp.session.id"])) == 32
    assert session not in str(collected.spans)
    assert "canary" not in str(collected.spans)


@pytest.mark.parametrize("beside", [False, True], ids=["in params", "beside them"])
async def test_a_trace_that_is_named_as_mgp_does_is_the_spans_too(
    collected: Collected, beside: bool
) -> None:
    named = {"trace_id": str(UUID(TRACE))}
    params: Frame = {"name": "plain", "arguments": {}, **({} if beside else named)}
    asked = {**request("seven", "tools/call", params), **(named if beside else {})}
    async with scripted() as server, visiting(at(server.url), telemetry_traces=True) as visitor:
        await visitor.greet()
        await (await visitor.post(asked, traceparent=IN_OTHER)).frames()
    span = one(collected, "server")
    assert (span.trace_id, span.links) == (TRACE, [IN_OTHER[36:52]])


async def test_what_mcp_says_is_the_parent_and_the_transport_only_linked(
    collected: Collected,
) -> None:
    async with scripted() as server, visiting(at(server.url), telemetry_traces=True) as visitor:
        await visitor.greet()
        await call(visitor, "plain", {"traceparent": IN_META}, traceparent=IN_HEADER)
    span = one(collected, "server")
    assert (span.parent_id, span.links) == (IN_META[36:52], [IN_HEADER[36:52]])


async def test_a_call_of_no_trace_begins_one_that_a_stdio_server_learns(
    collected: Collected,
) -> None:
    async with visiting(by_command(), telemetry_traces=True) as visitor:
        await visitor.greet()
        await call(visitor, "heard")
    inwards, outwards = one(collected, "server"), one(collected, "client")
    assert (inwards.parent_id, outwards.trace_id) == ("", inwards.trace_id)
    assert outwards.attributes["network.transport"] == "pipe"


async def test_errors_are_told_by_their_kind(collected: Collected) -> None:
    async with scripted() as server:

        @server.act("fail")
        async def fail(exchange: Exchange) -> None:
            await exchange.result({"content": [], "isError": True})

        async with visiting(at(server.url), telemetry_traces=True) as visitor:
            await visitor.greet()
            await call(visitor, "fail")
            await (await visitor.post(request(9, "made/up"))).frames()
            merged = visitor.other("/mcp")
            await merged.greet()
            await call(merged, "no-such-tool")
    by_error = {
        (span.kind, span.name): span for span in collected.spans if "error.type" in span.attributes
    }
    assert all(span.error for span in by_error.values())
    failed = by_error["server", "tools/call"]
    assert {each.attributes["error.type"] for each in by_error.values()} >= {"tool_error", "-32601"}
    refused = by_error["server", "other"]
    assert refused.attributes["rpc.response.status_code"] == "-32601"
    assert refused.message
    assert failed.attributes["error.type"] in ("tool_error", "-32602")


async def test_an_offered_tool_names_the_span_and_any_other_does_not(
    collected: Collected,
) -> None:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            schema = {"name": "look", "inputSchema": {"type": "object"}}
            await exchange.result({"tools": [schema]})

        async with visiting(at(server.url), telemetry_traces=True) as visitor:
            await visitor.greet()
            await call(visitor, "look")
            await call(visitor, "reda")
    names = [span.name for span in collected.spans if span.kind == "server"]
    assert names[-2:] == ["tools/call look", "tools/call"]
    assert "reda" not in str(collected.spans)


async def test_a_resource_is_named_without_what_may_be_a_secret(collected: Collected) -> None:
    async with scripted() as server, visiting(at(server.url), telemetry_traces=True) as visitor:
        await visitor.greet()
        uri = "https://user:canary@example.org/a/b?token=canary#canary"
        await (await visitor.post(request(1, "resources/read", {"uri": uri}))).frames()
    span = one(collected, "server", "resources/read")
    assert span.attributes["mcp.resource.uri"] == "https://example.org/a/b"
    assert span.name == "resources/read"


async def test_who_does_not_want_to_be_sampled_is_not_and_says_so_onwards(
    collected: Collected,
) -> None:
    async with scripted() as server:
        async with visiting(at(server.url), telemetry_traces=True) as visitor:
            await visitor.greet()
            before = len(collected.spans)
            await call(visitor, "plain", traceparent=NOT_SAMPLED)
        (called,) = server.of("tools/call")
    assert called.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert called.headers["traceparent"].endswith("-00")
    assert [s for s in collected.spans[before:] if s.trace_id == TRACE] == []


async def test_the_sampler_is_chosen_by_its_variable(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the gateway")
    async with scripted() as server, visiting(at(server.url), telemetry_traces=True) as visitor:
        await visitor.greet()
        await call(visitor, "plain")
    assert collected.spans == []


async def test_durations_are_told_by_the_conventions_names(collected: Collected) -> None:
    async with scripted() as server, visiting(at(server.url), telemetry_traces=True) as visitor:
        await visitor.greet()
        await call(visitor, "plain")
        await call(visitor, "plain")
    for name in ("mcp.server.operation.duration", "mcp.client.operation.duration"):
        (told,) = [
            (about, count)
            for about, count in collected.metrics[name]
            if about["mcp.method.name"] == "tools/call"
        ]
        assert told[1] == 2
        assert told[0]["mcp.protocol.version"] == "2025-11-25"
    assert "seven" not in str(collected.metrics)


async def test_a_collector_that_is_away_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("comity.telemetry.otel.LAST_WORDS_SECONDS", 0.2)
    async with (
        asyncio.timeout(SECONDS),
        scripted() as server,
        visiting(at(server.url), telemetry_traces=True) as visitor,
    ):
        await visitor.greet()
        await call(visitor, "plain")
    # Its retries draw random numbers, which would disturb the properties of later tests.
    for thread in threading.enumerate():
        if thread.name == "telemetry end":
            await asyncio.to_thread(thread.join, SECONDS)
            assert not thread.is_alive()


async def test_a_gateway_that_was_not_asked_has_no_tracer() -> None:
    async with assemble_gateway(Settings()) as parts:
        assert parts.active_calls.tracer is None
