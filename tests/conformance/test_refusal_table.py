"""Every reason of the refusal table, in every dialect, as it leaves the door. (MGP §14, REG errors)

What the gate decides is put in its mouth here, so that all of it can be heard at each door; that
each reason comes about by itself is shown where it belongs.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from comity import errors
from comity.errors import Fault
from comity.mcp.refusals import Refusal
from tests.conformance.realm import OFFER
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import ENVELOPE, Frame, Reply, Visitor, at, request, visiting
from tests.toolkit.test_errors import TABLE

FAULTS = {
    found.error_type: found
    for found in vars(errors).values()
    if isinstance(found, Fault) and found.error_type in TABLE
}
BECAUSE = "it is as it is"
SOON = timedelta(seconds=7)
REFUSAL = "dev.comity/refusal"
each_reason = pytest.mark.parametrize("reason", FAULTS)


@asynccontextmanager
async def refusing(fault: Fault, **more: Any) -> AsyncGenerator[Visitor]:
    """A gateway before a server with the tool `add`, whose gate says no for this reason."""
    async with scripted(modern=True) as server:

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            tool: Frame = {"name": "add", "inputSchema": {"type": "object"}}
            await exchange.result({"tools": [tool], "resultType": "complete"})

        async with visiting(
            at(server.url), registry_documentation_url="https://docs.example.org"
        ) as found:
            refusal = Refusal(fault, BECAUSE, SOON, **more)
            pipeline = found.parts.all_servers_endpoint.call_gate.pipeline
            setattr(pipeline, "run", lambda *_: refusal)  # noqa: B010  # pyright: ignore[reportUnknownLambdaType]
            found.path = "/mcp"
            yield found
            assert [each for each in server.heard if each.frame.get("method") == "tools/call"] == []


async def in_session(visitor: Visitor, capabilities: Frame | None = None) -> Frame:
    client = visitor.other("/mcp")
    await client.greet(capabilities=capabilities)
    return await (await client.call("up__add")).json()


async def modern(visitor: Visitor, capabilities: Frame | None = None) -> tuple[int, Frame]:
    meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": capabilities or {}}
    params = {"name": "up__add", "arguments": {}, "_meta": meta}
    reply = await visitor.ask_modern("tools/call", params, **NAMED)
    return reply.status, await reply.json()


NAMED = {"mcp-name": "up__add"}


async def at_registry(visitor: Visitor, path: str, body: Frame) -> Reply:
    kind = [("content-type", "application/json")]
    return await visitor.send("POST", kind, json.dumps(body).encode(), path)


def told_to_a_model(result: Frame, fault: Fault) -> Frame:
    assert result["isError"] is True
    assert "structuredContent" not in result
    text = result["content"][0]["text"]
    # When an approval comes depends on a person, so the text names no time for it.
    has_time = fault.retryable and fault is not errors.PENDING_APPROVAL
    again = "did not run; call it again in 7 seconds" if has_time else "was not run."
    if fault is errors.PENDING_APPROVAL:
        again = "has not run."
    assert text.startswith(f"It is as it is. The tool {again}")
    assert ("in 7 seconds" in text) is has_time
    body = result["_meta"][REFUSAL]
    assert body["trace_id"] in text
    return body


def is_whole(body: Frame, recovery: Frame, fault: Fault) -> None:
    assert (body["error_type"], body["reason"]) == (fault.error_type, BECAUSE)
    assert len(bytes.fromhex(body["trace_id"])) == 16
    assert recovery["retryable"] is fault.retryable
    assert recovery["details"]["outcome"] == "not_run"
    if fault.retryable:
        assert (recovery["retry_after_ms"], recovery["retry_strategy"]) == (7000, "fixed_delay")
        assert recovery["max_retries"] >= 1
    else:
        assert not {"retry_after_ms", "retry_strategy", "max_retries"} & recovery.keys()


@pytest.mark.requirement("MGP-14.2-range-jsonrpc", "MGP-14.2-range-1000", "MGP-14.2-range-2000")
@pytest.mark.requirement("MGP-14.2-range-3000", "MGP-14.2-range-4000", "MGP-14.2-range-5000")
@pytest.mark.requirement("MGP-14.3-1000", "MGP-14.3-1001", "MGP-14.3-1002", "MGP-14.3-1003")
@pytest.mark.requirement("MGP-14.3-1010", "MGP-14.3-1011", "MGP-14.3-2000", "MGP-14.3-2001")
@pytest.mark.requirement("MGP-14.3-2002", "MGP-14.3-3000", "MGP-14.3-3001", "MGP-14.3-3002")
@pytest.mark.requirement("MGP-14.3-3003", "MGP-14.3-4000", "MGP-14.3-4001", "MGP-14.3-4002")
@pytest.mark.requirement("MGP-14.3-5000", "MGP-14.3-5001", "MGP-14.3-5002", "MGP-14.4-data")
@pytest.mark.requirement("MGP-14.5-category", "MGP-14.5-retryable", "MGP-14.5-retry_after_ms")
@pytest.mark.requirement("MGP-14.5-retry_strategy", "MGP-14.5-max_retries", "MGP-14.5-details")
@each_reason
async def test_on_links_of_mgp_each_reason_has_mgps_number_and_fields(reason: str) -> None:
    fault = FAULTS[reason]
    async with refusing(fault) as visitor:
        in_modern = await modern(visitor, OFFER)
        for answer in (await in_session(visitor, OFFER), in_modern[1]):
            error = answer["error"]
            assert error["code"] == (TABLE[reason][0] or fault.code)
            recovery = error["data"]["_mgp"]
            is_whole(error["data"], recovery, fault)
            if fault.mgp is not None:
                thousands = ("", "security", "lifecycle", "resource", "validation", "external")
                assert recovery["category"] == thousands[fault.mgp // 1000]


@each_reason
async def test_on_plain_links_each_reason_is_a_result_for_a_model_or_an_error(reason: str) -> None:
    fault = FAULTS[reason]
    async with refusing(fault) as visitor:
        status, in_modern = await modern(visitor)
        for answer in (await in_session(visitor), in_modern):
            if TABLE[reason][-1]:
                body = told_to_a_model(answer["result"], fault)
                assert status == 200
            else:
                assert answer["error"]["code"] == fault.code
                assert status == errors.HTTP_STATUS_OF_CODE.get(fault.code, 200)
                body = answer["error"]["data"]
            is_whole(body, body, fault)
            assert "_mgp" not in body


@pytest.mark.requirement("REG-err-shape", "REG-err-32700", "REG-err-32600", "REG-err-32601")
@pytest.mark.requirement("REG-err-32602", "REG-err-32603", "REG-err-32001", "REG-err-32002")
@pytest.mark.requirement("REG-err-32003", "REG-err-32004", "REG-err-32005", "REG-err-error_type")
@pytest.mark.requirement("REG-err-reason", "REG-err-trace_id", "REG-err-suggestions")
@pytest.mark.requirement("REG-err-docurl")
@each_reason
async def test_at_the_registry_each_reason_has_its_number_name_and_status(reason: str) -> None:
    fault, (_, code, status, *_) = FAULTS[reason], TABLE[reason]
    spoken = request(5, "tools/call", {"name": "up__add", "arguments": {}})
    async with refusing(fault) as visitor:
        for path, body, named in (("/tools/up__add", {}, None), ("/tools", spoken, 5)):
            reply = await at_registry(visitor, path, body)
            answer = await reply.json()
            assert (reply.status, answer["id"], answer["error"]["code"]) == (status, named, code)
            data = answer["error"]["data"]
            assert data["error_type"] == fault.reg_type
            assert (data["reason"], len(data["trace_id"])) == (BECAUSE, 32)
            assert data["suggestions"]
            assert data["documentation_url"].endswith(f"/reference/errors/#{reason}")
            assert data["retryable"] is fault.retryable
            waits = fault.retryable and status in (429, 503)
            assert reply.headers.get("retry-after") == ("7" if waits else None)


@pytest.mark.requirement("MGP-14.5-fallback_tool")
async def test_a_tool_to_use_instead_is_told_in_every_dialect() -> None:
    async with refusing(errors.UPSTREAM_DOWN, fallback_tool="up__spare") as visitor:
        governed = (await in_session(visitor, OFFER))["error"]["data"]["_mgp"]
        plain = (await in_session(visitor))["result"]
        spoken = await (await at_registry(visitor, "/tools/up__add", {})).json()
    assert governed["fallback_tool"] == "up__spare"
    assert plain["_meta"][REFUSAL]["fallback_tool"] == "up__spare"
    assert "The tool up__spare may help instead." in plain["content"][0]["text"]
    assert spoken["error"]["data"]["fallback_tool"] == "up__spare"


@pytest.mark.requirement("REG-err-field")
async def test_the_field_that_is_wrong_and_what_would_pass_are_told_in_every_dialect() -> None:
    told: dict[str, Any] = {"field": "/ticker", "suggestions": ("Use capitals.",)}
    async with refusing(errors.INVALID_TOOL_ARGS, **told) as visitor:
        governed = (await in_session(visitor, OFFER))["error"]["data"]
        plain = (await in_session(visitor))["result"]
        spoken = (await (await at_registry(visitor, "/tools/up__add", {})).json())["error"]
    for body in (governed, plain["_meta"][REFUSAL], spoken["data"]):
        assert (body["field"], body["suggestions"]) == ("/ticker", ["Use capitals."])
    assert "Use capitals." in plain["content"][0]["text"]
    assert (spoken["code"], spoken["data"]["error_type"]) == (-32001, "ValidationError")


async def test_a_rejection_reaches_a_model_as_a_document() -> None:
    body: Frame = {"status": "rejected", "reason": "no", "violations": ["Blocked pattern: 'eval('"]}
    async with refusing(errors.CODE_UNSAFE, body=body) as visitor:
        plain = (await in_session(visitor))["result"]
        governed = (await in_session(visitor, OFFER))["error"]["data"]["_mgp"]
    assert json.loads(plain["content"][1]["text"]) == body
    assert governed["details"]["violations"] == body["violations"]
