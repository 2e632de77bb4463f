"""States of a server, restart rules and health checks: the pure decisions."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from comity.mcp.mgp import HealthStatus, RestartPolicy, ServerLifecycleState, ShutdownReason
from comity.servers.lifecycle import (
    TRANSITIONS,
    End,
    ExitReason,
    Health,
    HealthCheckSettings,
    LifecycleEvent,
    RestartAction,
    RestartRules,
    next_state,
    refusal_in,
)
from comity.servers.supervisor import DEFAULT_START_TIME, MIN_WAIT, ServerState, ServerTransition
from tests.support.cases import loop_over


def test_every_state_can_be_left_for_good() -> None:
    """Whatever a server is doing, it can be stopped."""
    for state in ServerLifecycleState:
        stopping = next_state(state, LifecycleEvent.ASKED_TO_STOP) or state
        assert (
            next_state(stopping, LifecycleEvent.EMPTIED) or stopping
        ) is ServerLifecycleState.DISCONNECTED


def test_restarting_leads_through_connecting_and_nowhere_else_that_is_up() -> None:
    following = {
        next_state(ServerLifecycleState.RESTARTING, happened) for happened in LifecycleEvent
    } - {None}
    assert following == {ServerLifecycleState.CONNECTING, ServerLifecycleState.DISCONNECTED}


def test_no_way_leads_to_connected_but_a_handshake() -> None:
    ways = {
        how for how, following in TRANSITIONS.items() if following is ServerLifecycleState.CONNECTED
    }
    assert ways == {(ServerLifecycleState.CONNECTING, LifecycleEvent.SHOOK_HANDS)}


@loop_over(
    ("state", "was_connected", "starts_on_use", "error_type"),
    [
        (ServerLifecycleState.REGISTERED, False, False, "server_not_ready"),
        (ServerLifecycleState.CONNECTING, False, False, "server_not_ready"),
        (ServerLifecycleState.CONNECTING, True, False, "server_restarting"),
        (ServerLifecycleState.RESTARTING, False, False, "server_not_ready"),
        (ServerLifecycleState.RESTARTING, True, False, "server_restarting"),
        (ServerLifecycleState.DRAINING, True, False, "server_draining"),
        (ServerLifecycleState.DISCONNECTED, True, False, "server_stopped"),
        (ServerLifecycleState.DISCONNECTED, True, True, "server_not_ready"),
        (ServerLifecycleState.ERROR, False, False, "server_stopped"),
        (ServerLifecycleState.ERROR, True, False, "server_stopped"),
    ],
)
def test_each_state_has_its_refusal(
    state: ServerLifecycleState, was_connected: bool, starts_on_use: bool, error_type: str
) -> None:
    assert refusal_in(state, was_connected, starts_on_use).error_type == error_type


def test_only_stopped_servers_are_not_worth_another_try() -> None:
    stopped = {ServerLifecycleState.ERROR, ServerLifecycleState.DISCONNECTED}
    for state in ServerLifecycleState:
        assert refusal_in(state, True, False).retryable is (state not in stopped)


def make_state() -> tuple[ServerState, list[ServerTransition]]:
    told = list[ServerTransition]()
    return ServerState("srv", told.append), told


def test_what_cannot_happen_in_a_state_is_not_told() -> None:
    server, told = make_state()
    server.apply_event(LifecycleEvent.EMPTIED, "nonsense")
    assert (server.state, server.reason, told) == (ServerLifecycleState.REGISTERED, "", [])


def test_a_first_start_is_guessed_to_take_a_second_and_the_next_one_as_long_as_the_last() -> None:
    server, _ = make_state()
    assert server.wait == DEFAULT_START_TIME
    server.start_duration = timedelta(seconds=4)
    assert server.wait == timedelta(seconds=4)
    server.set_next_start(timedelta(hours=1))
    assert timedelta(minutes=59) < server.wait <= timedelta(hours=1, seconds=4)
    server.set_next_start(None)
    assert server.wait == timedelta(seconds=4)


def test_nobody_is_told_to_come_back_at_once() -> None:
    server, _ = make_state()
    server.start_duration = timedelta(0)
    server.set_next_start(timedelta(0))
    assert server.wait == MIN_WAIT


def test_only_a_refusal_that_passes_says_when() -> None:
    server, _ = make_state()
    server.apply_event(LifecycleEvent.STARTED, "")
    assert server.refusal().retry_after is not None
    server.apply_event(LifecycleEvent.FAILED, "exit status 7")
    refusal = server.refusal()
    assert refusal.retry_after is None
    assert str(refusal) == "server 'srv' is error: exit status 7"


NOW = datetime(2026, 2, 27, 12, tzinfo=UTC)

ENDS: list[End] = [*ExitReason, *ShutdownReason]


def ago(*seconds: float) -> list[datetime]:
    return [NOW - timedelta(seconds=each) for each in seconds]


@loop_over(
    ("earlier", "following"),
    [
        ([], RestartAction.AGAIN),
        (ago(1, 2, 3, 4), RestartAction.AGAIN),
        (ago(1, 2, 3, 4, 5), RestartAction.GIVE_UP),
        (ago(1, 2, 3, 4, 299), RestartAction.GIVE_UP),
        (ago(1, 2, 3, 4, 300), RestartAction.AGAIN),
        (ago(*range(300, 900)), RestartAction.AGAIN),
    ],
    ids=["none", "four", "five", "just inside", "just outside", "long ago"],
)
def test_five_restarts_in_five_minutes_are_enough(
    earlier: list[datetime], following: RestartAction
) -> None:
    assert RestartRules().action_after(ExitReason.FAILED, earlier, NOW) is following


@loop_over(
    ("rules", "end", "earlier", "following"),
    [
        (RestartRules(), ExitReason.LEFT, ago(1), RestartAction.ON_USE),
        (RestartRules(), ExitReason.LEFT, ago(1, 2, 3, 4, 5), RestartAction.GIVE_UP),
        # A remote server may be away for an hour, and costs nothing here.
        (
            RestartRules(max_restarts=None),
            ExitReason.FAILED,
            ago(*range(1000)),
            RestartAction.AGAIN,
        ),
        (RestartRules(max_restarts=0), ExitReason.FAILED, [], RestartAction.GIVE_UP),
    ],
)
def test_limit_counts_every_restart(
    rules: RestartRules, end: End, earlier: list[datetime], following: RestartAction
) -> None:
    assert rules.action_after(end, earlier, NOW) is following


def test_why_nothing_follows_is_told_in_the_words_of_the_document() -> None:
    why = RestartRules().give_up_reason(ago(1, 2, 3, 4, 5, 400), NOW)
    assert why == "restart_limit_exceeded: started again 5 times in 300 s"
    assert "never" in RestartRules(RestartPolicy.NEVER).give_up_reason([], NOW)


any_restarts = st.builds(
    RestartRules,
    st.sampled_from(RestartPolicy),
    st.none() | st.integers(0, 6),
    st.timedeltas(timedelta(seconds=1), timedelta(hours=1)),
)

any_past = st.lists(st.floats(0, 10_000).map(lambda seconds: NOW - timedelta(seconds=seconds)))


@given(any_restarts, any_past)
def test_no_history_and_no_policy_undoes_what_an_operator_said(
    restarts: RestartRules, earlier: list[datetime]
) -> None:
    assert (
        restarts.action_after(ShutdownReason.OPERATOR_REQUEST, earlier, NOW) is RestartAction.STAY
    )
    assert restarts.action_after(ShutdownReason.KERNEL_SHUTDOWN, earlier, NOW) is RestartAction.STAY
    assert (
        restarts.action_after(ShutdownReason.CONFIGURATION_CHANGE, earlier, NOW)
        is RestartAction.AGAIN
    )


@given(any_restarts, any_past, st.sampled_from(ENDS))
def test_fewer_restarts_never_lead_to_giving_up_earlier(
    restarts: RestartRules, earlier: list[datetime], end: End
) -> None:
    if restarts.action_after(end, earlier, NOW) is not RestartAction.GIVE_UP:
        assert restarts.action_after(end, earlier[1:], NOW) is not RestartAction.GIVE_UP


@given(any_restarts, st.lists(st.floats(0.01, 1000), min_size=1, max_size=200))
def test_in_no_window_is_a_server_started_again_more_often_than_it_may_be(
    restarts: RestartRules, lives: list[float]
) -> None:
    now, times = NOW, list[datetime]()
    for life in lives:
        now += timedelta(seconds=life)
        if restarts.action_after(ExitReason.FAILED, times, now) is not RestartAction.AGAIN:
            break
        times.append(now)
        assert (
            restarts.max_restarts is None
            or len(restarts.recent_restarts(times, now)) <= restarts.max_restarts
        )


PROBING = HealthCheckSettings()

NOT_LONG = timedelta(seconds=20)

TOO_LONG = timedelta(minutes=5)


def missing(times: int) -> Health:
    health = Health()
    for _ in range(times):
        health = health.after_miss()
    return health


@loop_over(
    ("missed", "busy", "silent", "lost"),
    [
        (0, False, NOT_LONG, False),
        (1, False, NOT_LONG, False),
        (2, False, TOO_LONG, False),
        (3, False, NOT_LONG, True),
        (3, True, NOT_LONG, False),
        (40, True, NOT_LONG, False),
        (3, True, TOO_LONG, True),
        (2, True, TOO_LONG, False),
    ],
)
def test_a_server_is_lost_after_three_misses_and_a_busy_one_only_when_no_call_could_last_so_long(
    missed: int, busy: bool, silent: timedelta, lost: bool
) -> None:
    assert PROBING.is_lost(missing(missed), busy, silent) is lost


def test_one_in_doubt_is_asked_again_soon() -> None:
    assert PROBING.delay_after(Health()) == timedelta(seconds=30)
    assert PROBING.delay_after(missing(1)) == timedelta(seconds=1)
    often = HealthCheckSettings(interval=timedelta(milliseconds=10))
    assert often.delay_after(missing(1)) == timedelta(milliseconds=10)


def test_an_interval_of_zero_asks_never() -> None:
    assert PROBING.is_enabled
    assert not HealthCheckSettings(interval=timedelta(0)).is_enabled


@loop_over(
    ("said", "status"),
    [
        ("healthy", HealthStatus.HEALTHY),
        ("degraded", HealthStatus.DEGRADED),
        ("unhealthy", HealthStatus.UNHEALTHY),
        ("splendid", None),
        (None, None),
    ],
)
def test_what_a_server_says_of_itself_is_kept_where_it_is_a_word_of_the_document(
    said: str | None, status: HealthStatus | None
) -> None:
    answered = missing(9).after_answer(said)
    assert answered == Health(status)
    assert not PROBING.is_lost(answered, False, TOO_LONG)


@given(st.lists(st.sampled_from(["miss", "answer", "sign"])))
def test_only_misses_in_a_row_are_counted(happened: list[str]) -> None:
    health, row = Health(), 0
    for each in happened:
        if each == "miss":
            health, row = health.after_miss(), row + 1
        else:
            alive = each == "sign"
            health = health.after_sign_of_life() if alive else health.after_answer("healthy")
            row = 0
        assert health.missed == row
