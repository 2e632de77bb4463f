"""Subscriptions to resources across the eras, and what may be listened for."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from comity.errors import EXHAUSTED, INVALID_PARAMS, METHOD_NOT_FOUND
from comity.gateway import subscriptions
from comity.gateway.subscriptions import narrow_listen_request
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from tests.support.bridged import Bridged, bridged, handshake_server, inside, modern_server
from tests.support.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    params_of,
    settled,
    until,
)
from tests.support.desks import Asked, all_servers
from tests.support.refused import kind_of
from tests.support.server_house import AT_ONCE

A, B = "file:///a", "file:///b"
each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


def leave_out_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "RetrySchedule", lambda: AT_ONCE)


def listened(script: Script) -> list[object]:
    asked = [frame for each in script.open for frame in each.asked(protocol.LISTEN)]
    filters = [inside(params_of(frame), "notifications") for frame in asked]
    found = [each.get("resourceSubscriptions", []) for each in filters]
    return [uri for uris in found for uri in msgspec.convert(uris, list[object])]


def listens(script: Script, uri: str) -> Frame:
    """The last request of ours to hear of this resource."""
    (carrier,) = script.open
    return [
        frame
        for frame in carrier.asked(protocol.LISTEN)
        if params_of(frame)["notifications"] == {"resourceSubscriptions": [uri]}
    ][-1]


def agrees(script: Script, uri: str) -> None:
    says(script, uri, protocol.ACKNOWLEDGED, {"notifications": {"resourceSubscriptions": [uri]}})


def says(script: Script, uri: str, method: str, params: Params) -> None:
    (carrier,) = script.open
    asked = listens(script, uri)
    stamped = {**params, "_meta": {protocol.SUBSCRIPTION_ID: asked.id}}
    carrier.says(jsonrpc.make_notification(method, stamped), asked)


# Legacy clients at modern servers.


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pauses(monkeypatch)


async def followed(house: Bridged, session: Session, uri: str) -> None:
    asked = house.front.ask(session, protocol.SUBSCRIBE, {"uri": uri})
    before = listened(house.script).count(uri)
    if not any(session_follows(house, uri)):
        await until(lambda: listened(house.script).count(uri) > before)
        agrees(house.script, uri)
    assert await asked.result() == {}


def session_follows(house: Bridged, uri: str) -> list[bool]:
    return [True] if uri in listened(house.script) and len(house.front.bridge) else []


def heard(session: Session) -> list[object]:
    """The updates of resources; that a list changed while the server started may come as well."""
    frames = map(jsonrpc.decode_frame, session.standalone.take())
    return [params_of(frame) for frame in frames if frame.method == protocol.RESOURCE_UPDATED]


@pytest.mark.requirement("MCP-5.2-subscribe")
@each_transport
async def test_a_subscriber_hears_of_its_resource_until_it_unsubscribes(process: bool) -> None:
    async with bridged(modern_server(process)) as house:
        session = await house.front.client()
        await followed(house, session, A)
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": A})
        assert heard(session) == [{"uri": A}]
        listen = listens(house.script, A)
        assert await house.front.ask(session, protocol.UNSUBSCRIBE, {"uri": A}).result() == {}
        await until(lambda: len(house.front.bridge) == 0)
        (carrier,) = house.script.open
        await until(lambda: listen.id in carrier.abandoned or process)
        assert await house.front.ask(session, protocol.UNSUBSCRIBE, {"uri": A}).result() == {}


async def test_a_subscriber_hears_which_part_of_its_resource_was_updated() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": f"{A}/part"})
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": 7})
        assert heard(session) == [{"uri": f"{A}/part"}, {"uri": A}]
        await house.front.sessions.end(session)


async def test_sessions_share_one_listening_and_the_last_to_leave_ends_it() -> None:
    async with bridged(modern_server()) as house:
        one, other = await house.front.client(), await house.front.client()
        await followed(house, one, A)
        await followed(house, other, A)
        await followed(house, other, A)
        assert listened(house.script) == [A]
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": A})
        assert heard(one) == heard(other) == [{"uri": A}]
        await house.front.sessions.end(one)
        assert len(house.front.bridge) == 1
        await house.front.sessions.end(other)
        assert len(house.front.bridge) == 0
        (carrier,) = house.script.open
        await until(lambda: carrier.abandoned)


async def test_who_leaves_and_comes_back_at_once_is_heard_of_again() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        leaving = house.front.ask(session, protocol.UNSUBSCRIBE, {"uri": A})
        coming = house.front.ask(session, protocol.SUBSCRIBE, {"uri": A})
        await leaving.result()
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        await coming.result()
        await settled()
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": A})
        assert heard(session) == [{"uri": A}]
        await house.front.sessions.end(session)


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_a_listening_that_ends_is_begun_again_and_everything_may_have_changed() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        (carrier,) = house.script.open
        carrier.answers(listens(house.script, A), {"resultType": "complete"})
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        assert heard(session) == [{"uri": A}]
        await house.front.sessions.end(session)


async def test_a_server_that_would_not_is_an_error_for_who_asked() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, protocol.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A])
        (carrier,) = house.script.open
        listen = listens(house.script, A)
        assert isinstance(listen.id, int)
        carrier.says(jsonrpc.make_error(listen.id, METHOD_NOT_FOUND, "no subscriptions"), listen)
        error = await asked.error()
        assert error.code == INVALID_PARAMS.code
        assert "no subscriptions" in error.message
        assert len(house.front.bridge) == 0


async def test_a_server_that_stays_silent_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "AGREE_TIMEOUT_SECONDS", 0.01)
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, protocol.SUBSCRIBE, {"uri": A})
        assert kind_of(await asked.error()) == "upstream_slow"
        assert len(house.front.bridge) == 0


async def test_a_session_that_ends_while_its_server_thinks_follows_nothing() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, protocol.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A])
        await house.front.sessions.end(session)
        await asked.asking
        assert len(house.front.bridge) == 0
        again = house.front.ask(session, protocol.SUBSCRIBE, {"uri": A})
        await again.asking
        assert listened(house.script) == [A]


async def test_nobody_can_follow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_FOLLOWED_RESOURCES", 2)
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        for uri in (A, B):
            await followed(house, session, uri)
        third = house.front.ask(session, protocol.SUBSCRIBE, {"uri": "file:///c"})
        assert kind_of(await third.error()) == EXHAUSTED.error_type
        assert len(house.front.bridge) == 2
        await house.front.sessions.end(session)


async def test_a_server_that_took_anothers_place_is_listened_to_for_all_who_follow() -> None:
    async with bridged(modern_server()) as house:
        one, other = await house.front.client(), await house.front.client()
        await followed(house, one, A)
        server = house.front.servers.get("srv")
        assert server is not None
        replaced = copy.copy(server.connections)
        server.connections = replaced
        asked = house.front.ask(other, protocol.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        await asked.result()
        says(house.script, A, protocol.RESOURCE_UPDATED, {"uri": A})
        assert heard(one) == heard(other) == [{"uri": A}]
        for session in (one, other):
            await house.front.sessions.end(session)


def updated(uri: object) -> Frame:
    return jsonrpc.make_notification(protocol.RESOURCE_UPDATED, {"uri": uri})


# Modern clients.


async def listening(house: Bridged, *uris: str) -> Asked:
    wanted: Params = {"notifications": {"resourceSubscriptions": list(uris)}}
    asked = house.modern(protocol.LISTEN, wanted)
    await until(lambda: asked.outbox.frames)
    acknowledged = jsonrpc.decode_frame(asked.outbox.frames.pop(0))
    assert acknowledged.method == protocol.ACKNOWLEDGED
    return asked


def subscribed(script: Script, method: str = protocol.SUBSCRIBE) -> list[object]:
    return [params_of(frame)["uri"] for each in script.carriers for frame in each.asked(method)]


def following_server(process: bool) -> Script:
    return handshake_server(process, resources_subscribe={}, resources_unsubscribe={})


def told(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode_frame(data) for data in asked.outbox.take()]


def own(script: Script) -> ScriptedCarrier:
    (carrier,) = [each for each in script.open if each.asked(protocol.SUBSCRIBE)]
    return carrier


@pytest.mark.requirement("MCP-5.2-subscribe")
@each_transport
async def test_a_listener_hears_of_what_it_follows_until_it_leaves(process: bool) -> None:
    script = following_server(process)
    async with bridged(script) as house:
        asked = await listening(house, A, B, A)
        await until(lambda: subscribed(script) == [A, B])
        for uri in (A, "file:///other", B):
            own(script).says(updated(uri))
        call = await asked.asking
        assert [params_of(frame) for frame in told(asked)] == [
            {"uri": uri, "_meta": {protocol.SUBSCRIPTION_ID: call.client_request_id}}
            for uri in (A, B)
        ]
        call.withdraw(None)
        await until(lambda: sorted(map(str, subscribed(script, protocol.UNSUBSCRIBE))) == [A, B])
        own(script).says(updated(A))
        assert told(asked) == []
        assert len(house.front.subscriptions) == 0


@pytest.mark.parametrize("part", ["file:///a/b/c", "file:///a#x", "file:///a?x=/", "file:///a/"])
async def test_a_listener_hears_of_the_parts_of_what_it_follows(part: str) -> None:
    script = following_server(True)
    async with bridged(script) as house:
        asked = await listening(house, A, "file:///")
        await until(lambda: len(subscribed(script)) == 2)
        own(script).says(updated(part))
        own(script).says(updated("file:" + "/" * 100_000))
        assert [params_of(frame)["uri"] for frame in told(asked)] == [part]
        own(script).says(updated("other:///a"))
        assert told(asked) == []
        (await asked.asking).withdraw(None)


@each_transport
async def test_two_listeners_share_a_subscription_and_the_last_ends_it(process: bool) -> None:
    script = following_server(process)
    async with bridged(script) as house:
        first, second = await listening(house, A), await listening(house, A)
        await until(lambda: len(subscribed(script)) == 2)
        own(script).says(updated(A))
        assert len(told(first)) == len(told(second)) == 1
        (await first.asking).withdraw(None)
        await settled()
        assert subscribed(script, protocol.UNSUBSCRIBE) == []
        own(script).says(updated(A))
        assert len(told(second)) == 1
        (await second.asking).withdraw(None)
        await until(lambda: subscribed(script, protocol.UNSUBSCRIBE) == [A])


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_a_server_that_forgot_its_session_is_subscribed_to_again() -> None:
    script = following_server(False)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        own(script).receiver.on_session_renewed()
        await until(lambda: subscribed(script) == [A, A])
        # What changed in between was told to nobody, so everything may have.
        await until(lambda: asked.outbox.frames)
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        own(script).says(updated(A))
        assert len(told(asked)) == 1
        (await asked.asking).withdraw(None)
        await until(lambda: subscribed(script, protocol.UNSUBSCRIBE) == [A])


async def test_a_server_that_is_let_go_is_followed_again_when_it_is_back() -> None:
    script = following_server(True)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        server = house.front.servers.get("srv")
        assert server is not None
        await server.connections.close_shared()
        await server.connections.start()
        await until(lambda: subscribed(script) == [A, A])
        await until(lambda: asked.outbox.frames)
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        (await asked.asking).withdraw(None)


async def test_a_server_that_stays_silent_holds_up_nobody() -> None:
    script = handshake_server(resources_subscribe=SILENCE)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        own(script).says(updated(A))
        assert len(told(asked)) == 1
        (await asked.asking).withdraw(None)


@pytest.mark.parametrize("uris", [7, {}, [7], "file:///a", None])
async def test_what_is_no_list_of_resources_is_refused(uris: object) -> None:
    async with bridged(following_server(False)) as house:
        wanted: Params = {"notifications": {"resourceSubscriptions": uris}}
        assert (await house.modern(protocol.LISTEN, wanted).error()).code == INVALID_PARAMS.code


async def test_nobody_can_follow_without_end_in_one_request() -> None:
    async with bridged(following_server(False)) as house:
        uris = [f"file:///{number}" for number in range(subscriptions.MAX_FOLLOWED_RESOURCES + 1)]
        wanted: Params = {"notifications": {"resourceSubscriptions": uris}}
        assert kind_of(await house.modern(protocol.LISTEN, wanted).error()) == EXHAUSTED.error_type
        assert subscribed(house.script) == []


async def test_a_broken_notice_of_an_update_harms_nobody() -> None:
    script = following_server(True)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        broken: list[object] = [[], 7, {"uri": 7}, {"uri": A, "_meta": 7}]
        for params in broken:
            own(script).says(jsonrpc.make_notification(protocol.RESOURCE_UPDATED, params))
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        (await asked.asking).withdraw(None)


@pytest.mark.parametrize("make", [handshake_server, modern_server], ids=["handshake", "modern"])
async def test_behind_the_door_of_all_each_resource_is_followed_at_its_own_server(
    make: Callable[..., Script],
) -> None:
    scripts: dict[str, Script] = {}
    for name, uri in (("a", A), ("b", B)):
        script = scripts[name] = make(resources_subscribe={}, resources_unsubscribe={})
        script.replies[protocol.LIST_RESOURCES] = {"resources": [{"uri": uri, "name": name}]}
        script.replies[protocol.LIST_TEMPLATES] = {"resourceTemplates": []}
        greets = protocol.INITIALIZE if script.handshake else protocol.DISCOVER
        said = inside(script.replies, greets)
        script.replies[greets] = {**said, "capabilities": {"resources": {}}}
    async with all_servers(scripts) as front:
        house = Bridged(front, scripts["a"])
        asked = await listening(house, A, B, "file:///unknown")
        for name, uri in (("a", A), ("b", B)):
            await until(lambda name=name, uri=uri: followed_at(scripts[name]) == [uri])
        (await asked.asking).withdraw(None)
        await settled()


def modern_reader(script: Script) -> Script:
    script.replies[protocol.LIST_RESOURCES] = {"resources": [{"uri": A, "name": "a"}]}
    script.replies[protocol.LIST_TEMPLATES] = {"resourceTemplates": []}
    script.replies[protocol.DISCOVER] = discovered(resources={})
    return script


async def test_a_modern_listener_at_the_door_of_all_hears_of_a_modern_servers_resource() -> None:
    script = modern_reader(modern_server())
    async with all_servers({"a": script}) as front:
        house = Bridged(front, script)
        asked = await listening(house, A)
        await until(lambda: listened(script) == [A])
        agrees(script, A)
        says(script, A, protocol.RESOURCE_UPDATED, {"uri": A})
        says(script, A, protocol.TOOLS_CHANGED, {})
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        (carrier,) = script.open
        carrier.answers(listens(script, A), {"resultType": "complete"})
        await until(lambda: listened(script) == [A, A])
        agrees(script, A)
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        (await asked.asking).withdraw(None)
        await until(lambda: carrier.abandoned)


async def test_a_server_that_is_taken_away_is_followed_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = modern_reader(modern_server())
    async with all_servers({"a": script}) as front:
        house = Bridged(front, script)
        get, taken = front.servers.get, True

        def find(name: str) -> UpstreamServer | None:
            return None if taken else get(name)

        monkeypatch.setattr(front.servers, "get", find)
        asked = await listening(house, A)
        await settled()
        assert listened(script) == []
        taken = False
        await until(lambda: listened(script) == [A])
        (await asked.asking).withdraw(None)


async def test_a_bug_of_ours_is_told_once_and_ends_only_the_following(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = modern_reader(modern_server())
    async with all_servers({"a": script}) as front:

        def broken() -> object:
            raise KeyError("a bug")

        monkeypatch.setattr(subscriptions, "gateway_envelope", broken)
        asked = await listening(Bridged(front, script), A)
        await until(lambda: "Following resource updates failed" in caplog.text)
        (await asked.asking).withdraw(None)


def followed_at(script: Script) -> list[object]:
    """What a server of either era was asked to tell of."""
    return [*subscribed(script), *listened(script)]


# Resources that may not be read.


def listen_call(wanted: dict[str, Any]) -> tuple[Call, Frame]:
    frame = jsonrpc.make_request(1, protocol.LISTEN, {"notifications": wanted, "kept": 1})
    return Call(frame, ClientStream(), None, 0), frame


def wanted_in(frame: Frame) -> object:
    return jsonrpc.decode_value(frame.parameters["notifications"])


def test_what_may_not_be_read_is_not_asked_for() -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["x:1", "x:2"]}
    call, frame = listen_call(wanted)
    left = narrow_listen_request(call, frame, lambda uri: uri == "x:1")
    assert wanted_in(left) == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
    assert jsonrpc.decode_value(left.parameters["kept"]) == 1


def test_what_may_not_be_read_any_more_is_not_told() -> None:
    readable = {"x:1", "x:2"}
    call, frame = listen_call({"resourceSubscriptions": ["x:1", "x:2"]})
    narrow_listen_request(call, frame, readable.__contains__)
    retell = call.adapt_notification
    assert retell is not None
    told = jsonrpc.make_notification(protocol.RESOURCE_UPDATED, {"uri": "x:2"})
    other = jsonrpc.make_notification(protocol.TOOLS_CHANGED)
    assert retell(told) is told
    readable.discard("x:2")
    assert retell(told) is None
    assert retell(other) is other
