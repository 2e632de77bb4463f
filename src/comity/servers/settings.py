"""Settings for the supervision of a server, and their names in MGP."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from comity.config.fields import (
    DURATION_OR_NEVER,
    FieldType,
    fields_of,
    number_type,
    one_of,
    setting,
    text_list_type,
    unit_count_type,
)

type RestartChoice = Literal["never", "on_failure", "always"]


@dataclass(frozen=True, slots=True)
class SupervisionSettings:
    """How a server is supervised while it runs, and what happens when it stops. (MGP §11.5)"""

    restart_policy: RestartChoice = setting(
        "on_failure", "When Comity starts the server again after it stopped."
    )
    max_restarts: int = setting(
        5, "The restarts within the window; after them there is none.", number_type(0, 1_000_000)
    )
    restart_window: timedelta = setting(
        timedelta(seconds=300), "The time in which restarts are counted."
    )
    backoff_base: timedelta = setting(
        timedelta(seconds=1), "The wait before the first restart; it doubles."
    )
    backoff_max: timedelta = setting(timedelta(seconds=30), "The longest wait before a restart.")
    health_interval: timedelta = setting(
        timedelta(seconds=30), "How often Comity checks its health; 0: never.", DURATION_OR_NEVER
    )
    drain_timeout: timedelta = setting(
        timedelta(seconds=30), "How long its open calls may still take before Comity stops it."
    )
    idle_timeout: timedelta = setting(
        timedelta(0),
        "How long it may be unused before Comity stops it until its next use; 0: for ever.",
        DURATION_OR_NEVER,
    )
    max_memory_mb: int = setting(
        0,
        "The megabytes that its processes may hold; more counts as a failure; 0: any number.",
        number_type(0, 10_000_000),
    )
    max_processes: int = setting(
        0,
        "The processes that it may have in its sandbox; 0: as its trust level says.",
        number_type(0, 100_000),
    )
    max_open_files: int = setting(
        0,
        "The files that one of its processes may hold open; 0: as its trust level says.",
        number_type(0, 1_000_000),
    )
    max_file_mb: int = setting(
        0,
        "The megabytes of a file that it writes; 0: as its trust level says.",
        number_type(0, 10_000_000),
    )
    max_cpu_percent: int = setting(
        0, "Its share of the CPU: 100 is one core; 0: any share.", number_type(0, 100_000)
    )


_NAMES: Final = text_list_type(r"\S+", "a name, as network.outbound")
_OWN: Final = fields_of(SupervisionSettings)

DEFAULT_POLICY_BY_MGP_NAME: Final = {"opt-in": "deny", "opt-out": "allow"}
"""The default policies of MGP, as `mgp.toml` spells them. (MGP §5.5)"""

# The names of MGP in the table `mgp` of a server, and the field of each. (MGP §11.5, §15.2)
MGP_SETTINGS: Final[dict[str, tuple[str, FieldType]]] = {
    "restart_policy": ("restart_policy", _OWN["restart_policy"].kind),
    "max_restarts": ("max_restarts", _OWN["max_restarts"].kind),
    "restart_window_secs": ("restart_window", unit_count_type(timedelta(seconds=1))),
    "backoff_base_ms": ("backoff_base", unit_count_type(timedelta(milliseconds=1))),
    "backoff_max_ms": ("backoff_max", unit_count_type(timedelta(milliseconds=1))),
    "trust_level": ("trust_level", one_of("trusted", "standard", "sandboxed")),
    "permissions_required": ("permissions_required", _NAMES),
    "extensions": ("extensions", _NAMES),
}
