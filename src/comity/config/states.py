"""What can be decided of state that servers leave with the gateway, as rows. (MCPL §8)"""

from typing import Final

from comity.config.kinds import DURATION, DURATION_OR_NEVER, number
from comity.config.setting import Setting

STATES: Final = (
    Setting(
        "most_bytes",
        "state",
        number(1_024, 16 * 1024 * 1024),
        "how long the state of a feature set may be; of a longer one only its name is kept",
        "state_bytes",
    ),
    Setting(
        "keep",
        "state",
        number(1, 100_000),
        "how many checkpoints of a feature set are kept; the current one always is",
        "state_keep",
    ),
    Setting(
        "keep_for",
        "state",
        DURATION_OR_NEVER,
        "how long they are; 0 keeps them for good",
        "state_keep_for",
    ),
    Setting(
        "rollback_deadline",
        "state",
        DURATION,
        "how long a server may take to roll back",
        "state_rollback_deadline",
    ),
)
