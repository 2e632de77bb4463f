"""Discovery mode: a few tools are listed, and the gateway's own lead to all others. (MGP §16.2)"""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from comity.approvals.model import ANSWER_VERB, ApprovalDecision
from comity.catalog.toolbelt import PinnedTools
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect, Grant
from comity.policy.limits import LimitRule
from comity.toolkit.resilience import RateLimit
from tests.conformance.governed import ADMIN, refusal_of
from tests.conformance.toolshed import (
    ERAS,
    FILES,
    META_TOOLS,
    Client,
    Shed,
    allow,
    definition,
    tokens,
    tool,
    toolshed,
)
from tests.support.credentials import bearer
from tests.support.upstream import Exchange
from tests.support.visitor import ENVELOPE, SECONDS, Reply, request

PINNED = (PinnedTools("agent:*", (("files", "read_file"),)),)
ON: dict[str, Any] = {"discovery_mode": "on", "discovery_pinned": PINNED}
PLAIN: dict[str, Any] = {}


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.requirement("MGP-16.2-omit", "MGP-16.2-metatool", "MGP-16.3-L2", "MGP-16.3-L3")
async def test_a_plain_client_lists_finds_and_calls(era: str) -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        assert await client.names() == [*META_TOOLS, "files__read_file"]
        found = await client.meta("search_tools", {"query": "statistics on csv"})
        assert found["tools"][0]["name"] == "data__analyze_csv"
        arguments = {"name": "data__analyze_csv", "arguments": {"path": "/x"}}
        answer = await client.call("call_tool", arguments)
        assert answer["result"]["content"] == [{"type": "text", "text": "done"}]
        assert await client.names() == [*META_TOOLS, "files__read_file", "data__analyze_csv"]
        gone = await client.meta("session_tools", {"evict": ["data__analyze_csv"]})
        assert gone["evicted"] == ["data__analyze_csv"]
        assert await client.names() == [*META_TOOLS, "files__read_file"]


@pytest.mark.requirement("MGP-16.1-saving")
async def test_a_client_holds_a_hundredth_of_what_a_thousand_tools_would_take(era: str) -> None:
    """Each tool takes the 400 tokens of which the document speaks."""
    many = [tool(f"count_{n}", f"Count the things of kind {n}", pad=1500) for n in range(1000)]
    async with toolshed(**ON) as shed:
        await shed.relist("files", [FILES[0], *many])
        client = await shed.client(era, spoken=PLAIN)
        held = (await client.meta("session_tools"))["total_tokens"]
        await client.meta("search_tools", {"query": "count the things of kind 7"})
        assert held == (await client.meta("session_tools"))["total_tokens"]
        listed = [json.dumps(each, separators=(",", ":")) for each in await client.listed()]
    assert held == tokens(*(each.encode() for each in listed))
    everything = tokens(*(definition("files", each) for each in many))
    assert everything > 1000 * 400
    assert held <= everything / 100


@pytest.mark.requirement("MGP-16.3-browse")
async def test_a_plain_client_reads_the_categories_and_names_one_of_them(era: str) -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        answer = await client.call("search_tools", {"strategy": "category"})
        (text,) = answer["result"]["content"]
        assert "filesystem/write (" in text["text"]
        chosen = {"strategy": "category", "filter": {"categories": ["filesystem/write"]}}
        found = await client.meta("search_tools", chosen)
        assert "files__write_file" in [each["name"] for each in found["tools"]]


@pytest.mark.requirement("MGP-16.3-L0")
async def test_without_the_mode_all_tools_are_listed_and_the_own_ones_are_not(era: str) -> None:
    async with toolshed(discovery_pinned=PINNED) as shed:
        client = await shed.client(era)
        names = await client.names()
        assert len(names) == len(FILES) + 3
        assert not {*META_TOOLS} & {*names}
        for own in META_TOOLS:
            assert refusal_of(await client.call(own, {"query": "x"})) in (
                "tool_not_found",
                "access_denied",
            )
        # MGP's own names are there for who negotiated them, and for nobody else.
        found = await client.meta("mgp.tools.discover", {"query": "statistics on csv"})
        assert found["tools"][0]["name"] == "data__analyze_csv"
        plain = await shed.client(era, spoken=PLAIN)
        answer = await plain.call("mgp.tools.discover", {"query": "x"})
        assert refusal_of(answer) == "tool_not_found"


@pytest.mark.requirement("MGP-16.2-metatool", "MGP-16.5-astool")
async def test_the_documents_names_are_taken_too(era: str) -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        for name in ("mgp.tools.discover", "mgp/tools/discover"):
            found = await client.meta(name, {"query": "statistics on csv"})
            assert found["tools"][0]["name"] == "data__analyze_csv"
        done = await client.meta(
            "mgp.tools.request", {"requirements": {"capabilities": ["statistics"]}}
        )
        assert done["status"] == "fulfilled"
        held = await client.meta("mgp.tools.session")
        assert held["cached"] == ["data__analyze_csv"]
        named = {"tools": ["data__analyze_csv"]}
        assert (await client.meta("mgp.tools.session.evict", named))["cached"] == []
        assert refusal_of(await client.call("mgp.tools.other")) == "tool_not_found"


@pytest.mark.requirement("MGP-16.8-budget", "MGP-16.7-session")
async def test_the_ledger_is_what_the_list_costs(era: str) -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        for capability in ("statistics", "weather forecast", "archive volume"):
            done = await client.meta(
                "request_tools", {"requirements": {"capabilities": [capability]}}
            )
            listed = await client.listed()
            held = await client.meta("session_tools")
            written = [
                json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()
                for each in listed
            ]
            assert held["total_tokens"] == tokens(*written)
            assert held["total_tokens"] <= held["max_tokens"] == 8000
            loaded = {each["name"] for each in done["tools_loaded"]}
            assert loaded <= {each["name"] for each in listed}
            assert done["context_tokens_added"] == sum(held["tokens"][name] for name in loaded)
        assert held["tokens"]["own"] == tokens(*written[:4])


async def test_pinned_tools_are_paid_out_of_what_the_own_ones_leave() -> None:
    names = tuple(("files", each["name"]) for each in FILES)
    pinned = (PinnedTools("*", names),)
    chosen: dict[str, Any] = {"discovery_pinned": pinned, "discovery_pinned_reserve": 1000}
    async with toolshed(discovery_mode="on", **chosen) as shed:
        client = await shed.client("modern", spoken=PLAIN)
        held = await client.meta("session_tools")
    assert held["total_tokens"] <= 1000
    assert held["omitted"]
    assert {*held["pinned"]}.isdisjoint(held["omitted"])


@pytest.mark.requirement("MGP-16.2-metatool")
async def test_a_call_by_call_tool_is_the_call_of_its_target(era: str) -> None:
    """What the server receives and what the journal keeps is the same as without it."""
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        for server, name in (("files", "write_file"), ("data", "draw_chart")):
            arguments = {"path": "/x", "deep": {"ü": [1, 2.5, None]}}
            await client.call(f"{server}__{name}", arguments)
            aimed = {"name": f"{server}__{name}", "arguments": arguments}
            await client.call("call_tool", aimed)
            direct, through = shed.upstreams[server].of("tools/call")
            assert _said(direct) == _said(through)
            assert through.frame["params"]["name"] == name
            assert through.frame["params"]["arguments"] == arguments
            written = [
                entry
                for entry in await shed.journal("TOOL_EXECUTED")
                if entry["target"] == {"server_id": server, "tool_name": name}
            ]
            one, two = (entry["details"] for entry in written)
            for member in ("arguments_digest", "risk_level", "outcome"):
                assert one[member] == two[member]


def _said(exchange: Exchange) -> dict[str, Any]:
    """All that a server was told, but for what no two calls share."""
    headers = {name: value for name, value in exchange.headers.items() if name.startswith("mcp-")}
    headers.pop("mcp-session-id", None)
    params = {**exchange.frame["params"]}
    meta = {**params.get("_meta", {})}
    meta.pop("progressToken", None)
    return {**headers, **params, "_meta": meta}


async def test_what_is_denied_and_what_is_not_there_are_told_the_same(era: str) -> None:
    async with toolshed(**ON) as shed:
        await shed.grant(*allow("files/*", party="agent:narrow"))
        client = await shed.client(era, "agent:narrow", PLAIN)
        said: list[Any] = []
        for name in ("data__analyze_csv", "data__no_such_tool"):
            aimed: dict[str, Any] = {"name": name, "arguments": {}}
            for answer in (await client.call(name), await client.call("call_tool", aimed)):
                told = json.dumps(answer).replace(name, "NAME")
                said.append((refusal_of(answer), len(told)))
        assert len({*said}) == 1
        assert said[0][0] == "access_denied"
        blocked = [entry["target"]["tool_name"] for entry in await shed.journal("TOOL_BLOCKED")]
        assert blocked == ["data__analyze_csv"] * 2 + ["data__no_such_tool"] * 2
        assert not shed.upstreams["data"].of("tools/call")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": 7},
        {"name": ""},
        {"name": "call_tool", "arguments": {"name": "files__read_file"}},
        {"name": "search_tools", "arguments": {"query": "x"}},
        {"name": "mgp.tools.discover", "arguments": {"query": "x"}},
        {"name": "files__write_file", "path": "/x"},
        {"name": "files__write_file", "arguments": [1]},
        {"name": "files__write_file", "arguments": "{}"},
    ],
)
async def test_what_call_tool_cannot_do_is_refused(arguments: dict[str, Any]) -> None:
    async with toolshed(**ON, policy_fallback_validators="on") as shed:
        client = await shed.client("modern", spoken=PLAIN)
        answer = await client.call("call_tool", arguments)
        assert refusal_of(answer) is not None
        assert not shed.upstreams["files"].of("tools/call")


@pytest.mark.parametrize("name", ["search_tools", "request_tools", "session_tools"])
async def test_arguments_that_cannot_be_read_are_told_to_the_model(name: str, era: str) -> None:
    wrong = {"query": 7, "context": 7, "evict": 7}
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        answer = await client.call(name, wrong)
        assert answer["result"]["isError"] is True
        assert refusal_of(answer) == "invalid_tool_args"


async def test_a_person_approves_the_call_however_it_is_made(era: str) -> None:
    """The ask is the same one: approved by one way, the other way uses it, once."""
    async with toolshed(**ON, approvals_client_wait=timedelta(seconds=0.3)) as shed:
        await shed.grant(Grant(ADMIN, ANSWER_VERB, "*", Effect.ALLOW))
        await shed.grant(*allow("files/delete_file", effect=Effect.ASK))
        client = await shed.client(era, spoken=PLAIN)
        arguments = {"path": "/x"}
        direct = await client.call("files__delete_file", arguments)
        aimed = {"name": "files__delete_file", "arguments": arguments}
        through = await client.call("call_tool", aimed)
        assert refusal_of(direct) == refusal_of(through) == "pending_approval"
        approvals = shed.visitor.parts.approval_components.approvals
        (ask,) = [each for each in await approvals.store.page() if each.tool == "delete_file"]
        await approvals.answer(Actor(ADMIN, PrincipalKind.PERSON), ask.id, ApprovalDecision.ACCEPT)
        done = await client.call("call_tool", aimed)
        assert refusal_of(done) is None
        assert len(shed.upstreams["files"].of("tools/call")) == 1


async def test_progress_and_cancellation_are_the_targets_too() -> None:
    async with toolshed(**ON) as shed:
        server = shed.upstreams["files"]

        @server.act("write_file")
        async def write(exchange: Exchange) -> None:
            token = exchange.frame["params"]["_meta"]["progressToken"]
            await exchange.stream()
            told = {"progressToken": token, "progress": 1, "message": "half of it"}
            await exchange.event({"method": "notifications/progress", "params": told})
            await exchange.left()

        client = await shed.client(spoken=PLAIN)
        aimed = {"name": "files__write_file", "arguments": {"path": "x"}}
        said = {"name": "call_tool", "arguments": aimed, "_meta": {"progressToken": "mine"}}
        client.guest.visitor.session = client.guest.session
        reply = await client.guest.visitor.post(request("one", "tools/call", said))
        event = await _said_next(reply)
        assert event["params"] == {
            "progressToken": "mine",
            "progress": 1,
            "message": "half of it",
        }
        withdrawn = {"requestId": "one", "reason": "enough"}
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": withdrawn}
        beside = client.guest.visitor.other("/mcp")
        beside.session = client.guest.session
        await beside.post(notice)
        heard = await server.arrival("notifications/cancelled")
        (called,) = server.of("tools/call")
        assert heard.frame["params"] == {"requestId": called.id, "reason": "enough"}


async def test_a_search_counts_against_its_callers_rates(era: str) -> None:
    limit = LimitRule("*", "*", ("principal",), RateLimit.parse("2/h"))
    async with toolshed(**ON, limits_rates=(limit,)) as shed:
        client = await shed.client(era)
        for _ in range(2):
            await client.meta("search_tools", {"query": "read a file"})
        assert refusal_of(await client.call("search_tools", {"query": "x"})) == "rate_limited"
        asked = {"context": "x", "requirements": {"capabilities": ["x"]}}
        for method, params in (("discover", {"query": "x"}), ("request", asked)):
            answer = await client.answer(f"mgp/tools/{method}", params)
            assert answer["error"]["data"]["error_type"] == "rate_limited"


@pytest.mark.requirement("MGP-16.7-cache")
async def test_a_client_is_told_when_its_list_is_another_one() -> None:
    async with toolshed(**ON) as shed:
        client, other = await shed.client(spoken=PLAIN), await shed.client(spoken=PLAIN)
        for each in (client, other):
            await each.names()
        stream, quiet = await _standing(client), await _standing(other)
        await client.call("call_tool", {"name": "data__analyze_csv", "arguments": {}})
        assert await _next(stream) == "notifications/tools/list_changed"
        assert "data__analyze_csv" in await client.names()
        # Used again, it is the same list; let go, it is another.
        await client.call("data__analyze_csv")
        await client.meta("session_tools", {"evict": ["data__analyze_csv"]})
        assert await _next(stream) == "notifications/tools/list_changed"
        await client.names()
        # A tool that neither of them lists comes unheard: the next that they hear of is a prompt.
        witness = await _listening(shed, client, "/servers/files/mcp")
        assert await _next(witness) == "notifications/subscriptions/acknowledged"
        _offer_prompts(shed, "ask")
        for heard in (stream, quiet):
            # Whatever was told twice until now is passed over.
            await _until(heard, "notifications/prompts/list_changed")
        await shed.relist("files", [*FILES, tool("more", "Something more")])
        assert await _next(witness) == "notifications/tools/list_changed"
        _offer_prompts(shed, "ask", "answer")
        for heard in (stream, quiet):
            assert await _next(heard) == "notifications/prompts/list_changed"
        # One that both list is another matter.
        changed = tool("read_file", "Read the contents of another text file")
        await shed.relist("files", [changed, *FILES[1:]])
        for each, heard in ((client, stream), (other, quiet)):
            assert await _next(heard) == "notifications/tools/list_changed"
            described = {tool["name"]: tool["description"] for tool in await each.listed()}
            assert described["files__read_file"] == changed["description"]
        await shed.grant(*allow("files/read_file", effect=Effect.DENY))
        for each, heard in ((client, stream), (other, quiet)):
            await _until(heard, "notifications/tools/list_changed")
            assert await each.names() == META_TOOLS


def _offer_prompts(shed: Shed, *names: str) -> None:
    offers = [CatalogEntry(f"files__{name}", "files", name, b"{}") for name in names]
    shed.visitor.parts.catalog.put("files", EntryKind.PROMPT, offers)


async def _standing(client: Client) -> Reply:
    client.guest.visitor.session = client.guest.session
    return await client.guest.visitor.get()


async def _said_next(stream: Reply) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            event = await stream.event()
            if event.data:
                return event.frame


async def _next(stream: Reply) -> str:
    return (await _said_next(stream))["method"]


async def _until(stream: Reply, method: str) -> None:
    while await _next(stream) != method:
        pass


async def test_a_listener_of_the_modern_era_is_told_too() -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client("modern", spoken=PLAIN)
        await client.names()
        stream = await _listening(shed, client)
        assert await _next(stream) == "notifications/subscriptions/acknowledged"
        await client.call("call_tool", {"name": "data__analyze_csv", "arguments": {}})
        assert await _next(stream) == "notifications/tools/list_changed"


async def _listening(shed: Shed, client: Client, path: str = "/mcp") -> Reply:
    said: dict[str, Any] = {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}
    visitor = shed.visitor.other(path)
    return await visitor.ask_modern("subscriptions/listen", said, "ear", **bearer(client.guest.key))


async def test_a_cursor_was_given_to_nobody(era: str) -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(era, spoken=PLAIN)
        answer = await client.answer("tools/list", {"cursor": "WyJmaWxlcyIsMF0="})
        assert answer["error"]["code"] == -32602


async def test_a_servers_own_door_lists_all_of_its_tools() -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client("modern", spoken=PLAIN)
        listed = await client.guest.modern("tools/list", path="/servers/files/mcp")
        assert len(listed["result"]["tools"]) == len(FILES)


async def test_an_own_tool_is_no_task_and_call_tool_leaves_that_to_its_target() -> None:
    async with toolshed(**ON) as shed:
        client = await shed.client(spoken=PLAIN)
        said = {"name": "search_tools", "arguments": {"query": "x"}, "task": {"ttl": 1000}}
        assert (await client.answer("tools/call", said))["error"]["code"] == -32601
        aimed = {"name": "files__read_file", "arguments": {"path": "x"}}
        said = {"name": "call_tool", "arguments": aimed, "task": {"ttl": 1000}}
        await client.answer("tools/call", said)
        (heard,) = shed.upstreams["files"].of("tools/call")
        assert heard.frame["params"]["task"] == {"ttl": 1000}


async def test_the_prefix_of_the_documents_names_reaches_no_servers_tool() -> None:
    async with toolshed(**ON) as shed:
        await shed.relist("files", [tool("mgp.tools.other", "Pretends"), tool("call_tool", "Too")])
        client = await shed.client("modern", spoken=PLAIN)
        assert refusal_of(await client.call("mgp.tools.other", {})) == "tool_not_found"
        aimed = {"name": "files__call_tool", "arguments": {"path": "x"}}
        assert refusal_of(await client.call("call_tool", aimed)) is None
        (heard,) = shed.upstreams["files"].of("tools/call")
        assert heard.frame["params"]["name"] == "call_tool"
