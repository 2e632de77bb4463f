"""What follows the end of a server: every row by hand, the limit, and what nobody may undo."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.restarts import FOLLOWING, End, Ended, Next, Restarts
from comity.wire.lifecycle import Reason, RestartPolicy

NOW = datetime(2026, 2, 27, 12, tzinfo=UTC)
ENDS: list[End] = [*Ended, *Reason]
COUNTED = (Next.AGAIN, Next.ON_USE)

ROWS = """
end                  | never   | on_failure | always
failed               | give up | again      | again
left                 | stay    | on use     | again
resource_limit       | give up | again      | again
idle_timeout         | on use  | on use     | on use
configuration_change | again   | again      | again
operator_request     | stay    | stay       | stay
kernel_shutdown      | stay    | stay       | stay
"""


def rows() -> dict[tuple[str, str], str]:
    head, *lines = [[cell.strip() for cell in line.split("|")] for line in ROWS.split("\n") if line]
    return {(end, head[n]): cell for end, *row in lines for n, cell in enumerate(row, 1)}


def ago(*seconds: float) -> list[datetime]:
    return [NOW - timedelta(seconds=each) for each in seconds]


def test_the_table_is_the_one_that_is_written_here() -> None:
    assert {(str(end), str(policy)): str(to) for (end, policy), to in FOLLOWING.items()} == rows()


@pytest.mark.parametrize(
    ("earlier", "following"),
    [
        ([], Next.AGAIN),
        (ago(1, 2, 3, 4), Next.AGAIN),
        (ago(1, 2, 3, 4, 5), Next.GIVE_UP),
        (ago(1, 2, 3, 4, 299), Next.GIVE_UP),
        (ago(1, 2, 3, 4, 300), Next.AGAIN),
        (ago(*range(300, 900)), Next.AGAIN),
    ],
    ids=["none", "four", "five", "just inside", "just outside", "long ago"],
)
def test_five_restarts_in_five_minutes_are_enough(earlier: list[datetime], following: Next) -> None:
    assert Restarts().after(Ended.FAILED, earlier, NOW) is following


def test_a_server_that_always_leaves_is_not_started_for_ever_either() -> None:
    assert Restarts().after(Ended.LEFT, ago(1, 2, 3, 4, 5), NOW) is Next.GIVE_UP
    assert Restarts().after(Ended.LEFT, ago(1), NOW) is Next.ON_USE


def test_without_a_limit_a_server_is_tried_for_ever() -> None:
    """A remote one may be away for an hour, and costs nothing here."""
    assert Restarts(most=None).after(Ended.FAILED, ago(*range(1000)), NOW) is Next.AGAIN


def test_a_limit_of_none_at_all_is_one() -> None:
    assert Restarts(most=0).after(Ended.FAILED, [], NOW) is Next.GIVE_UP


def test_why_nothing_follows_is_told_in_the_words_of_the_document() -> None:
    why = Restarts().why_not(ago(1, 2, 3, 4, 5, 400), NOW)
    assert why == "restart_limit_exceeded: started again 5 times in 300 s"
    assert "never" in Restarts(RestartPolicy.NEVER).why_not([], NOW)


any_restarts = st.builds(
    Restarts,
    st.sampled_from(RestartPolicy),
    st.none() | st.integers(0, 6),
    st.timedeltas(timedelta(seconds=1), timedelta(hours=1)),
)
any_past = st.lists(st.floats(0, 10_000).map(lambda seconds: NOW - timedelta(seconds=seconds)))


@given(any_restarts, any_past)
def test_no_history_and_no_policy_undoes_what_an_operator_said(
    restarts: Restarts, earlier: list[datetime]
) -> None:
    assert restarts.after(Reason.OPERATOR_REQUEST, earlier, NOW) is Next.STAY
    assert restarts.after(Reason.KERNEL_SHUTDOWN, earlier, NOW) is Next.STAY
    assert restarts.after(Reason.CONFIGURATION_CHANGE, earlier, NOW) is Next.AGAIN


@given(any_restarts, any_past, st.sampled_from(ENDS))
def test_fewer_restarts_never_lead_to_giving_up_earlier(
    restarts: Restarts, earlier: list[datetime], end: End
) -> None:
    if restarts.after(end, earlier, NOW) is not Next.GIVE_UP:
        assert restarts.after(end, earlier[1:], NOW) is not Next.GIVE_UP


@given(any_restarts, st.lists(st.floats(0.01, 1000), min_size=1, max_size=200))
def test_in_no_window_is_a_server_started_again_more_often_than_it_may_be(
    restarts: Restarts, lives: list[float]
) -> None:
    now, times = NOW, list[datetime]()
    for life in lives:
        now += timedelta(seconds=life)
        if restarts.after(Ended.FAILED, times, now) is not Next.AGAIN:
            break
        times.append(now)
        assert restarts.most is None or len(restarts.within(times, now)) <= restarts.most
