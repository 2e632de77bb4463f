"""A table that others fill stays small, whoever fills it and with what."""

from hypothesis import given
from hypothesis import strategies as st

from comity.sdk.bounded import Bounded


def test_the_oldest_goes_first() -> None:
    table: Bounded[int] = Bounded(2, 1_000)
    for number in range(3):
        table.put(str(number), number)
    assert [*table] == ["1", "2"]
    assert (table.get("0"), table.get("2"), "1" in table) == (None, 2, True)


def test_whoever_fills_it_pushes_out_its_own() -> None:
    table: Bounded[int] = Bounded(100, 10_000, share=3)
    table.put("precious", 1, owner="ana")
    for number in range(50):
        table.put(f"junk-{number}", number, owner="mallory")
    assert table.get("precious") == 1
    assert len(table) == 4


def test_nor_does_what_is_heavy_push_out_what_is_anothers() -> None:
    table: Bounded[int] = Bounded(100, 1_000, share=10)
    table.put("precious", 1, owner="ana")
    for number in range(50):
        table.put(f"{number}", number, weight=60, owner="mallory")
    assert table.get("precious") == 1
    assert len(table) == 2


def test_what_weighs_too_much_is_not_kept_and_pushes_nothing_out() -> None:
    table: Bounded[int] = Bounded(100, 100)
    table.put("small", 1, weight=10)
    table.put("huge", 2, weight=101)
    assert [*table] == ["small"]


def test_a_changed_value_is_as_old_as_before() -> None:
    table: Bounded[int] = Bounded(2, 100)
    table.put("a", 1)
    table.put("b", 2)
    table.change("a", 3)
    table.change("never", 4)
    assert table.get("a") == 3
    table.put("c", 4)
    assert [*table] == ["b", "c"]


@given(
    st.lists(
        st.tuples(st.text("ab", max_size=3), st.integers(0, 40), st.sampled_from(["x", "y", "z"]))
    )
)
def test_its_bounds_hold_whatever_is_put(puts: list[tuple[str, int, str]]) -> None:
    table: Bounded[str] = Bounded(5, 100, share=3)
    for key, weight, owner in puts:
        table.put(key, owner, weight, owner)
        assert len(table) <= 5
        assert table.weight <= 100
        owners = [table.get(each) for each in table]
        assert all(owners.count(each) <= 3 for each in owners)
    for key in table:
        table.pop(key)
    assert (len(table), table.weight) == (0, 0)
