"""The seven states of a server's life, as said on the wire. (MGP §11)"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from msgspec import Raw

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import Frame

HEALTH_PING: Final = "mgp/health/ping"
HEALTH_STATUS: Final = "mgp/health/status"
SHUTDOWN: Final = "mgp/lifecycle/shutdown"
CHANGED: Final = "notifications/mgp.lifecycle"


class State(StrEnum):
    REGISTERED = "registered"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DRAINING = "draining"
    DISCONNECTED = "disconnected"
    ERROR = "error"
    RESTARTING = "restarting"


class Status(StrEnum):
    """How a server says it is. (MGP §11.3)"""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class Reason(StrEnum):
    """Why a server is asked to shut down. (MGP §11.4)"""

    OPERATOR_REQUEST = "operator_request"
    CONFIGURATION_CHANGE = "configuration_change"
    RESOURCE_LIMIT = "resource_limit"
    IDLE_TIMEOUT = "idle_timeout"
    KERNEL_SHUTDOWN = "kernel_shutdown"


class RestartPolicy(StrEnum):
    """When a server is started again after its end. (MGP §11.5)"""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


def shutdown_in(params: Mapping[str, Raw]) -> Reason:
    """Why somebody wants an end. Raises MalformedMessage. (MGP §11.4)"""
    said = jsonrpc.text(params.get("reason"))
    if said not in set(Reason):
        known = ", ".join(Reason)
        raise MalformedMessage(f"reason is one of {known}", INVALID_PARAMS)
    return Reason(str(said))


def moment(at: datetime) -> str:
    """A point in time as MGP writes it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def changed(server: str, previous: State, state: State, reason: str, at: datetime) -> Frame:
    """The notice that a server has gone from one state to another. (MGP §11.4)"""
    told = {
        "server_id": server,
        "previous_state": previous,
        "new_state": state,
        "reason": reason,
        "timestamp": moment(at),
    }
    return jsonrpc.notification(CHANGED, told)
