"""The desk of all servers: lists merged, names told apart, every request at the right server."""

import asyncio
from functools import partial

import msgspec
import pytest

from comity.kernel import catalog as shelves
from comity.kernel.sessions import Session
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    Unavailable,
)
from comity.wire.lifecycle import State
from tests.kernel.carriers import (
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
from tests.kernel.desks import Front, all_servers

EVERYTHING: Params = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}}


def offering(name: str, process: bool = False, modern: bool = False) -> Script:
    """A server with one of each kind, which answers every request with its own name."""
    replies: dict[str, Reply] = {
        mcp.INITIALIZE: hello(**EVERYTHING),
        mcp.LIST_TOOLS: {"tools": [{"name": "add"}, {"name": f"only_{name}"}]},
        mcp.LIST_PROMPTS: {"prompts": [{"name": f"greet_{name}"}]},
        mcp.LIST_RESOURCES: {"resources": [{"uri": f"{name}:readme"}]},
        mcp.LIST_TEMPLATES: {"resourceTemplates": [{"uriTemplate": f"{name}:doc/{{id}}"}]},
    }
    routed = ("tools/call", "prompts/get", "resources/read", "completion/complete")
    for method in (*routed, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE, mcp.SET_LEVEL, "tasks/get"):
        replies[method] = {"by": name}
    if process and modern:
        # A process that shakes hands would be spoken to in that era, whoever asks.
        replies |= {mcp.INITIALIZE: Unavailable("no"), mcp.DISCOVER: discovered(**EVERYTHING)}
    return Script(costs_a_process=process, modern=modern, replies=replies)


def two(process: bool = False, modern: bool = False) -> dict[str, Script]:
    return {name: offering(name, process, modern) for name in ("a", "b")}


def used(front: Front, name: str, method: str) -> Params:
    """The parameters under which that server saw the last such request."""
    carriers = front.scripts[name].carriers
    return params_of([frame for each in carriers for frame in each.asked(method)][-1])


both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])
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
    ("tasks/get", {"taskId": "b:t:1"}, "b", {"taskId": "t:1"}),
]
IN_SESSIONS: list[tuple[str, Params, str, Params]] = [
    (mcp.SUBSCRIBE, {"uri": "a:readme"}, "a", {"uri": "a:readme"}),
]


@both_kinds
@pytest.mark.parametrize(("method", "asked", "server", "seen"), [*ROUTES, *IN_SESSIONS])
async def test_a_sessions_request_finds_its_server_under_its_own_name(
    process: bool, method: str, asked: Params, server: str, seen: Params
) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        for _ in range(2):
            assert await front.ask(session, method, asked).result() == {"by": server}
            assert used(front, server, method) == {**asked, **seen}


@both_kinds
@pytest.mark.parametrize(("method", "asked", "server", "seen"), ROUTES)
async def test_a_modern_request_finds_its_server_under_its_own_name(
    process: bool, method: str, asked: Params, server: str, seen: Params
) -> None:
    async with all_servers(two(process, modern=True)) as front:
        assert await front.ask_modern(method, asked).result() == {"by": server}
        found = used(front, server, method)
        del found["_meta"]
        assert found == {**asked, **seen}


@pytest.mark.parametrize(
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
        headers = ((mcp.METHOD_HEADER, method.encode()), (mcp.NAME_HEADER, b"public"))
        await front.ask_modern(method, asked, headers if name else headers[:1]).result()
        carrier = next(each for each in front.scripts["a"].carriers if each.asked(method))
        found = carrier.headers_of(method)
        assert found.get(mcp.NAME_HEADER) == name
        assert found[mcp.METHOD_HEADER] == method.encode()


@pytest.mark.parametrize(
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
        ("tasks/get", {"taskId": 5}, INVALID_PARAMS),
        ("vendor/anything", {}, METHOD_NOT_FOUND),
    ],
)
async def test_what_is_nowhere_is_refused_in_both_eras(
    method: str, params: Params, fault: jsonrpc.Fault
) -> None:
    async with all_servers(two(modern=True)) as front:
        session = await front.client()
        for asked in (front.ask(session, method, params), front.ask_modern(method, params)):
            assert (await asked.error()).code == fault.code
        assert len(front.underway) == len(session.conversation) == 0


def names(listed: Params, kind: str, key: str = "name") -> list[str]:
    entries = msgspec.convert(listed[kind], list[dict[str, object]])
    return [str(entry[key]) for entry in entries]


async def test_lists_are_merged_and_named_for_their_servers() -> None:
    async with all_servers(two(modern=True)) as front:
        session = await front.client()
        for ask in (partial(front.ask, session), front.ask_modern):
            tools = names(await ask(mcp.LIST_TOOLS).result(), "tools")
            assert tools == ["a__add", "a__only_a", "b__add", "b__only_b"]
            assert names(await ask(mcp.LIST_PROMPTS).result(), "prompts")[0] == "a__greet_a"
            resources = names(await ask(mcp.LIST_RESOURCES).result(), "resources", "uri")
            assert resources == ["a:readme", "b:readme"]
            listed = await ask(mcp.LIST_TEMPLATES).result()
            assert names(listed, "resourceTemplates", "uriTemplate")[0] == "a:doc/{id}"


async def test_a_list_is_given_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "PAGE_ITEMS", 3)
    async with all_servers(two()) as front:
        session = await front.client()
        first = await front.ask(session, mcp.LIST_TOOLS).result()
        second = await front.ask(session, mcp.LIST_TOOLS, {"cursor": first["nextCursor"]}).result()
        assert names(second, "tools") == ["b__only_b"]
        assert "nextCursor" not in second
        for cursor in ("nonsense", 5):
            error = await front.ask(session, mcp.LIST_TOOLS, {"cursor": cursor}).error()
            assert error.code == INVALID_PARAMS.code


async def test_each_era_is_offered_the_servers_of_both() -> None:
    old, new = offering("old"), offering("new", process=True, modern=True)
    async with all_servers({"new": new, "old": old}) as front:
        session = await front.client()
        every = ["new__add", "new__only_new", "old__add", "old__only_old"]
        assert names(await front.ask(session, mcp.LIST_TOOLS).result(), "tools") == every
        assert names(await front.ask_modern(mcp.LIST_TOOLS).result(), "tools") == every
        called = await front.ask(session, "tools/call", {"name": "only_new"}).result()
        assert called == {"by": "new"}
        called = await front.ask_modern("tools/call", {"name": "only_old"}).result()
        assert (called["by"], called["resultType"]) == ("old", "complete")


async def test_quarantined_tools_are_neither_listed_nor_called() -> None:
    script = offering("a")
    script.replies[mcp.LIST_TOOLS] = {"tools": [{"name": "bad", "inputSchema": {}}, {"name": "ok"}]}
    async with all_servers({"a": script}, AnySchema({"inputSchema bad": "why"})) as front:
        session = await front.client()
        assert names(await front.ask(session, mcp.LIST_TOOLS).result(), "tools") == ["a__ok"]
        for name in ("a__bad", "bad"):
            await front.ask(session, "tools/call", {"name": name}).error()
        assert len(front.underway) == 0


async def test_the_gateway_answers_for_itself() -> None:
    async with all_servers(two()) as front:
        session = front.sessions.begin("")
        said: Params = {"protocolVersion": "2025-06-18", "capabilities": {}}
        welcome = await front.ask(session, mcp.INITIALIZE, said).result()
        assert welcome["protocolVersion"] == session.version == "2025-06-18"
        assert welcome["serverInfo"] == {"name": "comity", "version": "0"}
        assert await front.ask(session, mcp.PING).result() == {}
        said = {"protocolVersion": "1999", "capabilities": {}}
        welcome = await front.ask(front.sessions.begin(""), mcp.INITIALIZE, said).result()
        assert welcome["protocolVersion"] == mcp.LATEST_HANDSHAKE


async def test_a_modern_client_discovers_the_gateway() -> None:
    async with all_servers(two(modern=True)) as front:
        found = await front.ask_modern(mcp.DISCOVER).result()
        assert found["supportedVersions"] == [mcp.LATEST_MODERN]
        assert found["cacheScope"] == "private"


async def test_calls_made_at_once_open_and_greet_one_link() -> None:
    async with all_servers(two()) as front:
        session = await front.client(sampling={})
        opened = len(front.scripts["a"].carriers)
        asked = [front.ask(session, "tools/call", {"name": "only_a"}) for _ in range(5)]
        assert [await each.result() for each in asked] == [{"by": "a"}] * 5
        carriers = front.scripts["a"].carriers[opened:]
        assert [len(carrier.asked(mcp.INITIALIZE)) for carrier in carriers] == [1]
        greeted = params_of(carriers[0].asked(mcp.INITIALIZE)[0])
        assert greeted["capabilities"] == {"sampling": {}}


async def test_a_server_that_is_down_refuses_at_once_and_its_offers_stay() -> None:
    async with all_servers(two(process=True)) as front:
        server = front.servers.get("a")
        assert server is not None
        session = await front.client()
        front.scripts["a"].last.dies("exit status 5")
        await until(lambda: server.state is State.RESTARTING)
        error = await front.ask(session, "tools/call", {"name": "only_a"}).error()
        assert "exit status 5" in error.message
        assert await front.ask(session, "tools/call", {"name": "only_b"}).result() == {"by": "b"}
        assert len(names(await front.ask(session, mcp.LIST_TOOLS).result(), "tools")) == 4


def levels(script: Script) -> list[object]:
    carriers = script.carriers
    return [params_of(f)["level"] for each in carriers for f in each.asked(mcp.SET_LEVEL)]


@both_kinds
async def test_a_log_level_reaches_the_servers_that_are_used_before_and_after(
    process: bool,
) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", {"name": "only_a"}).result()
        assert await front.ask(session, mcp.SET_LEVEL, {"level": "error"}).result() == {}
        assert (levels(front.scripts["a"]), levels(front.scripts["b"])) == (["error"], [])
        await front.ask(session, "tools/call", {"name": "only_b"}).result()
        await until(lambda: levels(front.scripts["b"]) == ["error"])


async def test_a_shared_server_keeps_logging_for_the_most_curious() -> None:
    async with all_servers(two(process=True)) as front:
        sessions = [await front.client() for _ in range(2)]
        for session, level in zip(sessions, ("debug", "error"), strict=True):
            await front.ask(session, "tools/call", {"name": "only_a"}).result()
            await front.ask(session, mcp.SET_LEVEL, {"level": level}).result()
        assert set(levels(front.scripts["a"])) == {"debug"}


@pytest.mark.parametrize("level", ["loud", 5, None])
async def test_a_level_that_does_not_exist_is_refused(level: object) -> None:
    async with all_servers(two()) as front:
        session = await front.client()
        error = await front.ask(session, mcp.SET_LEVEL, {"level": level}).error()
        assert error.code == INVALID_PARAMS.code
        assert session.level is None


@both_kinds
async def test_changed_roots_are_told_to_every_server_in_use(process: bool) -> None:
    async with all_servers(two(process)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", {"name": "only_a"}).result()
        front.desk.hear(session, jsonrpc.notification(mcp.ROOTS_CHANGED))
        front.desk.hear(session, jsonrpc.notification("vendor/note"))
        told = [frame.method for frame in front.scripts["a"].last.told()]
        assert told[-1] == mcp.ROOTS_CHANGED
        assert mcp.ROOTS_CHANGED not in [f.method for f in front.scripts["b"].last.told()]


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
            carrier.says(jsonrpc.request("q", mcp.SAMPLE), carrier.asked("tools/call")[0])
            answers = [frame for frame in carrier.told() if jsonrpc.is_response(frame)]
            assert len(answers) == answered
            assert len(asked.outbox.take()) == 1 - answered


async def called(front: Front, session: Session) -> ScriptedCarrier:
    script = front.scripts["a"]
    await until(lambda: session.links and script.last.asked("tools/call"))
    return script.last


async def test_the_ids_of_tasks_name_their_server_both_ways() -> None:
    scripts = two()
    scripts["a"].replies["tools/call"] = {"task": {"taskId": "t1", "status": "working"}}
    scripts["a"].replies["tasks/get"] = {"taskId": "t1", "status": "working"}
    async with all_servers(scripts) as front:
        session = await front.client()
        made = await front.ask(session, "tools/call", {"name": "only_a", "task": {}}).result()
        assert made == {"task": {"taskId": "a:t1", "status": "working"}}
        polled = await front.ask(session, "tasks/get", {"taskId": "a:t1"}).result()
        assert polled == {"taskId": "a:t1", "status": "working"}


async def test_a_withdrawn_call_leaves_nothing_behind() -> None:
    scripts = two(process=True)
    scripts["a"].replies["tools/call"] = SILENCE
    async with all_servers(scripts) as front:
        session = await front.client()
        asked = front.ask(session, "tools/call", {"name": "only_a"})
        await settled()
        (call,) = front.underway
        front.desk.hear(session, jsonrpc.notification(mcp.CANCELLED, {"requestId": call.asker_id}))
        async with asyncio.timeout(10):
            await asked.outbox.until_final()
        assert asked.outbox.take() == []
        assert front.scripts["a"].last.told()[-1].method == mcp.CANCELLED
        assert len(front.underway) == len(session.conversation) == 0
