"""What a server may say unasked: much at once, little for ever, and answers without measure."""

from hypothesis import given
from hypothesis import strategies as st

from comity.rules.allowance import FEE, SHORTEST_REST, Allowance


def test_a_burst_is_heard_without_a_look_at_the_clock() -> None:
    allowance = Allowance(burst=10 * FEE)
    for _ in range(9):
        allowance.spend_on_noise(1)
        assert not allowance.is_spent
    allowance.spend_on_noise(FEE)
    assert allowance.is_spent


def test_who_has_spent_all_rests_until_it_is_earned_again() -> None:
    allowance = Allowance(burst=1000, each_second=100)
    allowance.spend(1200)
    assert allowance.rest(50.0) == 2.0
    assert allowance.is_spent
    assert allowance.rest(52.0) == 0.0
    assert not allowance.is_spent


def test_time_without_noise_fills_the_store_and_no_more_than_that() -> None:
    allowance = Allowance(burst=1000, each_second=100)
    allowance.spend(1001)
    assert allowance.rest(0.0) == SHORTEST_REST
    allowance.spend(500)
    assert allowance.rest(1_000_000.0) == 0.0
    allowance.spend(1000)
    assert not allowance.is_spent
    allowance.spend(1)
    assert allowance.is_spent


def test_an_answer_of_any_size_costs_nothing_once_it_is_whole() -> None:
    allowance = Allowance(burst=1000)
    for _ in range(100):
        allowance.spend(900)
        assert not allowance.is_spent
        allowance.give_back(900)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0.001, 10)), max_size=60))
def test_in_the_long_run_no_more_is_heard_than_was_earned(said: list[tuple[int, float]]) -> None:
    allowance, now, heard, largest = Allowance(burst=10_000, each_second=1000), 0.0, 0, 0
    allowance.rest(now)
    for size, pause in said:
        allowance.spend(size)
        heard, largest = heard + size, max(largest, size)
        now += pause
        if allowance.is_spent:
            now += allowance.rest(now)
    assert heard <= 10_000 + now * 1000 + largest
