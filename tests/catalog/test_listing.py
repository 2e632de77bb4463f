"""Reading the lists of a server: page by page, within limits, and again when they change."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw

from comity.catalog import listing as listing_module
from comity.catalog.catalog import Catalog
from comity.catalog.listing import CatalogReader
from comity.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import LIMITS
from comity.mcp.protocol import Era
from comity.servers.connection_users import ConnectionUsers
from comity.sessions.upstream import UpstreamConnection
from comity.toolkit.background import BREATH_BYTES, ENTRY_BYTES
from tests.support.carriers import (
    SILENCE,
    AnySchema,
    Params,
    Reply,
    Script,
    ScriptedCarrier,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.server_house import AT_ONCE, House, connected, options, standing, tools

TOOLS = (EntryKind.TOOL,)


def no_change(method: str) -> None: ...


def no_end(link: UpstreamConnection, because: str) -> None: ...


async def linked(script: Script) -> UpstreamConnection:
    link = UpstreamConnection(
        "srv", script.create_transport(Era.HANDSHAKE), ConnectionUsers(no_change, no_end), LIMITS
    )
    await link.open()
    return link


async def read(
    script: Script, judge: AnySchema | None = None, kinds: tuple[EntryKind, ...] = TOOLS
) -> Catalog:
    catalog = Catalog()
    link = await linked(script)
    async with asyncio.timeout(10):
        await CatalogReader(catalog, judge or AnySchema()).read(link, Era.HANDSHAKE, kinds)
    return catalog


def tool_list(*names: object) -> Params:
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}


def paged(*pages: list[object]) -> Callable[[Params], object]:
    def page(params: Params) -> object:
        number = int(str(params.get("cursor", "0")))
        more = {"nextCursor": str(number + 1)} if number + 1 < len(pages) else {}
        return {**tool_list(*pages[number]), **more}

    return page


async def test_every_page_is_read() -> None:
    script = Script(replies={protocol.LIST_TOOLS: paged(["a", "b"], [], ["c"])})
    catalog = await read(script)
    assert catalog.count("srv", EntryKind.TOOL) == 3
    asked = [params_of(frame).get("cursor") for frame in script.last.asked(protocol.LIST_TOOLS)]
    assert asked == [None, "1", "2"]


async def test_others_have_their_turn_while_a_long_list_is_read() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(take_turns())
    catalog = await read(Script(replies={protocol.LIST_TOOLS: tool_list(*map(str, range(5000)))}))
    other.cancel()
    assert catalog.count("srv", EntryKind.TOOL) == 5000
    assert turns >= 2 * 5000 * ENTRY_BYTES / BREATH_BYTES


async def test_a_definition_crosses_whole_under_its_public_name() -> None:
    entry = {"name": "a", "security": {"x": 1}, "_meta": {"y": [2]}}
    catalog = await read(Script(replies={protocol.LIST_TOOLS: {"tools": [entry]}}))
    offer = catalog.find(EntryKind.TOOL, "srv__a")
    assert offer is not None
    assert jsonrpc.decode_value(offer.definition) == {**entry, "name": "srv__a"}
    assert offer.name == "a"


async def test_resources_keep_their_uris_and_templates_theirs() -> None:
    replies: dict[str, Reply] = {
        protocol.LIST_RESOURCES: {"resources": [{"uri": "x:1", "name": "one"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": [{"uriTemplate": "y:{a}"}]},
        protocol.LIST_PROMPTS: {"prompts": [{"name": "p"}]},
    }
    catalog = await read(Script(replies=replies), kinds=tuple(EntryKind)[1:])
    assert catalog.find_resource("x:1") is not None
    assert catalog.find_resource("y:2") is not None
    assert catalog.find(EntryKind.PROMPT, "srv__p") is not None


async def test_a_cursor_that_repeats_itself_ends_the_list() -> None:
    replies: dict[str, Reply] = {protocol.LIST_TOOLS: {**tool_list("a"), "nextCursor": "again"}}
    script = Script(replies=replies)
    await read(script)
    assert len(script.last.asked(protocol.LIST_TOOLS)) == 2


async def test_list_is_cut_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(params: Params) -> object:
        number = int(str(params.get("cursor", "0")))
        return {**tool_list(f"t{number}", f"u{number}"), "nextCursor": str(number + 1)}

    script = Script(replies={protocol.LIST_TOOLS: endless})
    for limit, value, count in (
        ("MAX_PAGES", 5, 10),
        ("MAX_ENTRIES", 3, 3),
        ("MAX_LIST_BYTES", 10, 2),
    ):
        monkeypatch.setattr(listing_module, limit, value)
        assert (await read(script)).count("srv", EntryKind.TOOL) == count


async def test_there_are_fewer_templates_than_other_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "MAX_TEMPLATES", 2)
    listed = {"resourceTemplates": [{"uriTemplate": f"x{n}:{{a}}"} for n in range(5)]}
    catalog = await read(
        Script(replies={protocol.LIST_TEMPLATES: listed}), kinds=(EntryKind.TEMPLATE,)
    )
    assert catalog.count("srv", EntryKind.TEMPLATE) == 2


@loop_over("name", [None, 5, "", "x" * 9000, {"a": 1}, Raw(b'{"a":1,"a":2}')])
async def test_entry_without_a_usable_name_is_skipped(name: object) -> None:
    catalog = await read(Script(replies={protocol.LIST_TOOLS: tool_list("good", name)}))
    assert catalog.count("srv", EntryKind.TOOL) == 1
    assert catalog.find(EntryKind.TOOL, "good") is not None


LONG_SCHEMA = Raw(b'{"a":1,"a":"' + b"x" * 64 * 1024 + b'"}')
TWOFOLD_SCHEMA = Raw(b'{"a":{"b":1,"b":2}}')


@loop_over(
    ("members", "because"),
    [
        ({"inputSchema": {"x": 1}}, "inputSchema: odd"),
        ({}, "inputSchema: odd"),
        ({"inputSchema": TWOFOLD_SCHEMA}, "inputSchema: "),
        # Decoded, it would be set aside for the key that it has twice.
        ({"inputSchema": LONG_SCHEMA}, "inputSchema: it has over 65536 bytes"),
        ({"description": "x" * 256 * 1024}, "it has over 262144 bytes"),
        ({"x": [{}] * 6_000}, "more than 10000 values"),
    ],
)
async def test_unusable_tool_is_quarantined_and_the_others_are_offered(
    members: Params, because: str
) -> None:
    judge = AnySchema({"inputSchema bad": "odd"})
    listed: Params = {"tools": [{"name": "bad", **members}, {"name": "good", "inputSchema": {}}]}
    catalog = await read(Script(replies={protocol.LIST_TOOLS: listed}), judge)
    (told,) = catalog.quarantine_reasons("srv").items()
    assert told[0] == "bad"
    assert told[1].startswith(because)
    assert catalog.find(EntryKind.TOOL, "bad") is None
    assert catalog.find(EntryKind.TOOL, "good") is not None


async def test_both_schemas_of_a_tool_are_judged() -> None:
    entries = [{"name": "a b", "inputSchema": {"x": 1}, "outputSchema": {"y": 2}}, {"name": "bare"}]
    judge = AnySchema({"outputSchema a b": "odd"})
    catalog = await read(Script(replies={protocol.LIST_TOOLS: {"tools": entries}}), judge)
    assert judge.seen == [
        {"inputSchema a b": {"x": 1}, "outputSchema a b": {"y": 2}, "inputSchema bare": None}
    ]
    assert catalog.quarantine_reasons("srv") == {"a b": "outputSchema: odd"}


async def test_of_two_tools_with_one_name_the_one_that_is_offered_is_the_one_judged() -> None:
    """Or a good schema, listed last, would vouch for the bad one that is offered."""
    listed = {"tools": [{"name": "t", "inputSchema": {"n": n}} for n in (1, 2)]}
    judge = AnySchema()
    catalog = await read(Script(replies={protocol.LIST_TOOLS: listed}), judge)
    offer = catalog.find(EntryKind.TOOL, "t")
    assert offer is not None
    assert judge.seen == [{"inputSchema t": {"n": 1}}]
    assert jsonrpc.decode_value(offer.definition) == {"name": "srv__t", "inputSchema": {"n": 1}}


@loop_over("misshapen", [{"tools": 5}, {"tools": [1]}, {"tools": None}, [], "x"])
async def test_malformed_list_is_a_fault_of_the_server(misshapen: object) -> None:
    with pytest.raises((Unavailable, MalformedMessage)):
        await read(Script(replies={protocol.LIST_TOOLS: misshapen}))


async def test_server_that_refuses_a_list_offers_nothing_of_it() -> None:
    refusal = Unavailable("no tools here", INTERNAL_ERROR)
    catalog = await read(Script(replies={protocol.LIST_TOOLS: refusal}))
    assert catalog.count("srv", EntryKind.TOOL) == 0


async def test_a_link_that_breaks_while_a_list_is_read_empties_no_shelf() -> None:
    script = Script(replies={protocol.LIST_TOOLS: tool_list("a")})
    link, catalog = await linked(script), Catalog()
    listing = CatalogReader(catalog, AnySchema())
    await listing.read(link, Era.HANDSHAKE, TOOLS)
    script.replies[protocol.LIST_TOOLS] = SILENCE
    reading = asyncio.ensure_future(listing.read(link, Era.HANDSHAKE, TOOLS))
    await settled()
    script.last.dies()
    with pytest.raises(Unavailable):
        await reading
    assert catalog.count("srv", EntryKind.TOOL) == 1


async def test_in_the_modern_era_each_request_bears_its_envelope() -> None:
    script = Script(replies={protocol.LIST_TOOLS: tool_list("a")})
    await CatalogReader(Catalog(), AnySchema()).read(await linked(script), Era.MODERN, TOOLS)
    (frame,) = script.last.asked(protocol.LIST_TOOLS)
    meta = params_of(frame)["_meta"]
    assert isinstance(meta, dict)
    assert meta[protocol.PROTOCOL_VERSION] == protocol.LATEST_MODERN
    assert script.last.headers_of(protocol.LIST_TOOLS) == {protocol.METHOD_HEADER: b"tools/list"}


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[House, Script, ScriptedCarrier]]:
    """A modern server with one tool, at which Comity listens for changes."""
    async with standing() as house:
        replies: dict[str, Reply] = {protocol.LIST_TOOLS: tools("a")}
        script = Script(handshake=False, modern=True, replies=replies)
        await connected(house, script, options(backoff=AT_ONCE))
        (carrier,) = script.open
        await until(lambda: carrier.asked(protocol.LISTEN))
        yield house, script, carrier


async def test_changed_list_of_a_modern_server_is_read_again() -> None:
    async with listening() as (house, script, carrier):
        (stream,) = carrier.asked(protocol.LISTEN)
        script.replies[protocol.LIST_TOOLS] = tools("a", "b")
        carrier.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED), amid=stream)
        carrier.says(jsonrpc.make_notification("vendor/note"), amid=stream)
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 2)


async def test_stream_of_changes_that_ends_is_opened_again_and_nothing_is_missed() -> None:
    async with listening() as (house, script, carrier):
        script.replies[protocol.LIST_TOOLS] = tools("a", "b")
        carrier.answers(carrier.asked(protocol.LISTEN)[0], {"resultType": "complete"})
        await until(lambda: len(carrier.asked(protocol.LISTEN)) == 2)
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 2)


async def test_server_without_a_stream_of_changes_is_not_asked_again() -> None:
    async with listening() as (_, _, carrier):
        (asked,) = carrier.asked(protocol.LISTEN)
        assert isinstance(asked.id, int)
        carrier.says(jsonrpc.make_error(asked.id, METHOD_NOT_FOUND, "no such method"), amid=asked)
        await settled()
        assert len(carrier.asked(protocol.LISTEN)) == 1


async def test_a_change_told_to_a_server_that_died_meanwhile_hides_no_later_one() -> None:
    async with standing() as house:
        script = Script(replies={protocol.LIST_TOOLS: tools("a")})
        await connected(house, script, options(backoff=AT_ONCE))
        script.replies[protocol.LIST_TOOLS] = SILENCE
        first = script.open[-1]
        for _ in range(2):
            # The second change finds the first one's reading under way, and waits behind it.
            first.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
            await settled()
        script.replies[protocol.LIST_TOOLS] = tools("a", "b")
        first.dies("killed")
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 2)
        script.replies[protocol.LIST_TOOLS] = tools("a", "b", "c")
        script.open[-1].says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 3)


async def test_a_change_told_on_a_bridge_is_told_on_where_the_catalog_is_the_same() -> None:
    """Some servers have other lists in each session, and tell the one that changed alone."""
    async with standing() as house:
        script = Script(replies={protocol.LIST_TOOLS: tools("a")})
        server = await connected(house, script)
        link = await server.connections.bridge_connection({}, ANONYMOUS)
        told: list[tuple[str, EntryKind]] = []
        house.catalog.watch(lambda name, kind: told.append((name, kind)))
        bridge = next(each for each in script.open if each is link.transport)
        bridge.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        assert told == [("srv", EntryKind.TOOL)]
        own = next(each for each in script.open if each is not bridge)
        await until(lambda: len(own.asked(protocol.LIST_TOOLS)) == 2)
