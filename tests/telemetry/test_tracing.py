"""The trace that a client's transport names, on its way through a gateway without a tracer."""

import json

from tests.support.cases import loop_over
from tests.support.commands import by_command
from tests.support.upstream import scripted
from tests.support.visitor import ENVELOPE, Frame, Visitor, at, request, visiting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER = f"00-{TRACE}-00f067aa0ba902b7-01"
SAID = {"traceparent": PARENT, "tracestate": "rojo=1"}


async def last_heard(
    visitor: Visitor, meta: Frame | None = None, headers: dict[str, str] | None = None
) -> Frame:
    """What a stdio server heard of a call that came with these headers."""
    params: Frame = {"name": "heard", "arguments": {}}
    if meta is not None:
        params["_meta"] = meta
    reply = await visitor.post(request(5, "tools/call", params), **(headers or {}))
    told = (await reply.frames())[-1]["result"]["content"][0]["text"]
    return json.loads(told)[-1]["params"]


@loop_over("modern", [False, True])
async def test_a_header_goes_on_as_a_header_and_nothing_else_does(modern: bool) -> None:
    beside = {"cookie": "canary", "baggage": "a=canary", "x_request_id": "canary"}
    async with scripted(modern=modern) as server, visiting(at(server.url)) as visitor:
        if modern:
            await visitor.call_modern("plain", **SAID, **beside)
        else:
            await visitor.greet()
            params: Frame = {"name": "plain", "arguments": {}}
            await visitor.post(request(5, "tools/call", params), **SAID, **beside)
        (called,) = server.of("tools/call")
        assert called.headers["traceparent"] == PARENT
        assert called.headers["tracestate"] == "rojo=1"
        assert "traceparent" not in json.dumps(called.frame)
        assert "canary" not in str(called.pairs)


async def test_the_handshake_and_the_door_of_all_carry_it_too() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        hello: Frame = {"protocolVersion": "2025-11-25", "capabilities": {}}
        reply = await visitor.post(request(0, "initialize", hello), **SAID)
        assert reply.status == 200
        assert server.of("initialize")[-1].headers["traceparent"] == PARENT


@loop_over(
    "said",
    [
        {"tracestate": "rojo=1"},
        {"traceparent": "00-nonsense-01", "tracestate": "rojo=1"},
        {"traceparent": PARENT + "-more"},
    ],
)
async def test_what_has_not_the_shape_goes_nowhere(said: dict[str, str]) -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        await visitor.greet()
        await visitor.post(request(5, "tools/call", {"name": "plain"}), **said)
        (called,) = server.of("tools/call")
        assert {"traceparent", "tracestate"} & called.headers.keys() == set()


async def test_a_server_without_headers_is_told_in_meta() -> None:
    async with visiting(by_command()) as visitor:
        await visitor.greet()
        assert (await last_heard(visitor, None, SAID))["_meta"] == SAID
        heard = await last_heard(visitor, {"progressToken": "p"}, {"traceparent": PARENT})
        assert heard["_meta"]["traceparent"] == PARENT
        assert "progressToken" in heard["_meta"]


async def test_what_stands_in_meta_goes_on_untouched() -> None:
    meta = {"traceparent": OTHER, "tracestate": "congo=2", "baggage": "a=b"}
    async with visiting(by_command()) as visitor:
        await visitor.greet()
        assert (await last_heard(visitor, meta, SAID))["_meta"] == meta
        assert (await last_heard(visitor, meta))["_meta"] == meta
    async with scripted(modern=True) as server, visiting(at(server.url)) as visitor:
        params = {"name": "plain", "arguments": {}, "_meta": {**ENVELOPE, **meta}}
        await visitor.ask_modern("tools/call", params, **{"mcp-name": "plain"}, **SAID)
        (called,) = server.of("tools/call")
        assert called.frame["params"] == params
        assert called.headers["traceparent"] == PARENT


async def test_a_call_without_a_trace_gains_none() -> None:
    async with scripted() as server, visiting(at(server.url), by_command("child")) as visitor:
        await visitor.greet()
        await visitor.call("plain")
        assert "traceparent" not in str(server.of("tools/call")[0].pairs)
        child = visitor.other("/servers/child/mcp")
        await child.greet()
        assert "_meta" not in await last_heard(child)


async def test_a_refusal_names_the_trace_of_the_header() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        merged = visitor.other("/mcp")
        await merged.greet()
        reply = await merged.post(request(5, "tools/call", {"name": "no-such"}), **SAID)
        assert TRACE in json.dumps(await reply.json())
