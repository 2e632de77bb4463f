"""The table `[audit]`: the audit log."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from comity.config.fields import COUNT, DURATION_OR_NEVER, setting

type AuditArguments = Literal["none", "risky", "all"]
type CallAuditChoice = Literal["off", "deferred", "durable"]
type DangerousCallAuditChoice = Literal["deferred", "durable"]


@dataclass(frozen=True, slots=True)
class AuditSettings:
    node: str = setting("", "The name of this node's chain.")
    safe: CallAuditChoice = setting(
        "deferred",
        "When Comity records calls of risk safe: `deferred` writes one entry within "
        "flush_interval; `durable` writes before the call and before its answer; `off` never.",
    )
    moderate: CallAuditChoice = setting("deferred", "When Comity records calls of risk moderate.")
    dangerous: DangerousCallAuditChoice = setting(
        "durable", "When Comity records calls of risk dangerous; `off` is not possible."
    )
    arguments: AuditArguments = setting(
        "risky",
        "The calls whose arguments are kept, without secrets; a digest is kept of every call.",
    )
    key_file: str = setting("", "The file of the key that signs the log.")
    checkpoint_mirror: str = setting(
        "", "A file or URL elsewhere to which Comity copies every signature."
    )
    checkpoint_entries: int = setting(
        1_000, "The number of entries after which Comity signs the log.", COUNT
    )
    checkpoint_interval: timedelta = setting(
        timedelta(seconds=10), "How long an entry may stay unsigned."
    )
    retention: timedelta = setting(
        timedelta(0), "How long entries are kept; 0 keeps them for good.", DURATION_OR_NEVER
    )
    flush_interval: timedelta = setting(
        timedelta(milliseconds=100), "How soon the entry of a deferred call is on the disk."
    )
    write_timeout: timedelta = setting(
        timedelta(seconds=5), "How long a durable call waits for a store that does not answer."
    )
    max_queued: int = setting(
        10_000, "The number of entries that may wait for the store; then every call stops.", COUNT
    )
