"""The endpoint of all servers: merged lists, routing, task ids, and who is told of changes."""

import asyncio
import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import Raw

from comity.catalog import catalog as shelves
from comity.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.all_servers import AllServersEndpoint, modern_connection
from comity.gateway.one_server import publish_task_ids
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import UNKEYED_TASK_IDS, TaskIds
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import ServerLifecycleState
from comity.mcp.protocol import Era
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from tests.support.asking import AGENT
from tests.support.carriers import (
    SILENCE,
    AnySchema,
    Params,
    Reply,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Asked, Front, all_servers

EVERYTHING: Params = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}}


def offering(name: str, process: bool = False, modern: bool = False) -> Script:
    """A server with one of each kind, which answers every request with its own name."""
    replies: dict[str, Reply] = {
        protocol.INITIALIZE: hello(**EVERYTHING),
        protocol.LIST_TOOLS: {"tools": [{"name": "add"}, {"name": f"only_{name}"}]},
        protocol.LIST_PROMPTS: {"prompts": [{"name": f"greet_{name}"}]},
        protocol.LIST_RESOURCES: {"resources": [{"uri": f"{name}:readme"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": [{"uriTemplate": f"{name}:doc/{{id}}"}]},
    }
    routed = ("tools/call", "prompts/get", "resources/read", "completion/complete")
    for method in (
        *routed,
        protocol.SUBSCRIBE,
        protocol.UNSUBSCRIBE,
        protocol.SET_LEVEL,
        "tasks/get",
    ):
        replies[method] = {"by": name}
    if process and modern:
        # A process that shakes hands would be spoken to in that era, whoever asks.
        replies |= {
            protocol.INITIALIZE: Unavailable("no"),
            protocol.DISCOVER: discovered(**EVERYTHING),
        }
    return Script(starts_process=process, modern=modern, replies=replies)


def two(process: bool = False, modern: bool = False) -> dict[str, Script]:
    return {name: offering(name, process, modern) for name in ("a", "b")}


def used(front: Front, name: str, method: str) -> Params:
    """The parameters under which that server saw the last such request."""
    carriers = front.scripts[name].carriers
    return params_of([frame for each in carriers for frame in each.asked(method)][-1])


both_kinds = loop_over("process", [False, True], ids=["http", "stdio"])
ROUTES: list[tuple[str, Params, str, Params]] = [
    ("tools/call", {"name": "a__add", "arguments": {"x": 1}}, "a", {"name": "add"}),
    ("tools/call", {"name": "b__add"}, "b", {"name": "add"}),
    ("tools/call", {"name": "only_b"}, "b", {"name": "only_b"}),
    ("prompts/get", {"name": "a__greet_a"}, "a", {"name": "greet_a"}),
    ("prompts/get", {"name": "greet_b"}, "b", {"name": "greet_b"}),
    ("resources/read", {"uri": "a:readme"}, "a", {"uri": "a:readme"}),
    ("resources/read", {"uri": "b:doc/7"}, "b", {"uri": "b:doc/7"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "b__greet_b"}, "argument": {"name": "x"}},
        "b",
        {"ref": {"type": "ref/prompt", "name": "greet_b"}, "argument": {"name": "x"}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "a:doc/{id}"}},
        "a",
        {"ref": {"type": "ref/resource", "uri": "a:doc/{id}"}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "b:readme"}},
        "b",
        {"ref": {"type": "ref/resource", "uri": "b:readme"}},
    ),
    (
        "tasks/get",
        {"taskId": UNKEYED_TASK_IDS.public("", "b", "add", "t:1")},
        "b",
        {"taskId": "t:1"},
    ),
]
IN_SESSIONS: list[tuple[str, Params, str, Params]] = [
    (protocol.SUBSCRIBE, {"uri": "a:readme"}, "a", {"uri": "a:readme"}),
]


@both_kinds
@loop_over(("method", "asked", "server", "seen"), [*ROUTES, *IN_SESSIONS])
async def test_a_sessions_request_finds_its_server_under_its_own_name(
    process: bool, method: str, asked: Params, server: str, seen: Params
) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        for _ in range(2):
            assert await front.ask(session, method, asked).result() == {"by": server}
            assert used(front, server, method) == {**asked, **seen}


@both_kinds
@loop_over(("method", "asked", "server", "seen"), ROUTES)
async def test_a_modern_request_finds_its_server_under_its_own_name(
    process: bool, method: str, asked: Params, server: str, seen: Params
) -> None:
    async with all_servers(two(process, modern=True)) as front:
        assert await front.handle_modern_request(method, asked).result() == {"by": server}
        found = used(front, server, method)
        del found["_meta"]
        assert found == {**asked, **seen}


@loop_over(
    ("method", "asked", "name"),
    [
        ("tools/call", {"name": "a__add"}, b"add"),
        ("resources/read", {"uri": "a:readme"}, b"a:readme"),
        ("resources/read", {"uri": "a:doc/7"}, b"a:doc/7"),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a:readme"}}, None),
    ],
)
async def test_the_name_header_repeats_what_the_server_reads_in_the_body(
    method: str, asked: Params, name: bytes | None
) -> None:
    async with all_servers(two(modern=True)) as front:
        headers = ((protocol.METHOD_HEADER, method.encode()), (protocol.NAME_HEADER, b"public"))
        await front.handle_modern_request(method, asked, headers if name else headers[:1]).result()
        carrier = next(each for each in front.scripts["a"].carriers if each.asked(method))
        found = carrier.headers_of(method)
        assert found.get(protocol.NAME_HEADER) == name
        assert found[protocol.METHOD_HEADER] == method.encode()


@loop_over(
    ("method", "params", "fault"),
    [
        ("tools/call", {"name": "nothing"}, INVALID_PARAMS),
        ("tools/call", {"name": "add"}, INVALID_PARAMS),
        ("tools/call", {"name": 5}, INVALID_PARAMS),
        ("tools/call", {}, INVALID_PARAMS),
        ("prompts/get", {"name": "a__add"}, INVALID_PARAMS),
        ("resources/read", {"uri": "c:readme"}, RESOURCE_NOT_FOUND),
        ("resources/read", {}, RESOURCE_NOT_FOUND),
        ("completion/complete", {}, RESOURCE_NOT_FOUND),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}}, INVALID_PARAMS),
        ("tasks/get", {"taskId": "nobody:1"}, INVALID_PARAMS),
        (
            "tasks/get",
            {"taskId": UNKEYED_TASK_IDS.public("", "nobody", "add", "1")},
            INVALID_PARAMS,
        ),
        ("tasks/get", {"taskId": 5}, INVALID_PARAMS),
        ("vendor/anything", {}, METHOD_NOT_FOUND),
    ],
)
async def test_what_is_nowhere_is_refused_in_both_eras(
    method: str, params: Params, fault: jsonrpc.Fault
) -> None:
    async with all_servers(two(modern=True)) as front:
        session = await front.client()
        for asked in (
            front.ask(session, method, params),
            front.handle_modern_request(method, params),
        ):
            assert (await asked.error()).code == fault.code
        assert len(front.underway) == len(session.conversation) == 0


def names(listed: Params, kind: str, key: str = "name") -> list[str]:
    entries = msgspec.convert(listed[kind], list[dict[str, object]])
    return [str(entry[key]) for entry in entries]


async def test_lists_are_merged_and_named_for_their_servers() -> None:
    async with all_servers(two(modern=True)) as front:
        session = await front.client()
        for ask in (partial(front.ask, session), front.handle_modern_request):
            tools = names(await ask(protocol.LIST_TOOLS).result(), "tools")
            assert tools == ["a__add", "a__only_a", "b__add", "b__only_b"]
            assert names(await ask(protocol.LIST_PROMPTS).result(), "prompts")[0] == "a__greet_a"
            resources = names(await ask(protocol.LIST_RESOURCES).result(), "resources", "uri")
            assert resources == ["a:readme", "b:readme"]
            listed = await ask(protocol.LIST_TEMPLATES).result()
            assert names(listed, "resourceTemplates", "uriTemplate")[0] == "a:doc/{id}"


async def test_a_list_is_given_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "PAGE_ITEMS", 3)
    async with all_servers(two()) as front:
        session = await front.client()
        first = await front.ask(session, protocol.LIST_TOOLS).result()
        second = await front.ask(
            session, protocol.LIST_TOOLS, {"cursor": first["nextCursor"]}
        ).result()
        assert names(second, "tools") == ["b__only_b"]
        assert "nextCursor" not in second
        for cursor in ("nonsense", 5):
            error = await front.ask(session, protocol.LIST_TOOLS, {"cursor": cursor}).error()
            assert error.code == INVALID_PARAMS.code


async def test_each_era_is_offered_the_servers_of_both() -> None:
    old, new = offering("old"), offering("new", process=True, modern=True)
    async with all_servers({"new": new, "old": old}) as front:
        session = await front.client()
        every = ["new__add", "new__only_new", "old__add", "old__only_old"]
        assert names(await front.ask(session, protocol.LIST_TOOLS).result(), "tools") == every
        assert (
            names(await front.handle_modern_request(protocol.LIST_TOOLS).result(), "tools") == every
        )
        called = await front.ask(session, "tools/call", {"name": "only_new"}).result()
        assert called == {"by": "new"}
        called = await front.handle_modern_request("tools/call", {"name": "only_old"}).result()
        assert (called["by"], called["resultType"]) == ("old", "complete")


async def test_quarantined_tools_are_neither_listed_nor_called() -> None:
    script = offering("a")
    script.replies[protocol.LIST_TOOLS] = {
        "tools": [{"name": "bad", "inputSchema": {}}, {"name": "ok"}]
    }
    async with all_servers({"a": script}, AnySchema({"inputSchema bad": "why"})) as front:
        session = await front.client()
        assert names(await front.ask(session, protocol.LIST_TOOLS).result(), "tools") == ["a__ok"]
        for name in ("a__bad", "bad"):
            await front.ask(session, "tools/call", {"name": name}).error()
        assert len(front.underway) == 0


async def test_the_gateway_answers_for_itself() -> None:
    async with all_servers(two()) as front:
        session = front.sessions.begin("")
        said: Params = {"protocolVersion": "2025-06-18", "capabilities": {}}
        welcome = await front.ask(session, protocol.INITIALIZE, said).result()
        assert welcome["protocolVersion"] == session.version == "2025-06-18"
        assert welcome["serverInfo"] == {"name": "comity", "version": "0"}
        assert await front.ask(session, protocol.PING).result() == {}
        said = {"protocolVersion": "1999", "capabilities": {}}
        welcome = await front.ask(front.sessions.begin(""), protocol.INITIALIZE, said).result()
        assert welcome["protocolVersion"] == protocol.LATEST_HANDSHAKE


async def test_a_modern_client_discovers_the_gateway() -> None:
    async with all_servers(two(modern=True)) as front:
        found = await front.handle_modern_request(protocol.DISCOVER).result()
        assert found["supportedVersions"] == [protocol.LATEST_MODERN]
        assert found["cacheScope"] == "private"


async def test_calls_made_at_once_open_and_greet_one_link() -> None:
    async with all_servers(two()) as front:
        session = await front.client(sampling={})
        opened = len(front.scripts["a"].carriers)
        asked = [front.ask(session, "tools/call", {"name": "only_a"}) for _ in range(5)]
        assert [await each.result() for each in asked] == [{"by": "a"}] * 5
        carriers = front.scripts["a"].carriers[opened:]
        assert [len(carrier.asked(protocol.INITIALIZE)) for carrier in carriers] == [1]
        greeted = params_of(carriers[0].asked(protocol.INITIALIZE)[0])
        assert greeted["capabilities"] == {"sampling": {}}


async def test_a_server_that_is_down_refuses_at_once_and_its_offers_stay() -> None:
    async with all_servers(two(process=True)) as front:
        server = front.servers.get("a")
        assert server is not None
        session = await front.client()
        front.scripts["a"].last.dies("exit status 5")
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        error = await front.ask(session, "tools/call", {"name": "only_a"}).error()
        assert "exit status 5" in error.message
        assert await front.ask(session, "tools/call", {"name": "only_b"}).result() == {"by": "b"}
        assert len(names(await front.ask(session, protocol.LIST_TOOLS).result(), "tools")) == 4


def levels(script: Script) -> list[object]:
    carriers = script.carriers
    return [params_of(f)["level"] for each in carriers for f in each.asked(protocol.SET_LEVEL)]


@both_kinds
async def test_a_log_level_reaches_the_servers_that_are_used_before_and_after(
    process: bool,
) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", {"name": "only_a"}).result()
        assert await front.ask(session, protocol.SET_LEVEL, {"level": "error"}).result() == {}
        assert (levels(front.scripts["a"]), levels(front.scripts["b"])) == (["error"], [])
        await front.ask(session, "tools/call", {"name": "only_b"}).result()
        await until(lambda: levels(front.scripts["b"]) == ["error"])


@loop_over("level", ["loud", 5, None])
async def test_a_level_that_does_not_exist_is_refused(level: object) -> None:
    async with all_servers(two()) as front:
        session = await front.client()
        error = await front.ask(session, protocol.SET_LEVEL, {"level": level}).error()
        assert error.code == INVALID_PARAMS.code
        assert session.log_level is None


@both_kinds
async def test_changed_roots_are_told_to_every_server_in_use(process: bool) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", {"name": "only_a"}).result()
        front.desk.handle_message(session, jsonrpc.make_notification(protocol.ROOTS_CHANGED))
        front.desk.handle_message(session, jsonrpc.make_notification("vendor/note"))
        told = [frame.method for frame in front.scripts["a"].last.told()]
        assert told[-1] == protocol.ROOTS_CHANGED
        assert protocol.ROOTS_CHANGED not in [f.method for f in front.scripts["b"].last.told()]


async def test_a_question_amid_a_call_is_put_only_to_a_client_that_can_be_asked() -> None:
    scripts = two()
    for script in scripts.values():
        script.replies["tools/call"] = SILENCE
    async with all_servers(scripts) as front:
        nothing: Params = {}
        sampling: Params = {"sampling": {}}
        for capabilities, answered in ((nothing, 1), (sampling, 0)):
            session = await front.client(**capabilities)
            asked = front.ask(session, "tools/call", {"name": "only_a"})
            carrier = await called(front, session)
            carrier.says(jsonrpc.make_request("q", protocol.SAMPLE), carrier.asked("tools/call")[0])
            answers = [frame for frame in carrier.told() if jsonrpc.is_response(frame)]
            assert len(answers) == answered
            assert len(asked.outbox.take()) == 1 - answered


async def called(front: Front, session: Session) -> ScriptedCarrier:
    script = front.scripts["a"]
    await until(lambda: session.own_connections and script.last.asked("tools/call"))
    return script.last


async def test_the_ids_of_tasks_name_their_server_both_ways() -> None:
    scripts = two()
    scripts["a"].replies["tools/call"] = {"task": {"taskId": "t1", "status": "working"}}
    scripts["a"].replies["tasks/get"] = {"taskId": "t1", "status": "working"}
    async with all_servers(scripts) as front:
        session = await front.client()
        made = await front.ask(session, "tools/call", {"name": "only_a", "task": {}}).result()
        named = UNKEYED_TASK_IDS.public("", "a", "only_a", "t1")
        assert made == {"task": {"taskId": named, "status": "working"}}
        polled = await front.ask(session, "tasks/get", {"taskId": named}).result()
        assert polled == {"taskId": named, "status": "working"}


async def test_a_withdrawn_call_leaves_nothing_behind() -> None:
    scripts = two(process=True)
    scripts["a"].replies["tools/call"] = SILENCE
    async with all_servers(scripts) as front:
        session = await front.client()
        asked = front.ask(session, "tools/call", {"name": "only_a"})
        await settled()
        (call,) = front.underway
        front.desk.handle_message(
            session,
            jsonrpc.make_notification(protocol.CANCELLED, {"requestId": call.client_request_id}),
        )
        async with asyncio.timeout(10):
            await asked.outbox.wait_until_final()
        assert asked.outbox.take() == []
        assert front.scripts["a"].last.told()[-1].method == protocol.CANCELLED
        assert len(front.underway) == len(session.conversation) == 0


# Task ids.


NAMES = TaskIds(b"k" * 32)


def _call() -> Call:
    outbox = ClientStream()
    outbox.actor = AGENT
    return Call(jsonrpc.make_request(1, protocol.CALL_TOOL, {}), outbox, None, 0)


def test_a_task_is_named_in_public_form_wherever_it_is_said() -> None:
    call = _call()
    publish_task_ids(call, "files", "read", NAMES)
    public = NAMES.public(AGENT.party, "files", "read", "t1")
    assert call.adapt_answer is not None
    assert call.adapt_notification is not None
    answer = call.adapt_answer(jsonrpc.make_result(1, {"task": {"taskId": "t1"}}))
    assert json.loads(bytes(cast("Any", answer.result)))["task"]["taskId"] == public
    told = call.adapt_notification(
        jsonrpc.make_notification("notifications/tasks/status", {"taskId": "t1"})
    )
    assert told is not None
    assert public.encode() in bytes(cast("Any", told.params))


def test_what_names_no_task_stays_as_it_is() -> None:
    call = _call()
    publish_task_ids(call, "files", "read", NAMES)
    assert call.adapt_answer is not None
    assert call.adapt_notification is not None
    plain = jsonrpc.make_notification("notifications/message")
    assert call.adapt_notification(plain) is plain
    failed = jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    assert call.adapt_answer(failed) is failed


async def test_a_server_of_the_other_era_has_no_such_tasks() -> None:
    reached = SimpleNamespace(eras={Era.HANDSHAKE})
    with pytest.raises(MalformedMessage, match="no tasks of this MCP version"):
        await modern_connection(cast("Any", SimpleNamespace(connections=reached)), ANONYMOUS)


# Listeners.


ALL_LISTS: Params = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}


def listening(front: Front, **notifications: object) -> Asked:
    return front.handle_modern_request(protocol.LISTEN, {"notifications": notifications})


def heard(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode_frame(data) for data in asked.outbox.take()]


def listeners(front: Front) -> int:
    assert isinstance(front.desk, AllServersEndpoint)
    return len(front.desk.subscriptions)


def following(front: Front) -> list[Frame]:
    """What server `a` was asked to tell on behalf of listeners."""
    asked = [frame for each in front.scripts["a"].carriers for frame in each.asked(protocol.LISTEN)]
    return [frame for frame in asked if "resourceSubscriptions" in str(params_of(frame))]


def put(front: Front, kind: EntryKind, name: str) -> None:
    front.catalog.put("x", kind, [CatalogEntry(name, "x", name, b"{}")])


def with_resources() -> dict[str, Script]:
    replies: dict[str, Reply] = {
        protocol.DISCOVER: discovered(resources={}),
        protocol.LIST_RESOURCES: {"resources": [{"uri": "a:1"}, {"uri": "a:2"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": []},
    }
    return {"a": Script(handshake=False, modern=True, replies=replies)}


async def test_a_listener_is_told_first_what_it_will_hear() -> None:
    async with all_servers({}) as front:
        asked = listening(front, toolsListChanged=True, promptsListChanged=False, other=True)
        call = await asked.asking
        (acknowledged,) = heard(asked)
        assert acknowledged.method == protocol.ACKNOWLEDGED
        assert params_of(acknowledged) == {
            "notifications": {"toolsListChanged": True},
            "_meta": {protocol.SUBSCRIPTION_ID: call.client_request_id},
        }
        assert asked.outbox.is_streaming


async def test_a_listener_hears_of_the_lists_it_asked_for_and_of_no_other() -> None:
    async with all_servers({}) as front:
        everything, tools = listening(front, **ALL_LISTS), listening(front, toolsListChanged=True)
        for asked in (everything, tools):
            await asked.asking
            heard(asked)
        for kind in (EntryKind.TOOL, EntryKind.RESOURCE, EntryKind.TEMPLATE):
            put(front, kind, "new")
        await until(lambda: len(everything.outbox.frames) == 2 and tools.outbox.frames)
        told = heard(everything)
        assert {frame.method for frame in told} == {
            protocol.TOOLS_CHANGED,
            protocol.RESOURCES_CHANGED,
        }
        call = everything.asking.result()
        stamps = [params_of(frame)["_meta"] for frame in told]
        assert stamps == [{protocol.SUBSCRIPTION_ID: call.client_request_id}] * 2
        assert [frame.method for frame in heard(tools)] == [protocol.TOOLS_CHANGED]


async def test_sessions_are_told_of_merged_changes_until_they_end() -> None:
    async with all_servers({}) as front:
        session, gone = await front.client(), await front.client()
        again: Params = {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": {}}
        for _ in range(3):
            await front.ask(session, protocol.INITIALIZE, again).result()
        assert len(session.on_close) == 1, "who greets again is not told twice, nor kept twice"
        await front.sessions.end(gone)
        put(front, EntryKind.PROMPT, "new")
        await until(lambda: session.standalone.frames)
        told = [jsonrpc.decode_frame(data).method for data in session.standalone.take()]
        assert told == [protocol.PROMPTS_CHANGED]
        assert not gone.standalone.frames


async def test_a_listener_that_leaves_is_forgotten_at_once() -> None:
    async with all_servers(with_resources()) as front:
        asked = listening(front, toolsListChanged=True, resourceSubscriptions=["a:1"])
        call = await asked.asking
        (carrier,) = front.scripts["a"].open
        await until(lambda: following(front))
        assert (listeners(front), len(front.underway)) == (1, 1)
        call.withdraw(None)
        assert (listeners(front), len(front.underway)) == (0, 0)
        await until(lambda: carrier.abandoned == [following(front)[0].id])
        put(front, EntryKind.TOOL, "new")
        await settled()
        assert asked.outbox.is_final


async def test_a_listener_that_leaves_while_its_server_is_reached_is_called_off_there() -> None:
    async with all_servers(with_resources()) as front:
        asked = listening(front, resourceSubscriptions=["a:1"])
        call = await asked.asking
        call.withdraw(None)
        await settled()
        (carrier,) = front.scripts["a"].open
        assert carrier.abandoned == [frame.id for frame in following(front)]


async def test_who_listens_is_never_late() -> None:
    async with all_servers({}) as front:
        asked = listening(front, **ALL_LISTS)
        await asked.asking
        front.clock.passes(10**6)
        front.underway.check(15)
        assert not asked.outbox.is_final
        assert asked.outbox.is_nudged


async def test_updates_of_resources_come_from_their_server_under_the_listeners_id() -> None:
    async with all_servers(with_resources()) as front:
        asked = listening(front, resourceSubscriptions=["a:1", "a:2", "nobody:1"])
        call = await asked.asking
        heard(asked)
        (carrier,) = front.scripts["a"].open
        await until(lambda: following(front))
        (upstream,) = following(front)
        wanted = {"resourceSubscriptions": ["a:1", "a:2"]}
        assert params_of(upstream)["notifications"] == wanted
        meta = {protocol.SUBSCRIPTION_ID: upstream.id, "kept": 1}
        update: Params = {"uri": "a:1", "_meta": meta}
        carrier.says(jsonrpc.make_notification(protocol.RESOURCE_UPDATED, update), amid=upstream)
        carrier.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED), amid=upstream)
        carrier.says(
            Frame("2.0", method=protocol.RESOURCE_UPDATED, params=Raw(b'{"a":1,"a":2}')),
            amid=upstream,
        )
        (told,) = heard(asked)
        assert params_of(told) == {
            "uri": "a:1",
            "_meta": {protocol.SUBSCRIPTION_ID: call.client_request_id, "kept": 1},
        }


async def test_a_server_that_goes_ends_no_listener() -> None:
    async with all_servers(with_resources()) as front:
        asked = listening(front, **ALL_LISTS, resourceSubscriptions=["a:1"])
        await asked.asking
        (carrier,) = front.scripts["a"].open
        await until(lambda: following(front))
        carrier.dies()
        await settled()
        assert not asked.outbox.is_final
        heard(asked)
        put(front, EntryKind.TOOL, "new")
        await until(lambda: asked.outbox.frames)


@loop_over(
    "params",
    [
        {},
        {"notifications": 5},
        {"notifications": {"resourceSubscriptions": "a:1"}},
        {"notifications": {"resourceSubscriptions": [1]}},
    ],
)
async def test_a_listener_that_says_not_what_it_wants_is_refused(params: Params) -> None:
    async with all_servers({}) as front:
        error = await front.handle_modern_request(protocol.LISTEN, params).error()
        assert error.code in (INVALID_PARAMS.code, -32600)
        assert (listeners(front), len(front.underway)) == (0, 0)


async def test_a_listener_that_never_reads_is_let_go() -> None:
    async with all_servers({}) as front:
        asked = listening(front, **ALL_LISTS)
        call = await asked.asking
        notice = jsonrpc.make_notification(protocol.TOOLS_CHANGED)
        while not asked.outbox.is_final:
            call.deliver_notification(notice)
        assert (listeners(front), len(front.underway)) == (0, 0)
        assert msgspec.json.decode(asked.outbox.take()[0])
