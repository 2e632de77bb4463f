"""Reading what a server offers: page by page, within bounds, with the unusable set aside."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from msgspec import Raw

from comity.kernel import listing as room
from comity.kernel.breath import BREATH_BYTES, ENTRY_BYTES
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.links import Link
from comity.kernel.listing import Listing
from comity.kernel.sharing import Sharers
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INTERNAL_ERROR, MalformedMessage, Unavailable
from comity.wire.jsonrpc import LIMITS
from comity.wire.mcp import Era
from tests.kernel.carriers import SILENCE, AnySchema, Params, Reply, Script, params_of, settled

TOOLS = (Kind.TOOL,)


def no_change(method: str) -> None: ...


def no_end(link: Link, because: str) -> None: ...


async def linked(script: Script) -> Link:
    link = Link("srv", script.carrier(Era.HANDSHAKE), Sharers(no_change, no_end), LIMITS)
    await link.open()
    return link


async def read(
    script: Script, judge: AnySchema | None = None, kinds: tuple[Kind, ...] = TOOLS
) -> Catalog:
    catalog = Catalog()
    link = await linked(script)
    async with asyncio.timeout(10):
        await Listing(catalog, judge or AnySchema()).read(link, Era.HANDSHAKE, kinds)
    return catalog


def tools(*names: object) -> Params:
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}


def paged(*pages: list[object]) -> Callable[[Params], object]:
    def page(params: Params) -> object:
        number = int(str(params.get("cursor", "0")))
        more = {"nextCursor": str(number + 1)} if number + 1 < len(pages) else {}
        return {**tools(*pages[number]), **more}

    return page


async def test_every_page_is_read() -> None:
    script = Script(replies={mcp.LIST_TOOLS: paged(["a", "b"], [], ["c"])})
    catalog = await read(script)
    assert catalog.count("srv", Kind.TOOL) == 3
    asked = [params_of(frame).get("cursor") for frame in script.last.asked(mcp.LIST_TOOLS)]
    assert asked == [None, "1", "2"]


async def test_others_have_their_turn_while_a_long_list_is_read() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(take_turns())
    catalog = await read(Script(replies={mcp.LIST_TOOLS: tools(*map(str, range(5000)))}))
    other.cancel()
    assert catalog.count("srv", Kind.TOOL) == 5000
    assert turns >= 2 * 5000 * ENTRY_BYTES / BREATH_BYTES


async def test_a_definition_crosses_whole_under_its_public_name() -> None:
    entry = {"name": "a", "security": {"x": 1}, "_meta": {"y": [2]}}
    catalog = await read(Script(replies={mcp.LIST_TOOLS: {"tools": [entry]}}))
    offer = catalog.find(Kind.TOOL, "srv__a")
    assert offer is not None
    assert jsonrpc.value(offer.definition) == {**entry, "name": "srv__a"}
    assert offer.name == "a"


async def test_resources_keep_their_uris_and_templates_theirs() -> None:
    replies: dict[str, Reply] = {
        mcp.LIST_RESOURCES: {"resources": [{"uri": "x:1", "name": "one"}]},
        mcp.LIST_TEMPLATES: {"resourceTemplates": [{"uriTemplate": "y:{a}"}]},
        mcp.LIST_PROMPTS: {"prompts": [{"name": "p"}]},
    }
    catalog = await read(Script(replies=replies), kinds=tuple(Kind)[1:])
    assert catalog.find_resource("x:1") is not None
    assert catalog.find_resource("y:2") is not None
    assert catalog.find(Kind.PROMPT, "srv__p") is not None


async def test_a_cursor_that_repeats_itself_ends_the_list() -> None:
    replies: dict[str, Reply] = {mcp.LIST_TOOLS: {**tools("a"), "nextCursor": "again"}}
    script = Script(replies=replies)
    await read(script)
    assert len(script.last.asked(mcp.LIST_TOOLS)) == 2


async def test_a_list_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_PAGES", 5)

    def endless(params: Params) -> object:
        number = int(str(params.get("cursor", "0")))
        return {**tools(f"t{number}"), "nextCursor": str(number + 1)}

    assert (await read(Script(replies={mcp.LIST_TOOLS: endless}))).count("srv", Kind.TOOL) == 5


async def test_a_list_of_too_many_or_too_much_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(replies={mcp.LIST_TOOLS: paged(["a", "b"], ["c", "d"], ["e"])})
    monkeypatch.setattr(room, "MOST_OFFERS", 3)
    assert (await read(script)).count("srv", Kind.TOOL) == 3
    monkeypatch.setattr(room, "MOST_OFFERS", 100)
    monkeypatch.setattr(room, "MOST_BYTES", 10)
    assert (await read(script)).count("srv", Kind.TOOL) == 2


async def test_there_are_fewer_templates_than_other_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_TEMPLATES", 2)
    listed = {"resourceTemplates": [{"uriTemplate": f"x{n}:{{a}}"} for n in range(5)]}
    catalog = await read(Script(replies={mcp.LIST_TEMPLATES: listed}), kinds=(Kind.TEMPLATE,))
    assert catalog.count("srv", Kind.TEMPLATE) == 2


@pytest.mark.parametrize("name", [None, 5, "", "x" * 9000, {"a": 1}])
async def test_an_entry_without_a_usable_name_is_skipped(name: object) -> None:
    catalog = await read(Script(replies={mcp.LIST_TOOLS: tools("good", name)}))
    assert catalog.count("srv", Kind.TOOL) == 1


async def test_a_name_that_cannot_be_read_spoils_no_other() -> None:
    broken = Raw(b'{"tools":[{"name":{"a":1,"a":2}},{"name":"good"}]}')
    catalog = await read(Script(replies={mcp.LIST_TOOLS: broken}))
    assert catalog.find(Kind.TOOL, "good") is not None


async def test_a_tool_with_an_unusable_schema_is_quarantined_and_the_rest_works() -> None:
    judge = AnySchema({"inputSchema bad": "no such type"})
    catalog = await read(Script(replies={mcp.LIST_TOOLS: tools("good", "bad")}), judge)
    assert catalog.quarantined("srv") == {"bad": "inputSchema: no such type"}
    assert catalog.find(Kind.TOOL, "bad") is None
    assert catalog.find(Kind.TOOL, "good") is not None


async def test_both_schemas_of_a_tool_are_judged() -> None:
    entry = {"name": "a b", "inputSchema": {"x": 1}, "outputSchema": {"y": 2}}
    judge = AnySchema({"outputSchema a b": "odd"})
    catalog = await read(Script(replies={mcp.LIST_TOOLS: {"tools": [entry]}}), judge)
    assert judge.seen == [{"inputSchema a b": {"x": 1}, "outputSchema a b": {"y": 2}}]
    assert catalog.quarantined("srv") == {"a b": "outputSchema: odd"}


async def test_a_tool_without_a_schema_for_its_arguments_is_judged_for_that() -> None:
    judge = AnySchema({"inputSchema bare": "there is none"})
    listed = {"tools": [{"name": "bare"}, *cast("list[object]", tools("good")["tools"])]}
    catalog = await read(Script(replies={mcp.LIST_TOOLS: listed}), judge)
    assert judge.seen[0]["inputSchema bare"] is None
    assert catalog.quarantined("srv") == {"bare": "inputSchema: there is none"}
    assert catalog.find(Kind.TOOL, "good") is not None


async def test_a_schema_that_says_two_things_is_quarantined() -> None:
    broken = Raw(b'{"tools":[{"name":"bad","inputSchema":{"a":{"b":1,"b":2}}},{"name":"good"}]}')
    catalog = await read(Script(replies={mcp.LIST_TOOLS: broken}))
    assert list(catalog.quarantined("srv")) == ["bad"]
    assert catalog.find(Kind.TOOL, "good") is not None


async def test_a_schema_that_is_too_long_is_not_decoded() -> None:
    """Decoded, it would be set aside for what it says twice."""
    long = Raw(b'{"a":1,"a":"' + b"x" * 64 * 1024 + b'"}')
    entries: Params = {"tools": [{"name": "long", "inputSchema": long}, {"name": "fine"}]}
    catalog = await read(Script(replies={mcp.LIST_TOOLS: entries}))
    assert catalog.quarantined("srv", Kind.TOOL) == {"long": "inputSchema: it has over 65536 bytes"}
    assert catalog.count("srv", Kind.TOOL) == 1


async def test_of_two_tools_with_one_name_the_one_that_is_offered_is_the_one_judged() -> None:
    """Or a good schema, listed last, would vouch for the bad one that is offered."""
    listed = {"tools": [{"name": "t", "inputSchema": {"n": n}} for n in (1, 2)]}
    judge = AnySchema()
    catalog = await read(Script(replies={mcp.LIST_TOOLS: listed}), judge)
    offer = catalog.find(Kind.TOOL, "t")
    assert offer is not None
    assert judge.seen == [{"inputSchema t": {"n": 1}}]
    assert jsonrpc.value(offer.definition) == {"name": "srv__t", "inputSchema": {"n": 1}}


async def test_a_server_that_refuses_a_list_offers_nothing_of_it() -> None:
    refusal = Unavailable("no tools here", INTERNAL_ERROR)
    catalog = await read(Script(replies={mcp.LIST_TOOLS: refusal}))
    assert catalog.count("srv", Kind.TOOL) == 0


@pytest.mark.parametrize("misshapen", [{"tools": 5}, {"tools": [1]}, {"tools": None}, [], "x"])
async def test_a_misshapen_list_is_the_servers_fault(misshapen: object) -> None:
    with pytest.raises((Unavailable, MalformedMessage)):
        await read(Script(replies={mcp.LIST_TOOLS: misshapen}))


async def test_a_link_that_breaks_while_a_list_is_read_empties_no_shelf() -> None:
    script = Script(replies={mcp.LIST_TOOLS: tools("a")})
    link, catalog = await linked(script), Catalog()
    listing = Listing(catalog, AnySchema())
    await listing.read(link, Era.HANDSHAKE, TOOLS)
    script.replies[mcp.LIST_TOOLS] = SILENCE
    reading = asyncio.ensure_future(listing.read(link, Era.HANDSHAKE, TOOLS))
    await settled()
    script.last.dies()
    with pytest.raises(Unavailable):
        await reading
    assert catalog.count("srv", Kind.TOOL) == 1


async def test_in_the_modern_era_each_request_bears_its_envelope() -> None:
    script = Script(replies={mcp.LIST_TOOLS: tools("a")})
    await Listing(Catalog(), AnySchema()).read(await linked(script), Era.MODERN, TOOLS)
    (frame,) = script.last.asked(mcp.LIST_TOOLS)
    meta = params_of(frame)["_meta"]
    assert isinstance(meta, dict)
    assert meta[mcp.PROTOCOL_VERSION] == mcp.LATEST_MODERN
    assert script.last.headers_of(mcp.LIST_TOOLS) == {mcp.METHOD_HEADER: b"tools/list"}


async def test_a_definition_that_is_too_long_is_set_aside_as_it_is() -> None:
    long = {"name": "long", "description": "x" * 256 * 1024, "inputSchema": {"type": "object"}}
    entries: Params = {"tools": [long, {"name": "fine", "inputSchema": {"type": "object"}}]}
    catalog = await read(Script(replies={mcp.LIST_TOOLS: entries}))
    assert catalog.quarantined("srv", Kind.TOOL) == {"long": "it has over 262144 bytes"}
    assert catalog.count("srv", Kind.TOOL) == 1


async def test_a_definition_with_too_many_values_is_set_aside() -> None:
    wide: Params = {"name": "wide", "x": [{}] * 6_000, "inputSchema": {"type": "object"}}
    catalog = await read(Script(replies={mcp.LIST_TOOLS: {"tools": [wide]}}))
    assert catalog.quarantined("srv", Kind.TOOL) == {"wide": "more than 10000 values"}
