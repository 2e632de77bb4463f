"""How a server is reached: in which era, over whose link, and what it offers there."""

import pytest
from msgspec import Raw

from comity.kernel.catalog import Kind
from comity.kernel.sessions import Session
from comity.wire import jsonrpc, mcp
from comity.wire.errors import Unavailable
from comity.wire.lifecycle import State
from comity.wire.mcp import Era
from tests.kernel.carriers import (
    SILENCE,
    Reply,
    Script,
    params_of,
    settled,
    until,
)
from tests.kernel.server_house import connected, options, standing, tools

both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_of_the_modern_era_only_is_reached_by_it(process: bool) -> None:
    async with standing() as house:
        replies: dict[str, Reply] = {mcp.LIST_TOOLS: tools("a")}
        script = Script(costs_a_process=process, handshake=False, modern=True, replies=replies)
        server = await connected(house, script)
        assert server.reached.eras == {Era.MODERN}
        assert house.catalog.count("srv", Kind.TOOL) == 1
        (carrier,) = script.open
        assert server.reached.modern_link().carrier is carrier


async def test_over_http_both_eras_are_found_at_the_start() -> None:
    async with standing() as house:
        server = await connected(house, Script(modern=True))
        assert server.reached.eras == {Era.HANDSHAKE, Era.MODERN}


async def test_a_process_that_shakes_hands_is_never_asked_for_the_other_era() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True, modern=True)
        server = await connected(house, script)
        assert (server.reached.eras, len(script.carriers)) == ({Era.HANDSHAKE}, 1)
        assert script.last.asked(mcp.DISCOVER) == []


@pytest.mark.parametrize(
    "answer",
    [Unavailable("Method not found"), SILENCE, [], "x", {"supportedVersions": ["1999-01-01"]}],
    ids=["refused", "silent", "a list", "a word", "an older version"],
)
@both_kinds
async def test_a_server_that_answers_discovery_oddly_still_works_in_its_own_era(
    process: bool, answer: object
) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, replies={mcp.DISCOVER: answer})
        server = await connected(house, script, options(start_ms=400))
        with pytest.raises(Unavailable):
            server.reached.modern_link()
        server.require()
        assert len(script.open) == 1, "what was opened for the probe is closed"


async def test_a_changed_list_is_read_again() -> None:
    async with standing() as house:
        script = Script(replies={mcp.LIST_TOOLS: tools("a")})
        await connected(house, script)
        script.replies[mcp.LIST_TOOLS] = tools("a", "b")
        script.open[-1].says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 2)


async def test_a_flood_of_changes_is_read_one_reading_at_a_time_and_the_last_one_counts() -> None:
    async with standing() as house:
        script = Script(replies={mcp.LIST_TOOLS: tools("a")})
        await connected(house, script)
        carrier = script.open[-1]
        script.replies[mcp.LIST_TOOLS] = SILENCE
        for _ in range(500):
            carrier.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        await settled()
        assert len(carrier.asked(mcp.LIST_TOOLS)) == 2
        carrier.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        await settled()
        script.replies[mcp.LIST_TOOLS] = tools("a", "b", "c")
        carrier.answers(carrier.asked(mcp.LIST_TOOLS)[-1], tools("a", "b"))
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 3)
        assert len(carrier.asked(mcp.LIST_TOOLS)) == 3


async def test_a_list_that_cannot_be_read_again_changes_nothing() -> None:
    async with standing() as house:
        script = Script(replies={mcp.LIST_TOOLS: tools("a")})
        server = await connected(house, script)
        script.replies[mcp.LIST_TOOLS] = {"tools": "none"}
        script.open[-1].says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        await settled()
        assert house.catalog.count("srv", Kind.TOOL) == 1
        assert server.state is State.CONNECTED


async def test_over_http_each_session_has_a_link_of_its_own() -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script)
        sessions = [Session("", 0), Session("", 0)]
        for session in sessions:
            session.introduce({"who": Raw(b'"me"')})
        links = [(await server.reached.link_for(each, greeted=True)) for each in sessions]
        assert links[0][0] is not links[1][0]
        assert [sharers for _, sharers in links] == [None, None]
        assert params_of(script.last.asked(mcp.INITIALIZE)[0]) == {"who": "me"}
        assert (await server.reached.link_for(sessions[0], greeted=True))[0] is links[0][0]


async def test_a_link_that_its_client_greets_is_opened_without_a_word() -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script)
        await server.reached.link_for(Session("", 0), greeted=False)
        assert script.last.sent == []


async def test_stdio_is_shared_unless_each_session_shall_have_a_process() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script)
        for _ in range(3):
            _, sharers = await server.reached.link_for(Session("", 0), greeted=True)
            assert sharers is not None
        assert len(script.carriers) == 1
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(own_process=True))
        for _ in range(3):
            await server.reached.link_for(Session("", 0), greeted=True)
        assert len(script.carriers) == 4
