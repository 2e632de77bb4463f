"""Every example that MGP, the registry's document and MCP print, sent and compared as printed.

`printed_examples.json` has the examples, each under its document, its section and its number there.
The settings are the defaults. What the operator of each server decided stands in the scene.
"""

import ast
import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from comity.catalog.settings import DiscoverySettings
from comity.mcp.actors import ADMIN_WRITE, CALL
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import Guest, refusal_of
from tests.conformance.printed_scene import (
    ADMIN,
    PrintedScene,
    PrintedServer,
    answer_with,
    error_of,
    may_call,
    printed_gateway,
    tool,
)
from tests.interop.peers import ROOT
from tests.support.upstream import Exchange, Upstream
from tests.support.visitor import SECONDS, Frame, Reply, request

PRINTED: Final[Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("printed_examples.json").read_text()
)
AGENT: Final = "agent.cloto_default"
"""The agent of MGP's examples."""

DEVIATIONS: Final = {
    "MGP 2.2": "The version is `0.3.0`, and a client that offers `0.1.0` is answered (D-01).",
    "MGP 3.6": "The decision goes to the server as a request, not as its own result (D-08).",
    "MGP 5.4": "`granted_by` is recorded as the sender, whatever the message says (D-17).",
    "MGP 7.4": "The order of the violations differs, and one text can have several.",
    "MGP 11.4": "The gateway accepts a shutdown only where `remote_shutdown` is set.",
    "MGP 15.2": "`tools` are those that the client may call; MGP's version is that of the server.",
    "MGP 15.4": "`stdio` commands need `commands` in `[registration]`; `trust_level` is `sandboxed`"
    " and `created_by` is the sender, whatever the message says (D-30).",
    "MGP 16.4": "There is no `tool_id`, and an `embedding` is shown to nobody (D-36).",
    "MGP 16.5": "Names are `server__tool`. Without the model of meaning, words find, and"
    " `fallback_strategy` says so (D-32). A tool with the validator `sandbox` is dangerous, so"
    " that `risk_level_max` leaves the printed one out (D-14).",
    "REG MCP Standard Error Response": "The code is -32001, as the table of the document says"
    " (D-77).",
    "REG Timeout Response": "The limit is the one in force, and the suggestions are Comity's.",
    "REG Bearer Token in MCP Request": "The header is preferred. `auth` in the body needs"
    " `accept_auth_member` in `[identity]` (D-83).",
    "REG OpenAPI Compatibility": "The document is OpenAPI 3.1.0, and has a path for each tool.",
    "MCP 5.1": "At the endpoint of all servers, names are `server__tool` (D-96).",
}
"""Where the gateway does otherwise, by document and section, and why."""

SHOWN_ELSEWHERE: Final = {
    "MGP 3.5 #1": "test_mgp_permission_asks.py",
    "MGP 3.6 #1": "test_mgp_permission_asks.py",
    "MGP 6.3 #1": "test_mgp_audit_told.py",
    "MGP 11.5 #1": "test_mgp_restarts.py",
    "MGP 12.6 #1": "../interop/test_streaming.py",
    "MGP 13.3 #1": "test_mgp_event_servers.py",
    "MGP 13.4 #1": "test_mgp_callback_clients.py",
    "MGP 13.4 #2": "test_mgp_callback_clients.py",
    "MGP 14.4 #1": "test_mgp_retries.py",
    "MCP 5.1 #6": "test_mcp_server_features.py",
}
"""Examples that need a real process, a stream that stands, or a moment of time."""

_replayed: Final[set[str]] = set()
type Test = Callable[..., Coroutine[Any, Any, None]]


def replays(*keys: str) -> Callable[[Test], Test]:
    """Mark the examples that a test sends, or whose answer it compares."""
    assert all(key in PRINTED for key in keys), keys
    _replayed.update(keys)
    return lambda test: test


def test_every_printed_example_is_replayed_here_or_shown_elsewhere() -> None:
    assert _replayed | SHOWN_ELSEWHERE.keys() == PRINTED.keys()
    assert not _replayed & SHOWN_ELSEWHERE.keys()
    for file in set(SHOWN_ELSEWHERE.values()):
        names = [
            each.name
            for each in ast.walk(ast.parse((Path(__file__).parent / file).read_text()))
            if isinstance(each, ast.AsyncFunctionDef | ast.FunctionDef)
        ]
        assert any(name.startswith("test_") for name in names)
    sections = {key.partition(" #")[0] for key in PRINTED}
    assert sections >= DEVIATIONS.keys()


def test_the_documentation_has_the_table_of_deviations() -> None:
    page = (ROOT / "docs/design/printed-examples.md").read_text()
    rows = [f"| {section} | {text} |" for section, text in DEVIATIONS.items()]
    assert [line for line in page.splitlines() if line.startswith(("| M", "| R"))]
    assert all(row in page for row in rows), "\n".join(rows)


def params(key: str) -> Frame:
    return PRINTED[key]["params"]


def assert_fits(printed: Any, found: Any, path: str = "") -> None:
    """Each member that is printed is there and has the printed type; `...` stands for anything."""
    if isinstance(printed, dict):
        assert isinstance(found, dict), (path, found)
        for name, value in printed.items():  # pyright: ignore[reportUnknownVariableType]
            if name != "...":
                assert name in found, (f"{path}/{name}", found)
                assert_fits(value, found[name], f"{path}/{name}")
    elif isinstance(printed, list):
        assert isinstance(found, list), (path, found)
        if printed and found:
            assert_fits(printed[0], found[0], f"{path}/0")
    elif isinstance(printed, bool):
        assert isinstance(found, bool), (path, found)
    elif isinstance(printed, int | float):
        assert isinstance(found, int | float), (path, found)
    elif isinstance(printed, str):
        assert isinstance(found, str), (path, found)


async def frames_of(client: Guest, key: str, **changed: Any) -> list[Frame]:
    """All messages that come before the answer to a printed request, and the answer."""
    printed = PRINTED[key]
    said = {**printed.get("params", {}), **changed}
    client.visitor.session = client.session
    reply = await client.visitor.post(request(printed["id"], printed["method"], said))
    return await reply.frames()


async def next_frame(reply: Reply) -> Frame:
    """The next message of a stream; events without one are passed over."""
    while not (event := await reply.event()).data:
        pass
    return event.frame


async def until_told(stream: Reply, method: str, **members: str) -> Frame:
    """The next notification of a method whose parameters have these values."""
    while True:
        told = await next_frame(stream)
        said = told.get("params", {})
        if told["method"] == method and members.items() <= said.items():
            return told


async def ask(client: Guest, key: str, **changed: Any) -> Frame:
    """The result of a printed request, whose id the answer has too."""
    answer = (await frames_of(client, key, **changed))[-1]
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", PRINTED[key]["id"])
    assert "result" in answer, answer
    return answer["result"]


# MGP.

STATED: Final = PRINTED["MGP 2.3 #1"]["result"]["capabilities"]["mgp"]
READ_FILE, GREP = PRINTED["MGP 16.5 #2"]["result"]["tools"]
ANALYZE: Final = PRINTED["MGP 16.6 #2"]["result"]["tools_loaded"][0]
OBJECT: Final[Frame] = {"type": "object"}


def as_listed(printed: Frame, **more: Any) -> Frame:
    """A tool as its server lists it, from an answer that also tells what the gateway knows."""
    known = ("name", "description", "inputSchema", "security")
    listed = {name: printed[name] for name in known if name in printed}
    for name in ("inputSchema", "security"):
        if "..." in listed.get(name, {}):
            listed[name] = OBJECT if name == "inputSchema" else {"risk_level": "moderate"}
    # A tool that needs the validator `sandbox` is dangerous, whatever its label says.
    if "security" in listed:
        listed["security"] = {**listed["security"], "validator": "none"}
    return {"inputSchema": OBJECT, **listed, **more}


def trusted(*permissions: str) -> Frame:
    return {"trust": "trusted", "permissions": dict.fromkeys(permissions, ())}


# Without `permissions_required` a tool needs all that its server needs, `shell` among it.
SAFE: Final[Frame] = {"risk_level": "safe", "permissions_required": []}
MGP_SERVERS: Final = {
    "mind.cerebras": PrintedServer(
        (tool("think", "Think about a message", security=SAFE), tool("analyze")),
        {**STATED, "extensions": ["security", "audit", "streaming"]},
        trusted("shell.execute", "network.outbound"),
    ),
    "tool.terminal": PrintedServer(
        (PRINTED["MGP 4.2 #1"], as_listed(READ_FILE), as_listed(GREP)),
        {"version": "0.1.0", "extensions": ["security"], "trust_level": "standard"},
        trusted("shell.execute", "filesystem.read"),
    ),
    "tool.data_processing": PrintedServer(
        (as_listed(ANALYZE),),
        {"version": "0.1.0", "extensions": ["security"], "trust_level": "standard"},
        trusted("memory.read"),
    ),
    "tool.maker": PrintedServer(
        (
            {
                **PRINTED["MGP 7.3 #1"],
                "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}},
            },
        ),
        {"version": "0.1.0", "extensions": ["security"], "trust_level": "standard"},
        trusted("code_execution"),
    ),
}
SHORT: Final = timedelta(milliseconds=200)


def mgp_gateway(**chosen: Any) -> AbstractAsyncContextManager[PrintedScene]:
    grants = (
        *may_call(AGENT, *(f"{server}/*" for server in MGP_SERVERS)),
        *may_call(AGENT, "tool.maker/create_mcp_server"),
        Grant(AGENT, ADMIN_WRITE, "dynamic.custom_tool/*", Effect.ALLOW),
    )
    return printed_gateway(MGP_SERVERS, *grants, approvals_client_wait=SHORT, **chosen)


async def greet(scene: PrintedScene, principal: str, *extensions: str) -> Guest:
    """Shake hands with the printed request, and with more extensions where they are needed."""
    hello = params("MGP 2.2 #1")
    offered = hello["capabilities"]["mgp"]
    wanted = [*offered["extensions"], *extensions]
    client = scene.guest(principal)
    return await client.greet(mgp={**offered, "extensions": wanted})


@replays("MGP 1.5 #1", "MGP 2.2 #1", "MGP 2.3 #1", "MGP 4.2 #1", "MGP 12.2 #1", "MGP 16.2 #1")
async def test_the_handshake_and_the_definition_of_a_tool() -> None:
    async with mgp_gateway() as scene:
        client = await greet(scene, AGENT)
        answered = client.hello["capabilities"]["mgp"]
        assert_fits({**STATED, "permissions_required": ...}, {**STATED, **answered})
        assert set(answered["extensions"]) == {"security", "access_control", "audit"}
        offered = scene.upstreams["mind.cerebras"].of("initialize")[0].frame["params"]
        assert_fits(params("MGP 2.2 #1")["capabilities"], offered["capabilities"])
        (unknown,) = await frames_of(client, "MGP 1.5 #1")
        assert unknown["error"]["code"] == -32601
        listed = (await client.ask("tools/list"))["result"]["tools"]
        (command,) = [each for each in listed if each["name"].endswith("execute_command")]
        expected = {**PRINTED["MGP 4.2 #1"], "name": "tool_terminal__execute_command"}
        assert command == expected
        waits = await client.ask(
            "tools/call", {"name": "execute_command", "arguments": {"command": "ls"}}
        )
        assert error_of(waits) == (1000, "pending_approval")
        for key in ("MGP 12.2 #1", "MGP 16.2 #1"):
            other = await scene.guest(AGENT).greet(**PRINTED[key])
            agreed = other.hello["capabilities"]["mgp"]["extensions"]
            assert agreed == PRINTED[key]["mgp"]["extensions"]


@replays("MGP 5.4 #1", "MGP 5.4 #2", "MGP 5.4 #3", "MGP 5.4 #4")
async def test_access_is_asked_granted_and_revoked() -> None:
    async with printed_gateway(MGP_SERVERS) as scene:
        admin = await greet(scene, ADMIN)
        state = await ask(admin, "MGP 5.4 #1")
        assert (state["permission"], state["source"]) == ("deny", "default_policy")
        entry = await ask(admin, "MGP 5.4 #3")
        assert (entry["permission"], entry["granted_by"]) == ("allow", ADMIN)
        state = await ask(admin, "MGP 5.4 #1")
        assert_fits(PRINTED["MGP 5.4 #2"]["result"], state)
        assert (state["permission"], state["source"]) == ("allow", "server_grant")
        agent = await greet(scene, AGENT)
        called = await agent.ask("tools/call", {"name": "think", "arguments": {}})
        assert refusal_of(called) is None
        assert (await ask(admin, "MGP 5.4 #4"))["revoked"] is True
        assert (await ask(admin, "MGP 5.4 #1"))["permission"] == "deny"


@replays("MGP 7.3 #1", "MGP 7.4 #1")
async def test_code_that_the_declaration_forbids_is_rejected_in_the_printed_form() -> None:
    async with mgp_gateway() as scene:
        agent = await greet(scene, AGENT)
        code = "import subprocess\neval('1')\n"
        called = {"name": "create_mcp_server", "arguments": {"code": code}}
        answer = await agent.ask("tools/call", called)
        assert answer["error"]["code"] == 1011
        rejection = answer["error"]["data"]["_mgp"]["details"]
        rejection = rejection.get("rejection", rejection)
        assert_fits(PRINTED["MGP 7.4 #1"], rejection)
        assert set(PRINTED["MGP 7.4 #1"]["violations"]) <= set(rejection["violations"])
        fine = {"name": "create_mcp_server", "arguments": {"code": "import json\n"}}
        assert refusal_of(await agent.ask("tools/call", fine)) is None


@replays(
    *("MGP 11.3 #1", "MGP 11.3 #2", "MGP 11.3 #3", "MGP 11.3 #4"),
    *("MGP 11.4 #1", "MGP 11.4 #2", "MGP 11.4 #3"),
    *("MGP 13.2 #1", "MGP 13.2 #2", "MGP 13.2 #3", "MGP 15.2 #1", "MGP 15.2 #2"),
)
async def test_health_the_list_of_servers_and_the_life_of_one() -> None:
    async with mgp_gateway() as scene:
        agent = await greet(scene, AGENT, "lifecycle", "discovery", "bidirectional")
        ping = await ask(agent, "MGP 11.3 #1")
        assert_fits(PRINTED["MGP 11.3 #2"]["result"], ping)
        assert ping["status"] == "healthy"
        status = await ask(agent, "MGP 11.3 #3")
        printed = PRINTED["MGP 11.3 #4"]["result"]
        # Clients should not depend on the keys of these two.
        assert_fits({**printed, "resources": {}, "checks": {}}, status)
        shutdown = await ask(agent, "MGP 11.4 #1")
        assert_fits(PRINTED["MGP 11.4 #2"]["result"], shutdown)
        assert shutdown["accepted"] is False
        found = await ask(agent, "MGP 15.2 #1")
        assert_fits(PRINTED["MGP 15.2 #2"]["result"], found)
        (mind,) = found["servers"]
        assert (mind["id"], sorted(mind["tools"])) == ("mind.cerebras", ["analyze", "think"])
        subscribed = await ask(agent, "MGP 13.2 #1")
        assert_fits(PRINTED["MGP 13.2 #2"]["result"], subscribed)
        named = {"subscription_id": subscribed["subscription_id"]}
        assert (await ask(agent, "MGP 13.2 #3", **named))["subscription_id"] == named[
            "subscription_id"
        ]
        agent.visitor.session = agent.session
        stream = await agent.visitor.get()
        await scene.visitor.parts.servers.stop_server("mind.cerebras")
        told = await until_told(stream, "notifications/mgp.lifecycle")
        stream.leave()
        assert_fits(PRINTED["MGP 11.4 #3"], told)
        assert told["params"]["previous_state"] == "connected"
        assert told["params"]["new_state"] == "draining"


def streaming(upstream: Upstream, *keys: str, end: str = "", waits: bool = False) -> None:
    """Have a tool send these notifications, and then this result or what cancels it."""

    @upstream.act("think")
    async def think(exchange: Exchange) -> None:
        await exchange.stream()
        for key in keys:
            said = {**PRINTED[key]["params"], "request_id": exchange.id}
            await exchange.event({"method": PRINTED[key]["method"], "params": said})
        if end:
            await exchange.event({"id": exchange.id, "result": PRINTED[end]["result"]})
        elif waits:
            await exchange.left()

    assert think


@replays("MGP 12.3 #1", "MGP 12.4 #1", "MGP 12.4 #2", "MGP 12.5 #1")
@replays("MGP 12.7 #1", "MGP 12.7 #2")
async def test_a_stream_its_progress_its_end_and_its_cancellation() -> None:
    async with mgp_gateway() as scene:
        agent = await greet(scene, AGENT, "streaming")
        mind = scene.upstreams["mind.cerebras"]
        streaming(mind, "MGP 12.4 #1", "MGP 12.4 #2", end="MGP 12.5 #1")
        *told, end = await frames_of(agent, "MGP 12.3 #1")
        (reached,) = scene.calls_at("mind.cerebras")
        assert reached["arguments"] == params("MGP 12.3 #1")["arguments"]
        chunks = [each for each in told if each["method"].endswith("chunk")]
        assert chunks == [PRINTED["MGP 12.4 #1"], PRINTED["MGP 12.4 #2"]]
        assert end["result"]["content"] == PRINTED["MGP 12.5 #1"]["result"]["content"]
        assert_fits(PRINTED["MGP 12.5 #1"]["result"]["_mgp"], end["result"]["_mgp"])
        assert end["result"]["_mgp"]["streamed"] is True
        streaming(mind, "MGP 12.4 #1", waits=True)

        @mind.act("mgp/stream/cancel")
        async def cancel(exchange: Exchange) -> None:
            await exchange.result(PRINTED["MGP 12.7 #2"]["result"])

        assert cancel
        call = asyncio.ensure_future(frames_of(agent, "MGP 12.3 #1"))
        await mind.arrival("tools/call", 2)
        cancelled = await ask(agent, "MGP 12.7 #1")
        assert_fits(PRINTED["MGP 12.7 #2"]["result"], cancelled)
        assert cancelled["cancelled"] is True
        async with asyncio.timeout(SECONDS):
            assert (await call)[-1]["id"] == PRINTED["MGP 12.3 #1"]["id"]


@replays("MGP 16.4 #1", "MGP 16.5 #1", "MGP 16.5 #2", "MGP 16.6 #1", "MGP 16.6 #2", "MGP 16.8 #1")
@replays("MGP 16.7 #1", "MGP 16.7 #2", "MGP 16.7 #3")
async def test_tools_are_found_requested_kept_and_taken_out() -> None:
    budget, own = PRINTED["MGP 16.8 #1"]["tool_context_budget"], DiscoverySettings()
    assert budget == {name: getattr(own, name) for name in budget}
    # The model of meaning is an extra, and is loaded for a long time.
    async with mgp_gateway(discovery_embedder="none") as scene:
        agent = await greet(scene, AGENT, "tool_discovery")
        found = await ask(agent, "MGP 16.5 #1")
        printed = PRINTED["MGP 16.5 #2"]["result"]
        assert_fits({**printed, "tools": []}, found)
        # Which of the two comes first depends on the model of meaning.
        (first,) = [each for each in found["tools"] if each["name"] == "tool_terminal__read_file"]
        assert_fits(printed["tools"][0], first)
        assert first["server_id"] == "tool.terminal"
        assert first["inputSchema"] == READ_FILE["inputSchema"]
        assert first["security"]["risk_level"] == "moderate"
        entry = {**PRINTED["MGP 16.4 #1"]}
        indexed = {name: entry[name] for name in ("server_id", "name", "description", "security")}
        assert_fits(indexed, first)
        given = await ask(agent, "MGP 16.6 #1")
        printed = PRINTED["MGP 16.6 #2"]["result"]
        assert_fits({**printed, "tools_unavailable": []}, given)
        assert given["tools_loaded"][0]["name"] == "tool_data_processing__analyze_csv"
        assert given["status"] in ("fulfilled", "partial")
        called: Frame = {"name": "tool_data_processing__analyze_csv", "arguments": {}}
        assert refusal_of(await agent.ask("tools/call", called)) is None
        session = await ask(agent, "MGP 16.7 #1")
        assert_fits(PRINTED["MGP 16.7 #2"]["result"], session)
        assert "tool_data_processing__analyze_csv" in session["cached"]
        assert session["max_tokens"] == budget["max_tokens"]
        names = {"tools": ["tool_data_processing__analyze_csv"]}
        left = await ask(agent, "MGP 16.7 #3", **names)
        assert left["evicted"] == names["tools"]


@replays("MGP 15.4 #1", "MGP 15.5 #1")
async def test_the_printed_registration_needs_the_operators_command() -> None:
    async with mgp_gateway(registration_from_network=True) as scene:
        agent = await greet(scene, AGENT, "discovery")
        answer = (await frames_of(agent, "MGP 15.4 #1"))[-1]
        assert error_of(answer) == (1001, "access_denied")
        assert "does not allow this command" in answer["error"]["message"]
        gone = (await frames_of(agent, "MGP 15.5 #1"))[-1]
        assert gone["error"]["code"] == -32602


@replays("MGP 15.4 #1", "MGP 15.5 #1")
async def test_the_printed_registration_runs_where_the_command_is_allowed(tmp_path: Path) -> None:
    script = tmp_path / "scripts/mcp_custom.py"
    script.parent.mkdir()
    script.write_text('def shout(text: str) -> str:\n    """Shout."""\n    return text.upper()\n')
    async with mgp_gateway(
        registration_from_network=True,
        registration_commands=("python",),
        registration_folders=(str(tmp_path),),
    ) as scene:
        agent = await greet(scene, AGENT, "discovery")
        there = await ask(agent, "MGP 15.4 #1")
        assert (there["id"], there["status"]) == ("dynamic.custom_tool", "connected")
        assert (there["trust_level"], there["created_by"]) == ("sandboxed", AGENT)
        assert (await ask(agent, "MGP 15.5 #1"))["deregistered"] is True


# The registry.

ANALYZER: Final = PRINTED["REG MCP Tool Definition #1"]
ADVICE: Final[Frame] = {"recommendation": "hold", "score": 0.5}
REG_SERVERS: Final = {
    "finance": PrintedServer(
        (ANALYZER, tool("Slow")),
        results={"FinancialAnalyzer": {"content": [], "structuredContent": ADVICE}},
    )
}
REG_GRANTS: Final = may_call(AGENT, "finance/FinancialAnalyzer", "finance/Slow")


async def over_rest(client: Guest, frame: Frame, **more: Any) -> tuple[int, Any]:
    return await client.http("POST", "/tools", {**frame, **more})


@replays("REG Request/Response Model #1", "REG Request/Response Model #2")
@replays("REG MCP Tool Definition #1", "REG OpenAPI Compatibility #1")
@replays("REG MCP Standard Error Response #1", "REG Bearer Token in MCP Request #1")
async def test_the_registry_lists_calls_validates_and_refuses() -> None:
    async with printed_gateway(REG_SERVERS, *REG_GRANTS) as scene:
        client = scene.guest(AGENT)
        status, listed = await over_rest(client, PRINTED["REG Request/Response Model #1"])
        assert status == 200
        assert_fits(PRINTED["REG Request/Response Model #2"], listed)
        analyzer = listed["result"]["tools"][0]
        assert analyzer == {**ANALYZER, "name": "finance__FinancialAnalyzer"}
        bearer = dict(PRINTED["REG Bearer Token in MCP Request #1"])
        auth = bearer.pop("auth")
        status, called = await over_rest(client, bearer)
        assert (status, called["id"]) == (200, bearer["id"])
        assert called["result"]["structuredContent"] == ADVICE
        (reached,) = scene.calls_at("finance")
        assert reached["arguments"] == bearer["params"]["arguments"]
        wrong = {**bearer["params"]["arguments"], "ticker_symbol": "invalid123"}
        status, refused = await client.http("POST", "/tools/FinancialAnalyzer", wrong)
        printed = PRINTED["REG MCP Standard Error Response #1"]["error"]
        assert_fits(printed["data"], refused["error"]["data"])
        assert (status, refused["error"]["code"]) == (400, -32001)
        assert refused["error"]["data"]["field"] == printed["data"]["field"]
        _, document = await client.http("GET", "/openapi.json")
        printed = PRINTED["REG OpenAPI Compatibility #1"]
        (path,) = printed["paths"]
        whole = document["paths"]["/tools/finance__FinancialAnalyzer"]["post"]
        operation = printed["paths"][path]["post"]
        assert_fits(operation["requestBody"]["required"], whole["requestBody"]["required"])
        assert operation["responses"].keys() <= whole["responses"].keys()
        assert document["info"]["version"] == printed["info"]["version"]
        # A credential in the body is none, unless the operator takes it.
        nobody = Guest(scene.visitor.other("/mcp"), auth["token"])
        status, answer = await over_rest(nobody, {**bearer, "auth": auth})
        assert (status, answer["error"]["code"]) == (401, -32004)
    async with printed_gateway(REG_SERVERS, *REG_GRANTS, identity_accept_auth_member=True) as scene:
        key = scene.given_out.give(AGENT)
        body = json.dumps({**bearer, "auth": {**auth, "token": key}}).encode()
        head = {"content-type": "application/json"}
        reply = await scene.visitor.send("POST", head.items(), body, "/tools")
        assert (reply.status, (await reply.json())["result"]["structuredContent"]) == (200, ADVICE)


@replays("REG Timeout Response #1")
async def test_a_call_that_takes_too_long_ends_as_printed() -> None:
    limit = timedelta(milliseconds=300)
    async with printed_gateway(REG_SERVERS, *REG_GRANTS, registry_tool_timeout=limit) as scene:

        @scene.upstreams["finance"].act("Slow")
        async def never(exchange: Exchange) -> None:
            await exchange.left()

        assert never
        status, answer = await scene.guest(AGENT).http("POST", "/tools/Slow", {})
        printed = PRINTED["REG Timeout Response #1"]["error"]
        assert (status, answer["error"]["code"]) == (504, printed["code"])
        data = answer["error"]["data"]
        assert_fits(printed["data"], data)
        assert (data["error_type"], data["timeout_ms"]) == ("ToolTimeout", 300)


# MCP.

WEATHER, DELETE = PRINTED["MCP 5.1 #2"]["result"]["tools"]
QUERY: Final[Frame] = {
    "name": "run_query",
    "inputSchema": PRINTED["MCP 6.1 #1"],
    "outputSchema": PRINTED["MCP 6.4 #1"]["outputSchema"],
}
MCP_SERVERS: Final = {
    "weather": PrintedServer((WEATHER, DELETE, QUERY), policy={"trust": "trusted"})
}
LISTS: Final = {
    "resources/list": "MCP 5.2 #2",
    "resources/templates/list": "MCP 5.2 #3",
    "resources/read": "MCP 5.2 #5",
    "prompts/list": "MCP 5.3 #1",
    "prompts/get": "MCP 5.3 #3",
}


def play_mcp(upstream: Upstream) -> None:
    for method, key in LISTS.items():
        upstream.acts[method] = answer_with(PRINTED[key]["result"])
    upstream.acts["ping"] = answer_with({})
    hello = PRINTED["MCP 4.1 #2"]["result"]

    async def initialize(exchange: Exchange) -> None:
        version = exchange.frame["params"]["protocolVersion"]
        await exchange.result({**hello, "protocolVersion": version}, mcp_session_id="one")

    upstream.acts["initialize"] = initialize


def mcp_gateway() -> AbstractAsyncContextManager[PrintedScene]:
    grants = [Grant(AGENT, verb, "weather/*", Effect.ALLOW) for verb in ("*", CALL)]
    return printed_gateway(MCP_SERVERS, *grants, play=play_mcp, approvals_client_wait=SHORT)


@replays("MCP 2.1 #1", "MCP 2.2 #1", "MCP 2.2 #2", "MCP 2.3 #1", "MCP 4.1 #1", "MCP 4.1 #2")
@replays("MCP 4.1 #3", "MCP 4.4 #1", "MCP 5.1 #1", "MCP 5.1 #2", "MCP 5.1 #3", "MCP 5.1 #4")
@replays("MCP 5.1 #5", "MCP 6.1 #1", "MCP 6.4 #1")
@replays("MCP 5.2 #1", "MCP 5.2 #2", "MCP 5.2 #3", "MCP 5.2 #4", "MCP 5.2 #5")
@replays("MCP 5.3 #1", "MCP 5.3 #2", "MCP 5.3 #3")
async def test_mcps_lists_calls_resources_and_prompts() -> None:
    async with mcp_gateway() as scene:
        client = scene.guest(AGENT)
        hello = params("MCP 4.1 #1")
        client.visitor.path = "/servers/weather/mcp"
        await client.greet("/servers/weather/mcp", **hello["capabilities"])
        printed = PRINTED["MCP 4.1 #2"]["result"]
        assert_fits(printed["capabilities"], client.hello["capabilities"])
        assert client.hello["instructions"] == printed["instructions"]
        client.visitor.session = client.session
        for key in ("MCP 2.3 #1", "MCP 4.1 #3"):
            assert (await client.visitor.post(PRINTED[key])).status == 202
        assert await ask(client, "MCP 4.4 #1") == {}
        for key in ("MCP 2.1 #1", "MCP 5.1 #1"):
            listed = await ask(client, key)
            assert listed["tools"] == [WEATHER, DELETE, QUERY]
        unknown = await client.ask("no/such/method")
        assert unknown["error"]["code"] == PRINTED["MCP 2.2 #2"]["error"]["code"]
        upstream = scene.upstreams["weather"]
        for key in ("MCP 5.1 #4", "MCP 5.1 #5"):
            upstream.acts["get_weather"] = answer_with(PRINTED[key]["result"])
            assert await ask(client, "MCP 5.1 #3") == PRINTED[key]["result"]
        assert scene.calls_at("weather")[0]["arguments"] == params("MCP 5.1 #3")["arguments"]
        assert await ask(client, "MCP 5.2 #1") == PRINTED["MCP 5.2 #2"]["result"]
        templates = await client.ask("resources/templates/list")
        assert templates["result"] == PRINTED["MCP 5.2 #3"]["result"]
        assert await ask(client, "MCP 5.2 #4") == PRINTED["MCP 5.2 #5"]["result"]
        prompts = await client.ask("prompts/list")
        assert prompts["result"] == PRINTED["MCP 5.3 #1"]["result"]
        assert await ask(client, "MCP 5.3 #2") == PRINTED["MCP 5.3 #3"]["result"]
        waits = await client.ask("tools/call", {"name": "delete_file", "arguments": {"path": "/"}})
        assert refusal_of(waits) == "pending_approval"
        bad = await client.ask("tools/call", {"name": "run_query", "arguments": {"limit": 0}})
        assert refusal_of(bad) == "invalid_tool_args"


@replays("MCP 4.4 #2", "MCP 4.4 #3", "MCP 5.4 #1", "MCP 5.4 #2", "MCP 5.5 #1", "MCP 5.5 #2")
@replays("MCP 5.5 #3", "MCP 5.6 #1", "MCP 5.6 #2")
async def test_what_a_server_asks_of_the_client_in_a_call() -> None:
    """Each printed request of a server reaches the client, and its printed answer the server."""
    pairs = {"MCP 5.4 #1": "MCP 5.4 #2", "MCP 5.5 #1": "MCP 5.5 #2", "MCP 5.6 #1": "MCP 5.6 #2"}
    async with mcp_gateway() as scene:
        client = scene.guest(AGENT)
        await client.greet("/servers/weather/mcp", **params("MCP 4.1 #1")["capabilities"])
        client.visitor.session = client.session
        upstream = scene.upstreams["weather"]
        asked = ""

        @upstream.act("get_weather")
        async def ask_back(exchange: Exchange) -> None:
            await exchange.stream()
            progress = PRINTED["MCP 4.4 #2"]
            token = exchange.frame["params"]["_meta"]["progressToken"]
            said = {**progress["params"], "progressToken": token}
            await exchange.event({"method": progress["method"], "params": said})
            await exchange.event({**PRINTED[asked], "id": "of-the-server"})
            answers = [e.frame for e in upstream.heard if e.frame.get("id") == "of-the-server"]
            async with asyncio.timeout(SECONDS):
                while not answers:
                    await asyncio.sleep(0.02)
                    answers = [e.frame for e in upstream.heard if e.id == "of-the-server"]
            upstream.heard = [e for e in upstream.heard if e.id != "of-the-server"]
            assert answers[0]["result"] == PRINTED[pairs[asked]]["result"]
            await exchange.event({"id": exchange.id, "result": {"content": []}})

        assert ask_back
        for key, answer in pairs.items():
            asked = key
            called = {**params("MCP 5.1 #3"), "_meta": {"progressToken": "abc-123"}}
            reply = await client.visitor.post(request(3, "tools/call", called))
            assert await next_frame(reply) == PRINTED["MCP 4.4 #2"]
            question = await next_frame(reply)
            assert question["method"] == PRINTED[key]["method"]
            assert question.get("params", {}) == PRINTED[key].get("params", {})
            back = {**PRINTED[answer], "id": question["id"]}
            assert (await client.visitor.post(back)).status == 202
            assert (await next_frame(reply))["result"] == {"content": []}
        for key in ("MCP 4.4 #3", "MCP 5.5 #3"):
            assert (await client.visitor.post(PRINTED[key])).status == 202
