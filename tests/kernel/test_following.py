"""Resources that modern clients listen for, at servers of either era."""

from collections.abc import Callable

import pytest

from comity.kernel import following
from comity.kernel.servers import Server
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS
from comity.wire.jsonrpc import Frame
from tests.kernel.bridged import Bridged, bridged, handshake_server, inside, modern_server
from tests.kernel.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    params_of,
    settled,
    until,
)
from tests.kernel.desks import Asked, all_servers
from tests.kernel.follows import (
    A,
    B,
    agrees,
    each_transport,
    leave_out_pauses,
    listened,
    listens,
    says,
)
from tests.kernel.refused import kind_of


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pauses(monkeypatch)


def updated(uri: object) -> Frame:
    return jsonrpc.notification(mcp.RESOURCE_UPDATED, {"uri": uri})


# Modern clients at handshake servers.


async def listening(house: Bridged, *uris: str) -> Asked:
    wanted: Params = {"notifications": {"resourceSubscriptions": list(uris)}}
    asked = house.modern(mcp.LISTEN, wanted)
    await until(lambda: asked.outbox.frames)
    acknowledged = jsonrpc.decode(asked.outbox.frames.pop(0))
    assert acknowledged.method == mcp.ACKNOWLEDGED
    return asked


def subscribed(script: Script, method: str = mcp.SUBSCRIBE) -> list[object]:
    return [params_of(frame)["uri"] for each in script.carriers for frame in each.asked(method)]


def following_server(process: bool) -> Script:
    return handshake_server(process, resources_subscribe={}, resources_unsubscribe={})


def told(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode(data) for data in asked.outbox.take()]


def own(script: Script) -> ScriptedCarrier:
    (carrier,) = [each for each in script.open if each.asked(mcp.SUBSCRIBE)]
    return carrier


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
            {"uri": uri, "_meta": {mcp.SUBSCRIPTION_ID: call.asker_id}} for uri in (A, B)
        ]
        call.withdraw(None)
        await until(lambda: sorted(map(str, subscribed(script, mcp.UNSUBSCRIBE))) == [A, B])
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
        assert subscribed(script, mcp.UNSUBSCRIBE) == []
        own(script).says(updated(A))
        assert len(told(second)) == 1
        (await second.asking).withdraw(None)
        await until(lambda: subscribed(script, mcp.UNSUBSCRIBE) == [A])


async def test_a_server_that_forgot_its_session_is_subscribed_to_again() -> None:
    script = following_server(False)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        own(script).receiver.renewed()
        await until(lambda: subscribed(script) == [A, A])
        # What changed in between was told to nobody, so everything may have.
        await until(lambda: asked.outbox.frames)
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        own(script).says(updated(A))
        assert len(told(asked)) == 1
        (await asked.asking).withdraw(None)
        await until(lambda: subscribed(script, mcp.UNSUBSCRIBE) == [A])


async def test_a_server_that_is_let_go_is_followed_again_when_it_is_back() -> None:
    script = following_server(True)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        server = house.front.servers.get("srv")
        assert server is not None
        await server.reached.let_go()
        await server.reached.start()
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
        assert (await house.modern(mcp.LISTEN, wanted).error()).code == INVALID_PARAMS.code


async def test_nobody_can_follow_without_end_in_one_request() -> None:
    async with bridged(following_server(False)) as house:
        uris = [f"file:///{number}" for number in range(following.MOST_FOLLOWED + 1)]
        wanted: Params = {"notifications": {"resourceSubscriptions": uris}}
        assert kind_of(await house.modern(mcp.LISTEN, wanted).error()) == EXHAUSTED.error_type
        assert subscribed(house.script) == []


async def test_a_broken_notice_of_an_update_harms_nobody() -> None:
    script = following_server(True)
    async with bridged(script) as house:
        asked = await listening(house, A)
        await until(lambda: subscribed(script) == [A])
        broken: list[object] = [[], 7, {"uri": 7}, {"uri": A, "_meta": 7}]
        for params in broken:
            own(script).says(jsonrpc.notification(mcp.RESOURCE_UPDATED, params))
        assert [params_of(frame)["uri"] for frame in told(asked)] == [A]
        (await asked.asking).withdraw(None)


@pytest.mark.parametrize("make", [handshake_server, modern_server], ids=["handshake", "modern"])
async def test_behind_the_door_of_all_each_resource_is_followed_at_its_own_server(
    make: Callable[..., Script],
) -> None:
    scripts: dict[str, Script] = {}
    for name, uri in (("a", A), ("b", B)):
        script = scripts[name] = make(resources_subscribe={}, resources_unsubscribe={})
        script.replies[mcp.LIST_RESOURCES] = {"resources": [{"uri": uri, "name": name}]}
        script.replies[mcp.LIST_TEMPLATES] = {"resourceTemplates": []}
        greets = mcp.INITIALIZE if script.handshake else mcp.DISCOVER
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
    script.replies[mcp.LIST_RESOURCES] = {"resources": [{"uri": A, "name": "a"}]}
    script.replies[mcp.LIST_TEMPLATES] = {"resourceTemplates": []}
    script.replies[mcp.DISCOVER] = discovered(resources={})
    return script


async def test_a_modern_listener_at_the_door_of_all_hears_of_a_modern_servers_resource() -> None:
    script = modern_reader(modern_server())
    async with all_servers({"a": script}) as front:
        house = Bridged(front, script)
        asked = await listening(house, A)
        await until(lambda: listened(script) == [A])
        agrees(script, A)
        says(script, A, mcp.RESOURCE_UPDATED, {"uri": A})
        says(script, A, mcp.TOOLS_CHANGED, {})
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

        def find(name: str) -> Server | None:
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

        monkeypatch.setattr(following, "envelope", broken)
        asked = await listening(Bridged(front, script), A)
        await until(lambda: "the following of resources failed" in caplog.text)
        (await asked.asking).withdraw(None)


def followed_at(script: Script) -> list[object]:
    """What a server of either era was asked to tell of."""
    return [*subscribed(script), *listened(script)]
