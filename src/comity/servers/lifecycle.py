"""Server states, and the rules of restarts and health checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from comity.errors import (
    SERVER_DRAINING,
    SERVER_NOT_READY,
    SERVER_RESTARTING,
    SERVER_STOPPED,
    Fault,
)
from comity.mcp.mgp import HealthStatus, RestartPolicy, ServerLifecycleState, ShutdownReason
from comity.toolkit.text import count_noun


class LifecycleEvent(StrEnum):
    """The events that change the state of a server."""

    STARTED = "started"
    SHOOK_HANDS = "shook hands"
    FAILED = "failed"
    LEFT = "left"
    ASKED_TO_STOP = "asked to stop"
    EMPTIED = "emptied"
    ASKED_TO_RESTART = "asked to restart"


TRANSITIONS: Final[dict[tuple[ServerLifecycleState, LifecycleEvent], ServerLifecycleState]] = {
    (ServerLifecycleState.REGISTERED, LifecycleEvent.STARTED): ServerLifecycleState.CONNECTING,
    (
        ServerLifecycleState.REGISTERED,
        LifecycleEvent.ASKED_TO_STOP,
    ): ServerLifecycleState.DISCONNECTED,
    (ServerLifecycleState.CONNECTING, LifecycleEvent.SHOOK_HANDS): ServerLifecycleState.CONNECTED,
    (ServerLifecycleState.CONNECTING, LifecycleEvent.FAILED): ServerLifecycleState.ERROR,
    (
        ServerLifecycleState.CONNECTING,
        LifecycleEvent.ASKED_TO_STOP,
    ): ServerLifecycleState.DISCONNECTED,
    (
        ServerLifecycleState.CONNECTING,
        LifecycleEvent.ASKED_TO_RESTART,
    ): ServerLifecycleState.RESTARTING,
    (ServerLifecycleState.CONNECTED, LifecycleEvent.FAILED): ServerLifecycleState.ERROR,
    (ServerLifecycleState.CONNECTED, LifecycleEvent.LEFT): ServerLifecycleState.DISCONNECTED,
    (ServerLifecycleState.CONNECTED, LifecycleEvent.ASKED_TO_STOP): ServerLifecycleState.DRAINING,
    (
        ServerLifecycleState.CONNECTED,
        LifecycleEvent.ASKED_TO_RESTART,
    ): ServerLifecycleState.DRAINING,
    (ServerLifecycleState.DRAINING, LifecycleEvent.EMPTIED): ServerLifecycleState.DISCONNECTED,
    (ServerLifecycleState.DRAINING, LifecycleEvent.FAILED): ServerLifecycleState.DISCONNECTED,
    (
        ServerLifecycleState.DRAINING,
        LifecycleEvent.ASKED_TO_RESTART,
    ): ServerLifecycleState.RESTARTING,
    (ServerLifecycleState.ERROR, LifecycleEvent.ASKED_TO_RESTART): ServerLifecycleState.RESTARTING,
    (ServerLifecycleState.ERROR, LifecycleEvent.ASKED_TO_STOP): ServerLifecycleState.DISCONNECTED,
    (ServerLifecycleState.RESTARTING, LifecycleEvent.STARTED): ServerLifecycleState.CONNECTING,
    (
        ServerLifecycleState.RESTARTING,
        LifecycleEvent.ASKED_TO_STOP,
    ): ServerLifecycleState.DISCONNECTED,
    (ServerLifecycleState.DISCONNECTED, LifecycleEvent.STARTED): ServerLifecycleState.CONNECTING,
    (
        ServerLifecycleState.DISCONNECTED,
        LifecycleEvent.ASKED_TO_RESTART,
    ): ServerLifecycleState.RESTARTING,
}


def next_state(state: ServerLifecycleState, event: LifecycleEvent) -> ServerLifecycleState | None:
    """Return the state that follows an event, or None if the event has no effect in this state."""
    return TRANSITIONS.get((state, event))


def refusal_in(state: ServerLifecycleState, was_connected: bool, starts_on_use: bool) -> Fault:
    """Return why a call is refused in this state. Only temporary states are worth a retry."""
    if state is ServerLifecycleState.DRAINING:
        return SERVER_DRAINING
    if state is ServerLifecycleState.ERROR or (
        state is ServerLifecycleState.DISCONNECTED and not starts_on_use
    ):
        return SERVER_STOPPED
    # A server that was never connected is not starting "again" for any caller.
    again = was_connected and state in (
        ServerLifecycleState.RESTARTING,
        ServerLifecycleState.CONNECTING,
    )
    return SERVER_RESTARTING if again else SERVER_NOT_READY


NEVER, ON_FAILURE, ALWAYS = RestartPolicy


class ExitReason(StrEnum):
    """How a server ended by itself. Otherwise a `ShutdownReason` says why it was ended."""

    FAILED = "failed"
    """It exited with an error, lost its connection, could not be started or did not answer."""
    LEFT = "left"
    """It exited by itself with status 0."""


class RestartAction(StrEnum):
    """The action after the end of a server."""

    AGAIN = "again"
    ON_USE = "on use"
    STAY = "stay"
    GIVE_UP = "give up"


type End = ExitReason | ShutdownReason

ACTION_BY_END: Final[dict[tuple[End, RestartPolicy], RestartAction]] = {
    (ExitReason.FAILED, NEVER): RestartAction.GIVE_UP,
    (ExitReason.FAILED, ON_FAILURE): RestartAction.AGAIN,
    (ExitReason.FAILED, ALWAYS): RestartAction.AGAIN,
    (ExitReason.LEFT, NEVER): RestartAction.STAY,
    (ExitReason.LEFT, ON_FAILURE): RestartAction.ON_USE,
    (ExitReason.LEFT, ALWAYS): RestartAction.AGAIN,
    # A server that exceeded a limit has failed, whatever its exit status is.
    (ShutdownReason.RESOURCE_LIMIT, NEVER): RestartAction.GIVE_UP,
    (ShutdownReason.RESOURCE_LIMIT, ON_FAILURE): RestartAction.AGAIN,
    (ShutdownReason.RESOURCE_LIMIT, ALWAYS): RestartAction.AGAIN,
    **{(ShutdownReason.IDLE_TIMEOUT, policy): RestartAction.ON_USE for policy in RestartPolicy},
    **{
        (ShutdownReason.CONFIGURATION_CHANGE, policy): RestartAction.AGAIN
        for policy in RestartPolicy
    },
    # Otherwise no operator could ever stop a server. (D-22)
    **{(ShutdownReason.OPERATOR_REQUEST, policy): RestartAction.STAY for policy in RestartPolicy},
    **{(ShutdownReason.KERNEL_SHUTDOWN, policy): RestartAction.STAY for policy in RestartPolicy},
}


@dataclass(frozen=True, slots=True)
class RestartRules:
    """How often the supervisor may restart a server. None means without a limit."""

    policy: RestartPolicy = ON_FAILURE
    max_restarts: int | None = 5
    window: timedelta = timedelta(seconds=300)

    def recent_restarts(self, earlier: Sequence[datetime], now: datetime) -> list[datetime]:
        """Return the earlier restarts that still count."""
        return [at for at in earlier if now - at < self.window]

    def action_after(self, end: End, earlier: Sequence[datetime], now: datetime) -> RestartAction:
        """Return what follows this end, after these restarts."""
        following = ACTION_BY_END[end, self.policy]
        is_its_own = isinstance(end, ExitReason) or end is ShutdownReason.RESOURCE_LIMIT
        counts = following in (RestartAction.AGAIN, RestartAction.ON_USE) and is_its_own
        if (
            counts
            and self.max_restarts is not None
            and len(self.recent_restarts(earlier, now)) >= self.max_restarts
        ):
            return RestartAction.GIVE_UP
        return following

    def give_up_reason(self, earlier: Sequence[datetime], now: datetime) -> str:
        """Return why a failed server is not started again, for its reason. (MGP §11.5)"""
        if self.policy is NEVER:
            return "its restart policy is never"
        window = f"{self.window.total_seconds():g} s"
        times = len(self.recent_restarts(earlier, now))
        return f"restart_limit_exceeded: started again {count_noun(times, 'time')} in {window}"


@dataclass(frozen=True, slots=True)
class HealthCheckSettings:
    """When a server is probed for its health. Zero for `interval` means never."""

    interval: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(seconds=5)
    max_missed: int = 3
    # How soon the next probe follows an unanswered probe or a failed call.
    doubt_interval: timedelta = timedelta(seconds=1)
    # How long a server with active calls may be silent.
    busy_timeout: timedelta = timedelta(minutes=5)

    @property
    def is_enabled(self) -> bool:
        return self.interval > timedelta(0)

    def delay_after(self, health: "Health") -> timedelta:
        """Return how long to wait before the next probe."""
        return min(self.doubt_interval, self.interval) if health.missed else self.interval

    def is_lost(self, health: "Health", busy: bool, silent_for: timedelta) -> bool:
        """Whether the server counts as lost. `silent_for` is the time since its last message."""
        if health.missed < self.max_missed:
            return False
        return not busy or silent_for >= self.busy_timeout


@dataclass(frozen=True, slots=True)
class Health:
    """The last reported status of a server, and the number of unanswered probes in a row."""

    status: HealthStatus | None = None
    missed: int = 0

    def after_answer(self, status: str | None) -> "Health":
        """Return the health after an answer. An unknown status shows only a live server."""
        return Health(HealthStatus(status) if status in set(HealthStatus) else None)

    def after_sign_of_life(self) -> "Health":
        """Return the health after another message of the server. Its last reported status stays."""
        return Health(self.status)

    def after_miss(self) -> "Health":
        return Health(self.status, self.missed + 1)
