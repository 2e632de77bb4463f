"""What is wanted of others: once each, bounded, and given up with the last who wants it."""

from hypothesis import given
from hypothesis import strategies as st

from comity.rules.event_wants import Wants


def test_what_several_want_is_given_up_with_the_last() -> None:
    wants = Wants[int]()
    assert wants.add(["a.b", "a.*"], 1, "ci") == ("a.b", "a.*")
    assert wants.add(["a.b"], 2, "ana") == ("a.b",)
    assert wants.of("a.b") == (1, 2)
    assert wants.drop(1) == ("a.*",)
    assert "a.b" in wants
    assert wants.drop(1) == ()
    assert wants.drop(2) == ("a.b",)
    assert list(wants) == []


def test_one_party_brings_in_so_many_and_shares_what_others_brought() -> None:
    wants = Wants[int](most=10, most_of_party=2)
    assert wants.add(["a.a", "a.b", "a.c"], 1, "ci") == ("a.a", "a.b")
    assert wants.add(["a.c", "a.a"], 2, "ana") == ("a.c", "a.a")
    assert wants.add(["a.c"], 3, "ci") == ("a.c",)
    assert wants.drop(1) == ("a.b",)
    # It brought in a.a, which another wants still; so there is room for one.
    assert wants.add(["a.d", "a.e"], 4, "ci") == ("a.d",)


def test_there_is_room_for_so_many_in_all() -> None:
    wants = Wants[int](most=2)
    assert wants.add(["a.a", "a.b", "a.c"], 1, "ci") == ("a.a", "a.b")
    assert wants.add(["a.d"], 2, "ana") == ()
    wants.drop(1)
    assert wants.add(["a.d"], 2, "ana") == ("a.d",)


_names = st.lists(st.sampled_from(["a.a", "a.b", "a.c", "b.*", "*"]), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 5), _names | st.none()), max_size=60))
def test_whatever_happens_only_what_somebody_wants_is_wanted(
    steps: list[tuple[int, list[str] | None]],
) -> None:
    wants, held = Wants[int](most=4, most_of_party=3), dict[int, set[str]]()
    for who, names in steps:
        if names is None:
            wants.drop(who)
            held.pop(who, None)
        else:
            held.setdefault(who, set()).update(wants.add(names, who, f"party{who % 2}"))
        assert set(wants) == {name for each in held.values() for name in each}
        assert len(list(wants)) <= 4
