"""The merged catalog: entries of all servers, their pages, URI templates and REST rows."""

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comity.catalog import catalog as catalog_module
from comity.catalog.catalog import (
    MAX_TAG_LENGTH,
    MAX_TAGS,
    MAX_TEMPLATE_LENGTH,
    Catalog,
    UriTemplate,
    UriTemplateIndex,
    catalog_row,
    metadata_of,
    read_tool,
    result_text,
    tags_of,
    wrap_result,
)
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name
from tests.support.cases import loop_over

TOOL, RESOURCE, TEMPLATE = EntryKind.TOOL, EntryKind.RESOURCE, EntryKind.TEMPLATE


def tool(server: str, name: str, body: bytes = b"") -> CatalogEntry:
    key = public_name(server, name)
    return CatalogEntry(key, server, name, b'{"name":"%b"%b}' % (key.encode(), body))


def resource(server: str, uri: str) -> CatalogEntry:
    return CatalogEntry(
        uri, server, uri, b'{"uri":"%b","of":"%b"}' % (uri.encode(), server.encode())
    )


def everyone(server: str) -> bool:
    return True


def listed(catalog: Catalog, kind: EntryKind = TOOL) -> list[bytes]:
    found, cursor = catalog.page(kind, everyone, None)
    while cursor is not None:
        more, cursor = catalog.page(kind, everyone, cursor)
        found += more
    return found


def test_entry_is_found_by_public_name_and_by_own_name_while_unique() -> None:
    catalog = Catalog()
    add = tool("a", "add")
    catalog.put("a", TOOL, [add])
    assert catalog.find(TOOL, "a__add") == catalog.find(TOOL, "add") == add
    assert catalog.find(EntryKind.PROMPT, "a__add") is None
    assert catalog.find(EntryKind.PROMPT, "add") is None
    catalog.put("b", TOOL, [tool("b", "add"), tool("b", "a__add")])
    assert catalog.find(TOOL, "add") is None
    assert catalog.find(TOOL, "a__add") == add, "a public name comes before an own name"
    catalog.put("b", TOOL, [])
    assert catalog.find(TOOL, "add") == add


IDS = ("a.b", "a_b", "a-b", "a..b", "a__b", "a", "a_", "b")
OWN_NAMES = ("x", "b__x", "_x", "x y")


def names_of(catalog: Catalog) -> dict[str, tuple[str, str]]:
    found = [each for server in catalog.servers(TOOL) for each in catalog.entries(server, TOOL)]
    assert len({each.key for each in found}) == len(found)
    for each in found:
        assert catalog.find_public(TOOL, each.key) == each
        assert read_tool(each.definition)["name"] == each.key
    return {each.key: (each.server, each.name) for each in found}


@given(st.permutations(IDS), st.permutations(IDS))
def test_names_depend_on_the_ids_alone_and_two_servers_never_share_one(
    order: list[str], leaving: list[str]
) -> None:
    catalog, known = Catalog(), set[str]()
    for server in order:
        catalog.put(server, TOOL, [tool(server, name) for name in OWN_NAMES])
        known.add(server)
        # The list of a server may come before another server with its prefix does.
        entries = [catalog.with_public_name(TOOL, tool(server, name)) for name in OWN_NAMES]
        catalog.put(server, TOOL, entries)
        fresh = Catalog()
        for each in sorted(known):
            fresh.add_server(each)
        for each in known:
            fresh.put(
                each, TOOL, [fresh.with_public_name(TOOL, tool(each, name)) for name in OWN_NAMES]
            )
        assert names_of(catalog) == names_of(fresh)
    for server in leaving:
        before = names_of(catalog)
        catalog.clear(server)
        catalog.remove_server(server)
        after = names_of(catalog)
        # Nobody inherits a name that another server had.
        assert all(before[key] == owner for key, owner in after.items() if key in before)


def test_servers_with_one_prefix_both_get_a_digest_until_one_is_gone() -> None:
    catalog, told = Catalog(), list[tuple[str, EntryKind]]()
    catalog.put("a.b", TOOL, [tool("a.b", "x")])
    assert list(names_of(catalog)) == ["a_b__x"]
    catalog.watch(lambda server, kind: told.append((server, kind)))
    catalog.add_server("a_b")
    assert told == [("a.b", TOOL)]
    (dotted,) = names_of(catalog)
    assert dotted != "a_b__x"
    assert catalog.find(TOOL, "a_b__x") is None
    catalog.put("a_b", TOOL, [catalog.with_public_name(TOOL, tool("a_b", "x"))])
    assert [each.server for each in catalog.find_sharing(TOOL, "a_b__x")] == ["a.b", "a_b"]
    assert catalog.find_written(TOOL, "a.b__x") == catalog.find_own("a.b", TOOL, "x")
    assert catalog.find_written(TOOL, "a_b__x") is None
    catalog.clear("a_b")
    assert dotted in names_of(catalog), "a server that is only stopped keeps its id"
    catalog.remove_server("a_b")
    assert names_of(catalog) == {"a_b__x": ("a.b", "x")}


def test_a_name_with_two_separators_is_not_read_as_a_written_one() -> None:
    catalog = Catalog()
    catalog.put("a", TOOL, [tool("a", "b.c__x")])
    assert catalog.find_written(TOOL, "a__b.c__x") is None


def test_a_change_replaces_one_shelf_and_tells_of_it() -> None:
    catalog, told = Catalog(), list[tuple[str, EntryKind]]()
    catalog.watch(lambda server, kind: told.append((server, kind)))
    assert catalog.put("a", TOOL, [tool("a", "x"), tool("a", "y")])
    assert catalog.put("b", TOOL, [tool("b", "z")])
    assert catalog.put("a", TOOL, [tool("a", "y")])
    assert told == [("a", TOOL), ("b", TOOL), ("a", TOOL)]
    assert catalog.find(TOOL, "a__x") is None
    assert catalog.find(TOOL, "x") is None
    assert len(listed(catalog)) == 2
    assert (catalog.count("a", TOOL), catalog.count("b", TOOL), catalog.count("c", TOOL)) == (
        1,
        1,
        0,
    )


def test_the_same_offers_in_another_order_are_no_change() -> None:
    catalog, told = Catalog(), list[str]()
    catalog.put("a", TOOL, [tool("a", "x"), tool("a", "y")])
    catalog.watch(lambda server, kind: told.append(server))
    assert not catalog.put("a", TOOL, [tool("a", "y"), tool("a", "x")])
    assert catalog.put("a", TOOL, [tool("a", "y"), tool("a", "x", b',"v":2')])
    assert told == ["a"]


def test_why_offers_are_quarantined_is_known_also_where_the_others_are_the_same() -> None:
    catalog = Catalog()
    catalog.put("a", TOOL, [tool("a", "x")], {"bad": "why"})
    assert catalog.quarantine_reasons("a") == {"bad": "why"}
    assert not catalog.put("a", TOOL, [tool("a", "x")], {"worse": "why not"})
    assert catalog.quarantine_reasons("a") == {"worse": "why not"}
    assert not catalog.put("a", TOOL, [tool("a", "x")])
    assert catalog.quarantine_reasons("a") == catalog.quarantine_reasons("nobody") == {}


def test_resource_of_several_servers_belongs_to_the_first_by_name() -> None:
    catalog = Catalog()
    for server in ("c", "a", "b"):
        catalog.put(server, RESOURCE, [resource(server, "x:1")])
    for server in ("a", "b", "c"):
        assert catalog.find_resource("x:1") == resource(server, "x:1")
        catalog.put(server, RESOURCE, [])
    assert catalog.find_resource("x:1") is None


def test_a_listed_resource_comes_before_a_template_that_it_fits() -> None:
    catalog = Catalog()
    catalog.put("a", TEMPLATE, [resource("a", "x:{+all}")])
    catalog.put("b", RESOURCE, [resource("b", "x:1")])
    assert catalog.find_resource("x:1") == resource("b", "x:1")
    assert catalog.find_resource("x:2") == resource("a", "x:{+all}")
    catalog.put("a", TEMPLATE, [])
    assert catalog.find_resource("x:2") is None


def test_a_server_that_is_gone_offers_nothing() -> None:
    catalog = Catalog()
    for kind in (TOOL, RESOURCE, TEMPLATE):
        catalog.put("a", kind, [resource("a", "x:{a}")])
    catalog.clear("a")
    catalog.clear("never there")
    assert [catalog.count("a", kind) for kind in EntryKind] == [0, 0, 0, 0]
    assert catalog.find_resource("x:1") is None


def test_the_order_does_not_depend_on_who_came_first() -> None:
    one, other = Catalog(), Catalog()
    for server in "abc":
        one.put(server, TOOL, [tool(server, name) for name in "xyz"])
    for server in "cab":
        other.put(server, TOOL, [tool(server, name) for name in "zxy"])
    assert listed(one) == listed(other) == sorted(listed(one))


def test_servers_that_are_not_shown_are_left_out() -> None:
    catalog = Catalog()
    for server in "abc":
        catalog.put(server, TOOL, [tool(server, "x")])
    found, cursor = catalog.page(TOOL, lambda server: server != "b", None)
    assert [b"a__" in found[0], b"c__" in found[1]] == [True, True]
    assert (len(found), cursor) == (2, None)


names = st.text(alphabet="abcd", min_size=1, max_size=3)
shelves = st.dictionaries(st.sampled_from("pqr"), st.sets(names, max_size=6), max_size=3)


changes = st.lists(st.tuples(st.sampled_from("pqr"), st.sets(names, max_size=6)), max_size=8)


@given(shelves, changes, st.integers(1, 3), st.sampled_from(["PAGE_ITEMS", "PAGE_BYTES"]))
def test_entries_that_stay_are_listed_exactly_once_while_others_change(
    held: dict[str, set[str]], steps: list[tuple[str, set[str]]], size: int, limit: str
) -> None:
    catalog, now = Catalog(), {server: set(tools) for server, tools in held.items()}
    for server, tools in held.items():
        catalog.put(server, TOOL, [tool(server, name) for name in tools])
    stayed = {(server, name) for server, tools in now.items() for name in tools}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_module, limit, size * 20 if limit == "PAGE_BYTES" else size)
        found, cursor = catalog.page(TOOL, everyone, None)
        for server, tools in steps:
            if cursor is None:
                break
            catalog.put(server, TOOL, [tool(server, name) for name in tools])
            now[server] = tools
            stayed &= {(each, name) for each, held_now in now.items() for name in held_now}
            more, cursor = catalog.page(TOOL, everyone, cursor)
            found += more
        while cursor is not None:
            more, cursor = catalog.page(TOOL, everyone, cursor)
            found += more
    assert len(found) == len(set(found))
    expected = {tool(*each).definition for each in stayed}
    assert expected <= set(found)
    assert steps or expected == set(found)


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode()


@loop_over(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "größe",
        _encoded("a"),
        _encoded(["a"]),
        _encoded([1, 2]),
        _encoded(["a", "b", "c"]),
        _encoded(["a", "b"]) + "!",
        _encoded(["a", "b"]) + "\n",
        base64.urlsafe_b64encode(b'["a", "b"]').decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
)
def test_a_cursor_that_was_not_given_out_is_refused(cursor: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Catalog().page(TOOL, everyone, cursor)
    assert caught.value.fault is INVALID_PARAMS


PRICE_TOOL = {
    "name": "finance__get_stockPrice",
    "description": "Tells a price.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "title": "Price"},
    "_meta": {"dev.comity/tags": ["quotes"], "dev.comity/category": "markets"},
}


def test_an_entry_has_the_registrys_four_members() -> None:
    assert catalog_row("finance", "get_stockPrice", PRICE_TOOL) == {
        "name": "finance__get_stockPrice",
        "description": "Tells a price.",
        "inputSchema": {"type": "object"},
        "tags": ["finance", "quotes", "read-only", "stock", "price"],
    }


def test_tags_are_few_short_and_printable() -> None:
    own = ["a\nb", "\x1b[2J", "", 7, "x" * 500, *(f"tag{number}" for number in range(50))]
    tags = tags_of("srv", "t", {"_meta": {"dev.comity/tags": own}})
    assert len(tags) == MAX_TAGS
    assert all(tag.isprintable() and len(tag) <= MAX_TAG_LENGTH for tag in tags)
    assert tags[:2] == ["srv", "a b"]


@loop_over(
    ("tool", "about", "metadata"),
    [
        (PRICE_TOOL, {"name": "quotes", "version": "2.1"}, ("markets", "2.1", False, "quotes")),
        ({"inputSchema": {"deprecated": True}}, {}, ("srv", "1.0.0", True, "srv")),
        ({"annotations": {"deprecated": True}}, {"version": 3}, ("srv", "1.0.0", True, "srv")),
        ({"_meta": [], "annotations": 1}, {"name": ""}, ("srv", "1.0.0", False, "srv")),
    ],
)
def test_what_is_known_of_a_tool_has_four_members(
    tool: Any, about: Any, metadata: tuple[object, ...]
) -> None:
    found = metadata_of("srv", tool, about)
    assert list(found) == ["category", "version", "deprecated", "author"]
    assert tuple(found.values()) == metadata


@loop_over("definition", [b"[]", b"{", b"7", b'{"a":1,"a":2}', b"\xff"])
def test_a_definition_that_is_none_is_an_empty_one(definition: bytes) -> None:
    assert read_tool(definition) == {}


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


@loop_over(
    ("result", "output"),
    [
        ({"content": [text("hi")]}, {"content": [text("hi")]}),
        (
            {"content": [text(' {"a": 1}')]},
            {"content": [text(' {"a": 1}')], "structuredContent": {"a": 1}},
        ),
        ({"content": [text('{"a": 1')]}, {"content": [text('{"a": 1')]}),
        ({"content": [text('{"a":1,"a":2}')]}, {"content": [text('{"a":1,"a":2}')]}),
        (
            {"structuredContent": {"a": 1}},
            {"content": [text('{"a":1}')], "structuredContent": {"a": 1}},
        ),
        (
            {"content": [text("x"), text('{"a":1}')], "structuredContent": {"b": 2}},
            {"content": [text("x"), text('{"a":1}')], "structuredContent": {"b": 2}},
        ),
        ({"content": "no list", "isError": False}, {"content": []}),
        ({"content": [7], "_meta": {"a": 1}}, {"content": [7], "_meta": {"a": 1}}),
        ({}, {"content": []}),
    ],
)
def test_an_output_has_both_forms_where_it_can(result: Any, output: object) -> None:
    assert json.loads(json.dumps(wrap_result(result))) == output


def test_what_a_result_says_is_its_texts() -> None:
    result = {"content": [text("one"), {"type": "image"}, 7, text("two")]}
    assert result_text(result) == "one\ntwo"


GAPS = ("{x}", "{+x}", "{?q}", "{/p*}")
pieces = st.one_of(st.sampled_from(GAPS), st.text(alphabet="ab/", min_size=1, max_size=2))
templates = st.lists(pieces, max_size=7).map("".join)
uris = st.text(alphabet="ab/?", max_size=9)


def slow_fits(template: str, uri: str) -> bool:
    """The same question put to a backtracking matcher, which small inputs can afford."""
    parts = re.split(r"(\{[^{}]*\})", template)
    pattern = "".join(
        re.escape(part)
        if not part.startswith("{")
        else (".*" if part[1] in "+#./;?&" else "[^/?#]*")
        for part in parts
    )
    return re.fullmatch(pattern, uri, re.DOTALL) is not None


@given(templates, uris)
@example("{+x}b{x}", "b/b")
@example("{x}a{x}/a", "aa/a")
@example("{+x}a{x}a{+x}", "a/a/aba")
def test_what_fits_is_what_a_slow_reading_says(template: str, uri: str) -> None:
    assert UriTemplate.parse(template).matches(uri) is slow_fits(template, uri)


@loop_over(
    ("template", "uri", "fits"),
    [
        ("file:///a", "file:///a", True),
        ("file:///a", "file:///ab", False),
        ("file:///{name}", "file:///a.txt", True),
        ("file:///{name}", "file:///a/b", False),
        ("file:///{+path}", "file:///a/b", True),
        ("notes://{user}/{id}.md", "notes://ann/7.md", True),
        ("notes://{user}/{id}.md", "notes://ann/7.txt", False),
        ("web://x{?q,lang}", "web://x?q=1&lang=de", True),
        ("web://x{?q,lang}", "web://y?q=1", False),
        ("{a}{b}", "ab", True),
        ("a{x}a", "a", False),
        ("a{", "a{", True),
    ],
)
def test_a_template_fits_what_it_can_make(template: str, uri: str, fits: bool) -> None:
    assert UriTemplate.parse(template).matches(uri) is fits


def test_a_uri_beyond_the_longest_fits_nothing() -> None:
    assert not UriTemplate.parse("{+x}").matches("a" * (MAX_TEMPLATE_LENGTH + 1))
    assert UriTemplate.parse("{+x}").matches("a" * MAX_TEMPLATE_LENGTH)


@loop_over(
    ("template", "uri"),
    [
        ("{x}a" * (MAX_TEMPLATE_LENGTH // 4), "a" * MAX_TEMPLATE_LENGTH),
        ("{+x}a{x}b" * (MAX_TEMPLATE_LENGTH // 9), "ab/" * (MAX_TEMPLATE_LENGTH // 3)),
        ("{x}" + "a" * 4000 + "b{y}", "a" * MAX_TEMPLATE_LENGTH),
        ("{" * MAX_TEMPLATE_LENGTH, "{" * MAX_TEMPLATE_LENGTH),
    ],
    ids=["many gaps", "mixed gaps", "a long literal", "no gap at all"],
)
@pytest.mark.timeout(20)
def test_a_hostile_template_takes_no_longer_than_an_honest_one(template: str, uri: str) -> None:
    """Each of these would keep a backtracking matcher busy for longer than anybody lives."""
    parsed = UriTemplate.parse(template)
    for _ in range(3):
        parsed.matches(uri + "!"[: MAX_TEMPLATE_LENGTH - len(uri)])


def test_an_index_finds_the_owner_with_the_longest_beginning() -> None:
    index: UriTemplateIndex[str] = UriTemplateIndex()
    index.add("file:///{+path}", "all")
    index.add("file:///home/{+path}", "home")
    assert index.find("file:///home/x") == "home"
    assert index.find("file:///etc/x") == "all"
    assert index.find("http://x") is None
    assert index.find("file:///" + "x" * MAX_TEMPLATE_LENGTH) is None


owned = st.tuples(templates, st.integers(0, 3))


@given(st.lists(st.tuples(st.booleans(), owned), max_size=12), uris)
def test_an_index_knows_what_was_added_and_not_removed(
    steps: list[tuple[bool, tuple[str, int]]], uri: str
) -> None:
    index: UriTemplateIndex[tuple[str, int]] = UriTemplateIndex()
    held: list[tuple[str, int]] = []
    for adds, owner in steps:
        if adds:
            index.add(owner[0], owner)
            held.append(owner)
        else:
            index.remove(owner[0], owner)
            held = [each for each in held if each != owner]
    found = index.find(uri)
    fitting = [owner for owner in held if slow_fits(owner[0], uri)]
    assert (found in fitting) if fitting else (found is None)
