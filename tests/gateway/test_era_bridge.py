"""Clients of one era at servers of the other: greetings, lists, headers, notices, tasks."""

from collections.abc import Callable

import pytest
from msgspec import Raw

from comity.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    Unavailable,
)
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.modern_requests import MARK
from comity.sessions import client_streams
from comity.sessions.calls import Call
from comity.telemetry.tracing import Headers
from comity.toolkit.text import as_uuid
from tests.support.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    Bridged,
    bridged,
    handshake_server,
    inputs,
    inside,
    modern_server,
    parked,
)
from tests.support.carriers import (
    SILENCE,
    Params,
    Script,
    discovered,
    hello,
    params_of,
    result_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Asked, Front, all_servers
from tests.support.refused import kind_of, refusal_in
from tests.support.server_house import tools

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])
HTTP = ((protocol.METHOD_HEADER, b"tools/call"), (protocol.NAME_HEADER, b"t"))
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
        found = await house.modern(protocol.DISCOVER, {}).result()
    assert found["supportedVersions"] == [protocol.LATEST_MODERN]
    assert found["capabilities"] == {"tools": {"listChanged": True}}
    assert found["_meta"] == {protocol.SERVER_INFO: {"name": "scripted", "version": "1"}}


@each_transport
async def test_a_handshake_client_is_greeted_in_the_name_of_a_modern_server(process: bool) -> None:
    found = {**discovered(tools={}), "instructions": "be kind"}
    script = modern_server(process)
    script.replies[protocol.DISCOVER] = found
    async with bridged(script) as house:
        session = house.front.sessions.begin("")
        params: Params = {"protocolVersion": "2025-06-18", "capabilities": {}}
        greeted = await house.front.ask(session, protocol.INITIALIZE, params).result()
        assert greeted["protocolVersion"] == session.version == "2025-06-18"
        assert greeted["capabilities"] == {"tools": {}}
        assert greeted["instructions"] == "be kind"
        assert await house.front.ask(session, protocol.PING).result() == {}


async def test_lists_are_stamped_for_modern_clients() -> None:
    async with bridged(handshake_server()) as house:
        listed = await house.modern(protocol.LIST_TOOLS, {}).result()
    assert listed["tools"] == [{"name": "t"}]
    assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == (
        "complete",
        5000,
        "private",
    )


async def test_outputs_that_handshake_clients_cannot_read_are_not_shown_to_them() -> None:
    listed: Params = {"tools": [{"name": "t", "outputSchema": {"type": "array"}}]}
    script = modern_server()
    script.replies[protocol.LIST_TOOLS] = listed
    async with bridged(script) as house:
        session = await house.front.client()
        assert await house.front.ask(session, protocol.LIST_TOOLS).result() == tools("t")
    async with all_servers({"a": script}) as front:
        session = await front.client()
        assert await front.ask(session, protocol.LIST_TOOLS).result() == tools("a__t")
        modern = await front.handle_modern_request(protocol.LIST_TOOLS).result()
        assert modern["tools"] == [{"name": "a__t", "outputSchema": {"type": "array"}}]


@loop_over("method", ["vendor/x", protocol.SET_LEVEL, protocol.PING, "x" * 200])
async def test_what_the_servers_era_does_not_have_does_not_exist_for_a_modern_client(
    method: str,
) -> None:
    async with bridged(handshake_server()) as house:
        error = await house.modern(method, {}).error()
    assert error.code == METHOD_NOT_FOUND.code
    assert len(error.message) < 200


@loop_over("method", ["vendor/x", protocol.DISCOVER, protocol.LISTEN])
async def test_what_the_servers_era_does_not_have_does_not_exist_for_a_handshake_client(
    method: str,
) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, method, {}).error()
    assert error.code == METHOD_NOT_FOUND.code


@loop_over("level", ["loud", 7, None, ["info"]])
async def test_a_level_that_is_none_is_refused_and_not_kept(level: object) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, protocol.SET_LEVEL, {"level": level}).error()
        assert error.code == INVALID_PARAMS.code
        assert session.log_level is None


@loop_over("method", [protocol.SUBSCRIBE, protocol.UNSUBSCRIBE])
async def test_a_resource_without_a_name_cannot_be_followed(method: str) -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        error = await house.front.ask(session, method, {"uri": 7}).error()
        assert error.code == INVALID_PARAMS.code


async def test_a_resource_that_is_not_there_is_an_invalid_parameter_in_the_modern_era() -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern(protocol.READ_RESOURCE, {"uri": "a://b"})
        await until(lambda: house.script.last.asked(protocol.READ_RESOURCE))
        (seen,) = house.script.last.asked(protocol.READ_RESOURCE)
        assert isinstance(seen.id, int)
        house.script.last.says(
            jsonrpc.make_error(seen.id, RESOURCE_NOT_FOUND, "no such thing"), seen
        )
        error = await asked.error()
        assert (error.code, error.message) == (INVALID_PARAMS.code, "no such thing")
        assert asked.outbox.status == 400


@loop_over(
    "envelope", [7, [], {protocol.CLIENT_CAPABILITIES: 7}, {protocol.CLIENT_CAPABILITIES: []}]
)
async def test_an_envelope_that_cannot_be_read_is_the_clients_fault(envelope: object) -> None:
    async with bridged(handshake_server()) as house:
        frame = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "t", "_meta": envelope})
        call = await house.front.desk.handle_modern_request(frame, house.modern("x", {}).outbox, ())
        answer = jsonrpc.decode_frame(call.client_stream.frames[-1])
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
        asked = house.front.ask(session, protocol.CALL_TOOL, params)
        await until(lambda: house.calls)
        headers = house.carrier.headers_of(protocol.CALL_TOOL)
        assert headers[b"mcp-param-region"].startswith(b"=?base64?")
        house.finishes()
        await asked.result()


async def test_a_repeated_call_repeats_its_headers() -> None:
    async with bridged(modern_server(tools_list=MARKED)) as house:
        session = await house.front.client(**EVERYTHING)
        params: Params = {"name": "t", "arguments": {"region": "eu"}}
        asked = house.front.ask(session, protocol.CALL_TOOL, params)
        await until(lambda: house.calls)
        house.finishes({"resultType": "input_required", "requestState": "s"})
        await until(lambda: len(house.calls) == 2)
        sent = [
            each.headers for each in house.carrier.sent if each.frame.method == protocol.CALL_TOOL
        ]
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
    stdio = ((protocol.METHOD_HEADER, b"tools/call"),)
    async with all_servers({"a": script}) as front:
        params: Params = {"name": "a__t", "arguments": {"region": "eu"}}
        assert (await front.handle_modern_request(protocol.CALL_TOOL, params, stdio).result())[
            "content"
        ]


async def test_a_client_at_stdio_is_given_headers_on_its_way_to_a_modern_server() -> None:
    script = modern_server(tools_list=MARKED, tools_call=DONE)
    stdio = ((protocol.METHOD_HEADER, b"tools/call"),)
    async with all_servers({"a": script}) as front:
        params: Params = {"name": "a__t", "arguments": {"region": "eu"}}
        await front.handle_modern_request(protocol.CALL_TOOL, params, stdio).result()
        (carrier,) = script.open
        assert carrier.headers_of(protocol.CALL_TOOL) == {
            protocol.METHOD_HEADER: b"tools/call",
            protocol.NAME_HEADER: b"t",
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
        greetings = [
            params_of(each.asked(protocol.INITIALIZE)[0]) for each in script.carriers[before:]
        ]
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
                carrier.answers(carrier.asked(protocol.INITIALIZE)[0], hello())
                carrier.dies()
                return SILENCE
            return hello()

        script.replies[protocol.INITIALIZE] = greet
        await house.modern().error()
        assert (await house.modern().result())["content"] == DONE["content"]


@each_transport
async def test_one_clients_question_never_reaches_another(process: bool) -> None:
    """On one pipe for all nobody is guessed at; over HTTP each call has a stream of its own."""
    async with bridged(handshake_server(process)) as house:
        first = await house.called()
        first_call = house.asked
        second = await house.called()
        house.carrier.says(
            jsonrpc.make_request("q", protocol.ELICIT, {"message": "secret"}), first_call
        )
        await settled()
        assert second.outbox.frames == []
        if process:
            assert len(house.heard_by_server("q")) == 1
        else:
            assert list(inputs(await first.result())) == ["1"]
        for frame in house.calls:
            house.carrier.answers(frame, DONE)
        house.front.clock.passes(601)
        house.front.parking.check(0)


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


@loop_over("name", ["a", "b"])
async def test_both_eras_are_met_behind_one_door(name: str) -> None:
    scripts = {"a": handshake_server(tools_call=DONE), "b": modern_server(tools_call=DONE)}
    async with all_servers(scripts) as front:
        params: Params = {"name": f"{name}__t", "arguments": {}}
        modern = await front.handle_modern_request(protocol.CALL_TOOL, params).result()
        session = await front.client()
        plain = await front.ask(session, protocol.CALL_TOOL, params).result()
    assert modern["content"] == plain["content"] == DONE["content"]
    assert "resultType" not in plain


async def _told_of_a_change(front: Front, script: Script) -> None:
    session = await front.client()
    listening = front.handle_modern_request(
        protocol.LISTEN, {"notifications": {"toolsListChanged": True}}
    )
    await until(lambda: listening.outbox.frames)
    script.replies[protocol.LIST_TOOLS] = tools("t", "u")
    changed = jsonrpc.make_notification(protocol.TOOLS_CHANGED)
    for carrier in script.open:
        (listen,) = carrier.asked(protocol.LISTEN) or [None]
        carrier.says(changed, listen)
    await until(lambda: len(listening.outbox.frames) > 1)
    await until(lambda: session.standalone.frames)
    told = jsonrpc.decode_frame(listening.outbox.frames[-1])
    assert told.method == protocol.TOOLS_CHANGED
    assert params_of(told)["_meta"] == {
        protocol.SUBSCRIPTION_ID: (await listening.asking).client_request_id
    }
    plain = jsonrpc.decode_frame(session.standalone.frames[-1])
    assert (plain.method, plain.params) == (protocol.TOOLS_CHANGED, UNSET)
    (await listening.asking).withdraw(None)


@loop_over("process", [True, False], ids=["stdio", "http"])
@loop_over("make", [handshake_server, modern_server], ids=["handshake", "modern"])
async def test_clients_of_both_eras_hear_of_a_changed_list(
    process: bool, make: Callable[[bool], Script]
) -> None:
    script = make(process)
    script.replies[protocol.INITIALIZE if script.handshake else protocol.DISCOVER] = (
        hello(tools={"listChanged": True})
        if script.handshake
        else discovered(tools={"listChanged": True})
    )
    async with all_servers({"a": script}) as front:
        await _told_of_a_change(front, script)


# Notices amid a call, and its edges.


def frames_in(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode_frame(data) for data in asked.outbox.frames]


async def called_by_legacy_client(house: Bridged, **can: object) -> Asked:
    """A tool call that has reached the modern server."""
    session = await house.front.client(**can)
    asked = house.front.ask(session, protocol.CALL_TOOL, {"name": "t"})
    await until(lambda: house.calls)
    return asked


def progress(house: Bridged, done: float) -> None:
    meta = inside(params_of(house.asked), "_meta")
    told: Params = {"progressToken": meta["progressToken"], "progress": done}
    house.carrier.says(jsonrpc.make_notification(protocol.PROGRESS, told), house.asked)


def logs(house: Bridged, level: str) -> None:
    told = jsonrpc.make_notification(protocol.MESSAGE, {"level": level, "data": level})
    house.carrier.says(told, house.asked)


@each_transport
@pytest.mark.parametrize("token", [7, "seven", 2**60])
async def test_progress_reaches_a_modern_client_under_its_own_token(
    process: bool, token: object
) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={"progressToken": token})
        progress(house, 0.5)
        house.finishes()
        (told, _) = frames_in(asked)
        assert params_of(told) == {"progressToken": token, "progress": 0.5}


async def test_two_clients_with_the_same_token_are_told_apart_by_the_server() -> None:
    async with bridged(handshake_server()) as house:
        for _ in range(2):
            await house.called(meta={"progressToken": 1})
        tokens = [params_of(frame)["_meta"] for frame in house.calls]
        assert tokens[0] != tokens[1]
        for frame in house.calls:
            house.carrier.answers(frame, {"content": []})


@each_transport
async def test_progress_after_a_return_bears_the_token_of_the_return(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        first = await house.called(meta={"progressToken": "one"})
        house.asks("q")
        result = await first.result()
        # Whatever is told while nobody stands in front is told to nobody.
        progress(house, 0.1)
        second = house.retry(result["requestState"], {"1": ACCEPT}, meta={"progressToken": "two"})
        await until(lambda: house.heard_by_server("q"))
        progress(house, 0.7)
        house.finishes()
        (told, _) = frames_in(second)
        assert params_of(told) == {"progressToken": "two", "progress": 0.7}


@each_transport
async def test_progress_reaches_a_handshake_client_under_its_own_token(process: bool) -> None:
    async with bridged(modern_server(process)) as house:
        session = await house.front.client(**EVERYTHING)
        params: Params = {"name": "t", "_meta": {"progressToken": "mine"}}
        asked = house.front.ask(session, protocol.CALL_TOOL, params)
        await until(lambda: house.calls)
        progress(house, 0.5)
        house.finishes()
        (told, _) = frames_in(asked)
        assert params_of(told) == {"progressToken": "mine", "progress": 0.5}


async def test_progress_puts_off_the_deadline_of_a_call_across() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called(meta={"progressToken": 1})
        house.front.clock.passes(50)
        progress(house, 0.5)
        house.front.clock.passes(50)
        house.front.underway.check(1000)
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


@each_transport
async def test_log_messages_reach_a_modern_client_from_its_level_on(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={protocol.LOG_LEVEL: "warning"})
        levels = [
            params_of(frame)
            for each in house.script.open
            for frame in each.asked(protocol.SET_LEVEL)
        ]
        assert levels == [{"level": "warning"}]
        for level in ("debug", "warning", "error"):
            logs(house, level)
        house.finishes()
        told = [params_of(frame)["level"] for frame in frames_in(asked)[:-1]]
        assert told == ["warning", "error"]


async def test_a_level_that_is_none_or_higher_than_before_is_not_set() -> None:
    async with bridged(handshake_server()) as house:
        for level in ("info", "error", "loud", 7, "debug"):
            await house.called(meta={protocol.LOG_LEVEL: level})
            house.finishes()
        set_to = [params_of(frame)["level"] for frame in house.carrier.asked(protocol.SET_LEVEL)]
        assert set_to == ["info", "debug"]


async def test_a_modern_client_that_named_no_level_hears_no_log() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        logs(house, "emergency")
        house.finishes()
        assert len(frames_in(asked)) == 1


async def test_log_messages_reach_a_handshake_client_amid_its_call() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await house.front.ask(session, protocol.SET_LEVEL, {"level": "info"}).result()
        asked = house.front.ask(session, protocol.CALL_TOOL, {"name": "t"})
        await until(lambda: house.calls)
        meta = inside(params_of(house.asked), "_meta")
        assert meta[protocol.LOG_LEVEL] == "info"
        logs(house, "info")
        house.finishes()
        assert [frame.method for frame in frames_in(asked)[:-1]] == [protocol.MESSAGE]


@pytest.mark.parametrize(
    "params", [[], 7, {"progressToken": []}, {"level": {}}, {"_meta": 7}, None]
)
@each_transport
async def test_a_broken_notice_is_lost_and_its_call_goes_on(process: bool, params: object) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={"progressToken": 1, protocol.LOG_LEVEL: "debug"})
        for method in (
            protocol.PROGRESS,
            protocol.MESSAGE,
            protocol.TOOLS_CHANGED,
            "notifications/vendor",
        ):
            told = jsonrpc.encode_frame(jsonrpc.make_notification(method, params))
            house.carrier.says(told, house.asked)
        repeated_key = b'"params":{"level":"info","level":1}}'
        house.carrier.says(
            b'{"jsonrpc":"2.0","method":"notifications/message",' + repeated_key, house.asked
        )
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


@loop_over(
    "result",
    [
        *([], 7, None, "x", {"_meta": 7}, {"structuredContent": {}, "_meta": []}),
        b'{"content":[],"content":[]}',
    ],
)
async def test_a_broken_result_is_the_servers_fault(result: object) -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        house.finishes(Raw(result) if isinstance(result, bytes) else result)
        assert kind_of(refusal_in(await asked.answer())) == "upstream_failed"


@each_transport
async def test_what_could_not_be_sent_was_not_done(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        await house.called()
        house.finishes()
        house.carrier.breaks = Unavailable("the pipe is full")
        error = await house.modern().error()
        assert inside({"data": error.data}, "data")["details"] == {"outcome": "not_run"}
    async with bridged(modern_server(process)) as house:
        session = await house.front.client()
        (carrier,) = house.script.open
        carrier.breaks = Unavailable("the pipe is full")
        error = await house.front.ask(session, protocol.CALL_TOOL, {"name": "t"}).error()
        assert inside({"data": error.data}, "data")["details"] == {"outcome": "not_run"}


async def test_a_slow_reader_pauses_the_server_before_and_after_its_return() -> None:
    async with bridged(handshake_server()) as house:
        first = await house.called(meta={"progressToken": 1})
        minted = house.asked.id
        assert isinstance(minted, int)
        house.carrier.receiver.on_stream_opened(minted)
        for _ in range(client_streams.MAX_QUEUED_FRAMES // 2 + 1):
            progress(house, 0.1)
        assert house.carrier.paused == [(True, minted)]
        house.asks("q")
        state = result_of(frames_in(first)[-1])["requestState"]
        # The client never read the rest of that stream, and comes back on another.
        second = house.retry(state, {"1": ACCEPT}, meta={"progressToken": 2})
        await until(lambda: house.heard_by_server("q"))
        assert house.carrier.paused[-1] == (False, minted)
        for _ in range(client_streams.MAX_QUEUED_FRAMES // 2 + 1):
            progress(house, 0.2)
        assert house.carrier.paused[-1] == (True, minted)
        second.outbox.take()
        assert house.carrier.paused[-1] == (False, minted)
        house.finishes()
        await second.result()


async def test_a_reader_that_falls_too_far_behind_ends_its_call_and_no_other() -> None:
    async with bridged(handshake_server()) as house:
        slow = await house.called(meta={"progressToken": 1})
        slow_call = house.asked
        quick = await house.called()
        for _ in range(client_streams.MAX_QUEUED_FRAMES + 1):
            meta = inside(params_of(slow_call), "_meta")
            told: Params = {"progressToken": meta["progressToken"], "progress": 1}
            house.carrier.says(jsonrpc.make_notification(protocol.PROGRESS, told), slow_call)
        assert slow.outbox.is_overrun
        assert slow_call.id in house.carrier.abandoned
        house.finishes()
        assert (await quick.result())["content"] == DONE["content"]


async def test_a_client_of_the_modern_era_cannot_be_spoken_to_while_parked() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        for method in (protocol.MESSAGE, protocol.PROGRESS, "notifications/vendor"):
            house.carrier.says(jsonrpc.make_notification(method, {}), house.asked)
        await settled()
        house.finishes()
        again = house.retry(state, {})
        await again.result()


async def test_a_modern_server_cannot_ask_by_a_request() -> None:
    async with bridged(modern_server()) as house:
        asked = await called_by_legacy_client(house, **EVERYTHING)
        house.asks("q")
        (heard,) = house.heard_by_server("q")
        assert jsonrpc.error_of(heard) is not None
        house.finishes()
        await asked.result()


async def test_a_modern_server_cannot_tell_amid_a_call_what_it_should_tell_elsewhere() -> None:
    async with bridged(modern_server()) as house:
        asked = await called_by_legacy_client(house)
        for method in (protocol.ACKNOWLEDGED, protocol.TOOLS_CHANGED, "notifications/vendor"):
            house.carrier.says(jsonrpc.make_notification(method, {}), house.asked)
        house.finishes()
        assert [frame.method for frame in frames_in(asked)[:-1]] == ["notifications/vendor"]


async def test_an_error_has_its_http_status_although_the_server_opened_a_stream() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        assert isinstance(house.asked.id, int)
        house.carrier.receiver.on_stream_opened(house.asked.id)
        house.carrier.receiver.on_stream_suspended(house.asked.id)
        assert not asked.outbox.is_streaming
        told = jsonrpc.make_error(house.asked.id, MISSING_CAPABILITY, "no elicitation")
        house.carrier.says(told, house.asked)
        assert (await asked.error()).code == MISSING_CAPABILITY.code
        assert asked.outbox.status == 400


async def test_a_call_that_is_withdrawn_while_its_way_is_found_is_never_made() -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern()
        await until(lambda: len(house.front.underway))
        (call,) = house.front.underway
        call.withdraw(None)
        await asked.asking
        assert house.calls == []


@each_transport
async def test_a_call_across_has_the_trace_of_the_call_in_front(
    process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At a server's own door a trace is the client's own affair.
    monkeypatch.setattr(Call, "is_for_all_servers", True)
    said = hello(tools={}, mgp={"version": "0.3.0", "extensions": []})
    async with bridged(handshake_server(process, initialize=said)) as house:
        asked = await house.called()
        front = await asked.asking
        assert params_of(house.asked)["trace_id"] == as_uuid(front.ensure_trace_id())
        house.finishes()


# Tools that run only as a task.


TASKED: Params = {"tools": [{"name": "t", "execution": {"taskSupport": "required"}}]}


@each_transport
async def test_a_tool_that_runs_only_as_a_task_is_run_as_one(process: bool) -> None:
    async with bridged(handshake_server(process, tools_list=TASKED)) as house:
        asked = await house.called()
        assert params_of(house.asked)["task"] == {}
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (waiting,) = house.carrier.asked(eras.RESULT)
        assert params_of(waiting) == {"taskId": "t-1"}
        house.carrier.says(
            jsonrpc.make_request("q", protocol.ELICIT, {"message": "sure?"}), waiting
        )
        result = await asked.result()
        again = house.retry(result["requestState"], {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q"))
        house.carrier.answers(waiting, {**DONE, "_meta": {eras.RELATED: {"taskId": "t-1"}}})
        finished = await again.result()
        assert finished["content"] == DONE["content"]
        assert eras.RELATED not in str(finished)


async def test_a_task_whose_client_withdraws_is_cancelled() -> None:
    async with bridged(handshake_server(tools_list=TASKED, tasks_cancel={})) as house:
        asked = await house.called()
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (await asked.asking).withdraw(None)
        (cancelled,) = house.carrier.asked(eras.CANCEL)
        assert params_of(cancelled) == {"taskId": "t-1"}


async def test_a_server_that_would_not_begin_a_task_says_why() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        assert isinstance(house.asked.id, int)
        house.carrier.says(jsonrpc.make_error(house.asked.id, METHOD_NOT_FOUND, "no"), house.asked)
        assert (await asked.error()).code == METHOD_NOT_FOUND.code


async def test_a_task_that_ends_with_the_link_fails_its_call() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        carrier = house.carrier
        carrier.answers(house.asked, {"task": {"taskId": "t-1", "status": "working"}})
        carrier.dies()
        assert (await asked.error()).message


async def test_a_modern_client_cannot_make_a_task_of_a_plain_tool() -> None:
    async with bridged(handshake_server(tools_call=DONE)) as house:
        params: Params = {"name": "t", "arguments": {}, "task": {"ttl": 1}}
        result = await house.modern(params=params).result()
        assert result_of(jsonrpc.make_result(1, result))["content"] == DONE["content"]
        assert "task" not in params_of(house.asked)


async def test_a_task_at_a_server_that_is_gone_needs_no_cancelling() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        house.carrier.breaks = Unavailable("the pipe is full")
        (await asked.asking).withdraw(None)
        assert house.carrier.asked(eras.CANCEL) == []


async def test_a_task_that_begins_while_its_client_is_asked_is_waited_for() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        house.asks("q")
        state = (await asked.result())["requestState"]
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (waiting,) = house.carrier.asked(eras.RESULT)
        house.carrier.answers(waiting, DONE)
        assert (await house.retry(state, {}).result())["content"] == DONE["content"]
