"""The merged catalog: shelves replaced one at a time, names told apart, pages without gaps."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.kernel import catalog as room
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.rules.names import public_name
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

TOOL, RESOURCE, TEMPLATE = Kind.TOOL, Kind.RESOURCE, Kind.TEMPLATE


def tool(server: str, name: str, body: bytes = b"") -> Offer:
    key = public_name(server, name)
    return Offer(key, server, name, b'{"name":"%b"%b}' % (key.encode(), body))


def resource(server: str, uri: str) -> Offer:
    return Offer(uri, server, uri, b'{"uri":"%b","of":"%b"}' % (uri.encode(), server.encode()))


def everyone(server: str) -> bool:
    return True


def listed(catalog: Catalog, kind: Kind = TOOL) -> list[bytes]:
    found, cursor = catalog.page(kind, everyone, None)
    while cursor is not None:
        more, cursor = catalog.page(kind, everyone, cursor)
        found += more
    return found


def test_an_offer_is_found_by_its_public_name_and_by_its_own_while_that_is_unique() -> None:
    catalog = Catalog()
    add = tool("a", "add")
    catalog.put("a", TOOL, [add])
    assert catalog.find(TOOL, "a__add") == catalog.find(TOOL, "add") == add
    catalog.put("b", TOOL, [tool("b", "add")])
    assert catalog.find(TOOL, "add") is None
    assert catalog.find(TOOL, "a__add") == add
    catalog.put("b", TOOL, [])
    assert catalog.find(TOOL, "add") == add


def test_a_public_name_comes_before_a_bare_one() -> None:
    catalog = Catalog()
    catalog.put("a", TOOL, [tool("a", "x")])
    catalog.put("b", TOOL, [tool("b", "a__x")])
    found = catalog.find(TOOL, "a__x")
    assert found is not None
    assert found.server == "a"


def test_kinds_do_not_share_names() -> None:
    catalog = Catalog()
    catalog.put("a", TOOL, [tool("a", "x")])
    assert catalog.find(Kind.PROMPT, "a__x") is None
    assert catalog.find(Kind.PROMPT, "x") is None


def test_a_change_replaces_one_shelf_and_tells_of_it() -> None:
    catalog, told = Catalog(), list[tuple[str, Kind]]()
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
    assert catalog.quarantined("a") == {"bad": "why"}
    assert not catalog.put("a", TOOL, [tool("a", "x")], {"worse": "why not"})
    assert catalog.quarantined("a") == {"worse": "why not"}
    assert not catalog.put("a", TOOL, [tool("a", "x")])
    assert catalog.quarantined("a") == catalog.quarantined("nobody") == {}


def test_a_resource_of_two_servers_is_the_firsts_until_that_one_drops_it() -> None:
    catalog = Catalog()
    catalog.put("a", RESOURCE, [resource("a", "x:1")])
    catalog.put("b", RESOURCE, [resource("b", "x:1")])
    assert catalog.find_resource("x:1") == resource("a", "x:1")
    catalog.put("a", RESOURCE, [])
    assert catalog.find_resource("x:1") == resource("b", "x:1")
    catalog.put("b", RESOURCE, [])
    assert catalog.find_resource("x:1") is None


def test_who_is_quicker_does_not_take_a_resource_from_another() -> None:
    catalog = Catalog()
    for server in ("c", "a", "b"):
        catalog.put(server, RESOURCE, [resource(server, "x:1")])
    assert catalog.find_resource("x:1") == resource("a", "x:1")
    catalog.put("a", RESOURCE, [])
    assert catalog.find_resource("x:1") == resource("b", "x:1")


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
    assert [catalog.count("a", kind) for kind in Kind] == [0, 0, 0, 0]
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


@given(shelves, st.integers(1, 5))
def test_pages_hold_everything_exactly_once(held: dict[str, set[str]], size: int) -> None:
    catalog = Catalog()
    for server, tools in held.items():
        catalog.put(server, TOOL, [tool(server, name) for name in tools])
    everything = sorted(tool(s, name).definition for s, tools in held.items() for name in tools)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "PAGE_ITEMS", size)
        assert sorted(listed(catalog)) == everything
        patch.setattr(room, "PAGE_ITEMS", 1000)
        patch.setattr(room, "PAGE_BYTES", size * 20)
        assert sorted(listed(catalog)) == everything


changes = st.lists(st.tuples(st.sampled_from("pqr"), st.sets(names, max_size=6)), max_size=8)


@given(shelves, changes, st.integers(1, 3))
def test_what_stays_while_shelves_change_is_listed_exactly_once(
    held: dict[str, set[str]], steps: list[tuple[str, set[str]]], size: int
) -> None:
    catalog, now = Catalog(), {server: set(tools) for server, tools in held.items()}
    for server, tools in held.items():
        catalog.put(server, TOOL, [tool(server, name) for name in tools])
    stayed = {(server, name) for server, tools in now.items() for name in tools}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "PAGE_ITEMS", size)
        found, cursor = catalog.page(TOOL, everyone, None)
        for server, tools in steps:
            catalog.put(server, TOOL, [tool(server, name) for name in tools])
            now[server] = tools
            stayed &= {(each, name) for each, held_now in now.items() for name in held_now}
            if cursor is None:
                break
            more, cursor = catalog.page(TOOL, everyone, cursor)
            found += more
        while cursor is not None:
            more, cursor = catalog.page(TOOL, everyone, cursor)
            found += more
    assert len(found) == len(set(found))
    missed = {tool(*each).definition for each in stayed} - set(found)
    assert missed == set()


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode()


@pytest.mark.parametrize(
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


def test_a_cursor_of_a_server_that_left_goes_on_behind_it() -> None:
    catalog = Catalog()
    for server in "abc":
        catalog.put(server, TOOL, [tool(server, "x"), tool(server, "y")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "PAGE_ITEMS", 3)
        _, cursor = catalog.page(TOOL, everyone, None)
        catalog.clear("b")
        found, following = catalog.page(TOOL, everyone, cursor)
    assert (found, following) == ([tool("c", "x").definition, tool("c", "y").definition], None)
