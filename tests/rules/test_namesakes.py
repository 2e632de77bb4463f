"""Names that look alike: who keeps his, among many and as servers come and go."""

from hypothesis import given
from hypothesis import strategies as st

from comity.rules.namesakes import Namesakes, skeleton, style_less

NAME = st.text("abil10O_-.", min_size=1, max_size=6)


def test_whoever_was_accepted_first_keeps_the_name() -> None:
    names = Namesakes()
    names.add("files", "delete", 1)
    names.add("rogue", "de1ete", 2)
    assert names.rival("rogue", "de1ete") == ("files", "delete")
    assert names.rival("files", "delete") is None
    names.remove("files", "delete")
    assert names.rival("rogue", "de1ete") is None
    names.add("files", "delete", 3)
    assert names.rival("files", "delete") == ("rogue", "de1ete")


def test_of_two_that_came_together_the_plainer_name_stays() -> None:
    names = Namesakes()
    for server, name in (("a", "de1ete"), ("b", "delete")):
        names.add(server, name, 1)
    assert names.rival("a", "de1ete") == ("b", "delete")
    assert names.rival("b", "delete") is None


def test_one_name_at_two_servers_is_no_rival() -> None:
    names = Namesakes()
    for server, name in (("a", "create_issue"), ("b", "create_issue"), ("c", "Create-Issue")):
        names.add(server, name, 1)
    assert [names.rival(*place) for place in names.alike("create_issue")] == [None] * 3
    names.add("c", "create.issue", 2)
    assert names.rival("c", "create.issue") == ("c", "Create-Issue")


def test_what_is_not_there_has_its_rivals_too() -> None:
    names = Namesakes()
    names.add("a", "list", 1)
    names.add("a", "other", 1)
    names.remove("a", "unknown")
    assert names.rival("b", "Iist") is None
    names.add("b", "Iist", 5)
    assert names.rival("c", "1ist") == ("a", "list")
    assert names.alike("unknown") == []


@given(st.lists(st.tuples(st.sampled_from("ab"), NAME, st.integers(0, 3)), max_size=12))
def test_of_all_that_look_alike_in_a_server_one_is_left(
    tools: list[tuple[str, str, int]],
) -> None:
    names, places = Namesakes(), {(server, name): since for server, name, since in tools}
    for (server, name), since in places.items():
        names.add(server, name, since)
    left = [place for place in places if names.rival(*place) is None]
    looks = [(server, skeleton(name)) for server, name in left]
    assert len(looks) == len(set(looks))
    for one, other in ((a, b) for a in left for b in left if a < b):
        alike = skeleton(one[1]) == skeleton(other[1])
        assert not alike or style_less(one[1]) == style_less(other[1])


@given(NAME)
def test_a_skeleton_is_its_own(name: str) -> None:
    assert skeleton(skeleton(name)) == skeleton(name)
