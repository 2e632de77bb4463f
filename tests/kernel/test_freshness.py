"""What is listed of a server is as fresh as the server tells."""

from comity.kernel.catalog import Kind
from comity.wire import jsonrpc, mcp
from comity.wire.errors import METHOD_NOT_FOUND
from tests.kernel.carriers import SILENCE, Reply, Script, settled, until
from tests.kernel.server_house import AT_ONCE, connected, options, standing, tools


async def test_a_changed_list_of_a_modern_server_is_read_again() -> None:
    async with standing() as house:
        replies: dict[str, Reply] = {mcp.LIST_TOOLS: tools("a")}
        script = Script(handshake=False, modern=True, replies=replies)
        await connected(house, script)
        (carrier,) = script.open
        await until(lambda: carrier.asked(mcp.LISTEN))
        (listening,) = carrier.asked(mcp.LISTEN)
        script.replies[mcp.LIST_TOOLS] = tools("a", "b")
        carrier.says(jsonrpc.notification(mcp.TOOLS_CHANGED), amid=listening)
        carrier.says(jsonrpc.notification("vendor/note"), amid=listening)
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 2)


async def test_a_listening_that_ends_is_begun_again_and_nothing_is_missed() -> None:
    async with standing() as house:
        replies: dict[str, Reply] = {mcp.LIST_TOOLS: tools("a")}
        script = Script(handshake=False, modern=True, replies=replies)
        await connected(house, script, options(backoff=AT_ONCE))
        (carrier,) = script.open
        await until(lambda: carrier.asked(mcp.LISTEN))
        script.replies[mcp.LIST_TOOLS] = tools("a", "b")
        carrier.answers(carrier.asked(mcp.LISTEN)[0], {"resultType": "complete"})
        await until(lambda: len(carrier.asked(mcp.LISTEN)) == 2)
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 2)


async def test_a_server_that_knows_no_listening_is_not_asked_again() -> None:
    async with standing() as house:
        replies: dict[str, Reply] = {mcp.LIST_TOOLS: tools("a")}
        script = Script(handshake=False, modern=True, replies=replies)
        await connected(house, script, options(backoff=AT_ONCE))
        (carrier,) = script.open
        await until(lambda: carrier.asked(mcp.LISTEN))
        (asked,) = carrier.asked(mcp.LISTEN)
        assert isinstance(asked.id, int)
        carrier.says(jsonrpc.failure(asked.id, METHOD_NOT_FOUND, "no such method"), amid=asked)
        await settled()
        assert len(carrier.asked(mcp.LISTEN)) == 1


async def test_a_change_told_to_a_server_that_died_meanwhile_hides_no_later_one() -> None:
    async with standing() as house:
        script = Script(replies={mcp.LIST_TOOLS: tools("a")})
        await connected(house, script, options(backoff=AT_ONCE))
        script.replies[mcp.LIST_TOOLS] = SILENCE
        first = script.open[-1]
        for _ in range(2):
            # The second change finds the first one's reading under way, and waits behind it.
            first.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
            await settled()
        script.replies[mcp.LIST_TOOLS] = tools("a", "b")
        first.dies("killed")
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 2)
        script.replies[mcp.LIST_TOOLS] = tools("a", "b", "c")
        script.open[-1].says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        await until(lambda: house.catalog.count("srv", Kind.TOOL) == 3)


async def test_a_change_told_on_a_bridge_is_told_on_where_the_catalog_is_the_same() -> None:
    """Some servers have other lists in each session, and tell the one that changed alone."""
    async with standing() as house:
        script = Script(replies={mcp.LIST_TOOLS: tools("a")})
        server = await connected(house, script)
        link = await server.reached.bridge_link({})
        told: list[tuple[str, Kind]] = []
        house.catalog.watch(lambda name, kind: told.append((name, kind)))
        bridge = next(each for each in script.open if each is link.carrier)
        bridge.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
        assert told == [("srv", Kind.TOOL)]
        own = next(each for each in script.open if each is not bridge)
        await until(lambda: len(own.asked(mcp.LIST_TOOLS)) == 2)
