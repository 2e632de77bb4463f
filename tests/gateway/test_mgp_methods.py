"""MGP methods of the gateway: negotiation, status, lifecycle and discovery of servers."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.mgp_methods import ServerFilter, ServerListing, ServerStatusMethods
from comity.mcp import jsonrpc, mcpl, mgp, protocol
from comity.mcp.mgp import MgpStatement, NegotiatedTerms, ServerLifecycleState
from comity.policy.risk import TrustLevel
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from tests.support.carriers import Params, Script, hello, params_of, result_of
from tests.support.cases import loop_over
from tests.support.desks import MODERN, Front, all_servers
from tests.support.refused import kind_of

BOTH: Params = {"version": "0.3.0", "extensions": ["discovery", "lifecycle", "streaming"]}
AGREED = {
    "version": "0.3.0",
    "extensions": ["discovery", "lifecycle", "streaming"],
    "server_id": "system:gateway",
}
LISTED: Params = {"tools": [{"name": name, "inputSchema": {}} for name in ("analyze", "think")]}
SAYS: Params = {"version": "0.2.0", "extensions": ["lifecycle"], "trust_level": "sandboxed"}


def mind() -> Script:
    said = hello(tools={}, mgp=SAYS)
    replies: dict[str, Any] = {protocol.INITIALIZE: said, protocol.LIST_TOOLS: LISTED}
    # It does not go by itself, and says so at once, so that no test waits for it.
    replies[mgp.SHUTDOWN] = Unavailable("no")
    return Script(starts_process=True, replies=replies)


@asynccontextmanager
async def gateway(**scripts: Script) -> AsyncGenerator[Front]:
    async with all_servers(scripts or {"mind": mind(), "plain": Script()}) as front:
        yield front


def presence(front: Front) -> ServerStatusMethods:
    assert isinstance(front.desk, AllServersEndpoint)
    return front.desk.status_methods


async def greeted(front: Front, **capabilities: object) -> tuple[Session, Params]:
    session = front.sessions.begin("")
    said = {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": capabilities}
    answer = await front.ask(session, protocol.INITIALIZE, said).result()
    return session, answer["capabilities"]  # type: ignore[return-value]


async def asked_modern(front: Front, method: str, capabilities: object) -> Any:
    envelope = {**MODERN, protocol.CLIENT_CAPABILITIES: capabilities}
    outbox = ClientStream()
    await front.desk.handle_modern_request(
        jsonrpc.make_request(1, method, {"_meta": envelope}), outbox, ()
    )
    return result_of(jsonrpc.decode_frame(outbox.take()[-1]))


async def test_whoever_speaks_of_mgp_is_answered_with_what_both_can_do() -> None:
    async with gateway() as front:
        session, capabilities = await greeted(front, mgp=BOTH)
        assert capabilities["mgp"] == AGREED
        assert session.mgp == NegotiatedTerms(
            "0.3.0", frozenset({"discovery", "lifecycle", "streaming"})
        )


async def test_whoever_speaks_in_another_place_is_answered_there_too() -> None:
    async with gateway() as front:
        _, capabilities = await greeted(front, experimental={"mgp": BOTH})
        assert (capabilities["mgp"], capabilities["experimental"]) == (AGREED, {"mgp": AGREED})


@pytest.mark.parametrize(
    "said", [{}, {"mgp": 7}, {"mgp": {**BOTH, "version": "1.0.0"}}, {"experimental": {"x": {}}}]
)
async def test_nobody_else_hears_of_mgp(said: Params, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as front:
        session, capabilities = await greeted(front, **said)
        assert "mgp" not in str(capabilities)
        assert session.mgp is None
        assert ("1.0.0" in caplog.text) is ("1.0.0" in str(said))


async def test_a_modern_client_is_answered_on_the_terms_of_its_request() -> None:
    said = {"extensions": {"dev.comity/mgp": BOTH}}
    async with gateway() as front:
        found = await asked_modern(front, protocol.DISCOVER, said)
        listed = await asked_modern(front, "mgp/discovery/list", said)
        plain: Any = await front.handle_modern_request(protocol.DISCOVER).result()
        refused = await front.handle_modern_request("mgp/discovery/list").error()
    assert found["capabilities"]["mgp"] == AGREED
    assert found["capabilities"]["extensions"] == {"dev.comity/mgp": AGREED}
    assert "mgp" not in str(plain["capabilities"])
    assert [server["id"] for server in listed["servers"]] == ["mind", "plain"]
    assert listed["resultType"] == "complete"
    assert refused.code == METHOD_NOT_FOUND.code


async def test_the_servers_are_listed_with_what_is_known_of_them() -> None:
    async with gateway() as front:
        session, _ = await greeted(front, mgp=BOTH)
        listed = await front.ask(session, "mgp/discovery/list").result()
        wanted = {"filter": {"extensions": ["lifecycle"], "status": "connected"}}
        filtered: Any = await front.ask(session, "mgp/discovery/list", wanted).result()
    mind_shown = {
        "id": "mind",
        "status": "connected",
        "mgp_version": "0.2.0",
        "extensions": ["lifecycle"],
        "tools": ["analyze", "think"],
        "trust_level": "standard",
    }
    plain_shown: Params = {
        "id": "plain",
        "status": "connected",
        "mgp_version": None,
        "extensions": [],
        "tools": [],
        "trust_level": "standard",
    }
    assert listed == {"servers": [mind_shown, plain_shown]}
    assert [server["id"] for server in filtered["servers"]] == ["mind"]


@loop_over(
    ("method", "extensions"),
    [
        ("mgp/discovery/list", ["lifecycle"]),
        ("mgp/health/ping", ["discovery"]),
        ("mgp/health/status", []),
        ("mgp/lifecycle/shutdown", ["discovery"]),
        ("mgp/access/grant", ["discovery", "lifecycle", "access_control"]),
    ],
)
async def test_without_its_extension_a_method_does_not_exist(
    method: str, extensions: list[str]
) -> None:
    async with gateway() as front:
        session, _ = await greeted(front, mgp={**BOTH, "extensions": extensions})
        error = await front.ask(session, method, {}).error()
    assert (error.code, kind_of(error)) == (METHOD_NOT_FOUND.code, "method_not_found")


async def test_the_gateway_says_how_it_is_and_stays() -> None:
    broken = Script(refuses="no")
    async with gateway(mind=mind(), broken=broken) as front:
        session, _ = await greeted(front, mgp=BOTH)
        ping: Any = await front.ask(session, "mgp/health/ping", {"timestamp": "x"}).result()
        status: Any = await front.ask(session, "mgp/health/status", {}).result()
        stays = await front.ask(session, "mgp/lifecycle/shutdown", {"reason": "x"}).result()
    assert (ping["status"], ping["server_id"], ping["uptime_secs"]) == (
        "degraded",
        "system:gateway",
        0,
    )
    assert datetime.fromisoformat(ping["timestamp"]).tzinfo is not None
    assert status["checks"] == {"mind": True, "broken": False}
    assert (status["tools_available"], status["tools_total"]) == (2, 2)
    assert status["pending_requests"] == 0
    assert stays == {"accepted": False, "pending_requests": 0, "estimated_drain_ms": 0}


async def test_all_servers_there_is_healthy() -> None:
    async with gateway() as front:
        session, _ = await greeted(front, mgp=BOTH)
        ping: Any = await front.ask(session, "mgp/health/ping", {}).result()
    assert ping["status"] == "healthy"


async def test_a_change_is_told_to_those_who_agreed_to_be_told() -> None:
    async with gateway() as front:
        listens, _ = await greeted(front, mgp=BOTH)
        other, _ = await greeted(front, mgp={**BOTH, "extensions": ["discovery"]})
        plain, _ = await greeted(front)
        await front.servers.stop_server("mind")
        told = [jsonrpc.decode_frame(data) for data in listens.standalone.take()]
        steps = [params_of(each) for each in told if each.method == mgp.CHANGED]
        assert [(step["previous_state"], step["new_state"]) for step in steps] == [
            ("connected", "draining"),
            ("draining", "disconnected"),
        ]
        assert steps[0].keys() == {
            "server_id",
            "previous_state",
            "new_state",
            "reason",
            "timestamp",
        }
        assert (steps[0]["server_id"], steps[0]["reason"]) == ("mind", "operator_request")
        for session in (other, plain):
            heard = [jsonrpc.decode_frame(data).method for data in session.standalone.take()]
            assert mgp.CHANGED not in heard
        await front.sessions.end(listens)
        assert len(presence(front)) == 0


async def test_a_clients_calls_go_out_on_the_terms_of_the_gateway() -> None:
    """Over HTTP a plain client's server hears nothing of MGP, and another's what we can do."""
    script = Script(replies={protocol.LIST_TOOLS: LISTED, protocol.CALL_TOOL: {"content": []}})
    async with gateway(far=script) as front:
        agreed = {
            **BOTH,
            "extensions": ["audit", "bidirectional", "lifecycle", "security", "streaming"],
        }
        for said, heard in ((BOTH, agreed), (None, None)):
            session, _ = await greeted(front, **({} if said is None else {"mgp": said}))
            await front.ask(session, protocol.CALL_TOOL, {"name": "think"}).result()
            greeting: Any = params_of(script.last.asked(protocol.INITIALIZE)[0])
            assert greeting["capabilities"].get("mgp") == heard


async def test_what_a_modern_client_says_of_mgp_is_not_said_to_its_server() -> None:
    replies: dict[str, Any] = {protocol.LIST_TOOLS: LISTED, protocol.CALL_TOOL: {"content": []}}
    script = Script(modern=True, handshake=False, replies=replies)
    said = {"sampling": {}, "extensions": {"dev.comity/mgp": BOTH}}
    envelope = {**MODERN, protocol.CLIENT_CAPABILITIES: said}
    async with gateway(far=script) as front:
        params = {"name": "think", "_meta": envelope}
        outbox = ClientStream()
        await front.desk.handle_modern_request(
            jsonrpc.make_request(1, protocol.CALL_TOOL, params), outbox, ()
        )
        (reached,) = script.open
        (asked,) = reached.asked(protocol.CALL_TOOL)
        (discovery,) = reached.asked(protocol.DISCOVER)
    meta: Any = params_of(asked)["_meta"]
    assert meta[protocol.CLIENT_CAPABILITIES] == {"sampling": {}}
    own: Any = params_of(discovery)["_meta"]
    offered = {
        "version": "0.3.0",
        "extensions": ["audit", "bidirectional", "lifecycle", "security", "streaming"],
    }
    assert own[protocol.CLIENT_CAPABILITIES] == {
        "mgp": offered,
        "extensions": {
            "dev.comity/mgp": offered,
            "dev.comity/mcpl": mcpl.OFFERED,
            "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]},
        },
    }


async def test_clients_with_and_without_mgp_share_a_process() -> None:
    async with gateway(mind=mind()) as front:
        script = front.scripts["mind"]
        script.replies[protocol.CALL_TOOL] = {"content": []}
        for said in ({"mgp": BOTH}, {}, {"experimental": {"mgp": BOTH}}):
            session, _ = await greeted(front, **said)
            await front.ask(session, protocol.CALL_TOOL, {"name": "think"}).result()
        assert len(script.open) == 1


async def test_a_tool_that_is_not_there_has_its_own_number() -> None:
    async with gateway() as front:
        session, _ = await greeted(front, mgp=BOTH)
        error = await front.ask(session, protocol.CALL_TOOL, {"name": "no"}).error()
        plain, _ = await greeted(front)
        other = await front.ask(plain, protocol.CALL_TOOL, {"name": "no"}).error()
        prompt = await front.ask(session, protocol.GET_PROMPT, {"name": "no"}).error()
    assert (error.code, other.code, prompt.code) == (4001, -32602, -32602)
    assert kind_of(error) == kind_of(other) == "tool_not_found"


# Discovery.


SAID = MgpStatement("0.2.0", frozenset({"streaming", "lifecycle"}), ("network.outbound",))
DECLARED = MgpStatement("", frozenset({"audit"}), ("memory.read",), "trusted")
CONNECTED, TRUSTED, STANDARD = (
    ServerLifecycleState.CONNECTED,
    TrustLevel.TRUSTED,
    TrustLevel.STANDARD,
)
MET = ServerListing("a", CONNECTED, TRUSTED, ("think", "analyze"), True, SAID, DECLARED)
UNMET = ServerListing("b", ServerLifecycleState.REGISTERED, TRUSTED, operator_statement=DECLARED)
PLAIN = ServerListing("c", CONNECTED, STANDARD, ("echo",), True)
SHORT = ServerListing(
    "d", CONNECTED, STANDARD, (), True, MgpStatement("0.1.0", frozenset(), ("network", "shell"))
)


def wanted(**names: object) -> ServerFilter:
    return ServerFilter.parse({"filter": Raw(json.dumps(names).encode())})


def test_a_server_that_was_met_is_shown_by_its_own_word() -> None:
    assert MET.to_json() == {
        "id": "a",
        "status": "connected",
        "mgp_version": "0.2.0",
        "extensions": ["lifecycle", "streaming"],
        "tools": ["think", "analyze"],
        "trust_level": "trusted",
    }


def test_before_it_is_met_a_server_is_shown_as_its_operator_wrote() -> None:
    assert UNMET.to_json() == {
        "id": "b",
        "status": "registered",
        "mgp_version": None,
        "extensions": ["audit"],
        "tools": [],
        "trust_level": "trusted",
    }


def test_a_server_that_turned_out_plain_has_no_extensions_whatever_was_written() -> None:
    met = ServerListing("a", CONNECTED, TRUSTED, (), True, None, DECLARED)
    assert met.to_json()["extensions"] == []
    assert PLAIN.to_json()["mgp_version"] is None


@loop_over(
    ("filtered", "found"),
    [
        (ServerFilter.parse({}), "abcd"),
        (wanted(), "abcd"),
        (wanted(status="connected"), "acd"),
        (wanted(status="registered"), "b"),
        (wanted(extensions=["streaming"]), "a"),
        (wanted(extensions=["streaming", "audit"]), ""),
        (wanted(extensions=["audit"]), "b"),
        (wanted(permissions=["memory.read"]), "ab"),
        (wanted(permissions=["memory.read", "network.outbound"]), "a"),
        (wanted(permissions=["memory.read"], status="connected"), "a"),
        (wanted(permissions=["network.outbound"]), "ad"),
        (wanted(permissions=["network"]), "ad"),
        (wanted(permissions=["shell.execute", "network"]), "d"),
        (wanted(permissions=["filesystem"]), ""),
        (wanted(unknown=True), "abcd"),
    ],
)
def test_a_filter_lets_through_whoever_has_all_that_is_named(
    filtered: ServerFilter, found: str
) -> None:
    passed = [server.id for server in (MET, UNMET, PLAIN, SHORT) if filtered.matches(server)]
    assert "".join(passed) == found


@loop_over(
    "names", [{"status": "well"}, {"extensions": "streaming"}, {"permissions": [1]}, {"status": 1}]
)
def test_a_filter_that_cannot_be_read_is_refused(names: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage) as caught:
        wanted(**names)
    assert caught.value.fault is INVALID_PARAMS
    with pytest.raises(MalformedMessage):
        ServerFilter.parse({"filter": Raw(b"[]")})
