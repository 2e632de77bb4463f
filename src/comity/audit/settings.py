"""The table `[journal]`: the audit log."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from comity.config.fields import COUNT, DURATION_OR_NEVER, setting

type JournalArguments = Literal["none", "risky", "all"]


@dataclass(frozen=True, slots=True)
class AuditSettings:
    node: str = setting("", "The name of this node's chain.")
    arguments: JournalArguments = setting(
        "risky",
        "The calls whose arguments are kept, without secrets; a digest is kept of every call.",
    )
    key_file: str = setting("", "The file of the key that signs the log.")
    checkpoint_file: str = setting(
        "", "A file or URL elsewhere to which Comity copies every signature."
    )
    checkpoint_every: int = setting(
        1_000, "The number of entries after which Comity signs the log.", COUNT
    )
    checkpoint_within: timedelta = setting(
        timedelta(seconds=10), "How long an entry may stay unsigned."
    )
    retention: timedelta = setting(
        timedelta(0), "How long entries are kept; 0 keeps them for good.", DURATION_OR_NEVER
    )
    durable_within: timedelta = setting(
        timedelta(milliseconds=100), "How soon the entry of a safe call is on the disk."
    )
    patience: timedelta = setting(
        timedelta(seconds=5), "How long a risky call waits for a store that does not answer."
    )
    most_waiting: int = setting(
        10_000, "The number of entries that may wait for the store; then every call stops.", COUNT
    )
