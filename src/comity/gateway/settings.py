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
    max_message_bytes: int = setting(
        4 * 1024 * 1024, "The longest message that Comity reads.", number_type(1024, 2**30)
    )
    max_depth: int = setting(64, "How deeply a message may be nested.", number_type(8, 512))
    max_values: int = setting(20_000, "The values in one message of a client.", COUNT)
    max_server_values: int = setting(50_000, "The values in one message of a server.", COUNT)
    call_idle_timeout: timedelta = setting(
        timedelta(minutes=5), "How long a call may go on without progress."
    )
    call_total_timeout: timedelta = setting(
        timedelta(hours=1), "How long a call may take, even with progress."
    )
    stream_for_progress: bool = setting(
        True,
        "Whether tools that stream do so for clients that only know the progress of MCP.",
    )
    start_timeout: timedelta = setting(
        timedelta(seconds=60), "How long a server may take to start."
    )
    send_timeout: timedelta = setting(
        timedelta(seconds=30), "How long a server may leave a message unread."
    )
    pending_input_timeout: timedelta = setting(
        timedelta(minutes=10), "How long a call waits for the answer of a person or a client."
    )
    max_pending_input: int = setting(1_000, "Maximum calls that wait for such an answer.", COUNT)
    max_pending_input_per_principal: int = setting(100, "The same limit for one principal.", COUNT)
    session_idle_timeout: timedelta = setting(
        timedelta(minutes=30), "How long an unused client session stays open."
    )
    max_sessions: int = setting(20_000, "Maximum client sessions.", COUNT)
    max_sessions_per_principal: int = setting(1_000, "The same limit for one principal.", COUNT)
    max_streams_per_principal: int = setting(
        1_000, "Maximum event streams of one principal.", COUNT
    )
    max_requests_per_principal: int = setting(
        256, "The requests of one principal that have no answer yet.", COUNT
    )
    max_connections: int = setting(20_000, "Maximum client connections.", COUNT)
    max_connections_per_address: int = setting(
        1_000, "Maximum client connections per remote address.", COUNT
    )
    header_timeout: timedelta = setting(
        timedelta(seconds=10), "How long the head of a request may take."
    )
    keep_alive_timeout: timedelta = setting(
        timedelta(seconds=75), "How long an idle connection stays open."
    )
    shutdown_grace: timedelta = setting(
        timedelta(seconds=5), "How long open requests may still take when Comity stops."
    )
    rates: tuple[LimitRule, ...] = setting(
        (), "Rate limits and quotas of calls, by principal and tool.", RATES_TYPE, is_live=True
    )
    rate_cost_moderate: int = setting(
        1, "The number of calls that one call of moderate risk counts as, for rates.", _COST
    )
    rate_cost_dangerous: int = setting(
        1, "The number of calls that one dangerous call counts as, for rates.", _COST
    )
    retry_read_only: int = setting(
        0,
        "How often Comity repeats a failed call of a tool with readOnlyHint.",
        number_type(0, 10),
    )
    push_rate: int = setting(
        600, "The events that one server may push per minute and node; 0: no limit.", _RATE
    )
    push_rate_per_feature: int = setting(
        0, "The same limit for one feature set; 0: no limit.", _RATE
    )
    max_push_bytes: int = setting(
        256 * 1024, "The longest event that a server may push.", number_type(1024, 2**24)
    )
    max_queued_pushes: int = setting(
        10_000, "The events of one server that may wait to be handled.", COUNT
    )
    push_dedup_window: timedelta = setting(
        timedelta(days=30),
        "How long Comity remembers the ID of a pushed event, so that it counts once.",
    )
