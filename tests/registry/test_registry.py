"""The registry's desk over scripted servers: one gate, four timeouts, outputs in two forms."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from comity.errors import INVALID_TOOL_ARGS
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.pipeline import CallGate
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import LOCAL
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import Frame
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect
from comity.registry.export import CatalogExport
from comity.registry.service import (
    CATALOGUE,
    EXPORT,
    OPENAPI,
    RegistryResponse,
    RegistryService,
    RegistryTimeouts,
)
from comity.sessions.client_streams import ClientStream
from tests.support.carriers import (
    SILENCE,
    Params,
    Reply,
    Script,
    discovered,
    hello,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Front, all_servers

TOOL = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 3}},
        "required": ["x"],
        # Its author was mistaken in the first.
        "examples": [{"x": 1}, {"x": 7}],
    },
}
OFFERS: Params = {"tools": {}, "resources": {}}


def offering(called: Reply, read: Reply = SILENCE, *, modern: bool = False) -> Script:
    replies: dict[str, Reply] = {
        protocol.INITIALIZE: hello(**OFFERS),
        protocol.DISCOVER: discovered(**OFFERS),
        protocol.LIST_TOOLS: {"tools": [TOOL]},
        protocol.LIST_RESOURCES: {"resources": [{"uri": "u:1", "name": "one"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": []},
        protocol.CALL_TOOL: called,
        protocol.READ_RESOURCE: read,
    }
    return Script(starts_process=not modern, handshake=not modern, modern=modern, replies=replies)


type Found = Refusal | None


class Inspector:
    """Lets arguments pass that have what is wanted; may take its time, up to for ever."""

    def __init__(self, *, slow: bool = False) -> None:
        self._slow = slow

    def check_for(self, entry: CatalogEntry) -> Callable[[object], Found | Awaitable[Found]]:
        return self._later if self._slow else self._now

    def _now(self, arguments: object) -> Found:
        x = cast("Params", arguments).get("x")
        if isinstance(x, int) and x >= 3:
            return None
        return Refusal(INVALID_TOOL_ARGS, "x is too small", field="/x", suggestions=("Use 3.",))

    async def _later(self, arguments: object) -> Found:
        await asyncio.Event().wait()
        return self._now(arguments)


class Desk:
    """The registry before some servers, and a client of it."""

    def __init__(
        self,
        front: Front,
        inspector: Inspector,
        options: RegistryTimeouts,
        policy: ChangingPolicy | None = None,
    ) -> None:
        self.front = front
        gate = CallGate(front.catalog, policy, argument_checker=inspector)
        desk = AllServersEndpoint(
            front.servers, gate, front.underway, front.bridge, front.subscriptions, front.info
        )
        exports = CatalogExport(gate, front.servers)
        self.registry = RegistryService(desk, gate, front.underway, exports, options)

    async def ask(self, method: str, **params: object) -> RegistryResponse:
        outbox = ClientStream()
        outbox.actor = LOCAL
        async with (
            asyncio.timeout(10),
            self.registry.run_request(jsonrpc.make_request(1, method, params), outbox) as call,
        ):
            await outbox.wait_until_final()
            return self.registry.final_answer(call, outbox.take()[-1])

    async def result(self, method: str, **params: object) -> Any:
        answer = await self.ask(method, **params)
        assert answer.result is not None, answer
        return msgspec.json.decode(answer.result)

    async def error(self, method: str, **params: object) -> tuple[int, Any]:
        answer = await self.ask(method, **params)
        assert answer.error is not None, answer
        return answer.status, msgspec.json.decode(answer.error)

    async def add(self, x: object = 3) -> RegistryResponse:
        return await self.ask(protocol.CALL_TOOL, name="a__add", arguments={"x": x})


@asynccontextmanager
async def before(
    script: Script, options: RegistryTimeouts | None = None, inspector: Inspector | None = None
) -> AsyncGenerator[Desk]:
    async with all_servers({"a": script}) as front:
        yield Desk(front, inspector or Inspector(), options or RegistryTimeouts())


GIVEN: Params = {"content": [{"type": "text", "text": '{"sum": 6}'}]}
both_eras = loop_over("modern", [False, True], ids=["handshake", "modern"])


@both_eras
async def test_a_call_is_sent_in_whatever_era_its_server_is(modern: bool) -> None:
    async with before(offering(GIVEN, modern=modern)) as desk:
        given = await desk.result(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert given["structuredContent"] == {"sum": 6}
        asked = desk.front.scripts["a"].carriers
        (seen,) = [frame for carrier in asked for frame in carrier.asked(protocol.CALL_TOOL)]
        params = msgspec.json.decode(cast("bytes", seen.params))
        assert (params["name"], params["arguments"]) == ("add", {"x": 3})


async def test_nothing_that_a_client_made_up_goes_on_to_a_server() -> None:
    async with before(offering(GIVEN, modern=True)) as desk:
        meta = {protocol.CLIENT_INFO: {"name": "evil"}, "dev.other/x": 1, "progressToken": "p"}
        await desk.result(
            protocol.CALL_TOOL, name="a__add", arguments={"x": 3}, _meta=meta, task={}, extra=1
        )
        carriers = desk.front.scripts["a"].carriers
        (seen,) = [frame for carrier in carriers for frame in carrier.asked(protocol.CALL_TOOL)]
        params = msgspec.json.decode(cast("bytes", seen.params))
        assert set(params) == {"name", "arguments", "_meta"}
        assert params["_meta"][protocol.CLIENT_INFO]["name"] == "comity-registry"
        assert "dev.other/x" not in params["_meta"]


async def test_arguments_are_looked_at_before_the_call_is_sent() -> None:
    async with before(offering(GIVEN)) as desk:
        status, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 1})
        assert (status, error["code"]) == (400, -32001)
        assert (error["data"]["field"], error["data"]["suggestions"]) == ("/x", ["Use 3."])
        assert desk.front.scripts["a"].last.asked(protocol.CALL_TOOL) == []


async def test_a_tool_that_failed_is_an_error_with_its_own_words() -> None:
    failed = {"content": [{"type": "text", "text": "no luck"}], "isError": True}
    async with before(offering(failed)) as desk:
        status, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert (status, error["code"], error["message"]) == (502, -32003, "no luck")
        assert error["data"]["error_type"] == "ToolExecution"
        assert error["data"]["details"] == {"outcome": "failed"}


async def test_a_tool_that_wants_input_cannot_have_it_here() -> None:
    wants: Params = {"resultType": "input_required", "inputRequests": {}}
    async with before(offering(wants, modern=True)) as desk:
        status, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert (status, error["code"]) == (502, -32003)
        assert "needs input" in error["data"]["reason"]


async def test_a_call_that_takes_too_long_is_ended_and_its_server_told() -> None:
    async with before(offering(SILENCE), RegistryTimeouts(tool=0.05)) as desk:
        status, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert (status, error["code"]) == (504, -32003)
        data = error["data"]
        assert (data["error_type"], data["tool_name"]) == ("ToolTimeout", "add")
        assert (data["timeout_ms"], data["retryable"]) == (50, False)
        assert data["details"]["outcome"] == "unknown"
        (told,) = [
            frame
            for frame in desk.front.scripts["a"].last.told()
            if frame.method == protocol.CANCELLED
        ]
        assert told is not None


@pytest.mark.requirement("REG-timeouts-validation")
async def test_looking_at_arguments_has_a_time_of_its_own() -> None:
    slow = Inspector(slow=True)
    async with before(offering(GIVEN), RegistryTimeouts(validation=0.05), slow) as desk:
        for method in (protocol.CALL_TOOL, "tools/validate"):
            status, error = await desk.error(method, name="a__add", arguments={"x": 3})
            assert (status, error["code"]) == (504, -32003)
            assert error["data"]["timeout_ms"] == 50
            assert "looking at the arguments" in error["message"]
        assert desk.front.scripts["a"].last.asked(protocol.CALL_TOOL) == []


async def test_telling_of_tools_has_a_time_of_its_own() -> None:
    slow = Inspector(slow=True)
    async with before(offering(GIVEN), RegistryTimeouts(discovery=0.05), slow) as desk:
        status, error = await desk.error(EXPORT, name="a__add")
        assert (status, error["data"]["timeout_ms"]) == (504, 50)


async def test_a_call_that_was_never_sent_did_not_run() -> None:
    slow = Inspector(slow=True)
    async with before(offering(GIVEN), RegistryTimeouts(tool=0.05), slow) as desk:
        _, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert error["data"]["details"]["outcome"] == "not_run"
        assert desk.front.scripts["a"].last.asked(protocol.CALL_TOOL) == []


async def test_whoever_finds_no_place_at_a_server_waits_no_longer_than_it_may() -> None:
    options = RegistryTimeouts(lock=0.05, calls_per_server=1)
    async with before(offering(SILENCE), options) as desk:
        first = asyncio.ensure_future(desk.add())
        await until(lambda: desk.front.scripts["a"].last.asked(protocol.CALL_TOOL))
        status, error = await desk.error(protocol.CALL_TOOL, name="a__add", arguments={"x": 3})
        assert (status, error["data"]["retryable"]) == (503, True)
        assert "places at server 'a' are taken" in error["message"]
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first


async def test_whoever_goes_away_leaves_nothing_under_way() -> None:
    async with before(offering(SILENCE)) as desk:
        asking = asyncio.ensure_future(desk.add())
        await until(lambda: desk.front.scripts["a"].last.asked(protocol.CALL_TOOL))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        assert len(desk.front.underway) == 0
        last = desk.front.scripts["a"].last
        await until(lambda: any(frame.method == protocol.CANCELLED for frame in last.told()))


async def test_validating_tells_what_is_wrong_and_calls_nothing() -> None:
    async with before(offering(GIVEN)) as desk:
        good = await desk.result("tools/validate", name="a__add", arguments={"x": 3})
        assert good == {"valid": True, "errors": []}
        bad = await desk.result("tools/validate", name="a__add", arguments={"x": 1})
        assert bad["valid"] is False
        (error,) = bad["errors"]
        assert (error["field"], error["reason"]) == ("/x", "x is too small")
        assert desk.front.scripts["a"].last.asked(protocol.CALL_TOOL) == []


async def test_examples_are_those_that_would_pass() -> None:
    async with before(offering(GIVEN)) as desk:
        export = await desk.result(EXPORT, name="a__add")
        assert export["schema"] == TOOL["inputSchema"]
        assert export["examples"] == [{"x": 7}, {"x": 3}]
        assert export["metadata"] == {
            "category": "a",
            "version": "1",
            "deprecated": False,
            "author": "scripted",
        }


async def test_what_is_told_of_tools_is_of_one_server_where_one_is_named() -> None:
    async with all_servers({"a": offering(GIVEN), "b": offering(GIVEN)}) as front:
        desk = Desk(front, Inspector(), RegistryTimeouts())
        every = await desk.result(CATALOGUE)
        assert [tool["name"] for tool in every["tools"]] == ["a__add", "b__add"]
        one = await desk.result(CATALOGUE, server="b")
        assert [tool["name"] for tool in one["tools"]] == ["b__add"]
        assert "/tools/a__add" not in (await desk.result(OPENAPI, server="b"))["paths"]
        assert (await desk.result(CATALOGUE, server="nobody"))["tools"] == []


@loop_over("method", ["prompts/get", "registry/other", "tools/drop"])
async def test_no_other_method_is_said_here(method: str) -> None:
    async with before(offering(GIVEN)) as desk:
        status, error = await desk.error(method)
        assert (status, error["code"]) == (400, -32601)


@loop_over("params", [{"name": 7}, {"name": None}, {"name": ["a__add"]}])
async def test_a_name_is_text(params: Params) -> None:
    async with before(offering(GIVEN)) as desk:
        _, error = await desk.error(protocol.CALL_TOOL, **params)
        assert error["code"] == -32602


def reading(ttl: int) -> Params:
    return {
        "resultType": "complete",
        "contents": [{"uri": "u:1", "text": "said"}],
        "ttlMs": ttl,
        "cacheScope": "public",
    }


@pytest.mark.requirement("REG-p4-resources")
@loop_over(("ttl", "asked"), [(1000, 1), (0, 3)])
async def test_a_resource_is_read_again_when_its_time_has_passed(ttl: int, asked: int) -> None:
    async with before(offering(GIVEN, reading(ttl), modern=True)) as desk:
        for _ in range(3):
            assert (await desk.result(protocol.READ_RESOURCE, uri="u:1"))["contents"]
            desk.front.clock.passes(0.4)
        carriers = desk.front.scripts["a"].carriers
        seen = [frame for carrier in carriers for frame in carrier.asked(protocol.READ_RESOURCE)]
        assert len(seen) == asked
        # What was kept grew no younger when it was read.
        desk.front.clock.passes(0.4)
        await desk.result(protocol.READ_RESOURCE, uri="u:1")
        seen = [frame for carrier in carriers for frame in carrier.asked(protocol.READ_RESOURCE)]
        assert len(seen) == asked + 1


@loop_over(("change", "status"), [("denied", 403), ("unknown", 503), ("", 200)])
async def test_what_changes_while_a_read_waits_for_its_place_counts(
    change: str, status: int
) -> None:
    policy, options = ChangingPolicy(), RegistryTimeouts(calls_per_server=1, lock=30.0)
    script = offering(GIVEN, SILENCE, modern=True)
    async with all_servers({"a": script}) as front:
        desk = Desk(front, Inspector(), options, policy)

        def reads() -> list[Frame]:
            return [each for one in script.carriers for each in one.asked(protocol.READ_RESOURCE)]

        first = asyncio.ensure_future(desk.ask(protocol.READ_RESOURCE, uri="u:1"))
        await until(lambda: len(reads()) == 1)
        second = asyncio.ensure_future(desk.ask(protocol.READ_RESOURCE, uri="u:1"))
        await settled()
        script.replies[protocol.READ_RESOURCE] = reading(0)
        policy.is_known = change != "unknown"
        policy.effects = {"u:1": Effect.DENY} if change == "denied" else {}
        (carrier,) = (each for each in script.carriers if each.asked(protocol.READ_RESOURCE))
        carrier.answers(reads()[0], reading(0))
        await first
        assert (await second).status == status
        assert len(reads()) == (1 if change else 2)


async def test_resources_are_listed_and_what_is_nowhere_is_not_read() -> None:
    async with before(offering(GIVEN, reading(0))) as desk:
        listed = await desk.result(protocol.LIST_RESOURCES)
        assert [each["uri"] for each in listed["resources"]] == ["u:1"]
        _, error = await desk.error(protocol.READ_RESOURCE, uri="u:2")
        assert error["code"] == -32602
