"""Who is told of changes behind `/mcp`: sessions, listeners, and nobody who has left."""

import msgspec
import pytest
from msgspec import Raw

from comity.kernel.catalog import Kind, Offer
from comity.kernel.switchboard import AllServers
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_PARAMS
from comity.wire.jsonrpc import Frame
from tests.kernel.carriers import Params, Reply, Script, discovered, params_of, settled, until
from tests.kernel.desks import Asked, Front, all_servers

ALL_LISTS: Params = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}


def listening(front: Front, **notifications: object) -> Asked:
    return front.ask_modern(mcp.LISTEN, {"notifications": notifications})


def heard(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode(data) for data in asked.outbox.take()]


def listeners(front: Front) -> int:
    assert isinstance(front.desk, AllServers)
    return len(front.desk.subscriptions)


def following(front: Front) -> list[Frame]:
    """What server `a` was asked to tell on behalf of listeners."""
    asked = [frame for each in front.scripts["a"].carriers for frame in each.asked(mcp.LISTEN)]
    return [frame for frame in asked if "resourceSubscriptions" in str(params_of(frame))]


def put(front: Front, kind: Kind, name: str) -> None:
    front.catalog.put("x", kind, [Offer(name, "x", name, b"{}")])


def with_resources() -> dict[str, Script]:
    replies: dict[str, Reply] = {
        mcp.DISCOVER: discovered(resources={}),
        mcp.LIST_RESOURCES: {"resources": [{"uri": "a:1"}, {"uri": "a:2"}]},
        mcp.LIST_TEMPLATES: {"resourceTemplates": []},
    }
    return {"a": Script(handshake=False, modern=True, replies=replies)}


async def test_a_listener_is_told_first_what_it_will_hear() -> None:
    async with all_servers({}) as front:
        asked = listening(front, toolsListChanged=True, promptsListChanged=False, other=True)
        call = await asked.asking
        (acknowledged,) = heard(asked)
        assert acknowledged.method == mcp.ACKNOWLEDGED
        assert params_of(acknowledged) == {
            "notifications": {"toolsListChanged": True},
            "_meta": {mcp.SUBSCRIPTION_ID: call.asker_id},
        }
        assert asked.outbox.streaming


async def test_a_listener_hears_of_the_lists_it_asked_for_and_of_no_other() -> None:
    async with all_servers({}) as front:
        everything, tools = listening(front, **ALL_LISTS), listening(front, toolsListChanged=True)
        for asked in (everything, tools):
            await asked.asking
            heard(asked)
        for kind in (Kind.TOOL, Kind.RESOURCE, Kind.TEMPLATE):
            put(front, kind, "new")
        await until(lambda: len(everything.outbox.frames) == 2 and tools.outbox.frames)
        told = heard(everything)
        assert {frame.method for frame in told} == {mcp.TOOLS_CHANGED, mcp.RESOURCES_CHANGED}
        call = everything.asking.result()
        stamps = [params_of(frame)["_meta"] for frame in told]
        assert stamps == [{mcp.SUBSCRIPTION_ID: call.asker_id}] * 2
        assert [frame.method for frame in heard(tools)] == [mcp.TOOLS_CHANGED]


async def test_sessions_are_told_of_merged_changes_until_they_end() -> None:
    async with all_servers({}) as front:
        session, gone = await front.client(), await front.client()
        again: Params = {"protocolVersion": mcp.LATEST_HANDSHAKE, "capabilities": {}}
        for _ in range(3):
            await front.ask(session, mcp.INITIALIZE, again).result()
        assert len(session.farewells) == 1, "who greets again is not told twice, nor kept twice"
        await front.sessions.end(gone)
        put(front, Kind.PROMPT, "new")
        await until(lambda: session.standalone.frames)
        told = [jsonrpc.decode(data).method for data in session.standalone.take()]
        assert told == [mcp.PROMPTS_CHANGED]
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
        put(front, Kind.TOOL, "new")
        await settled()
        assert asked.outbox.final


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
        front.underway.look(15)
        assert not asked.outbox.final
        assert asked.outbox.nudged


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
        meta = {mcp.SUBSCRIPTION_ID: upstream.id, "kept": 1}
        update: Params = {"uri": "a:1", "_meta": meta}
        carrier.says(jsonrpc.notification(mcp.RESOURCE_UPDATED, update), amid=upstream)
        carrier.says(jsonrpc.notification(mcp.TOOLS_CHANGED), amid=upstream)
        carrier.says(
            Frame("2.0", method=mcp.RESOURCE_UPDATED, params=Raw(b'{"a":1,"a":2}')), amid=upstream
        )
        (told,) = heard(asked)
        assert params_of(told) == {
            "uri": "a:1",
            "_meta": {mcp.SUBSCRIPTION_ID: call.asker_id, "kept": 1},
        }


async def test_a_server_that_goes_ends_no_listener() -> None:
    async with all_servers(with_resources()) as front:
        asked = listening(front, **ALL_LISTS, resourceSubscriptions=["a:1"])
        await asked.asking
        (carrier,) = front.scripts["a"].open
        await until(lambda: following(front))
        carrier.dies()
        await settled()
        assert not asked.outbox.final
        heard(asked)
        put(front, Kind.TOOL, "new")
        await until(lambda: asked.outbox.frames)


@pytest.mark.parametrize(
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
        error = await front.ask_modern(mcp.LISTEN, params).error()
        assert error.code in (INVALID_PARAMS.code, -32600)
        assert (listeners(front), len(front.underway)) == (0, 0)


async def test_a_listener_that_never_reads_is_let_go() -> None:
    async with all_servers({}) as front:
        asked = listening(front, **ALL_LISTS)
        call = await asked.asking
        notice = jsonrpc.notification(mcp.TOOLS_CHANGED)
        while not asked.outbox.final:
            call.told(notice)
        assert (listeners(front), len(front.underway)) == (0, 0)
        assert msgspec.json.decode(asked.outbox.take()[0])
