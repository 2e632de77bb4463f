"""Whole doors across the eras: greetings, lists, levels, headers, tasks, and who shares what."""

from collections.abc import Callable

import pytest

from comity.ports import Headers
from comity.rules.mirrored import MARK
from comity.wire import jsonrpc, mcp
from comity.wire.errors import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND
from comity.wire.jsonrpc import UNSET
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    Bridged,
    bridged,
    handshake_server,
    inputs,
    inside,
    modern_server,
)
from tests.kernel.carriers import (
    SILENCE,
    Params,
    Script,
    discovered,
    hello,
    params_of,
    settled,
    until,
)
from tests.kernel.desks import Front, all_servers
from tests.kernel.refused import kind_of
from tests.kernel.server_house import tools

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])
HTTP = ((mcp.METHOD_HEADER, b"tools/call"), (mcp.NAME_HEADER, b"t"))
REGION: Params = {"type": "string", MARK: "Region"}
MARKED: Params = {
    "tools": [
        {"name": "t", "inputSchema": {"type": "object", "properties": {"region": REGION}}},
    ]
}


# Greetings and lists.


@each_transport
async def test_a_modern_client_discovers_a_handshake_server(process: bool) -> None:
    said = hello(tools={"listChanged": True}, tasks={})
    async with bridged(handshake_server(process, initialize=said)) as house:
        found = await house.modern(mcp.DISCOVER, {}).result()
    assert found["supportedVersions"] == [mcp.LATEST_MODERN]
    assert found["capabilities"] == {"tools": {"listChanged": True}}
    assert found["_meta"] == {mcp.SERVER_INFO: {"name": "scripted", "version": "1"}}


@each_transport
async def test_a_handshake_client_is_greeted_in_the_name_of_a_modern_server(process: bool) -> None:
    found = {**discovered(tools={}), "instructions": "be kind"}
    script = modern_server(process)
    script.replies[mcp.DISCOVER] = found
    async with bridged(script) as house:
        session = house.front.sessions.begin("")
        params: Params = {"protocolVersion": "2025-06-18", "capabilities": {}}
        greeted = await house.front.ask(session, mcp.INITIALIZE, params).result()
        assert greeted["protocolVersion"] == session.version == "2025-06-18"
        assert greeted["capabilities"] == {"tools": {}}
        assert greeted["instructions"] == "be kind"
        assert await house.front.ask(session, mcp.PING).result() == {}


async def test_lists_are_stamped_for_modern_clients() -> None:
    async with bridged(handshake_server()) as house:
        listed = await house.modern(mcp.LIST_TOOLS, {}).result()
    assert listed["tools"] == [{"name": "t"}]
    assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == (
        "complete",
        5000,
        "private",
    )


async def test_outputs_that_handshake_clients_cannot_read_are_not_shown_to_them() -> None:
    listed: Params = {"tools": [{"name": "t", "outputSchema": {"type": "array"}}]}
    script = modern_server()
    script.replies[mcp.LIST_TOOLS] = listed
    async with bridged(script) as house:
        session = await house.front.client()
        assert await house.front.ask(session, mcp.LIST_TOOLS).result() == tools("t")
    async with all_servers({"a": script}) as front:
        session = await front.client()
        assert await front.ask(session, mcp.LIST_TOOLS).result() == tools("a__t")
        modern = await front.ask_modern(mcp.LIST_TOOLS).result()
        assert modern["tools"] == [{"name": "a__t", "outputSchema": {"type": "array"}}]


@pytest.mark.parametrize("method", ["tasks/get", "vendor/x", mcp.SET_LEVEL, mcp.PING, "x" * 200])
async def test_what_the_servers_era_does_not_have_does_not_exist_for_a_modern_client(
    method: str,
) -> None:
    async with bridged(handshake_server()) as house:
        error = await house.modern(method, {}).error()
    assert error.code == METHOD_NOT_FOUND.code
    assert len(error.message) < 200


@pytest.mark.parametrize("method", ["tasks/get", "vendor/x", mcp.DISCOVER, mcp.LISTEN])
async def test_what_the_servers_era_does_not_have_does_not_exist_for_a_handshake_client(
    method: str,
) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, method, {}).error()
    assert error.code == METHOD_NOT_FOUND.code


@pytest.mark.parametrize("level", ["loud", 7, None, ["info"]])
async def test_a_level_that_is_none_is_refused_and_not_kept(level: object) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, mcp.SET_LEVEL, {"level": level}).error()
        assert error.code == INVALID_PARAMS.code
        assert session.level is None


@pytest.mark.parametrize("method", [mcp.SUBSCRIBE, mcp.UNSUBSCRIBE])
async def test_a_resource_without_a_name_cannot_be_followed(method: str) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, method, {"uri": 7}).error()
        assert error.code == INVALID_PARAMS.code


async def test_a_resource_that_is_not_there_is_an_invalid_parameter_in_the_modern_era() -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern(mcp.READ_RESOURCE, {"uri": "a://b"})
        await until(lambda: house.script.last.asked(mcp.READ_RESOURCE))
        (seen,) = house.script.last.asked(mcp.READ_RESOURCE)
        assert isinstance(seen.id, int)
        house.script.last.says(jsonrpc.failure(seen.id, RESOURCE_NOT_FOUND, "no such thing"), seen)
        error = await asked.error()
        assert (error.code, error.message) == (INVALID_PARAMS.code, "no such thing")
        assert asked.outbox.status == 400


@pytest.mark.parametrize(
    "envelope", [7, [], {mcp.CLIENT_CAPABILITIES: 7}, {mcp.CLIENT_CAPABILITIES: []}]
)
async def test_an_envelope_that_cannot_be_read_is_the_clients_fault(envelope: object) -> None:
    async with bridged(handshake_server()) as house:
        frame = jsonrpc.request(1, mcp.CALL_TOOL, {"name": "t", "_meta": envelope})
        call = await house.front.desk.ask_modern(frame, house.modern("x", {}).outbox, ())
        answer = jsonrpc.decode(call.outbox.frames[-1])
        error = jsonrpc.error_of(answer)
        assert error is not None
        assert error.code in (-32600, INVALID_PARAMS.code)
        assert house.calls == []
        await settled()


async def test_a_modern_servers_own_state_waits_for_that_server() -> None:
    async with bridged(modern_server()) as house:
        (carrier,) = house.script.open
        carrier.dies()
        await settled()
        error = await house.retry("the server's own", {}).error()
        assert kind_of(error).startswith("server_")


# Headers.


async def test_arguments_are_repeated_in_headers_to_a_modern_server() -> None:
    async with bridged(modern_server(tools_list=MARKED)) as house:
        session = await house.front.client()
        params: Params = {"name": "t", "arguments": {"region": "münchen"}}
        asked = house.front.ask(session, mcp.CALL_TOOL, params)
        await until(lambda: house.calls)
        headers = house.carrier.headers_of(mcp.CALL_TOOL)
        assert headers[b"mcp-param-region"].startswith(b"=?base64?")
        house.finishes()
        await asked.result()


async def test_a_repeated_call_repeats_its_headers() -> None:
    async with bridged(modern_server(tools_list=MARKED)) as house:
        session = await house.front.client(**EVERYTHING)
        params: Params = {"name": "t", "arguments": {"region": "eu"}}
        asked = house.front.ask(session, mcp.CALL_TOOL, params)
        await until(lambda: house.calls)
        house.finishes({"resultType": "input_required", "requestState": "s"})
        await until(lambda: len(house.calls) == 2)
        sent = [each.headers for each in house.carrier.sent if each.frame.method == mcp.CALL_TOOL]
        assert sent[0] == sent[1]
        assert dict(sent[0])[b"mcp-param-region"] == b"eu"
        house.finishes()
        await asked.result()


async def test_headers_that_contradict_the_arguments_are_refused_before_the_server_sees_them() -> (
    None
):
    async with bridged(handshake_server(tools_list=MARKED)) as house:
        params: Params = {"name": "t", "arguments": {"region": "eu"}}
        wrong: list[Headers] = [(), ((b"mcp-param-region", b"us"),)]
        for given in wrong:
            error = await house.modern(params=params, headers=(*HTTP, *given)).error()
            assert error.code == HEADER_MISMATCH.code
        assert house.calls == []
        good = (*HTTP, (b"mcp-param-region", b"eu"))
        asked = house.modern(params=params, headers=good)
        await until(lambda: house.calls)
        house.finishes()
        await asked.result()


async def test_a_client_at_stdio_has_no_headers_to_compare() -> None:
    script = handshake_server(tools_list=MARKED, tools_call=DONE)
    stdio = ((mcp.METHOD_HEADER, b"tools/call"),)
    async with all_servers({"a": script}) as front:
        params: Params = {"name": "a__t", "arguments": {"region": "eu"}}
        assert (await front.ask_modern(mcp.CALL_TOOL, params, stdio).result())["content"]


async def test_a_client_at_stdio_is_given_headers_on_its_way_to_a_modern_server() -> None:
    script = modern_server(tools_list=MARKED, tools_call=DONE)
    stdio = ((mcp.METHOD_HEADER, b"tools/call"),)
    async with all_servers({"a": script}) as front:
        params: Params = {"name": "a__t", "arguments": {"region": "eu"}}
        await front.ask_modern(mcp.CALL_TOOL, params, stdio).result()
        (carrier,) = script.open
        assert carrier.headers_of(mcp.CALL_TOOL) == {
            mcp.METHOD_HEADER: b"tools/call",
            mcp.NAME_HEADER: b"t",
            b"mcp-param-region": b"eu",
        }


# Who shares what.


async def test_modern_clients_with_the_same_capabilities_share_a_session_over_http() -> None:
    script = handshake_server(tools_call=DONE)
    async with bridged(script) as house:
        before = len(script.carriers)
        some: Params = {"elicitation": {}}
        none: Params = {"vendor": {}}
        for can in (none, some, some, none, EVERYTHING):
            await house.modern(can=can).result()
        greetings = [params_of(each.asked(mcp.INITIALIZE)[0]) for each in script.carriers[before:]]
        declared = [inside(each, "capabilities") for each in greetings]
        assert [{name: each[name] for name in each if name != "mgp"} for each in declared] == [
            {},
            {"elicitation": {}},
            {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}},
        ]


async def test_a_bridge_that_is_lost_is_opened_again() -> None:
    script = handshake_server(tools_call=DONE)
    async with bridged(script) as house:
        await house.modern().result()
        script.last.dies()
        await house.modern().result()
        assert len(script.open) == 2


async def test_a_bridge_that_is_lost_as_it_opens_is_not_kept() -> None:
    script = handshake_server(tools_call=DONE)
    async with bridged(script) as house:
        lost: list[object] = []

        def greet(params: Params) -> object:
            if not lost:
                lost.append(script.last)
                carrier = script.last
                carrier.answers(carrier.asked(mcp.INITIALIZE)[0], hello())
                carrier.dies()
                return SILENCE
            return hello()

        script.replies[mcp.INITIALIZE] = greet
        await house.modern().error()
        assert (await house.modern().result())["content"] == DONE["content"]


@each_transport
async def test_one_clients_question_never_reaches_another(process: bool) -> None:
    """On one pipe for all nobody is guessed at; over HTTP each call has a stream of its own."""
    async with bridged(handshake_server(process)) as house:
        first = await house.called()
        first_call = house.asked
        second = await house.called()
        house.carrier.says(jsonrpc.request("q", mcp.ELICIT, {"message": "secret"}), first_call)
        await settled()
        assert second.outbox.frames == []
        if process:
            assert len(house.heard_by_server("q")) == 1
        else:
            assert list(inputs(await first.result())) == ["1"]
        for frame in house.calls:
            house.carrier.answers(frame, DONE)
        house.front.clock.passes(601)
        house.front.parking.look(0)


async def test_a_call_parked_at_one_server_is_not_resumed_at_another() -> None:
    scripts = {"a": handshake_server(), "b": handshake_server()}
    async with all_servers(scripts) as front:
        house = Bridged(front, scripts["a"])
        asked = house.modern(params={"name": "a__t", "arguments": {}})
        await until(lambda: house.calls)
        house.asks("q")
        state = (await asked.result())["requestState"]
        for name in ("b__t", "a__u"):
            await house.retry(state, {"1": ACCEPT}, params={"name": name}).error()
        again = house.retry(state, {"1": ACCEPT}, params={"name": "a__t"})
        await until(lambda: house.heard_by_server("q"))
        house.finishes()
        await again.result()


@pytest.mark.parametrize("name", ["a", "b"])
async def test_both_eras_are_met_behind_one_door(name: str) -> None:
    scripts = {"a": handshake_server(tools_call=DONE), "b": modern_server(tools_call=DONE)}
    async with all_servers(scripts) as front:
        params: Params = {"name": f"{name}__t", "arguments": {}}
        modern = await front.ask_modern(mcp.CALL_TOOL, params).result()
        session = await front.client()
        plain = await front.ask(session, mcp.CALL_TOOL, params).result()
    assert modern["content"] == plain["content"] == DONE["content"]
    assert "resultType" not in plain


async def _told_of_a_change(front: Front, script: Script) -> None:
    session = await front.client()
    listening = front.ask_modern(mcp.LISTEN, {"notifications": {"toolsListChanged": True}})
    await until(lambda: listening.outbox.frames)
    script.replies[mcp.LIST_TOOLS] = tools("t", "u")
    changed = jsonrpc.notification(mcp.TOOLS_CHANGED)
    for carrier in script.open:
        (listen,) = carrier.asked(mcp.LISTEN) or [None]
        carrier.says(changed, listen)
    await until(lambda: len(listening.outbox.frames) > 1)
    await until(lambda: session.standalone.frames)
    told = jsonrpc.decode(listening.outbox.frames[-1])
    assert told.method == mcp.TOOLS_CHANGED
    assert params_of(told)["_meta"] == {mcp.SUBSCRIPTION_ID: (await listening.asking).asker_id}
    plain = jsonrpc.decode(session.standalone.frames[-1])
    assert (plain.method, plain.params) == (mcp.TOOLS_CHANGED, UNSET)
    (await listening.asking).withdraw(None)


@pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])
@pytest.mark.parametrize("make", [handshake_server, modern_server], ids=["handshake", "modern"])
async def test_clients_of_both_eras_hear_of_a_changed_list(
    process: bool, make: Callable[[bool], Script]
) -> None:
    script = make(process)
    script.replies[mcp.INITIALIZE if script.handshake else mcp.DISCOVER] = (
        hello(tools={"listChanged": True})
        if script.handshake
        else discovered(tools={"listChanged": True})
    )
    async with all_servers({"a": script}) as front:
        await _told_of_a_change(front, script)
