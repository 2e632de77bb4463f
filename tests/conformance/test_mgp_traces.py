"""One trace for a call, wherever it is told: to its server, in an error, a span, the journal."""

import json
from collections.abc import Generator
from typing import Any
from uuid import UUID, uuid4

import pytest

from comity.mcp.actors import PrincipalKind
from tests.conformance.audited import ANA, AUDIT, CI, METADATA, Scene, audited
from tests.conformance.governed import CLIENT, Guest
from tests.support.collector import Collected, Seen, collecting
from tests.support.credentials import bearer
from tests.support.visitor import ENVELOPE, Frame, request

PARENT = "00-{}-00f067aa0ba902b7-01"
WAYS = ("none", "params", "beside", "traceparent", "header")


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Generator[Collected]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


def spoken(way: str, trace: UUID) -> tuple[Frame, Frame, dict[str, str]]:
    """How a client names a trace: in the parameters, beside them, in headers."""
    parent = PARENT.format(trace.hex)
    ways: dict[str, tuple[Frame, Frame, dict[str, str]]] = {
        "none": ({}, {}, {}),
        "params": ({"trace_id": str(trace)}, {}, {}),
        "beside": ({}, {"trace_id": str(trace)}, {}),
        "traceparent": ({"_meta": {"traceparent": parent}}, {}, {}),
        "header": ({}, {}, {"traceparent": parent}),
    }
    return ways[way]


async def call(ana: Guest, tool: str, arguments: Frame, way: str, trace: UUID) -> Frame:
    inside, beside, headers = spoken(way, trace)
    params: Frame = {"name": f"files__{tool}", "arguments": arguments, **inside}
    ana.visitor.session = ana.session
    reply = await ana.visitor.post({**request(7, "tools/call", params), **beside}, **headers)
    return (await reply.frames())[-1]


def calls_in(collected: Collected) -> list[Seen]:
    wanted = [each for each in collected.spans if each.name.startswith("tools/call")]
    assert {each.kind for each in wanted} >= {"server"}
    return wanted


async def upstream_trace(scene: Scene) -> UUID:
    (asked,) = scene.files.of("tools/call")
    return UUID(asked.frame["params"]["trace_id"])


@pytest.mark.requirement("MGP-6.5-send", "MGP-6.3-trace_id")
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_has_one_trace_at_its_server_in_its_span_and_in_the_journal(
    way: str, collected: Collected
) -> None:
    trace = uuid4()
    async with audited(telemetry_traces=True) as scene:
        ana = await scene.guest().greet(**AUDIT)
        assert "result" in await call(ana, "write", {}, way, trace)
        told = await upstream_trace(scene)
        kinds = ("dev.comity.call_intended", "TOOL_EXECUTED")
        entries = [await scene.found(kind) for kind in kinds]
        (asked,) = scene.files.of("tools/call")
    assert {UUID(each["trace_id"]) for each in entries} == {told}
    assert {UUID(span.trace_id) for span in calls_in(collected)} == {told}
    assert (told == trace) is (way != "none")
    # Whoever follows the trace by its spans finds the same one.
    assert asked.frame["params"]["_meta"]["traceparent"].split("-")[1] == told.hex


@pytest.mark.requirement("MGP-6.5-send")
@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_names_the_trace_under_which_it_stands_in_the_journal(way: str) -> None:
    trace = uuid4()
    async with audited() as scene:
        ana = await scene.guest().greet(**AUDIT)
        answer = await call(ana, "fetch", {"url": METADATA}, way, trace)
        entry = await scene.found("VALIDATION_FAILED")
    told = UUID(answer["error"]["data"]["trace_id"])
    assert told == UUID(entry["trace_id"])
    assert (told == trace) is (way != "none")


@pytest.mark.requirement("MGP-6.5-send")
@pytest.mark.parametrize("way", ["none", "params", "traceparent"])
async def test_a_modern_call_to_a_server_that_shakes_hands_keeps_its_trace(way: str) -> None:
    trace = uuid4()
    async with audited() as scene:
        inside, _, _ = spoken(way, trace)
        meta = {**ENVELOPE, CLIENT: AUDIT, **inside.pop("_meta", {})}
        params: Frame = {"name": "files__read", "arguments": {}, **inside, "_meta": meta}
        ana = scene.guest()
        headers = {"mcp-name": "files__read", **bearer(ana.key)}
        reply = await ana.visitor.ask_modern("tools/call", params, 7, **headers)
        assert "result" in (await reply.frames())[-1]
        entry = await scene.found("TOOL_EXECUTED")
        told = await upstream_trace(scene)
    assert told == UUID(entry["trace_id"])
    assert (told == trace) is (way != "none")


async def test_a_server_of_plain_mcp_is_told_no_trace_but_what_its_client_said() -> None:
    async with audited() as scene:
        ana = await scene.guest().greet()
        await call(ana, "read", {}, "none", uuid4())
        (asked,) = scene.files.of("tools/call")
        assert asked.frame["params"].keys() == {"name", "arguments"}
        parent = uuid4()
        await call(ana, "read", {}, "traceparent", parent)
        *_, asked = scene.files.of("tools/call")
        assert asked.frame["params"]["_meta"] == {"traceparent": PARENT.format(parent.hex)}
        assert "trace_id" not in asked.frame["params"]


@pytest.mark.requirement("MGP-6.5-send")
async def test_what_the_gateway_asks_a_server_itself_is_of_a_trace_too() -> None:
    async with audited() as scene:
        asked = [each.frame for each in scene.files.heard if "id" in each.frame]
        greeted = [frame["method"] for frame in asked].index("initialize")
        after = [frame for frame in asked[greeted + 1 :] if frame["method"] == "tools/list"]
        assert after
        for frame in after:
            assert UUID(frame["params"]["trace_id"])


@pytest.mark.requirement("MGP-6.5-send")
async def test_a_change_of_grants_is_written_down_under_the_trace_of_its_request() -> None:
    trace = uuid4()
    entry = {"entry_type": "server_grant", "agent_id": CI, "server_id": "files"}
    async with audited() as scene:
        ana = await scene.guest().greet(**AUDIT)
        given = {**entry, "permission": "allow", "trace_id": str(trace)}
        assert "result" in await ana.ask("mgp/access/grant", given)
        found = await scene.found("ACCESS_GRANTED")
        assert UUID(found["trace_id"]) == trace
        ci = await scene.guest(CI, PrincipalKind.AGENT).greet(**AUDIT)
        refused = (await ci.ask("mgp/access/grant", {**given, "trace_id": "free text"}))["error"]
        blocked = await scene.found("ACCESS_GRANTED", lambda each: each["result"] == "BLOCKED")
        assert UUID(blocked["trace_id"]) == UUID(refused["data"]["trace_id"])


@pytest.mark.requirement("REG-p4-security", "MGP-6.5-send")
@pytest.mark.parametrize("way", ["none", "params", "header"])
@pytest.mark.parametrize("fails", [True, False], ids=["refused", "done"])
async def test_a_call_at_the_registrys_face_is_written_down_under_the_trace_it_is_told(
    way: str, fails: bool, collected: Collected
) -> None:
    trace = uuid4()
    inside, _, headers = spoken(way, trace)
    tool, arguments = ("fetch", {"url": METADATA}) if fails else ("read", {})
    params = {"name": f"files__{tool}", "arguments": arguments, **inside}
    async with audited(telemetry_traces=True) as scene:
        ana = scene.guest()
        said = {**bearer(ana.key), "content-type": "application/json", **headers}
        body = json.dumps(request(7, "tools/call", params)).encode()
        reply = await ana.visitor.send("POST", said.items(), body, "/tools")
        answer: Any = await reply.json()
        entry = await scene.found("VALIDATION_FAILED" if fails else "TOOL_EXECUTED")
        upstream = [] if fails else [await upstream_trace(scene)]
    told = UUID(entry["trace_id"])
    assert (entry["actor"]["id"], told == trace) == (ANA, way != "none")
    assert upstream in ([], [told])
    assert {UUID(span.trace_id) for span in calls_in(collected)} == {told}
    if fails:
        assert UUID(answer["error"]["data"]["trace_id"]) == told
