"""The table `[limits]`: bounds of messages, calls, sessions and connections."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.fields import COUNT, number_type, setting
from comity.policy.limits import LimitRule
from comity.policy.settings import RATES_TYPE

_COST: Final = number_type(1, 10_000)
_RATE: Final = number_type(0, 10_000_000)


@dataclass(frozen=True, slots=True)
class LimitSettings:
    frame_bytes: int = setting(
        4 * 1024 * 1024, "The longest message that Comity reads.", number_type(1024, 2**30)
    )
    depth: int = setting(64, "How deeply a message may be nested.", number_type(8, 512))
    max_values: int = setting(20_000, "The values in one message of a client.", COUNT)
    max_server_values: int = setting(50_000, "The values in one message of a server.", COUNT)
    call_deadline: timedelta = setting(
        timedelta(minutes=5), "How long a call may go on without progress."
    )
    call_cap: timedelta = setting(
        timedelta(hours=1), "How long a call may take, even with progress."
    )
    stream_for_progress: bool = setting(
        True,
        "Whether tools that stream do so for clients that only know the progress of MCP.",
    )
    start_deadline: timedelta = setting(
        timedelta(seconds=60), "How long a server may take to start."
    )
    send_deadline: timedelta = setting(
        timedelta(seconds=30), "How long a server may leave a message unread."
    )
    parked_deadline: timedelta = setting(
        timedelta(minutes=10), "How long a call waits for the answer of a person or a client."
    )
    max_parked: int = setting(1_000, "The calls that wait for such an answer at once.", COUNT)
    max_parked_per_principal: int = setting(100, "The number of them of one principal.", COUNT)
    idle_session: timedelta = setting(
        timedelta(minutes=30), "How long an unused client session stays open."
    )
    max_sessions: int = setting(20_000, "The client sessions open at once.", COUNT)
    max_sessions_per_principal: int = setting(1_000, "The number of them of one principal.", COUNT)
    max_streams_per_principal: int = setting(
        1_000, "The event streams of one principal at once.", COUNT
    )
    max_requests_per_principal: int = setting(
        256, "The requests of one principal that have no answer yet.", COUNT
    )
    max_connections: int = setting(20_000, "The client connections open at once.", COUNT)
    max_connections_per_address: int = setting(
        1_000, "The number of them from one remote address.", COUNT
    )
    header_deadline: timedelta = setting(
        timedelta(seconds=10), "How long the head of a request may take."
    )
    keep_alive: timedelta = setting(
        timedelta(seconds=75), "How long an idle connection stays open."
    )
    shutdown_grace: timedelta = setting(
        timedelta(seconds=5), "How long open requests may still take when Comity stops."
    )
    rates: tuple[LimitRule, ...] = setting(
        (), "Rate limits and quotas of calls, by principal and tool.", RATES_TYPE, is_live=True
    )
    moderate_cost: int = setting(
        1, "The number of calls that one call of moderate risk counts as, for rates.", _COST
    )
    dangerous_cost: int = setting(
        1, "The number of calls that one dangerous call counts as, for rates.", _COST
    )
    retry_read_only: int = setting(
        0,
        "How often Comity repeats a failed call of a tool that says it only reads.",
        number_type(0, 10),
    )
    push_rate: int = setting(
        600, "The events that one server may push in a minute, at each node; 0: any number.", _RATE
    )
    push_set_rate: int = setting(0, "The number of them by one feature set; 0: any number.", _RATE)
    push_bytes: int = setting(
        256 * 1024, "The longest event that a server may push.", number_type(1024, 2**24)
    )
    push_waiting: int = setting(
        10_000, "The events of one server that may wait to be handled.", COUNT
    )
    push_remembered: timedelta = setting(
        timedelta(days=30),
        "How long Comity remembers the id of a pushed event, so that it counts once.",
    )
