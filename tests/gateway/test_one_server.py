"""The desk of one server: everything crosses as it is, and a shared link is nobody's alone."""

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec import Raw

from comity.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    POLICY_UNKNOWN,
    SERVER_NOT_READY,
    UPSTREAM_FAILED,
    Unavailable,
)
from comity.gateway.pipeline import CallGate
from comity.mcp import eras, jsonrpc, mcpl, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.policy.call_limiter import CallLimiter
from comity.policy.grants import Effect
from comity.sessions.sessions import Session
from tests.support.carriers import (
    SILENCE,
    AnySchema,
    Clock,
    Params,
    Script,
    ScriptedCarrier,
    hello,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Front, all_servers, one_server

both_kinds = loop_over("process", [False, True], ids=["http", "stdio"])
TOOLS: Params = {"tools": [{"name": "good"}, {"name": "bad", "inputSchema": {"type": "x"}}]}
JUDGE = {"inputSchema bad": "no such type"}
ANA, BEN = Actor("person:ana"), Actor("person:ben")


@both_kinds
@loop_over(
    "method",
    [
        "tools/call",
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "completion/complete",
        "vendor/anything",
    ],
)
async def test_every_request_of_a_session_crosses_as_it_is(process: bool, method: str) -> None:
    script = Script(starts_process=process)
    async with one_server(script) as front:
        session = await front.client()
        script.replies[method] = {"answer": method, "_mgp": {"x": 1}}
        params = {"name": "n", "deep": [{"y": 1}]}
        assert await front.ask(session, method, params).result() == script.replies[method]
        assert params_of(script.open[-1].asked(method)[-1]) == params


@loop_over("method", ["tools/call", "server/discover", "vendor/anything"])
async def test_every_modern_request_crosses_with_its_headers(method: str) -> None:
    script = Script(modern=True)
    async with one_server(script) as front:
        script.replies[method] = {"answer": method}
        headers = ((protocol.METHOD_HEADER, method.encode()), (b"mcp-param-x", b"1"))
        assert await front.handle_modern_request(method, {"name": "n"}, headers).result() == {
            "answer": method
        }
        carrier = script.carriers[0]
        assert carrier.sent[-1].headers == headers


async def test_over_http_the_clients_own_handshake_reaches_the_server() -> None:
    script = Script(replies={protocol.INITIALIZE: {**hello(mgp={}), "instructions": "x"}})
    async with one_server(script) as front:
        session = front.sessions.begin("")
        said = {"protocolVersion": "2025-06-18", "capabilities": {"mgp": {"v": 1}}}
        assert await front.ask(session, protocol.INITIALIZE, said).result() == {
            **hello(mgp={}),
            "instructions": "x",
        }
        (asked,) = script.last.asked(protocol.INITIALIZE)
        assert params_of(asked) == said
        assert session.is_initialized
        assert session.version == protocol.LATEST_HANDSHAKE
        front.desk.handle_message(session, jsonrpc.make_notification(protocol.INITIALIZED))
        assert [frame.method for frame in script.last.told()] == [protocol.INITIALIZED]


async def test_a_handshake_that_the_server_refuses_greets_nobody() -> None:
    script = Script()
    async with one_server(script) as front:
        script.replies[protocol.INITIALIZE] = Unavailable("no")
        session = front.sessions.begin("")
        await front.ask(session, protocol.INITIALIZE, {}).error()
        assert not session.is_initialized


@loop_over("welcome", [b"[]", b'"x"', b'{"a":1,"a":2}', b"null"])
async def test_a_broken_welcome_fails_the_handshake_and_nothing_else(welcome: bytes) -> None:
    script = Script()
    async with one_server(script) as front:
        script.replies[protocol.INITIALIZE] = Raw(welcome)
        session = front.sessions.begin("")
        error = await front.ask(session, protocol.INITIALIZE, {}).error()
        assert error.code == UPSTREAM_FAILED.code
        assert not session.is_initialized
        assert len(front.underway) == 0


async def test_on_a_shared_link_the_handshake_is_answered_from_the_first_one() -> None:
    script = Script(starts_process=True, replies={protocol.INITIALIZE: hello(tools={}, x={})})
    async with one_server(script) as front:
        for wanted, agreed in (("2024-11-05", "2024-11-05"), ("1999", protocol.LATEST_HANDSHAKE)):
            session = front.sessions.begin("")
            said: Params = {"protocolVersion": wanted, "capabilities": {}}
            answer = await front.ask(session, protocol.INITIALIZE, said).result()
            assert answer == {**hello(tools={}, x={}), "protocolVersion": agreed}
            front.desk.handle_message(session, jsonrpc.make_notification(protocol.INITIALIZED))
        (carrier,) = script.carriers
        assert len(carrier.asked(protocol.INITIALIZE)) == 1
        assert len(carrier.told()) == 1


@both_kinds
async def test_quarantined_tools_are_left_out(process: bool) -> None:
    script = Script(starts_process=process, modern=True, replies={protocol.LIST_TOOLS: TOOLS})
    async with one_server(script, AnySchema(JUDGE)) as front:
        session = await front.client()
        for asked in (
            front.ask(session, protocol.LIST_TOOLS),
            front.handle_modern_request(protocol.LIST_TOOLS),
        ):
            assert (await asked.result())["tools"] == [{"name": "good"}]


@both_kinds
async def test_a_list_is_filtered_by_the_policy_of_the_moment_in_which_it_arrives(
    process: bool,
) -> None:
    policy, script = (
        ChangingPolicy(),
        Script(starts_process=process, replies={protocol.LIST_TOOLS: TOOLS}),
    )
    async with one_server(script, make_gate=lambda catalog: CallGate(catalog, policy)) as front:
        session = await front.client()
        script.replies[protocol.LIST_TOOLS] = SILENCE
        for is_known in (True, False):
            policy.effects, policy.is_known = {}, True
            asked, count = front.ask(session, protocol.LIST_TOOLS), len(lists_at(script))
            await until(lambda before=count: len(lists_at(script)) > before)
            carrier, request = lists_at(script)[-1]
            policy.effects, policy.is_known = {"bad": Effect.DENY}, is_known
            carrier.answers(request, TOOLS)
            if is_known:
                assert (await asked.result())["tools"] == [{"name": "good"}]
            else:
                assert (await asked.error()).code == POLICY_UNKNOWN.code


def lists_at(script: Script) -> list[tuple[ScriptedCarrier, Frame]]:
    return [(each, asked) for each in script.carriers for asked in each.asked(protocol.LIST_TOOLS)]


@loop_over("listed", [b"[]", b'{"tools":[{"name":{"a":1,"a":1}}]}', b'{"tools":1}'])
async def test_a_broken_list_harms_only_its_call(listed: bytes) -> None:
    script = Script(replies={protocol.LIST_TOOLS: TOOLS})
    async with one_server(script, AnySchema(JUDGE)) as front:
        session = await front.client()
        script.replies[protocol.LIST_TOOLS] = Raw(listed)
        await front.ask(session, protocol.LIST_TOOLS).answer()
        assert len(front.underway) == 0


async def test_a_ping_on_a_shared_link_is_answered_here() -> None:
    script = Script(starts_process=True)
    async with one_server(script) as front:
        session = await front.client()
        assert await front.ask(session, protocol.PING).result() == {}
        assert script.last.asked(protocol.PING) == []


async def test_a_shared_server_logs_for_the_most_curious_of_its_clients() -> None:
    script = Script(starts_process=True, replies={protocol.SET_LEVEL: {}})
    async with one_server(script) as front:
        curious, calm = await front.client(), await front.client()
        await front.ask(curious, protocol.SET_LEVEL, {"level": "debug"}).result()
        await front.ask(calm, protocol.SET_LEVEL, {"level": "error"}).result()
        asked = [params_of(frame) for frame in script.last.asked(protocol.SET_LEVEL)]
        assert asked == [{"level": "debug"}, {"level": "debug"}]
        assert (curious.log_level, calm.log_level) == ("debug", "error")


async def test_a_subscription_on_a_shared_link_ends_with_its_last_follower() -> None:
    script = Script(starts_process=True)
    script.replies |= {protocol.SUBSCRIBE: {}, protocol.UNSUBSCRIBE: {}}
    async with one_server(script) as front:
        first, second = await front.client(), await front.client()
        for session in (first, second):
            await front.ask(session, protocol.SUBSCRIBE, {"uri": "x:1"}).result()
        await front.ask(first, protocol.UNSUBSCRIBE, {"uri": "x:1"}).result()
        assert script.last.asked(protocol.UNSUBSCRIBE) == []
        await front.ask(second, protocol.UNSUBSCRIBE, {"uri": "x:1"}).result()
        assert len(script.last.asked(protocol.UNSUBSCRIBE)) == 1
        error = await front.ask(second, protocol.SUBSCRIBE, {}).error()
        assert error.code == INVALID_PARAMS.code


ONLY_LEGACY = (
    *(protocol.INITIALIZE, protocol.PING, protocol.SET_LEVEL),
    *(protocol.SUBSCRIBE, protocol.UNSUBSCRIBE, eras.RESULT, eras.LIST),
)
ONLY_MODERN = (protocol.DISCOVER, protocol.LISTEN, eras.UPDATE)


@both_kinds
async def test_a_method_of_the_other_version_reaches_no_server(process: bool) -> None:
    script = Script(starts_process=process)
    modern = Script(modern=True, handshake=False)
    params: Params = {"uri": "x:1", "level": "debug", "taskId": "t", "notifications": {}}
    for endpoint in (one_server, all_at("srv")):
        async with endpoint(script) as front:
            session = await front.client()
            for method in ONLY_MODERN:
                before = asked_of(script, method)
                error = await front.ask(session, method, params).error()
                assert error.code == METHOD_NOT_FOUND.code, method
                assert asked_of(script, method) == before
        async with endpoint(modern) as front:
            for method in ONLY_LEGACY:
                before = asked_of(modern, method)
                error = await front.handle_modern_request(method, params).error()
                assert error.code == METHOD_NOT_FOUND.code, method
                assert asked_of(modern, method) == before


def asked_of(script: Script, method: str) -> int:
    return sum(len(carrier.asked(method)) for carrier in script.carriers)


def all_at(server: str) -> Callable[[Script], AbstractAsyncContextManager[Front]]:
    return lambda script: all_servers({server: script})


HOST_REQUESTS = ("state/rollback", "context/beforeInference", "channels/publish", "mcpl/listen")


@both_kinds
@loop_over("method", [*HOST_REQUESTS, "featureSets/update", "scope/elevate"])
async def test_only_the_host_of_a_connection_asks_as_a_host(process: bool, method: str) -> None:
    script = Script(starts_process=process, modern=True, replies={method: {"ok": 1}})
    async with one_server(script) as front:
        plain = await front.client()
        host = await front.client(experimental={mcpl.KEY: mcpl.OFFERED})
        for refused in (front.ask(plain, method), front.handle_modern_request(method)):
            assert (await refused.error()).code == METHOD_NOT_FOUND.code
        assert await front.ask(host, method).result() == {"ok": 1}
        own, *others = [each for each in script.carriers if each.asked(method)]
        assert not others
        assert own is not script.carriers[0]


@loop_over("method", ["tasks/list", "tasks/other", "mgp/permission/x", "notifications/x"])
async def test_some_methods_reach_no_server_at_all(method: str) -> None:
    script = Script(replies={method: {"ok": 1}})
    async with one_server(script) as front:
        error = await front.ask(await front.client(), method, {}).error()
        assert error.code == METHOD_NOT_FOUND.code
        assert script.last.asked(method) == []


@loop_over("level", ["loud", 5, None])
async def test_a_shared_server_gets_only_levels_that_exist(level: object) -> None:
    script = Script(starts_process=True, replies={protocol.SET_LEVEL: {}})
    async with one_server(script) as front:
        session = await front.client()
        error = await front.ask(session, protocol.SET_LEVEL, {"level": level}).error()
        assert error.code == INVALID_PARAMS.code
        assert (session.log_level, script.last.asked(protocol.SET_LEVEL)) == (None, [])


def notify(front: Front, session: Session, method: str, actor: Actor = ANONYMOUS) -> list[object]:
    """Send a notification of a client, and return those that its connection got since."""
    connection = session.own_connections.get("srv") or session.shared_connections["srv"]
    carrier = next(each for each in front.scripts["srv"].carriers if each is connection.transport)
    before = len(carrier.told())
    front.desk.handle_message(session, jsonrpc.make_notification(method, {"x": 1}), actor)
    return [frame.method for frame in carrier.told()[before:]]


@both_kinds
async def test_a_notification_reaches_a_connection_of_its_client_alone(process: bool) -> None:
    script = Script(starts_process=process)
    async with one_server(script) as front:
        first = await front.client(ANA, vendor={"x": 1})
        assert notify(front, first, "vendor/note", ANA) == ["vendor/note"]
        second = await front.client(BEN, vendor={"x": 1})
        for session, actor in ((first, ANA), (second, BEN)):
            told = notify(front, session, "vendor/note", actor)
            assert told == ([] if process else ["vendor/note"])
            assert notify(front, session, protocol.ROOTS_CHANGED, actor) == [protocol.ROOTS_CHANGED]


HOST_NOTIFICATIONS = (mcpl.UPDATE, "channels/outgoing/chunk", "state/rollback", "push/event")


@both_kinds
@loop_over("method", HOST_NOTIFICATIONS)
async def test_no_client_speaks_as_the_host_of_a_live_server(process: bool, method: str) -> None:
    script = Script(starts_process=process)
    async with one_server(script) as front:
        plain = await front.client()
        assert notify(front, plain, method) == []
        host = await front.client(experimental={mcpl.KEY: mcpl.OFFERED})
        assert notify(front, host, method) == [method], "its own connection, as whose host it began"


@both_kinds
async def test_on_the_connection_of_the_gateway_a_client_says_nothing(process: bool) -> None:
    script = Script(starts_process=process)
    async with one_server(script) as front:
        session = await front.client()
        own = script.carriers[0]
        before = len(own.told())
        for method in (*HOST_NOTIFICATIONS, "vendor/note", "notifications/mgp.event"):
            front.desk.handle_message(session, jsonrpc.make_notification(method))
        assert own.told()[before:] == []


async def test_a_notification_needs_a_grant() -> None:
    script, policy = Script(), ChangingPolicy()
    gate = functools.partial(CallGate, policy_engine=policy)
    async with one_server(script, make_gate=gate) as front:
        session = await front.client()
        for effect, told in ((Effect.ALLOW, ["vendor/note"]), (Effect.DENY, []), (Effect.ASK, [])):
            policy.effects[""] = effect
            assert notify(front, session, "vendor/note") == told
        policy.effects[""], policy.is_known = Effect.ALLOW, False
        assert notify(front, session, "vendor/note") == []


@loop_over("at", ["one server", "all servers"])
async def test_notifications_count_as_requests_of_their_key(at: str) -> None:
    clock = Clock()
    actor = Actor("agent:a", credential="k", requests_per_minute=5)
    gate = functools.partial(CallGate, limits=CallLimiter(now=clock, wall_clock=clock))
    script = Script(replies={protocol.CALL_TOOL: {}, protocol.LIST_TOOLS: TOOLS})
    fronts = {
        "one server": one_server(script, make_gate=gate),
        "all servers": all_servers({"srv": script}, make_gate=gate),
    }
    async with fronts[at] as front:
        session = await front.client(actor)
        await front.ask(session, "tools/call", {"name": "good"}, actor).result()
        told = [notify(front, session, protocol.ROOTS_CHANGED, actor) for _ in range(4)]
        # Two requests and `initialized` came before.
        assert told == [[protocol.ROOTS_CHANGED], [protocol.ROOTS_CHANGED], [], []]
        clock.passes(60)
        assert notify(front, session, protocol.ROOTS_CHANGED, actor) == [protocol.ROOTS_CHANGED]


async def test_a_cancellation_passes_over_the_limit() -> None:
    clock = Clock()
    actor = Actor("agent:a", credential="k", requests_per_minute=3)
    gate = functools.partial(CallGate, limits=CallLimiter(now=clock, wall_clock=clock))
    script = Script()
    async with one_server(script, make_gate=gate) as front:
        session = await front.client(actor)
        asked = front.ask(session, "tools/call", {"name": "good"}, actor)
        await until(lambda: script.last.asked("tools/call"))
        assert notify(front, session, protocol.ROOTS_CHANGED, actor) == []
        (call,) = front.underway
        cancelled = {"requestId": call.client_request_id}
        front.desk.handle_message(
            session, jsonrpc.make_notification(protocol.CANCELLED, cancelled), actor
        )
        await asked.outbox.wait_until_final()
        assert len(front.underway) == 0


@both_kinds
async def test_a_link_that_was_lost_is_opened_and_greeted_again(process: bool) -> None:
    script = Script(starts_process=process, replies={"tools/call": {"ok": 1}})
    async with one_server(script) as front:
        session = await front.client(sampling={})
        if not process:
            script.open[-1].dies()
            assert await front.ask(session, "tools/call", {}).result() == {"ok": 1}
            hellos = params_of(script.last.asked(protocol.INITIALIZE)[0])
            assert hellos["capabilities"] == {"sampling": {}}
            return
        server = front.servers.get("srv")
        assert server is not None
        script.open[-1].dies("exit status 1")
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        error = await front.ask(session, "tools/call", {}).error()
        assert "exit status 1" in error.message


@both_kinds
async def test_a_server_that_is_not_there_refuses_at_once_in_both_eras(process: bool) -> None:
    script = Script(starts_process=process, modern=True)
    async with one_server(script) as front:
        server = front.servers.get("srv")
        assert server is not None
        await server.stop(ShutdownReason.OPERATOR_REQUEST)
        session = front.sessions.begin("")
        for asked in (
            front.ask(session, protocol.INITIALIZE, {}),
            front.handle_modern_request("tools/call"),
        ):
            error = await asked.error()
            assert error.code == SERVER_NOT_READY.code
            assert "disconnected" in error.message
        assert len(front.underway) == len(session.conversation) == 0


async def test_a_call_that_is_withdrawn_while_its_link_is_opened_is_never_sent() -> None:
    script = Script()
    async with one_server(script) as front:
        session = await front.client()
        script.open[-1].dies()
        script.replies[protocol.INITIALIZE] = SILENCE
        asked = front.ask(session, "tools/call", {})
        await until(lambda: len(script.carriers) == 4 and script.last.asked(protocol.INITIALIZE))
        (call,) = front.underway
        front.desk.handle_message(
            session,
            jsonrpc.make_notification(protocol.CANCELLED, {"requestId": call.client_request_id}),
        )
        script.last.answers(script.last.asked(protocol.INITIALIZE)[0], hello())
        async with asyncio.timeout(10):
            await asked.asking
        assert (asked.outbox.is_final, asked.outbox.take()) == (True, [])
        assert script.last.asked("tools/call") == []
        assert len(front.underway) == 0


async def test_a_session_that_ends_while_its_call_is_routed_leaves_nothing() -> None:
    script = Script()
    async with one_server(script) as front:
        session = await front.client()
        script.open[-1].dies()
        script.replies[protocol.INITIALIZE] = SILENCE
        asked = front.ask(session, "tools/call", {})
        await until(lambda: len(script.carriers) == 4 and script.last.asked(protocol.INITIALIZE))
        await front.sessions.end(session)
        async with asyncio.timeout(10):
            await asked.asking
        assert asked.outbox.is_final
        assert (len(front.underway), session.own_connections) == (0, {})
        assert len(script.open) == 1, "the gateway's own is left"


async def test_a_session_that_has_ended_opens_nothing() -> None:
    script = Script()
    async with one_server(script) as front:
        session = await front.client()
        await front.sessions.end(session)
        opened = len(script.carriers)
        await front.ask(session, "tools/call", {}).error()
        assert (len(script.carriers), len(front.underway)) == (opened, 0)


async def test_an_id_in_use_is_refused_and_the_first_call_goes_on() -> None:
    script = Script()
    async with one_server(script) as front:
        session = await front.client()
        frame = jsonrpc.make_request("same", "tools/call")
        asked = front.ask(session, "tools/call", {})
        await settled()
        (call,) = front.underway
        with pytest.raises(ValueError, match="already in use"):
            await front.desk.handle_request(
                session, jsonrpc.with_id(frame, call.client_request_id), asked.outbox
            )
        script.last.answers(script.last.asked("tools/call")[0], {"ok": 1})
        assert await asked.result() == {"ok": 1}


async def test_two_clients_of_one_process_never_see_each_others_answers() -> None:
    script = Script(starts_process=True)
    async with one_server(script) as front:
        clients = [await front.client() for _ in range(3)]
        asked = [front.ask(client, "tools/call", {"n": n}) for n, client in enumerate(clients)]
        await settled()
        for frame in reversed(script.last.asked("tools/call")):
            script.last.answers(frame, {"for": params_of(frame)["n"]})
        assert [await each.result() for each in asked] == [{"for": n} for n in range(3)]
